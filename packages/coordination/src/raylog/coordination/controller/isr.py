"""What a leader may make its ISR: each proposal judged against the state as it is now (KIP-497, KIP-903)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from raylog.coordination.control.leadership import Change, ElectionRules, Standing, Terms, eligible
from raylog.coordination.control.proposals import IsrChange, Outcome, ProposeIsr, Verdict
from raylog.coordination.metadata.model import ClusterState, PartitionState
from raylog.protocol.ids import BrokerEpoch, BrokerId


class IsrJudge:
    """Judges the changes of one proposal."""

    def __init__(self, proposal: ProposeIsr, state: ClusterState, standing: Standing, rules: ElectionRules) -> None:
        self._proposal = proposal
        self._state = state
        self._standing = standing
        self._rules = rules

    def judge(self, change: IsrChange) -> Change | Outcome:
        """What to write, or the answer when there is nothing to write."""
        topic, partition = self._state.topics.get(change.tp.topic), self._state.partition(change.tp)
        if topic is None or topic.id != change.topic_id or partition is None:
            return Outcome(change.tp, Verdict.REFUSED, reason=f"there is no {change.tp} of a topic with this id")
        if reason := self._staleness(change, partition):
            return Outcome(change.tp, Verdict.STALE, partition, reason)
        terms = self._rules.terms(topic, self._state)
        change = self._without_ineligible(change, partition, terms)
        if reason := self._fault(change, partition, terms):
            return Outcome(change.tp, Verdict.REFUSED, partition, reason)
        # Written though it may be as it was: so a leader voids an earlier proposal of which it never heard.
        new = proposed(partition, dict(change.isr), terms.min_isr)
        return Change.by(self._state, change.tp, partition, new)

    def _without_ineligible(self, change: IsrChange, partition: PartitionState, terms: Terms) -> IsrChange:
        """Those that must not join yet keep nobody else out: without them, unless nothing is left of the change."""
        may_join = {*partition.replicas} - {*partition.isr}
        kept = tuple(
            (broker, epoch)
            for broker, epoch in change.isr
            if broker not in may_join or not self.ineligibility(broker, epoch, change, partition, terms)
        )
        is_change = {broker for broker, _ in kept} != {*partition.isr}
        return change._replace(isr=kept) if is_change else change

    def _staleness(self, change: IsrChange, partition: PartitionState) -> str:
        """Why the leader decided on what is no longer so; empty when it did not."""
        sender = self._proposal
        if partition.leader != sender.broker_id:
            return f"broker {sender.broker_id} does not lead {change.tp}: {partition.leader} does"
        epoch = self._standing.brokers[sender.broker_id].epoch if sender.broker_id in self._standing.brokers else None
        if epoch != sender.broker_epoch:
            return f"broker {sender.broker_id} is in epoch {epoch}, not {sender.broker_epoch}"
        if change.leader_epoch != partition.leader_epoch:
            return f"{change.tp} is in leader epoch {partition.leader_epoch}, not {change.leader_epoch}"
        if change.version != partition.version:
            return f"{change.tp} is at version {partition.version}, not {change.version}"
        return ""

    def _fault(self, change: IsrChange, partition: PartitionState, terms: Terms) -> str:
        """Why this must not be the ISR; empty when it may."""
        members = dict(change.isr)
        if len(members) != len(change.isr):
            return f"the ISR {[b for b, _ in change.isr]} names a broker more than once"
        if partition.leader not in members:
            return f"the leader {partition.leader} is not in the ISR {[*members]}"
        if strangers := [b for b in members if b not in partition.replicas]:
            return f"broker {strangers[0]} is no replica of {change.tp}: {partition.replicas} are"
        if unaware := [
            b for b in partition.isr if b not in members and self._standing.may_serve(b, change.tp, partition)
        ]:
            return f"broker {unaware[0]} may not know yet that another leads, and is taken out once it does"
        for broker, epoch in members.items():
            if reason := self.ineligibility(broker, epoch, change, partition, terms):
                return reason
        return ""

    def ineligibility(
        self, broker: BrokerId, epoch: BrokerEpoch, change: IsrChange, partition: PartitionState, terms: Terms
    ) -> str:
        """Why the broker cannot be a member; empty when it can."""
        if broker not in self._standing.brokers:
            return f"broker {broker} is not registered"
        if self._standing.brokers[broker].epoch != epoch:
            return f"broker {broker} is in epoch {self._standing.brokers[broker].epoch}, not {epoch}"
        if broker in self._state.fenced and broker not in partition.isr:
            return f"broker {broker} is fenced: it does not answer the controller"
        if not self._rules.is_live(broker, change.tp, terms, self._standing):
            return f"the disk of broker {broker} under {change.tp} has failed"
        if broker in self._standing.leaving and broker not in partition.isr:
            return f"broker {broker} is being drained"
        return ""


def proposed(partition: PartitionState, members: Mapping[BrokerId, BrokerEpoch], min_isr: int) -> PartitionState:
    """The state with these in sync; the order of those that were stays."""
    stay = tuple(b for b in partition.isr if b in members)
    isr = (*stay, *(b for b in partition.replicas if b in members and b not in stay))
    elr = eligible(partition, isr, min_isr)
    incarnations = MappingProxyType({**partition.incarnations_of(elr), **members})
    return replace(partition, isr=isr, elr=elr, incarnations=incarnations)
