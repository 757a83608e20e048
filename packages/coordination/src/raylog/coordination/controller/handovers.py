"""Leaders that were replaced while they live, until they know.

A broker that does not hear the controller goes on to serve what it led: it answers ends and fetches from its log. So
nothing may be committed without it yet, for its answers would be old then. It is, by this rule: *who led stays in the
ISR until it has acknowledged that another leads*, or its incarnation has ended. The new leader leads at once, and
commits what the former one has fetched from it, who knows by then.

A controller that takes office, or had to read everything again, does not know what brokers were told: then each is
taken for unaware of everything, until it has acknowledged what was read.
"""

from __future__ import annotations

from collections.abc import Iterable

from raylog.coordination.control.leadership import Change
from raylog.coordination.control.peer_control import Ack
from raylog.coordination.controller.peers import Peers
from raylog.protocol.ids import NO_LEADER, BrokerId, TopicPartition


class Handovers:
    """Of one mandate."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._since = 0
        """The revision that was read: whoever acknowledged it knows all that was decided before."""
        self._replaced: dict[BrokerId, dict[TopicPartition, int]] = {}
        """In which revision a broker's leadership ended."""

    def read_anew(self) -> None:
        """The state in force was read from the store, and may have been written by others."""
        self._since = self._peers.revision

    def decided(self, changes: Iterable[Change]) -> None:
        """These were written, and are in the revision in force."""
        for tp, old, new, _ in changes:
            if old.leader not in (NO_LEADER, new.leader):
                self._replaced.setdefault(old.leader, {})[tp] = self._peers.revision

    def unaware(self, broker_id: BrokerId, tp: TopicPartition) -> bool:
        """Whether the broker, which does not lead ``tp``, may believe that it does."""
        return self._peers.acknowledged(broker_id) < max(self._since, self._replaced.get(broker_id, {}).get(tp, 0))

    def acked(self, ack: Ack) -> bool:
        """Pass a broker's answer on to Peers; True when the broker became aware of something by it."""
        broker_id, before = ack.broker_id, self._peers.acknowledged(ack.broker_id)
        self._peers.acked(ack)
        now = self._peers.acknowledged(broker_id)
        left = {tp: revision for tp, revision in self._replaced.get(broker_id, {}).items() if revision > now}
        known = len(left) < len(self._replaced.get(broker_id, {}))
        if known:
            self._replaced[broker_id] = left
        return known or before < self._since <= now
