"""The Ray shell around a broker: a detached named actor that survives everything but its data dir.

What Ray does, and what follows (docs/design.md, "Brokers as actors"): an exception in ``__init__`` during a restart is
final, so none leaves it; a restart repeats the creation's arguments, so there is one, the broker's
directory, and the rest is read from there. ``ray.kill`` and node loss run no exit hooks: every end is a
crash unless :meth:`BrokerActor.stop` was answered. Control messages have a concurrency group of one thread,
because calls on a wider one arrive reordered; what brokers propose to the controller may come in any order.
"""

from __future__ import annotations

import logging
import os
import resource
import sys
import threading
from collections.abc import Iterable
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, RayError
from ray.util.metrics import Counter, Gauge

from raylog.broker.broker import Broker, Place
from raylog.broker.config import BROKER_RACK, BROKER_SETTINGS, ZOOKEEPER_SESSION_TIMEOUT_MS
from raylog.broker.events import EventLog, LoopEvents, line_formatter
from raylog.broker.launch.cluster_file import BrokerFile, actor_name
from raylog.broker.launch.log_writer import LogWriter
from raylog.broker.metrics import Kind, Metric, Sample
from raylog.coordination.control.peer_control import BrokerDied
from raylog.coordination.host.loops import Loops
from raylog.coordination.zookeeper.store import ZkStore
from raylog.protocol.errors import BrokerNotAvailable, RaylogError
from raylog.protocol.ids import BrokerId
from raylog.protocol.records import Batches
from raylog.protocol.texts import told

__all__ = ["BrokerActor", "RayPeerControl", "broker_actor_class"]

logger = EventLog(__name__)

SWITCH_INTERVAL_S = 1e-4
"""How long a thread keeps the interpreter while others wait: short, so that small requests pass big ones."""
FIRST_RETRY_S, LAST_RETRY_S = 0.1, 2.0
FIRST_ATTEMPT_S = 20.0
"""How long ``__init__`` waits for the logs to be recovered; what takes longer goes on behind it."""
CONTROL_TIMEOUT_S = 5.0
LOG_BYTES = 10 * 1024 * 1024
"""Size at which broker.log is begun anew; one former file is kept."""
METRICS_INTERVAL_S = 5.0
"""Time between two exports. Ray's agent forgets a gauge that it does not see for twice its own interval of ten
seconds.
"""
VITAL_THREAD_GONE = 70
"""The exit status of a process that ended because a thread of the broker had (EX_SOFTWARE)."""
CALLS_AT_ONCE = 16
"""Threads for produce, fetch and describe calls."""
PROPOSALS_AT_ONCE = 4
"""Threads for what brokers ask of the controller: a drain that waits must not hold up changes of ISRs."""


class RayPeerControl:
    """PeerControl by actor calls."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._handles: dict[BrokerId, Any] = {}

    def send(self, broker_id: BrokerId, payload: bytes) -> bytes:
        """Deliver and wait for the answer; BrokerNotAvailable without one (it may have arrived), BrokerDied when Ray
        knows that the actor's process is gone.
        """
        return self._call(broker_id, "control", payload)

    def propose(self, controller_id: BrokerId, payload: bytes) -> bytes:
        """Ask and wait for the answer; BrokerNotAvailable without one (it may have arrived)."""
        return self._call(controller_id, "propose", payload)

    def _call(self, broker_id: BrokerId, method: str, payload: bytes) -> bytes:
        try:
            handle = self._handles.get(broker_id)
            if handle is None:
                handle = ray.get_actor(actor_name(broker_id), namespace=self._namespace)
                self._handles[broker_id] = handle
            answer: Any = ray.get(getattr(handle, method).remote(payload), timeout=CONTROL_TIMEOUT_S)
        except (RayError, GetTimeoutError, ValueError) as error:
            self._handles.pop(broker_id, None)
            kind = BrokerDied if isinstance(error, ActorDiedError) else BrokerNotAvailable
            raise kind(f"broker {broker_id}: {_first_line(error)}") from error
        assert isinstance(answer, bytes)
        return answer


class RayMetrics:
    """Hands samples to Ray, which shows them as ``ray_NAME`` on each node's metrics endpoint.

    One thread calls it. A call of Ray's takes 1.5 to 3.5 µs, so it is made per sample and interval, never per request.
    """

    def __init__(self, broker: str) -> None:
        self._broker = broker
        self._metrics: dict[str, Any] = {}
        self._told: dict[tuple[str, tuple[str, ...]], float] = {}

    def publish(self, samples: Iterable[Sample]) -> None:
        """Tell the values as they are now; of counters, what came on top since the last time."""
        for metric, labels, value in samples:
            tags = {"broker": self._broker, **dict(zip(metric.labels, labels, strict=True))}
            if metric.kind is Kind.GAUGE:
                self._metric(metric).set(value, tags)
                continue
            before = self._told.get((metric.name, labels), 0)
            self._told[metric.name, labels] = value
            fresh = value - before if value >= before else value  # a broker that starts again counts from zero
            if fresh:
                self._metric(metric).inc(fresh, tags)

    def _metric(self, metric: Metric) -> Any:
        known = self._metrics.get(metric.name)
        if known is None:
            make = Gauge if metric.kind is Kind.GAUGE else Counter
            known = self._metrics[metric.name] = make(metric.name, metric.doc, ("broker", *metric.labels))
        return known


class BrokerActor:
    """One broker on its directory. Calls raise BrokerNotAvailable while it starts."""

    def __init__(self, broker_dir: str) -> None:
        """Begin to serve; what is in the way (a lock, a port, ZooKeeper) is tried again. Never raises."""
        self._log = _log_to(Path(broker_dir) / "broker.log")
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        _raise_file_limit()
        logger.info("broker starts", path=broker_dir, pid=os.getpid())
        self._dir = Path(broker_dir)
        self._broker: Broker | None = None
        self._trouble = ""
        self._stopped = threading.Event()
        self._opened = threading.Event()
        self._retry_s = FIRST_RETRY_S
        self._exporter = RayMetrics(self._dir.name)
        self._loops = Loops(LoopEvents(), on_gone=self._end_process)
        self._log.start(self._loops)
        self._loops.loop("start", self._serve, last_pause_s=LAST_RETRY_S).start()
        self._loops.loop("metrics", self._export, vital=False).start()
        self._opened.wait(FIRST_ATTEMPT_S)

    def _serve(self) -> bool:
        """One attempt; False once it serves, or is not to any more."""
        if self._stopped.is_set():
            return False
        try:
            self._broker = broker = self._load()
            broker.open()
            self._opened.set()  # joining needs control messages, which Ray delivers once __init__ is done
            broker.join()
            self._trouble = ""
            return False
        except RaylogError as error:
            self._trouble = str(error)
            logger.error("not serving yet, trying again", reason=error)
        except Exception as error:
            # A defect ends neither the actor nor its attempts: both would be final for Ray.
            self._trouble = told(error)
            raise
        finally:
            self._opened.set()
        self._stopped.wait(self._retry_s)
        self._retry_s = min(2 * self._retry_s, LAST_RETRY_S)
        return True

    def _export(self) -> bool:
        """Tell Ray the metrics; what goes wrong there is no reason to stop serving."""
        if self._stopped.wait(METRICS_INTERVAL_S):
            return False
        try:
            self._exporter.publish(self._serving().metrics())
        except BrokerNotAvailable:
            pass
        return True

    def _end_process(self, reason: str) -> None:
        """A thread has ended without which this broker must not serve: end as by a crash, and Ray starts it anew."""
        if not self._stopped.is_set():
            logger.error("broker ends, to be started anew", reason=reason)
            self._log.flush()
            os._exit(VITAL_THREAD_GONE)

    def _load(self) -> Broker:
        """A broker as its file describes it."""
        file = BrokerFile.load(self._dir)
        own = {"broker.id": str(file.broker_id), "zookeeper.connect": file.zookeeper}
        settings = BROKER_SETTINGS.settings({**file.settings, **own})
        context = ray.get_runtime_context()
        timeout_ms = settings[ZOOKEEPER_SESSION_TIMEOUT_MS]
        return Broker(
            settings,
            self._dir,
            store=ZkStore(file.zookeeper, auth=file.zookeeper_auth, session_timeout_ms=timeout_ms, loops=self._loops),
            peer_control=RayPeerControl(file.namespace),
            place=Place(file.host, context.get_node_id(), file.actor),
            loops=self._loops,
        )

    def produce(self, topic: str, partition: int, batch: bytes, acks: int = -1) -> tuple[int, int]:
        """Append a whole record batch: see Broker.produce."""
        return self._serving().produce(topic, partition, batch, acks)

    def fetch(self, topic: str, partition: int, offset: int, max_bytes: int) -> Batches:
        """Batches from ``offset`` on: see Broker.fetch."""
        return self._serving().fetch(topic, partition, offset, max_bytes)

    @ray.method(concurrency_group="control")
    def control(self, payload: bytes) -> bytes:
        """A message of the controller: see Broker.control."""
        return self._serving().control(payload)

    @ray.method(concurrency_group="proposals")
    def propose(self, payload: bytes) -> bytes:
        """What a broker asks of this one as the controller: see Broker.propose."""
        return self._serving().propose(payload)

    def describe(self) -> dict[str, Any]:
        """Broker.describe with its state: serving, or failed; or starting or stopped, and what is in the way."""
        if self._stopped.is_set():
            return {"state": "stopped", "trouble": ""}
        try:
            broker = self._serving()
            return {"state": "failed" if broker.failure else "serving", "trouble": "", **broker.describe()}
        except BrokerNotAvailable:
            return {"state": "starting", "trouble": self._trouble}

    def zookeeper_auth(self, connect: str) -> str:
        """The credentials for the ZooKeeper at ``connect``, for members of groups: they come over Ray, into which only
        those get who may run code on this node. "" when this broker uses another one, or it asks for none.
        """
        file = BrokerFile.load(self._dir)
        return file.zookeeper_auth if file.zookeeper == connect else ""

    def drain(self, timeout_s: float) -> list[tuple[str, int]]:
        """Let others lead, before this broker is stopped: see Broker.drain."""
        return [(tp.topic, tp.partition) for tp in self._serving().drain(timeout_s)]

    def cancel_drain(self, timeout_s: float) -> None:
        """Lead again: see Broker.cancel_drain."""
        self._serving().cancel_drain(timeout_s)

    def stop(self, drain: bool = True) -> None:
        """Stop in an orderly way, for good: see Broker.stop. The actor can be killed once this is answered.

        ``drain=False``: all brokers of the cluster stop now, and nobody is to lead instead.
        """
        self._stopped.set()
        if self._broker is not None:
            self._broker.stop(drain=drain)

    def __repr__(self) -> str:
        """What Ray's dashboard and logs call this actor. Ray asks once, when ``__init__`` is done."""
        try:
            broker = self._serving()
            where = f"{broker.address} on {broker.settings[BROKER_RACK]}"
            return f"Broker({broker.broker_id} at {where}, {broker.log_count} partitions)"
        except BrokerNotAvailable:
            return f"Broker({self._dir.name}, not serving)"

    def _serving(self) -> Broker:
        if self._broker is None:
            trouble = self._trouble or "it is starting"
            raise BrokerNotAvailable(f"the broker in {self._dir} does not serve: {trouble}")
        return self._broker


_remote: Any = ray.remote  # its types know neither concurrency groups nor actor threads
broker_actor_class: Any = _remote(
    concurrency_groups={"control": 1, "proposals": PROPOSALS_AT_ONCE},
    max_concurrency=CALLS_AT_ONCE,
    max_restarts=-1,
    max_task_retries=0,
    num_cpus=0,
)(BrokerActor)
"""BrokerActor as Ray makes it: restarted for ever, no call ever repeated, and no CPU taken from the jobs."""


def _log_to(path: Path) -> LogWriter:
    """Log to Ray's file of this process, and to one that outlives it; without that one when it cannot be made.

    A broker's directory is named after its number.
    """
    handlers: list[logging.Handler] = [logging.StreamHandler()]
    trouble = ""
    try:
        handlers.append(RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=1))
    except OSError as error:
        trouble = str(error)
    for handler in handlers:
        handler.setFormatter(line_formatter(path.parent.name))
    writer = LogWriter(handlers)
    logging.basicConfig(level=logging.INFO, handlers=[writer], force=True)
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    if trouble:
        logger.warning("logging to Ray's files only", reason=trouble)
    return writer


def _raise_file_limit() -> None:
    """Allow as many open files as the system lets us: every segment and every connection is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
