"""One broker's data plane without a cluster around it: real logs, real handlers, and topics by a plain call.

For tests of handlers and of the socket server. Who needs a controller, a metadata store or several brokers
takes ``kit.cluster.InProcessCluster``.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

from kit.machine import scaled
from kit.stores import Counting
from kit.topics import drop_topic, put_topic
from raylog.broker.config import BROKER_SETTINGS, MAX_FETCH_SESSIONS
from raylog.broker.dynamic_config import group_rules
from raylog.broker.groups.coordinator import GroupCoordinator
from raylog.broker.handlers import answer
from raylog.broker.handlers.context import Connection, DelayedReply, Ports, Reply
from raylog.broker.handlers.fetch_sessions import FetchSessions
from raylog.broker.net.server import Listener, SocketServer
from raylog.broker.partition.partition import Partition
from raylog.broker.partition.table import PartitionTable
from raylog.broker.replicas.fetchers import ReplicaFetchers
from raylog.broker.replication.delayed import DelayedFetches
from raylog.broker.replication.delayed_operations import DelayedOperations
from raylog.broker.replication.quota import ReplicationQuota
from raylog.broker.storage.directories.log_dirs import LogDirs
from raylog.broker.storage.disk.files import FileSystem, RealFileSystem
from raylog.broker.storage.disk.slices import FileSlice
from raylog.coordination.control import reassignment
from raylog.coordination.control.peer_control import Ack, AckStatus, UpdateState
from raylog.coordination.controller.events import CreatedTopic, NewPartitions, NewReplicas, NewTopic
from raylog.coordination.host.clocks import monotonic_ms
from raylog.coordination.host.loops import Loops
from raylog.coordination.metadata import paths
from raylog.coordination.metadata.configs import Change
from raylog.coordination.metadata.model import BrokerInfo, Endpoint, PartitionState, TopicState
from raylog.coordination.store.memory_tree import MemoryTree
from raylog.coordination.store.port import MetadataStore
from raylog.protocol.errors import (
    ElectionNotNeeded,
    InvalidReplicationFactor,
    NotController,
    NotLeaderOrFollower,
    RaylogError,
    UnknownTopicOrPartition,
)
from raylog.protocol.ids import (
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    PartitionIndex,
    ProducerId,
    TimestampMs,
    TopicId,
    TopicName,
    TopicPartition,
)

BROKER = BrokerId(1)
LISTENER = "PLAINTEXT"


def registered_store(broker: BrokerId, epoch: BrokerEpoch, tree: MemoryTree | None = None) -> Counting:
    """A metadata store in memory, of its own or on ``tree``, that has ``broker`` registered in this incarnation."""
    store = Counting(tree or MemoryTree())
    register(store, broker, epoch)
    return store


def register(store: MetadataStore, broker: BrokerId, epoch: BrokerEpoch) -> None:
    """Start the store, and register ``broker`` by it in this incarnation."""
    store.start()
    store.ensure(paths.broker_epoch(broker))
    store.create(paths.broker(broker), ephemeral=True, parents=True)
    while store.set(paths.broker_epoch(broker), b"") < epoch:
        pass


MOST_WAIT_S = 120.0
"""For a delayed reply: more than any test lets a fetch wait."""


def sent(reply: Reply) -> bytes:
    """What a reply that has parts sends, waited for; its slices of files are given back."""
    if isinstance(reply, DelayedReply):
        assert reply.wait(scaled(MOST_WAIT_S)), "the reply waits still"
        reply = reply.finish()
    assert reply is not None
    assert not isinstance(reply, bytes)
    data = bytearray()
    for part in reply:
        if isinstance(part, FileSlice):
            data += part.read()
            part.release()
        else:
            assert isinstance(part, bytes)
            data += part
    return bytes(data)


class Node:
    """Broker 1. It is its own controller: topics are made by :meth:`create_topic` or through the TopicAdmin
    port.

    with Node(tmp_path) as node:
        node.create_topic("t", partitions=2)
        reply = node.answer(frame)          # a request's frame without its length
    """

    def __init__(
        self,
        root: Path,
        *,
        config: Mapping[str, str] | None = None,
        fs: FileSystem | None = None,
        topics: Iterable[TopicState] = (),
    ) -> None:
        """``config``: broker settings as text; ``topics``: what was there at an earlier start.

        ``clock_ms`` and ``lease_held`` may be changed at any time.
        """
        self.settings = BROKER_SETTINGS.settings({"broker.id": str(BROKER), "log.dirs": str(root), **(config or {})})
        self.loops = Loops()
        self.clock_ms: int | None = None
        """The wall clock in ms; None: the real one."""
        self.lease_held = True
        self.is_controller = True
        self.auto_created: list[TopicName] = []
        self.broker_configs: Mapping[str, Mapping[str, str]] = {}
        self.delayed = DelayedFetches(threading.Lock())
        self.produces = DelayedOperations(threading.Lock())
        self.deletes = DelayedOperations(threading.Lock())
        self.fetch_sessions = FetchSessions(
            self.settings[MAX_FETCH_SESSIONS],
            self.delayed,
            new_id=itertools.count(1).__next__,
            new_lock=threading.Lock,
        )
        self._log_dirs = LogDirs(self.settings, fs or RealFileSystem(), "test-cluster", BROKER)
        self._log_dirs.open(self.now_ms())
        self.table = PartitionTable(
            BROKER,
            "test-cluster",
            self.settings,
            self._log_dirs,
            self.delayed,
            self.produces,
            self.deletes,
            ReplicaFetchers(self.settings, self.now_ms, self.loops),
            self.now_ms,
        )
        self.table.register_with(lambda: BrokerEpoch(1))
        self.others: list[BrokerInfo] = []
        """Brokers beside this one, told with the next change of the cluster."""
        self._sequence = itertools.count(1)
        self._versions = itertools.count(1)
        self._producer_ids = itertools.count(1000)
        self._endpoint = Endpoint(LISTENER, "127.0.0.1", 9092)
        self.store = registered_store(BROKER, BrokerEpoch(1))
        self._update(full=True, topics=tuple(topics))
        self.groups = GroupCoordinator(
            BROKER,
            self.store,
            epoch=lambda: BrokerEpoch(1),
            cluster=self.table.state,
            may_act=lambda: self.lease_held,
            rules=group_rules(self.settings),
            settings=self.table.broker,
            loops=self.loops,
        )
        self.groups.start()
        self.ports = Ports(
            partitions=self.table,
            cluster=self.table,
            topics=self,
            producer_ids=self,
            configs=self.table,
            config_admin=self,
            lease=self,
            groups=self.groups,
            delayed=self.delayed,
            produces=self.produces,
            deletes=self.deletes,
            leader_quota=ReplicationQuota(threading.Lock()),
            fetch_sessions=self.fetch_sessions,
            log_dirs=self._log_dirs,
            wall_ms=self.now_ms,
            monotonic_ms=monotonic_ms,
        )
        self.server: SocketServer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.groups.stop()
        if self.server is not None:
            self.server.stop()
        self.store.close()
        self.table.resign_all()
        self._log_dirs.close()

    def serve(self) -> tuple[str, int]:
        """Open the socket server on a free port; its address."""
        self.server = SocketServer([Listener(LISTENER, "127.0.0.1", 0)], self.ports, self.settings, self.loops)
        [listener] = self.server.bind()
        self._endpoint = Endpoint(LISTENER, listener.host, listener.port)
        self._update()
        self.server.start()
        return listener.host, listener.port

    def answer(self, frame: bytes, connection: Connection | None = None) -> Reply:
        """The reply to one request without any socket."""
        return answer(connection or Connection(LISTENER), memoryview(bytearray(frame)), self.ports)

    def maintain(self, uptime_ms: int) -> None:
        """The housekeeping that a broker does once a second, so long after its start, by both clocks."""
        self._log_dirs.maintain(TimestampMs(self.now_ms() + uptime_ms), uptime_ms)

    def partition(self, topic: str, index: int = 0) -> Partition:
        return self.table.get(TopicPartition(TopicName(topic), PartitionIndex(index)))

    def follower_has(self, topic: str, offset: int, *, leader_epoch: int = 0) -> None:
        """Broker 2 fetches at ``offset`` of the topic's first partition: it has all below."""
        self.partition(topic).role.replica_fetched(
            BrokerId(2),
            BrokerEpoch(1),
            Offset(offset),
            Offset(0),
            MonotonicMs(0),
            leader_epoch=LeaderEpoch(leader_epoch),
        )

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        leader: int = BROKER,
        leader_epoch: int = 0,
        replicas: Sequence[int] = (BROKER,),
        isr: Sequence[int] | None = None,
        elr: Sequence[int] = (),
    ) -> TopicState:
        """Make a topic, or give an existing one another leader, other replicas or another ISR (default: all)."""
        known = self.table.state().topic(TopicName(name))
        state = PartitionState(
            tuple(map(BrokerId, replicas)),
            BrokerId(leader),
            LeaderEpoch(leader_epoch),
            tuple(map(BrokerId, replicas if isr is None else isr)),
            version=next(self._versions),
            elr=tuple(map(BrokerId, elr)),
        )
        topic = TopicState(
            TopicName(name),
            known.id if known else TopicId(uuid4()),
            (state,) * partitions,
            dict(config or {}),
        )
        self._update(topics=(topic,))
        return topic

    def replace_topic(self, name: str) -> TopicState:
        """Delete the topic and make another one of its name, told in one message."""
        known = self.table.state().topics[TopicName(name)]
        topic = replace(known, id=TopicId(uuid4()))
        self._update(topics=(topic,))
        return topic

    def _update(
        self, *, full: bool = False, topics: Sequence[TopicState] = (), deleted: Sequence[TopicName] = ()
    ) -> None:
        message = UpdateState(
            controller_id=BROKER,
            controller_epoch=ControllerEpoch(1),
            broker_epoch=BrokerEpoch(1),
            sequence=next(self._sequence),
            full=full,
            cluster_id="test-cluster",
            brokers=(BrokerInfo(BROKER, BrokerEpoch(1), (self._endpoint,), rack="rack-1"), *self.others),
            topics=tuple(topics),
            deleted=tuple(deleted),
            broker_configs=self.broker_configs,
        )
        self._store_topics(topics, deleted)
        ack = Ack.decode(self.table.control(message.encode()))
        assert ack.status is AckStatus.OK, ack

    def _store_topics(self, topics: Sequence[TopicState], deleted: Sequence[TopicName]) -> None:
        """What the controller has written before it tells of it."""
        known = self.table.state().topics
        for name in (*deleted, *(t.name for t in topics if t.name in known and known[t.name].id != t.id)):
            drop_topic(self.store, name)
        for topic in topics:
            put_topic(self.store, topic.name, len(topic.partitions), topic.id)

    # --- the ports that a controller and a store would fill ---

    def create_topics(
        self, topics: Sequence[NewTopic], *, timeout_ms: int, validate_only: bool
    ) -> Sequence[CreatedTopic | RaylogError]:
        self._check_controller()
        results = []
        for new in topics:
            count = max(new.partitions, 1)
            topic_id = TopicId(uuid4())
            if not validate_only:
                topic_id = self.create_topic(new.name, partitions=count, config=new.configs).id
            results.append(CreatedTopic(new.name, topic_id, count, 1, new.configs))
        return results

    def delete_topics(
        self, topics: Sequence[TopicName | TopicId], *, timeout_ms: int
    ) -> Sequence[TopicName | RaylogError]:
        self._check_controller()
        results: list[TopicName | RaylogError] = []
        for asked in topics:
            state = self.table.state()
            known = state.topic(asked) if isinstance(asked, str) else state.topic_by_id(asked)
            if known is None:
                results.append(UnknownTopicOrPartition(f"there is no topic {asked}"))
            else:
                self._update(deleted=(known.name,))
                results.append(known.name)
        return results

    def create_partitions(
        self, topics: Sequence[NewPartitions], *, timeout_ms: int, validate_only: bool
    ) -> Sequence[TopicName | RaylogError]:
        self._check_controller()
        results: list[TopicName | RaylogError] = []
        for new in topics:
            known = self.table.state().topic(new.name)
            if known is None:
                results.append(UnknownTopicOrPartition(f"there is no topic {new.name}"))
                continue
            if not validate_only:
                self.create_topic(new.name, partitions=new.count, config=known.configs)
            results.append(new.name)
        return results

    def elect_leaders(
        self, partitions: Sequence[TopicPartition], *, unclean: bool, timeout_ms: int
    ) -> Sequence[TopicPartition | RaylogError]:
        """No election is needed where somebody leads; all others succeed, and change nothing."""
        self._check_controller()
        results: list[TopicPartition | RaylogError] = []
        for tp in partitions:
            known = self.table.state().partition(tp)
            if known is None:
                results.append(UnknownTopicOrPartition(f"there is no partition {tp}"))
            elif known.is_online:
                results.append(ElectionNotNeeded(f"{tp} is led by {known.leader}"))
            else:
                results.append(tp)
        return results

    def reassign(
        self, partitions: Sequence[NewReplicas], *, timeout_ms: int, allow_factor_change: bool
    ) -> Sequence[TopicPartition | RaylogError]:
        """Begins or cancels, and completes nothing."""
        self._check_controller()
        results: list[TopicPartition | RaylogError] = []
        for tp, replicas in ((new.tp, new.replicas) for new in partitions):
            topic, known = self.table.state().topic(tp.topic), self.table.state().partition(tp)
            if topic is None or known is None:
                results.append(UnknownTopicOrPartition(f"there is no partition {tp}"))
            elif not allow_factor_change and len(replicas or ()) != len(known.replicas):
                results.append(InvalidReplicationFactor(f"{tp} has {len(known.replicas)} replicas"))
            else:
                moved = reassignment.cancelled(known) if replicas is None else reassignment.begun(known, replicas)
                moved = replace(moved, version=next(self._versions))
                self._update(topics=(topic.with_partition(tp.partition, moved),))
                results.append(tp)
        return results

    def alter_topic(self, topic: TopicName, change: Change, *, validate_only: bool) -> None:
        known = self.table.state().topic(topic)
        if known is None:
            raise UnknownTopicOrPartition(f"there is no topic {topic}")
        configs = change(known.configs)
        if not validate_only:
            self._update(topics=(replace(known, configs=configs),))

    def alter_broker(self, broker: str, change: Change, *, validate_only: bool) -> None:
        configs = change(self.broker_configs.get(broker, {}))
        if not validate_only:
            self.broker_configs = {**self.broker_configs, broker: configs}
            self._update()

    def auto_create(self, topics: Sequence[TopicName]) -> None:
        self.auto_created += topics

    def next_producer_id(self) -> ProducerId:
        return ProducerId(next(self._producer_ids))

    def check(self) -> None:
        if not self.lease_held:
            raise NotLeaderOrFollower("the lease has lapsed")

    def now_ms(self) -> TimestampMs:
        return TimestampMs(int(time.time() * 1000) if self.clock_ms is None else self.clock_ms)

    def _check_controller(self) -> None:
        if not self.is_controller:
            raise NotController("another broker is the controller")
