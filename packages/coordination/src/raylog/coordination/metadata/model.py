"""The cluster's metadata as values: who is alive, which topics there are, who leads what.

Everything here is frozen. A change makes a new :class:`ClusterState`; readers in other threads keep the
one they hold. The controller decides on it, brokers receive it (``peer_control``), handlers answer Metadata from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple
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
from raylog.protocol.texts import host_port

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
        return f"{self.listener}://{host_port(self.host, self.port)}"


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


_ABOUT_TOPICS = ("topics_by_id", "load", "names_in_metrics")
"""What a ClusterState works out about all its topics when it is asked first."""
INTERNAL_TOPICS = frozenset({TopicName("__consumer_offsets"), TopicName("__transaction_state")})


class Load(NamedTuple):
    """What brokers keep already; those that keep nothing may be left out."""

    replicas: Mapping[BrokerId, int]
    preferred: Mapping[BrokerId, int]
    """Partitions whose first replica is there: what it leads when all is well."""
    led: Mapping[BrokerId, int]

    def changed(self, gone: Sequence[TopicState], new: Sequence[TopicState]) -> Load:
        """Without some topics, and with others."""
        replicas, preferred, led = Counter(self.replicas), Counter(self.preferred), Counter(self.led)
        for sign, topics in ((-1, gone), (1, new)):
            for topic in topics:
                for partition in topic.partitions:
                    preferred[partition.replicas[0]] += sign
                    led[partition.leader] += sign
                    for broker in partition.replicas:
                        replicas[broker] += sign
        return Load(replicas, preferred, led)


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

    @cached_property
    def topics_by_id(self) -> Mapping[TopicId, TopicState]:
        return {topic.id: topic for topic in self.topics.values()}

    @cached_property
    def unfenced(self) -> Mapping[BrokerId, BrokerInfo]:
        """The brokers that can be given work."""
        return {broker_id: info for broker_id, info in self.brokers.items() if broker_id not in self.fenced}

    @cached_property
    def reachable(self) -> Mapping[BrokerId, BrokerInfo]:
        """The brokers that clients are told of: a fenced one only while it leads what nobody else can lead."""
        if not self.fenced:
            return self.brokers
        led = self.load.led
        return {b: info for b, info in self.brokers.items() if b not in self.fenced or led.get(b, 0)}

    @cached_property
    def load(self) -> Load:
        """What each broker keeps. Counted once, and handed on to the states that follow (:meth:`with_topics`)."""
        return Load({}, {}, {}).changed((), tuple(self.topics.values()))

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
        return self.changed(brokers=brokers)

    def without_broker(self, broker_id: BrokerId) -> ClusterState:
        return self.changed(brokers={b: info for b, info in self.brokers.items() if b != broker_id})

    def changed(self, **fields: Any) -> ClusterState:
        """The same topics, with all that was worked out about them."""
        after = replace(self, **fields)
        after.__dict__.update({name: self.__dict__[name] for name in _ABOUT_TOPICS if name in self.__dict__})
        return after

    def with_topics(self, *topics: TopicState) -> ClusterState:
        """The same cluster with these topics added or replaced."""
        return self._replaced((), {topic.name: topic for topic in topics})

    def without_topics(self, *names: TopicName) -> ClusterState:
        return self._replaced(names, {})

    def _replaced(self, gone: Iterable[TopicName], new: Mapping[TopicName, TopicState]) -> ClusterState:
        """What was worked out about all topics is handed on with what differs: that costs by the topics that change."""
        topics = {**self.topics, **new}
        for name in gone:
            topics.pop(name, None)
        old = [self.topics[name] for name in (*gone, *new) if name in self.topics]
        after = replace(self, topics=topics)
        known = self.__dict__
        if "load" in known:
            after.__dict__["load"] = self.load.changed(old, tuple(new.values()))
        if "topics_by_id" in known:
            by_id = dict(self.topics_by_id)
            for topic in old:
                by_id.pop(topic.id, None)
            after.__dict__["topics_by_id"] = by_id | {topic.id: topic for topic in new.values()}
        if "names_in_metrics" in known:
            names = dict(self.names_in_metrics)
            for topic in old:
                names.pop(name_in_metrics(topic.name), None)
            after.__dict__["names_in_metrics"] = names | {name_in_metrics(name): name for name in new}
        return after

    def compared(self, before: ClusterState) -> tuple[ClusterState, list[TopicName]]:
        """The same cluster with the very topics of ``before`` where they are equal, and the names of all others: new
        ones, those that differ, and those that are gone.
        """
        known = before.topics
        same = {name: topic for name, topic in known.items() if self.topics.get(name) == topic}
        changed = [name for name in dict.fromkeys((*known, *self.topics)) if name not in same]
        return replace(self, topics={**self.topics, **same}), changed

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
