"""Elections that somebody asks for (KIP-460), and those that bring leaders back to where they belong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from raylog.coordination.control import reassignment
from raylog.coordination.control.leadership import Change, ElectionRules, Standing, Terms
from raylog.coordination.metadata.model import ClusterState, PartitionState
from raylog.protocol.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    PreferredLeaderNotAvailable,
    UnknownTopicOrPartition,
)
from raylog.protocol.ids import NO_LEADER, BrokerId, LeaderEpoch, TopicPartition


class Elections:
    """At one moment."""

    def __init__(self, state: ClusterState, standing: Standing, rules: ElectionRules) -> None:
        self._state = state
        self._standing = standing
        self._rules = rules

    def preferred(self, tp: TopicPartition) -> Change:
        """The first replica leads. Raises ElectionNotNeeded, PreferredLeaderNotAvailable, UnknownTopicOrPartition."""
        partition, terms = self._find(tp)
        wanted = partition.replicas[0]
        if partition.leader == wanted:
            raise ElectionNotNeeded(f"{tp} is led by its preferred replica, {wanted}")
        if not self._can_take_over(wanted, tp, partition, terms):
            raise PreferredLeaderNotAvailable(f"the preferred replica of {tp}, {wanted}, is not alive and in sync")
        epoch = LeaderEpoch(partition.leader_epoch + 1)
        return Change.by(self._state, tp, partition, replace(partition, leader=wanted, leader_epoch=epoch))

    def unclean(self, tp: TopicPartition) -> Change:
        """Any live replica leads, where none does. Raises ElectionNotNeeded, EligibleLeadersNotAvailable,
        UnknownTopicOrPartition.
        """
        partition, terms = self._find(tp)
        if partition.is_online:
            raise ElectionNotNeeded(f"{tp} is led by {partition.leader}")
        new, risk = self._rules.settled(tp, partition, terms._replace(unclean=True), self._standing)
        if new.leader == NO_LEADER:
            brokers = ", ".join(map(str, partition.replicas))
            raise EligibleLeadersNotAvailable(f"none of the brokers that have {tp} is alive: start one of {brokers}")
        return Change.by(self._state, tp, partition, new, risk)

    def imbalanced(self, percentage: int) -> Iterator[Change]:
        """What brokers could lead that others lead, where that is more than ``percentage`` of what they should lead."""
        preferred: Counter[BrokerId] = Counter()
        elsewhere: Counter[BrokerId] = Counter()
        for _, partition in self._state.partitions():
            broker = partition.replicas[0]
            preferred[broker] += 1
            elsewhere[broker] += partition.leader != broker
        wrong = {broker for broker, count in preferred.items() if elsewhere[broker] * 100 > percentage * count}
        for tp, partition in self._state.partitions() if wrong else ():
            is_misplaced = partition.is_online and partition.leader != partition.replicas[0]
            if partition.replicas[0] in wrong and is_misplaced and not reassignment.is_under_way(partition):
                try:
                    yield self.preferred(tp)
                except PreferredLeaderNotAvailable:
                    pass  # at the next check, then

    def _find(self, tp: TopicPartition) -> tuple[PartitionState, Terms]:
        topic, partition = self._state.topics.get(tp.topic), self._state.partition(tp)
        if topic is None or partition is None or partition.version == -1:
            raise UnknownTopicOrPartition(f"there is no partition {tp}")
        if partition.is_unreadable:
            raise EligibleLeadersNotAvailable(f"the state of {tp} cannot be read: see `raylog doctor`")
        return partition, self._rules.terms(topic, self._state)

    def _can_take_over(self, broker: BrokerId, tp: TopicPartition, partition: PartitionState, terms: Terms) -> bool:
        """A member of the ISR in the incarnation that is in sync, so not one whose return was not dealt with yet; which
        answers the controller.
        """
        standing = self._standing
        return (
            broker in partition.isr
            and broker not in standing.fenced
            and self._rules.is_live(broker, tp, terms, standing)
            and partition.incarnations.get(broker) == standing.brokers[broker].epoch
        )
