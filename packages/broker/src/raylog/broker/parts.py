"""What a broker consists of, and how the parts hang together: storage, server, replication and coordination."""

from __future__ import annotations

import secrets
import threading
import uuid
from base64 import urlsafe_b64encode
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from raylog.broker.cluster.controller_runtime import ControllerRuntime
from raylog.broker.cluster.draining import Draining
from raylog.broker.cluster.liveness import BrokerLiveness, SessionsOnly
from raylog.broker.cluster.membership import Membership
from raylog.broker.cluster.ports import ControllerTopics, StoredConfigs, StoredProducerIds
from raylog.broker.config import BROKER_ID, BROKER_RACK, LIVENESS_HINTS, MAX_FETCH_SESSIONS, REPLICA_LAG_TIME_MAX_MS
from raylog.broker.dynamic_config import (
    broker_settings,
    check_topic_overrides,
    election_rules,
    group_rules,
    rebalance_of,
    topic_defaults,
)
from raylog.broker.groups.coordinator import GroupCoordinator
from raylog.broker.groups.offsets.upkeep import GroupUpkeep
from raylog.broker.handlers.context import Ports
from raylog.broker.handlers.fetch_sessions import FetchSessions
from raylog.broker.net import listeners
from raylog.broker.net.server import SocketServer
from raylog.broker.partition.table import PartitionTable
from raylog.broker.replicas.fetchers import ReplicaFetchers
from raylog.broker.replicas.isr_changes import IsrChanges
from raylog.broker.replication.delayed import DelayedFetches
from raylog.broker.replication.delayed_operations import DelayedOperations
from raylog.broker.replication.quota import ReplicationQuota
from raylog.broker.storage.directories.clock import RetentionClock
from raylog.broker.storage.directories.log_dirs import LogDirs
from raylog.broker.storage.disk.files import FileSystem
from raylog.coordination.control.peer_control import PeerControl
from raylog.coordination.host.clocks import monotonic_ms, wall_ms
from raylog.coordination.host.loops import Loops
from raylog.coordination.host.private_files import close_to_others, private_directory
from raylog.coordination.host.processes import machine_boot_id
from raylog.coordination.membership.lease import Lease
from raylog.coordination.membership.registration import (
    BrokerRegistration,
    SessionFile,
    ensure_cluster,
)
from raylog.coordination.metadata.model import BrokerInfo, ClusterState, Endpoint
from raylog.coordination.metadata.paths import decode_topic_id
from raylog.coordination.metadata.producer_ids import ProducerIdAllocator
from raylog.coordination.store.port import MetadataStore
from raylog.protocol.ids import BrokerEpoch, BrokerId
from raylog.protocol.settings import Settings

__all__ = ["Parts", "Place", "open_parts", "registration_of"]


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
class Parts:
    """What a running broker consists of."""

    settings: Settings
    cluster_id: str
    endpoints: tuple[Endpoint, ...]
    log_dirs: LogDirs
    partitions: PartitionTable
    fetchers: ReplicaFetchers
    isr_changes: IsrChanges
    draining: Draining
    groups: GroupCoordinator
    upkeep: GroupUpkeep
    membership: Membership
    controller: ControllerRuntime
    topics: ControllerTopics
    server: SocketServer
    ports: Ports


def open_parts(
    settings: Settings,
    data_dir: Path,
    store: MetadataStore,
    peer_control: PeerControl,
    fs: FileSystem,
    place: Place,
    loops: Loops,
    stopping: ExitStack,
) -> Parts:
    """Start the store, recover the logs and take the ports; ``stopping`` learns what must be undone, in which order.

    Raises RaylogError in one sentence, with ``stopping`` holding what was begun by then.
    """
    broker_id = BrokerId(settings[BROKER_ID])
    private_directory(data_dir)
    stopping.callback(store.close)
    store.start()
    cluster_id = ensure_cluster(store, _new_cluster_id())
    log_dirs = LogDirs(settings, fs, cluster_id, broker_id)
    for directory in log_dirs.dirs:
        with suppress(OSError):  # not there yet, or on a failing disk, which opening it tells
            close_to_others(directory.path)
    log_dirs.open(wall_ms())
    stopping.callback(log_dirs.abandon)
    delayed = DelayedFetches(threading.Lock())
    produces, deletes = DelayedOperations(threading.Lock()), DelayedOperations(threading.Lock())
    fetchers = ReplicaFetchers(settings, wall_ms, loops)
    table = PartitionTable(broker_id, cluster_id, settings, log_dirs, delayed, produces, deletes, fetchers, wall_ms)
    registration = BrokerRegistration(
        store, SessionFile(data_dir / "session.json"), boot_id=machine_boot_id(), lost_data=log_dirs.lost_data
    )
    membership = Membership(store, registration, table, loops, lease=Lease())
    isr_changes = IsrChanges(table, peer_control, lambda: membership.epoch, settings[REPLICA_LAG_TIME_MAX_MS], loops)
    draining = Draining(table, peer_control, lambda: membership.epoch)
    table.on_caught_up = isr_changes.caught_up
    fetchers.epoch, fetchers.settings = (lambda: membership.epoch), table.broker
    log_dirs.on_offline = isr_changes.look_now

    def in_force(state: ClusterState) -> Settings:
        return broker_settings(settings, broker_id, state.broker_configs)

    controller = ControllerRuntime(
        broker_id,
        store,
        peer_control,
        defaults=lambda state: topic_defaults(in_force(state)),
        check_configs=check_topic_overrides,
        rules=election_rules(settings, broker_id),
        rebalance=lambda state: rebalance_of(in_force(state)),
        silence_ms=max(store.session_timeout_ms, settings[REPLICA_LAG_TIME_MAX_MS]),
        told=table.state,
        loops=loops,
    )
    liveness = (
        BrokerLiveness(broker_id, controller.calls.seems_dead, loops) if settings[LIVENESS_HINTS] else SessionsOnly()
    )
    stopping.callback(liveness.stop)
    table.on_brokers = liveness.watch
    topics = ControllerTopics(controller.calls, table.state, loops)
    groups = GroupCoordinator(
        broker_id,
        store,
        epoch=lambda: membership.epoch,
        cluster=table.state,
        may_act=lambda: membership.lease_held,
        rules=group_rules(settings),
        settings=table.broker,
        loops=loops,
    )
    ages = RetentionClock(wall_ms(), monotonic_ms())
    upkeep = GroupUpkeep(
        store,
        groups,
        table.led,
        state=table.state,
        settings=table.broker,
        now_ms=monotonic_ms,
        age_ms=lambda: ages.now_ms(wall_ms(), monotonic_ms()),
        loops=loops,
    )
    ports = Ports(
        partitions=table,
        cluster=table,
        topics=topics,
        producer_ids=StoredProducerIds(ProducerIdAllocator(store, broker_id)),
        configs=table,
        config_admin=StoredConfigs(store, table),
        lease=membership,
        groups=groups,
        delayed=delayed,
        produces=produces,
        deletes=deletes,
        leader_quota=ReplicationQuota(threading.Lock()),
        fetch_sessions=FetchSessions(
            settings[MAX_FETCH_SESSIONS], delayed, new_id=_new_session_id, new_lock=threading.Lock
        ),
        log_dirs=log_dirs,
        wall_ms=wall_ms,
        monotonic_ms=monotonic_ms,
    )
    # Stopping goes the other way round: the broker signs off once its logs are closed.
    stopping.callback(membership.stop)
    stopping.callback(_close_logs, log_dirs, membership)
    server = listeners.bind(settings, ports, data_dir / "ports.json", loops)
    stopping.callback(isr_changes.stop)
    stopping.callback(fetchers.stop)
    stopping.callback(table.resign_all)
    stopping.callback(server.stop)
    stopping.callback(groups.stop)
    stopping.callback(membership.leave)
    endpoints = listeners.endpoints(settings, server.endpoints, place.host)
    return Parts(
        settings, cluster_id, endpoints, log_dirs, table, fetchers, isr_changes, draining, groups, upkeep, membership,
        controller, topics, server, ports,
    )  # fmt: skip


def registration_of(parts: Parts, place: Place) -> BrokerInfo:
    """What the broker registers as; its epoch comes with the registration."""
    return BrokerInfo(
        id=BrokerId(parts.settings[BROKER_ID]),
        epoch=BrokerEpoch(-1),
        endpoints=parts.endpoints,
        rack=parts.settings[BROKER_RACK] or None,
        node=place.node,
        actor=place.actor,
        directory_ids=tuple(map(decode_topic_id, parts.log_dirs.directory_ids().values())),
        clean_stop=parts.log_dirs.was_stopped_cleanly,
    )


def _close_logs(log_dirs: LogDirs, membership: Membership) -> None:
    log_dirs.close(membership.epoch)


def _new_cluster_id() -> str:
    """Sixteen random bytes as Kafka writes them: URL-safe base64 without padding."""
    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _new_session_id() -> int:
    return 1 + secrets.randbelow(2**31 - 1)
