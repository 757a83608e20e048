"""The broker's composition root: storage, server and coordination in one process, without Ray."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from raylog.broker import direct
from raylog.broker.cluster.ports import ControllerTopics
from raylog.broker.config import BROKER_ID, BROKER_RACK, BROKER_SETTINGS, LOG_DIRS, LOG_SCRUB_BYTES_PER_SECOND
from raylog.broker.events import EventLog, LoopEvents
from raylog.broker.metrics import Facts, Sample, samples
from raylog.broker.partition.table import PartitionTable
from raylog.broker.parts import Parts, Place, open_parts, registration_of
from raylog.broker.storage.directories.scrub import Scrubber, unread_bytes
from raylog.broker.storage.disk.files import FileSystem, RealFileSystem
from raylog.coordination.control.peer_control import PeerControl
from raylog.coordination.host.clocks import monotonic_ms, wall_ms
from raylog.coordination.host.loops import Loops
from raylog.coordination.store import unreadable
from raylog.coordination.store.port import MetadataStore
from raylog.protocol.errors import BrokerNotAvailable, RaylogError, RequestTimedOut
from raylog.protocol.ids import BrokerEpoch, BrokerId, Offset, TopicPartition
from raylog.protocol.records import Batches
from raylog.protocol.settings import Settings
from raylog.protocol.texts import host_port

__all__ = ["Broker", "Place"]

logger = EventLog(__name__)

MAINTENANCE_INTERVAL_S = 1.0
START_TIMEOUT_S = 30.0
"""How long a start waits for the controller's first word."""
DRAIN_TIMEOUT_S = 3.0
"""How long a broker that stops waits until others lead."""


class Broker:
    """One broker, from one start to one stop; a later start takes a new object.

    Everything it keeps is below ``data_dir``: ``session.json``, ``ports.json``, and ``log/`` unless
    `log.dirs` says otherwise.
    """

    def __init__(
        self,
        settings: Settings,
        data_dir: Path,
        *,
        store: MetadataStore,
        peer_control: PeerControl,
        fs: FileSystem | None = None,
        place: Place | None = None,
        loops: Loops | None = None,
    ) -> None:
        """``settings``: of BROKER_SETTINGS, `broker.id` set; ``store``: not started, becomes the broker's; ``loops``:
        hears what becomes of its threads.
        """
        overrides = dict(settings.overrides)
        overrides.setdefault(LOG_DIRS.name, (str(data_dir / "log"),))
        self.settings = Settings(BROKER_SETTINGS, overrides)
        self.broker_id = BrokerId(self.settings[BROKER_ID])
        self._data_dir = data_dir
        self._store = store
        self._peer_control = peer_control
        self._fs = fs or RealFileSystem()
        self._place = place or Place()
        self._loops = loops or Loops(LoopEvents())
        self._parts: Parts | None = None
        self._serving = False
        self._stack = ExitStack()

    # --- life ---

    def start(self) -> None:
        """:meth:`open`, then :meth:`join`."""
        self.open()
        self.join()

    def open(self) -> None:
        """Everything that needs no other broker: recover the logs and take the ports.

        Raises RaylogError in one sentence (a log dir in use, a port in use, a second broker of this id, no
        metadata store, …) after undoing what was begun.
        """
        try:
            self._parts = open_parts(
                self.settings,
                self._data_dir,
                self._store,
                self._peer_control,
                self._fs,
                self._place,
                self._loops,
                self._stack,
            )
        except BaseException:
            self.stop(drain=False)
            raise

    def join(self) -> None:
        """Register, and serve once the controller said what to lead; returns once clients can connect.

        Raises RaylogError like :meth:`open`. Messages must reach :meth:`control` meanwhile.
        """
        try:
            self._join(self._opened())
        except BaseException:
            self.stop(drain=False)
            raise

    def _join(self, parts: Parts) -> None:
        stopping, table = self._stack, parts.partitions
        parts.membership.start(registration_of(parts, self._place))
        parts.log_dirs.loss_told()
        stopping.callback(parts.controller.stop)
        parts.controller.start()
        if not table.wait_synced(START_TIMEOUT_S):
            raise RequestTimedOut(
                f"broker {self.broker_id} heard nothing from the controller (broker {table.controller_id}) "
                f"within {START_TIMEOUT_S:g} s"
            )
        parts.isr_changes.start()
        parts.groups.start()
        parts.server.start()
        scrubber = Scrubber(
            parts.log_dirs.all_logs,
            lambda: table.broker()[LOG_SCRUB_BYTES_PER_SECOND],
            parts.isr_changes.look_now,
        )
        over = threading.Event()
        work = [
            self._loops.loop("maintenance", partial(self._maintain, over), last_pause_s=MAINTENANCE_INTERVAL_S),
            self._loops.loop("scrubber", partial(scrubber.turn, over), vital=False),
            self._loops.loop("group-upkeep", partial(parts.upkeep.turn, over), vital=False),
            self._loops.loop("group-keeper", partial(parts.groups.keeper.turn, over), vital=False),
        ]
        for loop in work:
            stopping.callback(loop.join)
        for loop in work:
            stopping.callback(loop.stop)
        stopping.callback(over.set)
        for loop in work:
            loop.start()
        self._serving = True
        where = ",".join(map(str, parts.endpoints))
        logger.info("broker serves", broker_epoch=parts.membership.epoch, listeners=where)

    def stop(self, *, drain: bool = True) -> None:
        """Stop in an orderly way: let others lead, answer what is under way, flush, mark the clean stop, sign off.

        ``drain=False``: lead to the end, for all brokers of the cluster stop now.
        """
        if drain and self._serving:
            self._drain_to_stop()
        self._serving = False
        self._stack.close()
        self._parts = None

    def drain(self, timeout_s: float) -> Sequence[TopicPartition]:
        """Let others lead what this broker leads; what nobody else can lead is answered (see draining)."""
        return self._running().draining.drain(timeout_s)

    def cancel_drain(self, timeout_s: float) -> None:
        """Lead again, and be in ISRs."""
        self._running().draining.cancel(timeout_s)

    def _drain_to_stop(self) -> None:
        """As far as it goes within its time: a broker that must stop does not wait for a controller that hangs."""
        parts = self._joined()
        if set(parts.partitions.state().brokers) <= {self.broker_id} or not parts.membership.lease_held:
            return  # there is nobody to lead instead, or nobody to ask

        def drain() -> None:
            try:
                parts.draining.drain(DRAIN_TIMEOUT_S)
            except RaylogError as error:
                logger.warning("broker stops without being drained", reason=error)

        self._loops.once("drain", drain).join(DRAIN_TIMEOUT_S)

    def _maintain(self, over: threading.Event) -> bool:
        """One round of housekeeping, after a while; False when ``over`` is set meanwhile."""
        if over.wait(MAINTENANCE_INTERVAL_S):
            return False
        parts = self._opened()
        self._loops.guarded("maintenance", parts.draining.keep)
        self._loops.guarded("maintenance", parts.partitions.retry)
        parts.log_dirs.maintain(wall_ms(), monotonic_ms())
        return True

    # --- the ways in besides the socket ---

    @property
    def endpoints(self) -> Mapping[str, tuple[str, int]]:
        """The advertised host and port of each listener, by its name."""
        return {endpoint.listener: (endpoint.host, endpoint.port) for endpoint in self._opened().endpoints}

    @property
    def address(self) -> str:
        """``host:port`` of the first listener: what goes into a client's bootstrap_servers."""
        endpoint = self._opened().endpoints[0]
        return host_port(endpoint.host, endpoint.port)

    @property
    def partitions(self) -> PartitionTable:
        """The local partitions and the cluster's state."""
        return self._running().partitions

    @property
    def topics(self) -> ControllerTopics:
        """Creates and deletes topics where this broker is the controller."""
        return self._running().topics

    @property
    def is_controller(self) -> bool:
        """True while this broker is the controller, as far as it knows."""
        return self._running().controller.is_active

    def take_for_dead(self, broker_id: BrokerId, epoch: BrokerEpoch) -> None:
        """Take a hint that another broker's process, in this incarnation, is gone (D9). Does not block."""
        self._running().controller.calls.seems_dead(broker_id, epoch)

    def reconcile(self) -> None:
        """Where this broker is the controller: compare with the metadata store now. Does not block."""
        self._running().controller.calls.reconcile()

    def metrics(self) -> list[Sample]:
        """What there is to tell at this moment: see metrics."""
        parts = self._joined()
        facts = Facts(
            counters=parts.server.counters(),
            connections=parts.server.connections(),
            state=parts.partitions.state(),
            led=parts.partitions.led(),
            logs=self.log_count,
            followed=parts.partitions.followed(),
            group_lags=parts.upkeep.lags.lags(),
            coordinated_groups=parts.groups.held_count,
            leader_ends=parts.fetchers.leader_ends(),
            replication_bytes_in=parts.fetchers.bytes_in(),
            isr_shrinks=parts.isr_changes.shrinks,
            isr_expands=parts.isr_changes.expands,
            isr_failures=parts.isr_changes.failures,
            offline_log_dirs=len(parts.log_dirs.offline()),
            unread_bytes=sum(map(unread_bytes, parts.log_dirs.all_logs())),
            damaged=len(parts.partitions.damaged()),
            failed_partitions=len(parts.partitions.failures()),
            waiting_produces=parts.ports.produces.waiting,
            waiting_fetches=parts.ports.delayed.waiting,
            fetch_sessions=len(parts.ports.fetch_sessions),
            fetch_session_partitions=parts.ports.fetch_sessions.partition_count,
            is_controller=parts.controller.is_active,
            thread_failures=self._loops.failures(),
            unreadable_nodes=unreadable.told_count(),
            failing_threads=len(self._loops.troubles()),
        )
        return list(samples(facts))

    def produce(self, topic: str, partition: int, batch: bytes, acks: int = -1) -> tuple[Offset, Offset]:
        """Append a whole record batch; the offsets of the first and the last record (see direct)."""
        return direct.produce(self._running().ports, topic, partition, batch, acks)

    def fetch(self, topic: str, partition: int, offset: int, max_bytes: int) -> Batches:
        """The batches from ``offset`` on, undecoded, with the high watermark (see direct)."""
        return direct.fetch(self._running().ports, topic, partition, offset, max_bytes)

    def control(self, payload: bytes) -> bytes:
        """A message from the controller (see peer_control) and its answer."""
        return self._opened().partitions.control(payload)

    def propose(self, payload: bytes) -> bytes:
        """A broker's proposal to this one as the controller (see proposals) and its answer."""
        return self._opened().controller.calls.propose(payload)

    def describe(self) -> dict[str, Any]:
        """What `raylog status` and the dashboard tell of this broker: plain values only."""
        parts = self._joined()
        failing = self._loops.troubles()
        log_dirs = self.settings[LOG_DIRS]
        host, port = parts.endpoints[0].host, parts.endpoints[0].port
        return {
            "id": self.broker_id,
            "host": host,
            "port": port,
            "listeners": {at.listener: host_port(at.host, at.port) for at in parts.endpoints},
            "listening": {at.name: host_port(at.host, at.port) for at in parts.server.endpoints},
            "time_ms": wall_ms(),
            "node": self._place.node,
            "rack": self.settings[BROKER_RACK],
            "pid": os.getpid(),
            "partitions": len(parts.partitions.led()),
            "data_dir": str(self._data_dir),
            "log_dirs": list(log_dirs),
            "offline_log_dirs": dict(parts.log_dirs.offline()),
            "unread_bytes": sum(map(unread_bytes, parts.log_dirs.all_logs())),
            "damaged": {str(tp): str(found.log.damage) for tp, found in parts.partitions.damaged().items()},
            "failed_partitions": {str(tp): reason for tp, reason in parts.partitions.failures().items()},
            "missing_log_dirs": list(parts.membership.missing_directories),
            "cluster_id": parts.cluster_id,
            "controller_id": parts.partitions.controller_id,
            "broker_epoch": parts.membership.epoch,
            "live_brokers": sorted(parts.partitions.state().unfenced),
            "lease_held": parts.membership.lease_held,
            "trouble": "; ".join(
                (
                    *filter(None, [parts.membership.trouble]),
                    *(f"thread {name}: {reason}" for name, reason in failing.items()),
                )
            ),
            "failing_threads": dict(failing),
        }

    @property
    def failure(self) -> str:
        """Which thread has ended without which this broker must not serve; empty while all is well."""
        return self._loops.failure

    @property
    def log_count(self) -> int:
        """How many partitions are on this broker's disks, from :meth:`open` on."""
        return len(self._opened().log_dirs.partitions())

    def _opened(self) -> Parts:
        if self._parts is None:
            raise BrokerNotAvailable(f"broker {self.broker_id} is starting or has stopped")
        return self._parts

    def _running(self) -> Parts:
        if self._loops.failure:
            raise BrokerNotAvailable(f"broker {self.broker_id} has failed: {self._loops.failure}")
        return self._joined()

    def _joined(self) -> Parts:
        if not self._serving:
            raise BrokerNotAvailable(f"broker {self.broker_id} is starting or stopping")
        return self._opened()
