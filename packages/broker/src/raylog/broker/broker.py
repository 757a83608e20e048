"""The broker's composition root: storage, server and coordination in one process, without Ray."""

from __future__ import annotations

import os
import secrets
import threading
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raylog.broker import listeners
from raylog.broker.config import (
    BROKER_ID,
    BROKER_RACK,
    BROKER_SETTINGS,
    LOG_DIRS,
    MAX_FETCH_SESSIONS,
)
from raylog.broker.controller_runtime import ControllerRuntime
from raylog.broker.dynamic_config import broker_settings, check_topic_overrides, topic_defaults
from raylog.broker.events import EventLog
from raylog.broker.handlers.context import Ports
from raylog.broker.handlers.fetch_sessions import FetchSessions
from raylog.broker.membership import Membership
from raylog.broker.metrics import Facts, Sample, samples
from raylog.broker.net.liveness import SessionsOnly
from raylog.broker.net.server import SocketServer
from raylog.broker.partitions import PartitionTable
from raylog.broker.ports import ControllerTopics, StoredConfigs, StoredProducerIds
from raylog.broker.replication.delayed import DelayedFetches
from raylog.broker.storage.files import FileSystem, RealFileSystem
from raylog.broker.storage.log_dirs import LogDirs
from raylog.coordination.controller import TopicDefaults
from raylog.coordination.model import BrokerInfo, ClusterState, Endpoint
from raylog.coordination.paths import decode_topic_id
from raylog.coordination.peer_control import PeerControl
from raylog.coordination.producer_ids import ProducerIdAllocator
from raylog.coordination.registration import BrokerRegistration, SessionFile, ensure_cluster
from raylog.coordination.store import MetadataStore
from raylog.protocol.errors import (
    BrokerNotAvailable,
    InvalidRequiredAcks,
    RaylogError,
    RequestTimedOut,
)
from raylog.protocol.ids import (
    BrokerEpoch,
    BrokerId,
    Offset,
    PartitionIndex,
    TimestampMs,
    TopicName,
    TopicPartition,
)
from raylog.protocol.records import Batches
from raylog.protocol.settings import Settings

__all__ = ["Broker", "Place"]

logger = EventLog(__name__)

MAINTENANCE_INTERVAL_S = 1.0
START_TIMEOUT_S = 30.0
"""How long a start waits for the controller's first word."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a broker runs."""

    host: str = "127.0.0.1"
    """The node's address, for listeners that take connections at all addresses."""
    node: str = ""
    """The Ray node's id, or "" without Ray."""
    actor: str = ""
    """The Ray actor's name, or "" without Ray."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a running broker consists of."""

    cluster_id: str
    endpoints: tuple[Endpoint, ...]
    log_dirs: LogDirs
    partitions: PartitionTable
    membership: Membership
    controller: ControllerRuntime
    topics: ControllerTopics
    server: SocketServer
    ports: Ports


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
    ) -> None:
        """``settings``: of BROKER_SETTINGS, `broker.id` set; ``store``: not started, becomes the broker's."""
        overrides = dict(settings.overrides)
        overrides.setdefault(LOG_DIRS.name, (str(data_dir / "log"),))
        self.settings = Settings(BROKER_SETTINGS, overrides)
        self.broker_id = BrokerId(self.settings[BROKER_ID])
        self._data_dir = data_dir
        self._store = store
        self._peer_control = peer_control
        self._fs = fs or RealFileSystem()
        self._place = place or Place()
        self._parts: _Parts | None = None
        self._serving = False
        self._stack = ExitStack()
        self._stopping = threading.Event()

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
            self._parts = self._open()
        except BaseException:
            self.stop()
            raise

    def join(self) -> None:
        """Register, and serve once the controller said what to lead; returns once clients can connect.

        Raises RaylogError like :meth:`open`. Messages must reach :meth:`control` meanwhile.
        """
        try:
            self._join(self._opened())
        except BaseException:
            self.stop()
            raise

    def _open(self) -> _Parts:
        self._data_dir.mkdir(parents=True, exist_ok=True)
        stopping = self._stack
        stopping.callback(self._store.close)
        self._store.start()
        cluster_id = ensure_cluster(self._store, _new_cluster_id())
        log_dirs = LogDirs(self.settings, self._fs, cluster_id, self.broker_id)
        delayed = DelayedFetches(threading.Lock())
        table = PartitionTable(self.broker_id, cluster_id, self.settings, log_dirs, delayed, _now_ms)
        registration = BrokerRegistration(self._store, SessionFile(self._data_dir / "session.json"))
        membership = Membership(self._store, registration, table)
        controller = ControllerRuntime(
            self.broker_id,
            self._store,
            self._peer_control,
            SessionsOnly(),
            defaults=self._topic_defaults,
            check_configs=check_topic_overrides,
        )
        topics = ControllerTopics(controller, table.state)
        ports = Ports(
            partitions=table,
            cluster=table,
            topics=topics,
            producer_ids=StoredProducerIds(ProducerIdAllocator(self._store, self.broker_id)),
            configs=table,
            config_admin=StoredConfigs(self._store, table),
            lease=membership,
            delayed=delayed,
            fetch_sessions=FetchSessions(
                self.settings[MAX_FETCH_SESSIONS], delayed, new_id=_new_session_id, lock=threading.Lock()
            ),
            log_dirs=log_dirs,
            now_ms=_now_ms,
        )
        # Stopping goes the other way round: the broker signs off once its logs are closed.
        stopping.callback(membership.stop)
        log_dirs.open(_now_ms())
        stopping.callback(_close_logs, log_dirs, membership)
        server = listeners.bind(self.settings, ports, self._data_dir / "ports.json")
        stopping.callback(table.resign_all)
        stopping.callback(server.stop)
        endpoints = listeners.endpoints(self.settings, server.endpoints, self._place.host)
        return _Parts(cluster_id, endpoints, log_dirs, table, membership, controller, topics, server, ports)

    def _join(self, parts: _Parts) -> None:
        stopping, table = self._stack, parts.partitions
        parts.membership.start(self._registration(parts))
        stopping.callback(parts.controller.stop)
        parts.controller.start()
        if not table.wait_synced(START_TIMEOUT_S):
            raise RequestTimedOut(
                f"broker {self.broker_id} heard nothing from the controller (broker {table.controller_id}) "
                f"within {START_TIMEOUT_S:g} s"
            )
        parts.server.start()
        maintenance = threading.Thread(target=self._maintain, name="maintenance", daemon=True)
        stopping.callback(maintenance.join)
        stopping.callback(self._stopping.set)
        maintenance.start()
        self._serving = True
        where = ",".join(map(str, parts.endpoints))
        logger.info("broker serves", broker_epoch=parts.membership.epoch, listeners=where)

    def stop(self) -> None:
        """Stop in an orderly way: answer what is under way, flush, mark the clean stop, sign off."""
        self._serving = False
        self._stack.close()
        self._parts = None

    def _topic_defaults(self, state: ClusterState) -> TopicDefaults:
        return topic_defaults(broker_settings(self.settings, self.broker_id, state.broker_configs))

    def _registration(self, parts: _Parts) -> BrokerInfo:
        return BrokerInfo(
            id=self.broker_id,
            epoch=BrokerEpoch(-1),
            endpoints=parts.endpoints,
            rack=self.settings[BROKER_RACK] or None,
            node=self._place.node,
            actor=self._place.actor,
            directory_ids=tuple(map(decode_topic_id, parts.log_dirs.directory_ids().values())),
        )

    def _maintain(self) -> None:
        log_dirs = self._opened().log_dirs
        while not self._stopping.wait(MAINTENANCE_INTERVAL_S):
            try:
                log_dirs.maintain(_now_ms(), time.monotonic_ns() // 1_000_000)
            except RaylogError as error:
                logger.error("housekeeping failed", reason=error)

    # --- the ways in besides the socket ---

    @property
    def endpoints(self) -> Mapping[str, tuple[str, int]]:
        """The advertised host and port of each listener, by its name."""
        return {endpoint.listener: (endpoint.host, endpoint.port) for endpoint in self._opened().endpoints}

    @property
    def address(self) -> str:
        """``host:port`` of the first listener: what goes into a client's bootstrap_servers."""
        endpoint = self._opened().endpoints[0]
        return f"{endpoint.host}:{endpoint.port}"

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

    def metrics(self) -> list[Sample]:
        """What there is to tell at this moment: see metrics."""
        parts = self._running()
        facts = Facts(
            counters=parts.server.counters(),
            connections=parts.server.connections(),
            state=parts.partitions.state(),
            led=parts.partitions.led(),
            logs=self.log_count,
            offline_log_dirs=len(parts.log_dirs.offline()),
            waiting_fetches=parts.ports.delayed.waiting,
            fetch_sessions=len(parts.ports.fetch_sessions),
            fetch_session_partitions=parts.ports.fetch_sessions.partition_count,
            is_controller=parts.controller.is_active,
        )
        return list(samples(facts))

    def produce(self, topic: str, partition: int, batch: bytes, acks: int = -1) -> tuple[Offset, Offset]:
        """Append a whole record batch; the offsets of the first and the last record.

        ``acks`` is as in Kafka: -1 all in-sync replicas, 1 the leader, 0 nobody; with one replica they are
        the same, and an actor call always answers. Raises what Partition.append raises, and
        NotLeaderOrFollower without a lease.
        """
        if acks not in (-1, 0, 1):
            raise InvalidRequiredAcks(f"acks={acks} must be -1 (all), 0 or 1")
        parts = self._running()
        tp = TopicPartition(TopicName(topic), PartitionIndex(partition))
        parts.membership.check()
        info = parts.partitions.get(tp).append(memoryview(bytearray(batch)), now_ms=_now_ms())
        parts.membership.check()
        return info.base_offset, info.last_offset

    def fetch(self, topic: str, partition: int, offset: int, max_bytes: int) -> Batches:
        """The batches from ``offset`` on, undecoded, with the high watermark; none when there is nothing yet.

        Raises what Partition.read raises, and NotLeaderOrFollower without a lease.
        """
        parts = self._running()
        tp = TopicPartition(TopicName(topic), PartitionIndex(partition))
        parts.membership.check()
        found = parts.partitions.get(tp).read(Offset(offset), max_bytes)
        data = b""
        if found.data is not None:
            try:
                data = found.data.read()
            finally:
                found.data.release()
        parts.membership.check()
        return Batches(data, found.high_watermark, offset)

    def control(self, payload: bytes) -> bytes:
        """A message from the controller (see peer_control) and its answer."""
        return self._opened().partitions.control(payload)

    def describe(self) -> dict[str, Any]:
        """What `raylog status` and the dashboard tell of this broker: plain values only."""
        parts = self._running()
        log_dirs = self.settings[LOG_DIRS]
        host, port = parts.endpoints[0].host, parts.endpoints[0].port
        return {
            "id": self.broker_id,
            "host": host,
            "port": port,
            "listeners": {endpoint.listener: f"{endpoint.host}:{endpoint.port}" for endpoint in parts.endpoints},
            "listening": {listener.name: f"{listener.host}:{listener.port}" for listener in parts.server.endpoints},
            "time_ms": _now_ms(),
            "node": self._place.node,
            "rack": self.settings[BROKER_RACK],
            "pid": os.getpid(),
            "partitions": len(parts.partitions.led()),
            "data_dir": str(self._data_dir),
            "log_dirs": list(log_dirs),
            "offline_log_dirs": dict(parts.log_dirs.offline()),
            "missing_log_dirs": list(parts.membership.missing_directories),
            "cluster_id": parts.cluster_id,
            "controller_id": parts.partitions.controller_id,
            "broker_epoch": parts.membership.epoch,
            "live_brokers": sorted(parts.partitions.state().brokers),
            "lease_held": parts.membership.lease_held,
            "trouble": parts.membership.trouble,
        }

    @property
    def log_count(self) -> int:
        """How many partitions are on this broker's disks, from :meth:`open` on."""
        return len(self._opened().log_dirs.partitions())

    def _opened(self) -> _Parts:
        if self._parts is None:
            raise BrokerNotAvailable(f"broker {self.broker_id} is starting or has stopped")
        return self._parts

    def _running(self) -> _Parts:
        if not self._serving:
            raise BrokerNotAvailable(f"broker {self.broker_id} is starting or stopping")
        return self._opened()


def _close_logs(log_dirs: LogDirs, membership: Membership) -> None:
    log_dirs.close(membership.epoch)


def _new_cluster_id() -> str:
    """Sixteen random bytes as Kafka writes them: URL-safe base64 without padding."""
    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _new_session_id() -> int:
    return 1 + secrets.randbelow(2**31 - 1)


def _now_ms() -> TimestampMs:
    return TimestampMs(time.time_ns() // 1_000_000)
