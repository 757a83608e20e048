"""What this broker asks of the controller about its partitions: who is in sync where it leads (KIP-497), and which
replicas it has lost with a disk or found damaged.

One thread, one message at a time. It looks at a partition at once when a follower has caught up, and at all led ones
every so often, for followers that fell behind. It decides nothing: the partition proposes, the controller writes, and
the partition takes the answer over, or the controller's next message, whichever comes first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence

from raylog.broker.events import EventLog
from raylog.broker.partition.table import PartitionTable
from raylog.coordination.control.peer_control import PeerControl
from raylog.coordination.control.proposals import (
    DamagedReplica,
    IsrAnswer,
    IsrChange,
    OfflineReplica,
    Outcome,
    ProposeIsr,
    ReplicasDamaged,
    ReplicasOffline,
    Verdict,
)
from raylog.coordination.host.clocks import monotonic_ms
from raylog.coordination.host.loops import Loops
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import BrokerEpoch, BrokerId, TopicPartition

__all__ = ["IsrChanges"]

logger = EventLog(__name__)

RETRY_S = 0.2
"""The pause after the controller could not be asked, or could not tell."""

MAX_CHANGES = 500
"""Partitions in one message."""


class IsrChanges:
    """See the module. :meth:`caught_up` may be called by any thread, under any lock."""

    def __init__(
        self,
        table: PartitionTable,
        peer_control: PeerControl,
        epoch: Callable[[], BrokerEpoch],
        lag_ms: int,
        loops: Loops,
    ) -> None:
        """``epoch``: this broker's incarnation; ``lag_ms``: replica.lag.time.max.ms."""
        self._table = table
        self._peer_control = peer_control
        self._epoch = epoch
        self.shrinks = self.expands = self.failures = 0
        """Replicas taken out and taken in, and changes that were not made, since the start."""
        self._interval_s = min(lag_ms / 2000, 1.0)
        self._lock = threading.Condition()
        self._wanted: set[TopicPartition] = set()
        self._next_tick = 0.0
        """By the monotonic clock, in seconds."""
        self._stopping = False
        self._loops = loops
        self._at_hand: list[IsrChange] = []
        """Proposed by their partitions, and not answered yet; the thread's."""
        self._loop = loops.loop("isr-changes", self._turn, mend=self._not_asked, last_pause_s=self._interval_s)

    def start(self) -> None:
        self._loop.start()

    def stop(self) -> None:
        """Propose nothing more; waits for a message that is under way."""
        with self._lock:
            self._stopping = True
            self._lock.notify()
        self._loop.stop()
        self._loop.join()

    def caught_up(self, tp: TopicPartition) -> None:
        """A follower of ``tp`` may join its ISR: look at once."""
        with self._lock:
            self._wanted.add(tp)
            self._lock.notify()

    def look_now(self) -> None:
        """A log directory went offline, or a log was found damaged: tell of the replicas at once."""
        with self._lock:
            self._next_tick = 0.0
            self._lock.notify()

    # --- the thread

    def _turn(self) -> bool:
        """Look at what there is to look at, or wait for it. What fails is looked at again at the next tick."""
        with self._lock:
            while not self._wanted and not self._stopping and (left := self._next_tick - time.monotonic()) > 0:
                self._lock.wait(left)
            if self._stopping:
                return False
            wanted, self._wanted = list(self._wanted), set()
            ticking = time.monotonic() >= self._next_tick
            if ticking:
                self._next_tick = time.monotonic() + self._interval_s
        if ticking:
            self._loops.guarded("isr-changes", self._give_up_failed)
            self._loops.guarded("isr-changes", self._tell_of_damaged)
        again = self._propose(list(self._table.led()) if ticking else wanted)
        if again:
            self._pause()
            with self._lock:
                self._wanted.update(again)
        return True

    def _pause(self) -> None:
        with self._lock:
            self._lock.wait_for(lambda: self._stopping, RETRY_S)

    def _propose(self, partitions: Sequence[TopicPartition]) -> Sequence[TopicPartition]:
        """Ask for what they want; those that must be asked for again soon."""
        state = self._table.state()
        live = {broker.id: broker.epoch for broker in state.brokers.values()}
        now_ms = monotonic_ms()
        wishes: list[tuple[IsrChange, tuple[BrokerId, ...]]] = []
        for tp in partitions:
            partition = self._table.led_partition(tp)
            if partition is not None:
                before = partition.role.isr
                change = partition.role.proposal(now_ms, live)
                if change is not None:
                    self._at_hand.append(change)
                    wishes.append((change, before))
        again: list[TopicPartition] = []
        for first in range(0, len(wishes), MAX_CHANGES):
            part = wishes[first : first + MAX_CHANGES]
            changes = tuple(change for change, _ in part)
            message = ProposeIsr(self._table.broker_id, self._epoch(), state.controller_epoch, changes)
            outcomes = self._ask(message) or [Outcome(change.tp, Verdict.UNAVAILABLE) for change in changes]
            for (change, before), outcome in zip(part, outcomes, strict=True):
                self._take(change, before, outcome)
                if outcome.verdict in (Verdict.UNAVAILABLE, Verdict.NOT_CONTROLLER, Verdict.STALE):
                    again.append(change.tp)
        self._at_hand = []
        return again

    def _not_asked(self, error: Exception) -> None:
        """A defect: nobody knows what became of what was at hand. Its partitions propose again."""
        at_hand, self._at_hand = self._at_hand, []
        for change in at_hand:
            partition = self._table.led_partition(change.tp)
            if partition is not None and partition.topic_id == change.topic_id:
                partition.role.refused(change.version)
        with self._lock:
            self._wanted.update(change.tp for change in at_hand)

    def _take(self, change: IsrChange, before: Collection[BrokerId], outcome: Outcome) -> None:
        partition = self._table.led_partition(change.tp)
        is_of_it = partition is not None and partition.topic_id == change.topic_id
        if partition is not None and is_of_it and outcome.verdict is not Verdict.OK:
            # Before its state is taken in, which ends the proposal as if it were news.
            partition.role.refused(change.version)
        if outcome.state is not None:
            self._table.isr_answered(change.tp, change.topic_id, outcome.state)
        if outcome.verdict is Verdict.OK:
            now = {member for member, _ in change.isr} if outcome.state is None else set(outcome.state.isr)
            self.shrinks += len(set(before) - now)
            self.expands += len(now - set(before))
            logger.info("in-sync replicas changed", partition=change.tp, isr=sorted(now), before=sorted(before))
            return
        self.failures += 1
        if outcome.verdict is Verdict.REFUSED:
            logger.info("in-sync replicas not changed", partition=change.tp, reason=outcome.reason)

    def _give_up_failed(self) -> None:
        """Tell of the replicas that a disk took with it, until the state shows that others lead them."""
        state = self._table.state()
        me = self._table.broker_id
        lost: dict[str, list[OfflineReplica]] = {}
        for tp, (topic_id, reason) in self._table.give_up_failed().items():
            partition = state.partition(tp, topic_id)
            if partition is not None and (partition.leader == me or me in partition.isr or me in partition.elr):
                lost.setdefault(reason, []).append(OfflineReplica(tp, topic_id))
        for reason, replicas in lost.items():
            self._ask(ReplicasOffline(me, self._epoch(), state.controller_epoch, tuple(replicas), reason))

    def _tell_of_damaged(self) -> None:
        """Ask that nobody counts on what is damaged here, so that it can be mended (see Role.mend).

        The last in sync keeps what it has, and nothing is asked while there is no leader to fetch it from.
        """
        state = self._table.state()
        me = self._table.broker_id
        replicas = []
        for tp, partition in self._table.damaged().items():
            now = state.partition(tp, partition.topic_id)
            if now is None or not now.is_online or now.leader_epoch != partition.role.leader_epoch:
                continue  # the controller's next word on it is under way
            if now.leader != me or len(now.isr) > 1:
                replicas.append(DamagedReplica(tp, partition.topic_id, now.leader_epoch))
        for first in range(0, len(replicas), MAX_CHANGES):
            part = tuple(replicas[first : first + MAX_CHANGES])
            self._ask(ReplicasDamaged(me, self._epoch(), state.controller_epoch, part))

    def _ask(self, message: ProposeIsr | ReplicasOffline | ReplicasDamaged) -> Sequence[Outcome] | None:
        """The controller's outcomes; None when it could not be asked."""
        controller = self._table.controller_id
        try:
            return IsrAnswer.decode(self._peer_control.propose(controller, message.encode())).outcomes
        except RaylogError as error:
            logger.info("the controller did not answer a proposal", controller=controller, reason=error)
            return None
