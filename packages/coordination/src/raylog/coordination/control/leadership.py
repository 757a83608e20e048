"""Who leads and who is in sync: the states that partitions should have, given the brokers that live.

A replica is *live* when its broker is registered, and its disk has not failed there. It is *intact* when its broker
has lost no data since the incarnation in which it was in sync: a broker that comes back with an empty disk, or without
the unsynced end of its log, must not lead over one that kept everything, though the ISR names both. Nor may one that
lost a disk lead over one that lost only what was not synced.

The members of the ISR hold all that was acknowledged. So do the eligible leader replicas (ELR, KIP-966): they left the
ISR when it had fewer members than min.insync.replicas, and the high watermark stands still from then on. Leader is
the first replica, in the preferred order, that is

a) in the ISR, live and intact; failing that,
b) in the ELR, live and intact; failing that,
c) in the ISR, or else the ELR, and live, when all of these are live and none is intact: nobody better can come back.
   First those who have all their disks;
d) where unclean elections are allowed: in the ISR or ELR and live, or else any live replica.

Those that do not answer the controller (*fenced*) come last in each of these, and those of (a) after others of (b).

Acknowledged records may be lost in (c) and (d); the change says so in ``risk``.

Without a leader the partition is offline: its ISR and ELR stay, for only those may lead it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

from raylog.coordination.metadata.model import BrokerInfo, ClusterState, PartitionState, TopicState
from raylog.protocol.ids import (
    NO_LEADER,
    BrokerId,
    LeaderEpoch,
    PartitionIndex,
    TopicId,
    TopicName,
    TopicPartition,
)


class Change(NamedTuple):
    """A partition's state as it is and as it is to be written."""

    tp: TopicPartition
    old: PartitionState
    new: PartitionState
    risk: str = ""
    """Why acknowledged records may be lost by it; empty when none can."""

    @classmethod
    def by(
        cls, state: ClusterState, tp: TopicPartition, old: PartitionState, new: PartitionState, risk: str = ""
    ) -> Self:
        """Made by the controller of ``state``, whose epoch the new state bears."""
        return cls(tp, old, replace(new, controller_epoch=state.controller_epoch), risk)


@dataclass(frozen=True, slots=True)
class Standing:
    """Who can take part."""

    brokers: Mapping[BrokerId, BrokerInfo] = field(default_factory=dict)
    """The live brokers."""
    offline: Mapping[BrokerId, AbstractSet[tuple[TopicId, PartitionIndex]]] = field(default_factory=dict)
    """Replicas whose disk failed, by broker."""
    leaving: AbstractSet[BrokerId] = frozenset()
    """Brokers that are being drained: they lead only what nobody else can lead."""
    unaware: Callable[[BrokerId, TopicPartition], bool] = lambda broker, tp: False
    """Whether a live broker that does not lead may believe that it does (see ``controller.handovers``)."""
    fenced: AbstractSet[BrokerId] = frozenset()
    """Brokers that do not answer the controller: they begin to lead only what nobody else can lead."""

    def reluctance(self, broker: BrokerId) -> tuple[bool, bool]:
        """Sorts brokers: those last that lead only what nobody else can."""
        return broker in self.fenced, broker in self.leaving

    def may_serve(self, broker: BrokerId, tp: TopicPartition, partition: PartitionState) -> bool:
        """Whether a member of the ISR leads, or may believe so: then it must not leave the ISR yet."""
        info = self.brokers.get(broker)
        is_same_life = info is not None and partition.incarnations.get(broker) == info.epoch
        return is_same_life and (broker == partition.leader or self.unaware(broker, tp))


class Terms(NamedTuple):
    """What a topic's partitions are decided by."""

    topic_id: TopicId
    min_isr: int
    """min.insync.replicas."""
    unclean: bool
    """unclean.leader.election.enable."""


class ElectionRules:
    """The rules above. Every method answers from its arguments alone; ``terms`` remembers what it worked out."""

    def __init__(
        self,
        *,
        min_isr: Callable[[TopicState, ClusterState], int] = lambda topic, state: 1,
        unclean: Callable[[TopicState, ClusterState], bool] = lambda topic, state: False,
    ) -> None:
        """The topic's min.insync.replicas and unclean.leader.election.enable, given the state's dynamic settings."""
        self._min_isr = min_isr
        self._unclean = unclean
        self._known: dict[TopicId, tuple[object, object, Terms]] = {}

    def terms(self, topic: TopicState, state: ClusterState) -> Terms:
        """Worked out once for each topic's and cluster's overrides: each time may log what is wrong with them."""
        known = self._known.get(topic.id)
        if known is not None and known[0] is topic.configs and known[1] is state.broker_configs:
            return known[2]
        if len(self._known) > 2 * len(state.topics):  # most are gone
            self._known.clear()
        terms = Terms(topic.id, self._min_isr(topic, state), self._unclean(topic, state))
        self._known[topic.id] = (topic.configs, state.broker_configs, terms)
        return terms

    def decide(self, state: ClusterState, standing: Standing, names: Iterable[TopicName] | None = None) -> list[Change]:
        """The partitions (of these topics, or of all) whose state must change."""
        topics = state.topics.values() if names is None else [state.topics[name] for name in names]
        return [change for topic in topics for change in self._of_topic(topic, state, standing)]

    def _of_topic(self, topic: TopicState, state: ClusterState, standing: Standing) -> Iterator[Change]:
        terms = self.terms(topic, state)
        for tp, partition in topic.topic_partitions():
            new, risk = self.settled(tp, partition, terms, standing)
            if new is not partition:
                yield Change.by(state, tp, partition, new, risk)

    def settled(
        self, tp: TopicPartition, partition: PartitionState, terms: Terms, standing: Standing
    ) -> tuple[PartitionState, str]:
        """The state that the partition should have, the very same object when it may stay; and the risk in it."""
        if partition.version == -1 and not (partition.isr or partition.elr):
            return self._first(tp, partition, terms, standing), ""
        if partition.is_unreadable:
            return partition, ""
        case = _Case(self, tp, partition, terms, standing)
        if case.is_settled():
            return partition, ""
        leader, risk = case.elect()
        new = case.without_leader() if leader == NO_LEADER else case.led_by(leader, is_at_risk=bool(risk))
        return (partition, "") if new == partition and partition.version != -1 else (new, risk)

    def without(
        self, tp: TopicPartition, partition: PartitionState, terms: Terms, standing: Standing, damaged: BrokerId
    ) -> PartitionState:
        """The state after a replica turned out to lack a part of what it should hold; the very same object when nothing
        can be done about it.

        Its broker leads: then another in-sync replica does, as if the broker was being drained, unless there is none.
        It follows: then it is neither in ISR nor in ELR, and the leader epoch is a new one, though the leader stays:
        what a leader knows of a follower's log ends with the epoch.
        """
        if damaged == partition.leader:
            drained = replace(standing, leaving=standing.leaving | {damaged})
            new, _ = self.settled(tp, partition, terms, drained)
            return partition if new.leader in (damaged, NO_LEADER) else new
        case = _Case(self, tp, partition, terms._replace(unclean=False), standing, damaged)
        leader, _ = case.elect()
        if leader == NO_LEADER:
            return partition
        return replace(case.led_by(leader, is_at_risk=False), leader_epoch=LeaderEpoch(partition.leader_epoch + 1))

    def _first(self, tp: TopicPartition, partition: PartitionState, terms: Terms, standing: Standing) -> PartitionState:
        """Of a partition that has no state node: its topic's creation or growth was not completed."""
        live = tuple(b for b in partition.replicas if self.is_live(b, tp, terms, standing))
        if not live:
            return partition
        isr = tuple(b for b in live if b not in standing.fenced) or live
        incarnations = {b: standing.brokers[b].epoch for b in isr}
        return replace(partition, leader=min(isr, key=standing.reluctance), isr=isr, incarnations=incarnations)

    def is_live(self, broker: BrokerId, tp: TopicPartition, terms: Terms, standing: Standing) -> bool:
        """Registered, with the replica's disk in order."""
        return broker in standing.brokers and (terms.topic_id, tp.partition) not in standing.offline.get(broker, ())

    def has_disks(self, broker: BrokerInfo, partition: PartitionState) -> bool:
        """True when no log directory is gone that the broker had when it was last in sync."""
        return broker.disks_since <= partition.incarnations.get(broker.id, broker.epoch)

    def is_intact(self, broker: BrokerInfo, partition: PartitionState) -> bool:
        """True when the broker still has what it had when it was last in sync; so it is taken to where that is unknown,
        in states that another program wrote.
        """
        in_sync = partition.incarnations.get(broker.id)
        return in_sync is None or broker.intact_since <= in_sync


class _Case:
    """One partition before its judge."""

    def __init__(
        self,
        rules: ElectionRules,
        tp: TopicPartition,
        partition: PartitionState,
        terms: Terms,
        standing: Standing,
        damaged: BrokerId | None = None,
    ) -> None:
        """``damaged``: a broker whose replica lacks something."""
        self._tp = tp
        self._partition = partition
        self._standing = standing
        self._unclean = terms.unclean
        self._min_isr = terms.min_isr
        live = {b for b in partition.replicas if rules.is_live(b, tp, terms, standing)}
        members = {*partition.isr, *partition.elr}
        self._live = live - {damaged}
        self._intact = {b for b in self._live & members if rules.is_intact(standing.brokers[b], partition)}
        self._lost = (live & members) - self._intact
        """Members that are live and have lost data."""
        self._emptied = {b for b in self._lost if b == damaged or not rules.has_disks(standing.brokers[b], partition)}
        """Those of them who have lost a disk, and may have nothing left; and who lacks something."""

    def is_settled(self) -> bool:
        """True when nothing has happened that could change the state: the common case, told fast."""
        p, brokers = self._partition, self._standing.brokers
        return (
            p.is_online
            and not p.elr
            and self._live.issuperset(p.isr)
            and self._standing.leaving.isdisjoint(p.isr)
            and p.leader in p.isr
            and all(p.incarnations.get(b) == brokers[b].epoch for b in p.isr)
        )

    def elect(self) -> tuple[BrokerId, str]:
        """The leader, or NO_LEADER, and the risk in it."""
        p = self._partition
        sound = self._in_order(self._intact.intersection(p.isr))
        stays = self._is_unchanged(p.leader) and p.leader in sound
        if stays and (p.leader not in self._standing.leaving or sound[0] in self._standing.leaving):
            return p.leader, ""
        if sound_or_eligible := [*sound, *self._in_order(self._intact.intersection(p.elr))]:
            return min(sound_or_eligible, key=lambda broker: broker in self._standing.fenced), ""
        ranks = (
            lost.intersection(among) for lost in (self._lost - self._emptied, self._lost) for among in (p.isr, p.elr)
        )
        members = next((self._in_order(rank) for rank in ranks if rank), [])
        if members and self._live.issuperset((*p.isr, *p.elr)):
            return members[0], "all that were in sync have lost data"
        if self._unclean and (candidates := members or self._in_order(self._live)):
            return candidates[0], "unclean.leader.election.enable lets a replica lead that was not in sync"
        return NO_LEADER, ""

    def _in_order(self, brokers: AbstractSet[BrokerId]) -> list[BrokerId]:
        """By preference, those last that are fenced or being drained."""
        return sorted((b for b in self._partition.replicas if b in brokers), key=self._standing.reluctance)

    def _is_unchanged(self, broker: BrokerId) -> bool:
        info = self._standing.brokers.get(broker)
        return info is not None and self._partition.incarnations.get(broker) == info.epoch

    def without_leader(self) -> PartitionState:
        """Those whose disk is gone wait for the others; unless no other is left."""
        p = self._partition
        isr = tuple(b for b in p.isr if b not in self._emptied) or p.isr
        elr = tuple(b for b in p.elr if b not in self._emptied)
        return replace(p, leader=NO_LEADER, isr=isr, elr=elr, incarnations=p.incarnations_of((*isr, *elr)))

    def _may_stay(self, broker: BrokerId) -> bool:
        standing = self._standing
        return broker not in standing.leaving or standing.may_serve(broker, self._tp, self._partition)

    def led_by(self, leader: BrokerId, *, is_at_risk: bool) -> PartitionState:
        p = self._partition
        isr = tuple(b for b in p.isr if b == leader or (b in self._intact and self._may_stay(b)))
        if leader not in isr:
            isr = (leader,)
        elr = () if is_at_risk else eligible(p, isr, self._min_isr, but=self._emptied)
        incarnations = p.incarnations_of(elr) | {b: self._standing.brokers[b].epoch for b in isr}
        is_new = leader != p.leader or not self._is_unchanged(leader)
        epoch = LeaderEpoch(p.leader_epoch + 1) if is_new else p.leader_epoch
        return replace(p, leader=leader, leader_epoch=epoch, isr=isr, elr=elr, incarnations=incarnations)


def with_known_states(read: ClusterState, before: ClusterState) -> ClusterState:
    """What was ``read``, with the states known ``before`` of partitions that have none now: somebody deleted the node.

    Without a leader, so that what is written anew is of the next leader epoch: epochs only grow. Where the partition's
    node has a later one (``snapshot``), of that.
    """
    topics = []
    for topic in read.topics.values():
        old = before.topics.get(topic.name)
        known = old.partitions if old is not None and old.id == topic.id else ()
        lost = {
            index: replace(
                was,
                replicas=now.replicas,
                adding=now.adding,
                removing=now.removing,
                leader_epoch=LeaderEpoch(max(was.leader_epoch, now.leader_epoch - 1)),
            )
            for index, (now, was) in enumerate(zip(topic.partitions, known, strict=False))
            if now.version == -1 and (was.isr or was.elr)
        }
        if lost:
            partitions = list(topic.partitions)
            for index, state in lost.items():
                partitions[index] = replace(state, leader=NO_LEADER, version=-1)
            topics.append(replace(topic, partitions=tuple(partitions)))
    return read.with_topics(*topics)


def eligible(
    partition: PartitionState, isr: tuple[BrokerId, ...], min_isr: int, *, but: AbstractSet[BrokerId] = frozenset()
) -> tuple[BrokerId, ...]:
    """The ELR next to ``isr``, the partition's new one: who leaves it while it is below the minimum stays eligible.

    A minimum above the number of replicas is never reached; but when all are in sync, nobody is left to be eligible.
    """
    if len(isr) >= min_isr:
        return ()
    members = dict.fromkeys((*partition.elr, *partition.isr))
    return tuple(b for b in members if b not in isr and b not in but and b in partition.replicas)
