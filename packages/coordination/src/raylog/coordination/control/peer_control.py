"""PeerControl: how the controller's decisions reach brokers (D8).

The controller sends :class:`UpdateState` to one broker at a time; the broker answers :class:`Ack`. Both
are versioned msgpack, so that brokers of two releases understand each other: a reader ignores fields that
it does not know and gives those that are missing their defaults.

The rules, all in :class:`Receiver`: a lower controller epoch is a deposed controller's; another broker
epoch means another incarnation; a sequence number not above the last one is a repetition and brings no news;
a delta that does not follow the last message (one was lost, or the controller is new) is answered NEEDS_FULL.
A message counts once the broker has acted on it: until then its repetition is news.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import compress
from operator import is_not
from types import MappingProxyType
from typing import NamedTuple, Protocol, Self

from raylog.coordination.control.codec import (
    number,
    of,
    pack,
    pack_broker,
    pack_topic,
    read,
    text,
    texts,
    unpack,
    unpack_broker,
    unpack_topic,
)
from raylog.coordination.metadata.model import (
    NO_BROKER_EPOCH,
    NO_CONTROLLER_EPOCH,
    BrokerInfo,
    ClusterState,
    PartitionState,
    TopicState,
)
from raylog.protocol.errors import BrokerNotAvailable
from raylog.protocol.ids import BrokerEpoch, BrokerId, ControllerEpoch, TopicId, TopicName, TopicPartition


class BrokerDied(BrokerNotAvailable):
    """The broker's process is gone, as whoever runs it says: a hint (D9)."""


class PeerControl(Protocol):
    """Carries control messages between brokers: down from the controller in order, up to it in any order."""

    def send(self, broker_id: BrokerId, payload: bytes) -> bytes:
        """Deliver the controller's word, one at a time per broker and in order, and wait for the answer;
        BrokerNotAvailable when there is none (it may have been delivered).
        """

    def propose(self, controller_id: BrokerId, payload: bytes) -> bytes:
        """Ask the controller for a change (``proposals``) and wait for the answer; BrokerNotAvailable when there is
        none (it may have been delivered). Several may be under way at once, each one stands for itself.
        """


@dataclass(frozen=True, slots=True)
class UpdateState:
    """The cluster as its controller sees it: everything (``full``), or the topics that changed since the last one."""

    controller_id: BrokerId
    controller_epoch: ControllerEpoch
    broker_epoch: BrokerEpoch
    """The incarnation of the receiver that this is meant for."""
    sequence: int
    """Rises by one with every message of a controller epoch to one incarnation; where it starts means nothing."""
    full: bool
    cluster_id: str
    brokers: tuple[BrokerInfo, ...]
    """All registered brokers, in a delta, too."""
    topics: tuple[TopicState, ...] = ()
    deleted: tuple[TopicName, ...] = ()
    """Topics that are gone (deltas only)."""
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """All dynamic broker configs, in a delta, too."""
    fenced: frozenset[BrokerId] = frozenset()
    """All fenced brokers, in a delta, too."""
    unreadable: frozenset[TopicName] = frozenset()
    """All topics whose nodes cannot be read, in a delta, too."""

    def encode(self) -> bytes:
        return pack(
            "update",
            {
                "controller": self.controller_id,
                "controller_epoch": self.controller_epoch,
                "broker_epoch": self.broker_epoch,
                "sequence": self.sequence,
                "full": self.full,
                "cluster": self.cluster_id,
                "brokers": [pack_broker(broker) for broker in self.brokers],
                "topics": [pack_topic(topic) for topic in self.topics],
                "deleted": list(self.deleted),
                "broker_configs": {name: dict(configs) for name, configs in self.broker_configs.items()},
                "fenced": sorted(self.fenced),
                "unreadable": sorted(self.unreadable),
            },
        )

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Raises InvalidRequest when it is no such message."""
        fields = unpack("update", payload)
        return read(
            lambda: cls(
                controller_id=BrokerId(number(fields["controller"])),
                controller_epoch=ControllerEpoch(number(fields["controller_epoch"])),
                broker_epoch=BrokerEpoch(number(fields["broker_epoch"])),
                sequence=number(fields["sequence"]),
                full=of(bool, fields["full"]),
                cluster_id=text(fields["cluster"]),
                brokers=tuple(map(unpack_broker, of(list, fields["brokers"]))),
                topics=tuple(map(unpack_topic, of(list, fields["topics"]))),
                deleted=tuple(TopicName(text(name)) for name in of(list, fields["deleted"])),
                broker_configs={
                    text(name): texts(configs) for name, configs in of(dict, fields.get("broker_configs", {})).items()
                },
                fenced=frozenset(BrokerId(number(each)) for each in of(list, fields.get("fenced", []))),
                unreadable=frozenset(TopicName(text(name)) for name in of(list, fields.get("unreadable", []))),
            )
        )


class AckStatus(IntEnum):
    OK = 0
    STALE_CONTROLLER_EPOCH = 1
    STALE_BROKER_EPOCH = 2
    NEEDS_FULL = 3


@dataclass(frozen=True, slots=True)
class Ack:
    """A broker's answer to one UpdateState."""

    status: AckStatus
    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    controller_epoch: ControllerEpoch
    """The highest that the broker has seen."""
    sequence: int
    """That of the message answered."""

    def encode(self) -> bytes:
        return pack(
            "ack",
            {
                "status": self.status,
                "broker": self.broker_id,
                "broker_epoch": self.broker_epoch,
                "controller_epoch": self.controller_epoch,
                "sequence": self.sequence,
            },
        )

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Raises InvalidRequest when it is no such message."""
        fields = unpack("ack", payload)
        return read(
            lambda: cls(
                AckStatus(number(fields["status"])),
                BrokerId(number(fields["broker"])),
                BrokerEpoch(number(fields["broker_epoch"])),
                ControllerEpoch(number(fields["controller_epoch"])),
                number(fields["sequence"]),
            )
        )


Act = Callable[[ClusterState, ClusterState], None]
"""Brings a broker from the state that it acted on last to another one; both are the same object for a repetition."""


class Receiver:
    """A broker's end of PeerControl: fences, puts in order, and keeps the newest ClusterState.

    One thread calls :meth:`receive`; any may read :attr:`state`.
    """

    def __init__(self, broker_id: BrokerId) -> None:
        self.state = ClusterState()
        """What the broker has acted on."""
        self._broker_id = broker_id
        self._broker_epoch = NO_BROKER_EPOCH
        self._controller_epoch = NO_CONTROLLER_EPOCH
        self._sequence = 0
        self._in_step = False  # a full state of this controller and this incarnation was acted on

    def registered(self, epoch: BrokerEpoch) -> None:
        """The broker has (re-)registered: now only messages for this incarnation count, a full one first."""
        self._broker_epoch = epoch
        self._sequence, self._in_step = 0, False

    def receive(self, payload: bytes, act: Act) -> Ack:
        """Judge one message, have the broker ``act`` on it where it counts, and answer it.

        ``act`` comes first and :attr:`state` after it: an acknowledged CreateTopics means that the leaders serve, and
        whoever sees a state sees what was made of it. What ``act`` raises passes through; the message has not been
        taken in then, and the next one acts on it, be it a repetition or a full state. A broker that can do only a
        part does that part, keeps in mind what is left, and hands it to :func:`local_changes` the next time.

        Raises InvalidRequest when it is no such message.
        """
        message = UpdateState.decode(payload)
        status = self._judge(message)
        if status is AckStatus.OK:
            is_news = not self._in_step or message.sequence > self._sequence
            after = _updated(self.state, message) if is_news else self.state
            act(self.state, after)
            self.state = after
            if is_news:
                self._sequence, self._in_step = message.sequence, True
        return Ack(status, self._broker_id, self._broker_epoch, self._controller_epoch, message.sequence)

    def _judge(self, message: UpdateState) -> AckStatus:
        if message.controller_epoch < self._controller_epoch:
            return AckStatus.STALE_CONTROLLER_EPOCH
        if message.controller_epoch > self._controller_epoch:
            self._controller_epoch = message.controller_epoch
            self._sequence, self._in_step = 0, False
        if message.broker_epoch != self._broker_epoch:
            return AckStatus.STALE_BROKER_EPOCH
        if message.full or (self._in_step and message.sequence <= self._sequence + 1):
            return AckStatus.OK
        return AckStatus.NEEDS_FULL


def _updated(before: ClusterState, message: UpdateState) -> ClusterState:
    kept = ClusterState() if message.full else before.without_topics(*message.deleted)
    return kept.with_topics(*message.topics).changed(
        cluster_id=message.cluster_id or before.cluster_id,
        controller_id=message.controller_id,
        controller_epoch=message.controller_epoch,
        brokers={broker.id: broker for broker in message.brokers},
        broker_configs=message.broker_configs,
        fenced=message.fenced,
        unreadable=message.unreadable,
    )


class Lead(NamedTuple):
    """This broker leads the partition, from this epoch on (create its log when there is none)."""

    tp: TopicPartition
    topic_id: TopicId
    partition: PartitionState


class Follow(NamedTuple):
    """This broker follows the partition's leader, if it has one (create its log when there is none)."""

    tp: TopicPartition
    topic_id: TopicId
    partition: PartitionState


class LocalChanges(NamedTuple):
    """What one broker must do about a new ClusterState, in this order."""

    deleted: tuple[tuple[TopicPartition, TopicId], ...]
    """Had a replica here, and the topic (that id) is gone: delete it."""
    no_replica: tuple[tuple[TopicPartition, TopicId], ...]
    """Had a replica here, and others keep the partition now: delete it."""
    unreadable: tuple[tuple[TopicPartition, TopicId], ...]
    """Had a replica here, and the topic's node cannot be read now: serve nothing of it, and keep it."""
    resigned: tuple[TopicPartition, ...]
    """Led here before, no longer; or led by a former life, and nothing is decided yet about this one."""
    configs: tuple[TopicState, ...]
    """Topics with a replica here whose configs changed; those that had none here before, too."""
    lead: tuple[Lead, ...]
    """Lead here, new or with a new leader epoch."""
    updated: tuple[Lead, ...]
    """Led here before and after in one leader epoch, and something else differs: the ISR, replicas, incarnations."""
    follow: tuple[Follow, ...]
    """Follow here: new, another leader or leader epoch, or the leader in a new life (connect anew)."""


def local_changes(  # noqa: C901 (one case for each change)
    broker_id: BrokerId,
    before: ClusterState,
    after: ClusterState,
    undone: Mapping[TopicPartition, TopicId] = MappingProxyType({}),
) -> LocalChanges:
    """The difference between two states, as seen by one broker.

    ``undone``: partitions, with their topics' ids, for which acting on ``before`` failed. What ``after`` says of them
    is all to be done, as if nothing of it had been known.
    """
    names = _changed_topics(before, after, undone)
    mine_before = dict(_replicas_of(broker_id, before, names))
    mine_after = dict(_replicas_of(broker_id, after, names))
    deleted, no_replica, unreadable = [], [], []
    had = [*((tp, topic.id) for tp, (topic, _) in mine_before.items()), *undone.items()]
    for tp, topic_id in dict.fromkeys(had):
        now = after.topic(tp.topic)
        if now is None and tp.topic in after.unreadable:
            unreadable.append((tp, topic_id))
        elif now is None or now.id != topic_id:
            deleted.append((tp, topic_id))
        elif tp not in mine_after:
            no_replica.append((tp, topic_id))
    gone = {tp for tp, _ in (*deleted, *no_replica, *unreadable)}
    led_before = {tp for tp, (_, partition) in mine_before.items() if before.is_led_by(broker_id, partition)}
    led_after = {tp for tp, (_, partition) in mine_after.items() if after.is_led_by(broker_id, partition)}
    may_lead = dict.fromkeys((*mine_before, *undone))
    resigned = [tp for tp in may_lead if (tp in led_before or tp in undone) and tp not in gone and tp not in led_after]
    for tp in undone:
        mine_before.pop(tp, None)
    lead, updated, follow = [], [], []
    for tp, (topic, partition) in mine_after.items():
        old = _known_before(topic, mine_before.get(tp))
        if partition.is_unreadable:
            continue  # who is to lead nobody knows
        if partition.leader != broker_id:
            if _is_new_following(partition, old, before, after):
                follow.append(Follow(tp, topic.id, partition))
        elif tp not in led_after:
            continue  # it led in its former life: who does now is not decided yet
        elif old is None or tp not in led_before or old.leader_epoch != partition.leader_epoch:
            lead.append(Lead(tp, topic.id, partition))
        elif old != partition:
            updated.append(Lead(tp, topic.id, partition))
    topics_before = {topic.name: topic for topic, _ in mine_before.values()}
    for tp in undone:
        topics_before.pop(tp.topic, None)
    topics_after = {topic.name: topic for topic, _ in mine_after.values()}
    configs = [topic for name, topic in topics_after.items() if _has_new_configs(topic, topics_before.get(name))]
    return LocalChanges(
        deleted=tuple(deleted),
        no_replica=tuple(no_replica),
        unreadable=tuple(unreadable),
        resigned=tuple(resigned),
        configs=tuple(configs),
        lead=tuple(lead),
        updated=tuple(updated),
        follow=tuple(follow),
    )


_Mine = tuple[TopicState, PartitionState]


def _changed_topics(
    before: ClusterState, after: ClusterState, undone: Mapping[TopicPartition, TopicId]
) -> Sequence[TopicName]:
    """Those about which there may be something to do: a delta keeps the very objects of all others. When brokers came,
    went, or began a new life that is all of them.
    """
    if before.brokers != after.brokers:
        return tuple(dict.fromkeys((*before.topics, *after.topics, *(tp.topic for tp in undone))))
    known = before.topics
    changed = compress(after.topics, map(is_not, after.topics.values(), map(known.get, after.topics)))
    gone = known.keys() - after.topics.keys()
    return tuple(dict.fromkeys((*changed, *sorted(gone), *(tp.topic for tp in undone))))


def _replicas_of(
    broker_id: BrokerId, state: ClusterState, names: Iterable[TopicName]
) -> Iterator[tuple[TopicPartition, _Mine]]:
    for topic in filter(None, map(state.topics.get, names)):
        for tp, partition in topic.topic_partitions():
            if broker_id in partition.replicas:
                yield tp, (topic, partition)


def _known_before(topic: TopicState, before: _Mine | None) -> PartitionState | None:
    """The partition's former state, if the topic was that very one."""
    return before[1] if before is not None and before[0].id == topic.id else None


def _is_new_following(
    partition: PartitionState, old: PartitionState | None, before: ClusterState, after: ClusterState
) -> bool:
    if old is None or (old.leader, old.leader_epoch) != (partition.leader, partition.leader_epoch):
        return True
    return before.brokers.get(partition.leader) != after.brokers.get(partition.leader)


def _has_new_configs(topic: TopicState, before: TopicState | None) -> bool:
    return before is None or before.id != topic.id or before.configs != topic.configs
