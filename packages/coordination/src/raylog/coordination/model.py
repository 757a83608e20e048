"""The cluster's metadata as values: who is alive, which topics there are, who leads what.

Everything here is frozen. A change makes a new :class:`ClusterState`; readers in other threads keep the
one they hold. The controller decides on it, brokers receive it (``peer_control``), handlers answer Metadata from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from raylog.protocol.ids import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    PartitionIndex,
    TopicId,
    TopicName,
    TopicPartition,
)

NO_CONTROLLER = BrokerId(-1)
NO_CONTROLLER_EPOCH = ControllerEpoch(-1)
FIRST_LEADER_EPOCH = LeaderEpoch(0)
NO_BROKER_EPOCH = BrokerEpoch(-1)
"""Before the first registration."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one named listener of a broker is reached from outside: its advertised address."""

    listener: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """One registered broker, in one incarnation."""

    id: BrokerId
    epoch: BrokerEpoch
    """The incarnation: the version of /raylog/broker_epochs/B after this registration."""
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    node: str = ""
    """The Ray node's id, or "" without Ray."""
    actor: str = ""
    """The Ray actor's name, or "" without Ray."""
    directory_ids: tuple[UUID, ...] = ()
    clean_stop: bool = False
    """True when the process before this one closed its logs in an orderly way."""
    intact_since: BrokerEpoch = NO_BROKER_EPOCH
    """The oldest incarnation whose data is all still here: no later one lost a disk or an acknowledged write."""
    disks_since: BrokerEpoch = NO_BROKER_EPOCH
    """The oldest incarnation whose log directories are all still here, be it without what was not synced in them."""

    def endpoint(self, listener: str | None = None) -> Endpoint | None:
        """The endpoint of the named listener (by default the first); None when there is none."""
        for endpoint in self.endpoints:
            if listener is None or endpoint.listener == listener:
                return endpoint
        return None


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Who keeps a partition and who leads it."""

    replicas: tuple[BrokerId, ...]
    leader: BrokerId = NO_LEADER
    """NO_LEADER (-1) while the partition is offline."""
    leader_epoch: LeaderEpoch = FIRST_LEADER_EPOCH
    isr: tuple[BrokerId, ...] = ()
    controller_epoch: ControllerEpoch = NO_CONTROLLER_EPOCH
    """The epoch of the controller that wrote this state."""
    version: int = -1
    """The version of its znode, which the next write must name; -1 when it has none yet."""
    elr: tuple[BrokerId, ...] = ()
    """Eligible leader replicas (KIP-966): they left the ISR when it fell below min.insync.replicas, and hold all below
    the high watermark, which stands still while there are any.
    """
    incarnations: Mapping[BrokerId, BrokerEpoch] = field(default_factory=lambda: MappingProxyType({}))
    """Of each member of ``isr`` and ``elr`` the incarnation that was in sync (KIP-903); not known where missing."""
    adding: tuple[BrokerId, ...] = ()
    """Replicas that a reassignment under way brings in (KIP-455); they are in ``replicas``, too."""
    removing: tuple[BrokerId, ...] = ()
    """Replicas that it takes away at its end; still in ``replicas``."""

    @property
    def is_unreadable(self) -> bool:
        """True when its node holds what cannot be read: until that is mended, nobody leads or is in sync."""
        return self.version != -1 and not self.isr and not self.elr

    @property
    def is_online(self) -> bool:
        return self.leader != NO_LEADER

    def incarnations_of(self, brokers: Iterable[BrokerId]) -> dict[BrokerId, BrokerEpoch]:
        """Those of ``brokers`` that are known."""
        return {broker: self.incarnations[broker] for broker in brokers if broker in self.incarnations}


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic: its partitions are numbered from 0 without gaps, so a partition's index is its place."""

    name: TopicName
    id: TopicId
    partitions: tuple[PartitionState, ...]
    configs: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Overrides only, as text."""

    @property
    def is_internal(self) -> bool:
        """True for the topics that Kafka itself keeps."""
        return self.name in INTERNAL_TOPICS

    def topic_partitions(self) -> Iterator[tuple[TopicPartition, PartitionState]]:
        """Every partition with its name, in order."""
        for index, partition in enumerate(self.partitions):
            yield TopicPartition(self.name, PartitionIndex(index)), partition

    def with_partition(self, index: int, partition: PartitionState) -> TopicState:
        """The same topic with one partition's state replaced."""
        return replace(self, partitions=(*self.partitions[:index], partition, *self.partitions[index + 1 :]))


def name_in_metrics(topic: TopicName) -> str:
    """Metrics have "_" in the place of ".", so that two topics must not differ in that alone."""
    return topic.replace(".", "_")


INTERNAL_TOPICS = frozenset({TopicName("__consumer_offsets"), TopicName("__transaction_state")})


class Load(NamedTuple):
    """What brokers keep already; those that keep nothing may be left out."""

    replicas: Mapping[BrokerId, int]
    preferred: Mapping[BrokerId, int]
    """Partitions whose first replica is there: what it leads when all is well."""


@dataclass(frozen=True)
class ClusterState:
    """All that a broker needs to know about its cluster, at one moment."""

    cluster_id: str = ""
    controller_id: BrokerId = NO_CONTROLLER
    controller_epoch: ControllerEpoch = NO_CONTROLLER_EPOCH
    brokers: Mapping[BrokerId, BrokerInfo] = field(default_factory=dict)
    """All registered brokers."""
    topics: Mapping[TopicName, TopicState] = field(default_factory=dict)
    unreadable: frozenset[TopicName] = frozenset()
    """Topics whose nodes cannot be read: nothing is known of them, so nothing is served or deleted of them."""
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Dynamic overrides by broker id as text; "<default>" holds the cluster-wide ones, as in Kafka."""
    fenced: frozenset[BrokerId] = frozenset()
    """Registered brokers that do not answer the controller: since they registered, or for long. As in KRaft a fenced
    broker leads no new partition, joins no ISR, becomes no group's coordinator, is not told to clients and not waited
    for. Only the controller decides who is fenced.
    """
    topics_by_id: Mapping[TopicId, TopicState] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "topics_by_id", {topic.id: topic for topic in self.topics.values()})

    @cached_property
    def unfenced(self) -> Mapping[BrokerId, BrokerInfo]:
        """The brokers that can be given work."""
        return {broker_id: info for broker_id, info in self.brokers.items() if broker_id not in self.fenced}

    @cached_property
    def reachable(self) -> Mapping[BrokerId, BrokerInfo]:
        """The brokers that clients are told of: a fenced one only while it leads what nobody else can lead."""
        if not self.fenced:
            return self.brokers
        leaders = {partition.leader for _, partition in self.partitions()}
        return {b: info for b, info in self.brokers.items() if b not in self.fenced or b in leaders}

    @cached_property
    def load(self) -> Load:
        """What each broker keeps. Counted once for a state: a request may ask for thousands of topics."""
        replicas: Counter[BrokerId] = Counter()
        preferred: Counter[BrokerId] = Counter()
        for _, partition in self.partitions():
            replicas.update(partition.replicas)
            preferred.update(partition.replicas[:1])
        return Load(replicas, preferred)

    @cached_property
    def names_in_metrics(self) -> Mapping[str, TopicName]:
        """Topics by what metrics call them (:func:`name_in_metrics`)."""
        return {name_in_metrics(name): name for name in self.topics}

    def topic(self, name: TopicName) -> TopicState | None:
        return self.topics.get(name)

    def topic_by_id(self, topic_id: TopicId) -> TopicState | None:
        return self.topics_by_id.get(topic_id)

    def partition(self, tp: TopicPartition, topic_id: TopicId | None = None) -> PartitionState | None:
        """The partition's state, or None when there is no such partition; where an id is given, none of that topic."""
        topic = self.topics.get(tp.topic)
        if topic is None or topic_id not in (None, topic.id) or not 0 <= tp.partition < len(topic.partitions):
            return None
        return topic.partitions[tp.partition]

    def leader_of(self, tp: TopicPartition) -> BrokerId:
        """The leader's id; NO_LEADER when the partition is offline or unknown."""
        partition = self.partition(tp)
        return NO_LEADER if partition is None else partition.leader

    def is_led_by(self, broker_id: BrokerId, partition: PartitionState) -> bool:
        """True when that is its leader in the incarnation in which it is registered.

        A broker in its next life does not lead in the leader epoch of the last one, though the state names it until
        the controller has decided anew: it may have less in its log, and give the same offsets to other records.
        """
        info, incarnation = self.brokers.get(broker_id), partition.incarnations.get(broker_id)
        is_former_life = info is not None and incarnation is not None and info.epoch != incarnation
        return partition.leader == broker_id and not is_former_life

    def partitions(self) -> Iterator[tuple[TopicPartition, PartitionState]]:
        """Every partition of every topic."""
        for topic in self.topics.values():
            yield from topic.topic_partitions()

    def with_brokers(self, brokers: Mapping[BrokerId, BrokerInfo]) -> ClusterState:
        return replace(self, brokers=brokers)

    def without_broker(self, broker_id: BrokerId) -> ClusterState:
        return replace(self, brokers={b: info for b, info in self.brokers.items() if b != broker_id})

    def with_topics(self, *topics: TopicState) -> ClusterState:
        """The same cluster with these topics added or replaced."""
        return replace(self, topics={**self.topics, **{topic.name: topic for topic in topics}})

    def without_topics(self, *names: TopicName) -> ClusterState:
        gone = set(names)
        return replace(self, topics={name: topic for name, topic in self.topics.items() if name not in gone})

    def without_leader(self, broker_id: BrokerId) -> ClusterState:
        """The same cluster, in which nobody is known to lead what that broker leads; leader epochs stay."""

        def offline(partition: PartitionState) -> PartitionState:
            return replace(partition, leader=NO_LEADER) if partition.leader == broker_id else partition

        topics = (replace(topic, partitions=tuple(map(offline, topic.partitions))) for topic in self.topics.values())
        return self.with_topics(*topics)

    def as_stored(self) -> ClusterState:
        """As the store holds it: who is controller, and who is fenced, stands elsewhere or nowhere."""
        return replace(self, controller_id=NO_CONTROLLER, controller_epoch=NO_CONTROLLER_EPOCH, fenced=frozenset())

    def with_controller(self, controller_id: BrokerId, epoch: ControllerEpoch) -> ClusterState:
        return replace(self, controller_id=controller_id, controller_epoch=epoch)
