"""A partition's leader: how far its log is committed, and who is in sync.

The high watermark is the smallest log end offset over the *maximal* ISR: the members that the controller has written,
and all whom this leader has proposed since. A proposal may be written at any time after it was sent, even when its
answer was lost or said no to an earlier copy; only a state with a higher version says what became of it. Until then
nothing is committed that one of those members lacks, for it could be elected (KIP-497).

Below min.insync.replicas, and while the partition has eligible leader replicas, the high watermark stands still
(KIP-966): so whoever left the ISR last still has all that is committed.

Example: replicas 1, 2, 3, ISR {1, 2}, leader 1 at 10, 2 at 8, 3 at 8, high watermark 8. Replica 3 has all that is
committed, so {1, 2, 3} is proposed; from now on 3 counts. 2 comes to 10: the high watermark stays at 8, until 3
comes to 10 as well.

Sans-io and without locks: one partition's owner calls it, under the log's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from raylog.protocol.errors import (
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    StaleBrokerEpoch,
)
from raylog.protocol.ids import NO_OFFSET, BrokerEpoch, BrokerId, LeaderEpoch, MonotonicMs, Offset, TopicPartition

__all__ = ["NOT_MOVED", "Fetched", "InSync", "Leadership", "Proposal", "Replica"]

UNKNOWN_EPOCH = BrokerEpoch(-1)
"""The incarnation of a replica that has not been heard of."""


class InSync(NamedTuple):
    """What a leader must know of its partition's committed state."""

    leader_epoch: LeaderEpoch
    version: int
    """Rises with every change of the state."""
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    incarnations: Mapping[BrokerId, BrokerEpoch]
    """Of the members the incarnation that was in sync (KIP-903), where it is known."""
    elr: tuple[BrokerId, ...] = ()
    """Eligible leader replicas (KIP-966): not in sync any more, but they hold all that is committed."""


class Proposal(NamedTuple):
    """The ISR that the controller shall write."""

    leader_epoch: LeaderEpoch
    version: int
    isr: tuple[tuple[BrokerId, BrokerEpoch], ...]
    """All members, each in the incarnation that is in sync."""


class Fetched(NamedTuple):
    """What a follower's fetch led to."""

    hw_moved: bool
    wants_in: bool
    """Whether a proposal is due: the follower may join the ISR."""


NOT_MOVED = Fetched(hw_moved=False, wants_in=False)


class Replica:
    """A follower as its leader sees it."""

    __slots__ = ("caught_up_ms", "end", "epoch", "fetch_end", "fetch_ms", "log_start", "was_at_end")

    def __init__(self) -> None:
        self.end = NO_OFFSET
        """Its log end offset, -1 before its first fetch in this leader epoch: what it has for sure."""
        self.epoch = UNKNOWN_EPOCH
        """Its incarnation that fetched last."""
        self.log_start = NO_OFFSET
        """Where it said that its log begins, for good; -1 before."""
        self.caught_up_ms: MonotonicMs | None = None
        """When it had all that the leader had at the time (Kafka's lastCaughtUpTimeMs); None: never."""
        self.fetch_ms = MonotonicMs(0)
        self.fetch_end: Offset | None = None
        """When it fetched last, and where the leader's log ended then."""
        self.was_at_end = False
        """Whether it stood at the leader's end when it was looked at last: it need not fetch to stay in sync."""

    def begin(self, epoch: BrokerEpoch) -> None:
        """A new incarnation of its broker fetches: what the old one had may be lost."""
        self.epoch, self.end, self.fetch_end, self.was_at_end = epoch, NO_OFFSET, None, False


class Leadership:
    """See the module. One object per leader epoch.

    ``high_watermark`` is this object's word only while there are other replicas (not :attr:`is_alone`): a leader
    without followers commits what it appends, and asks nobody.
    """

    def __init__(
        self,
        tp: TopicPartition,
        broker_id: BrokerId,
        state: InSync,
        *,
        end: Offset,
        log_start: Offset,
        start_offset: Offset,
        high_watermark: Offset,
        now_ms: MonotonicMs,
        min_isr: int,
        lag_ms: int,
    ) -> None:
        """``end``: the log end offset now; ``log_start``: where the log begins now; ``start_offset``: where the leader
        epoch begins in it; ``min_isr``:
        min.insync.replicas; ``lag_ms``: replica.lag.time.max.ms.
        """
        self.tp = tp
        self.broker_id = broker_id
        self.leader_epoch = state.leader_epoch
        self.start_offset = start_offset
        self.high_watermark = high_watermark
        self.min_isr = min_isr
        self.lag_ms = lag_ms
        self.end = end
        """Our own log end offset, as far as it is durable where flush.messages asks for that."""
        self._deleted_before = log_start
        """A low watermark that was told, by us or by the leader before, is at most this."""
        self._state = state
        self._pending: Proposal | None = None
        """Sent, and not answered yet."""
        self._proposed: frozenset[BrokerId] = frozenset()
        """All who were proposed at this version: each of them may be in the ISR already."""
        self._quiet = False
        """A proposal was not taken: no follower asks for another one before the next look at them all."""
        self.wants_proposal = False
        """Whether a follower may join, and no proposal has been made about it yet."""
        self.followers: dict[BrokerId, Replica] = {}
        self._take(state, now_ms)
        self._raise_high_watermark()

    # --- what is known

    @property
    def version(self) -> int:
        return self._state.version

    @property
    def isr(self) -> tuple[BrokerId, ...]:
        """The committed one."""
        return self._state.isr

    @property
    def elr(self) -> tuple[BrokerId, ...]:
        """Those who left the ISR below its minimum and may lead all the same."""
        return self._state.elr

    @property
    def maximal_isr(self) -> Iterable[BrokerId]:
        """All that may be in the ISR by now, ourselves among them."""
        return self._proposed.union(self._state.isr)

    def readable_replicas(self, offset: Offset) -> list[tuple[BrokerId, Offset]]:
        """The in-sync followers that a consumer at ``offset`` can read from, each with its log end: those whose log
        holds it, or ends there (KIP-392). What is not known yet of a follower's log counts as not held.
        """
        found = []
        for member in self._state.isr:
            replica = self.followers.get(member)
            if replica is not None and replica.log_start <= offset <= replica.end:
                found.append((member, replica.end))
        return found

    def low_watermark(self, log_start: Offset) -> Offset:
        """The lowest log start among the replicas that may lead next, ``log_start`` being our own (KIP-107, KIP-966):
        those that may be in the ISR by now, and the eligible ones. -1 while one has not told its own.

        From then on no replica joins the ISR that keeps records before it: they would come back when it leads.
        """
        members = (self.followers.get(member) for member in {*self.maximal_isr, *self.elr})
        lowest = min([log_start, *(replica.log_start for replica in members if replica is not None)])
        self._deleted_before = max(self._deleted_before, lowest)
        return lowest

    @property
    def is_frozen(self) -> bool:
        """Whether the high watermark must stand still (KIP-966)."""
        state = self._state
        return bool(state.elr) or len(state.isr) < min(self.min_isr, len(state.replicas))

    # --- the log

    def appended(self, end: Offset) -> bool:
        """Our own log, durable as asked, ends at ``end`` now; True when that moved the high watermark."""
        self.end = max(self.end, end)
        return self._raise_high_watermark()

    def fetched(
        self, broker_id: BrokerId, epoch: BrokerEpoch, offset: Offset, log_start: Offset, now_ms: MonotonicMs
    ) -> Fetched:
        """A follower asked for ``offset`` and what follows: all before it is in its log.

        Raises NotLeaderOrFollower when it has no replica, StaleBrokerEpoch when a later incarnation is known.
        """
        replica = self.followers.get(broker_id)
        if replica is None:
            raise NotLeaderOrFollower(
                f"{self.tp}: broker {broker_id} is none of its replicas {self._state.replicas}, as far as is known here"
            )
        self.check_broker_epoch(broker_id, replica, epoch)
        if epoch > replica.epoch:
            replica.begin(epoch)
        if offset >= self.end:
            replica.caught_up_ms = now_ms
        elif replica.fetch_end is not None and offset >= replica.fetch_end:
            replica.caught_up_ms = max(replica.caught_up_ms or replica.fetch_ms, replica.fetch_ms)
        replica.was_at_end = offset >= self.end
        replica.end = max(replica.end, offset)
        replica.log_start = log_start
        replica.fetch_ms, replica.fetch_end = now_ms, self.end
        moved = self._raise_high_watermark()
        wants_in = (
            broker_id not in self._state.isr and self._pending is None and not self._quiet and self.may_join(replica)
        )
        self.wants_proposal = self.wants_proposal or wants_in
        return Fetched(moved, wants_in) if moved or wants_in else NOT_MOVED

    def check_broker_epoch(self, broker_id: BrokerId, replica: Replica, epoch: BrokerEpoch) -> None:
        """Raise StaleBrokerEpoch for a fetch of an incarnation that is over: its data may be (KIP-903)."""
        known = max(replica.epoch, self._state.incarnations.get(broker_id, UNKNOWN_EPOCH))
        if epoch < known:
            raise StaleBrokerEpoch(
                f"{self.tp}: broker {broker_id} fetched in its incarnation {epoch}, but {known} is known"
            )

    def committable(self) -> Offset:
        """Up to where all have it that may be in the ISR."""
        end = self.end
        for member in self.maximal_isr:
            if member != self.broker_id:
                replica = self.followers.get(member)
                end = min(end, NO_OFFSET if replica is None else replica.end)
        return end

    def _raise_high_watermark(self) -> bool:
        if self.is_frozen:
            return False
        committable = self.committable()
        if committable <= self.high_watermark:
            return False
        self.high_watermark = committable
        return True

    # --- acks=all

    def check_enough(self) -> None:
        """Raise NotEnoughReplicas when an append with acks=all must be refused."""
        if self.lacks_replicas:
            raise NotEnoughReplicas(f"{self.tp}: {self._too_few()}; nothing was appended, try again")

    def is_committed(self, high_watermark: Offset, required: Offset, leader_epoch: LeaderEpoch) -> bool:
        """Whether an append of ``leader_epoch`` that ends at ``required`` may be acknowledged with acks=all.

        Raises NotEnoughReplicasAfterAppend, or NotLeaderOrFollower when the epoch is over: the next leader may not
        have it.
        """
        if leader_epoch != self.leader_epoch:
            raise NotLeaderOrFollower(
                f"{self.tp}: appended in leader epoch {leader_epoch}, but {self.leader_epoch} is the current one: "
                "send it again"
            )
        if high_watermark >= required:
            return True
        if self.lacks_replicas:
            raise NotEnoughReplicasAfterAppend(
                f"{self.tp}: appended up to offset {required - 1}, but {self._too_few()}: it may be lost, send it again"
            )
        return False

    def _too_few(self) -> str:
        return f"the in-sync replicas {[*self.isr]} are fewer than min.insync.replicas={self.min_isr}"

    # --- the ISR

    def update(self, state: InSync, now_ms: MonotonicMs) -> bool:
        """The controller's word in this leader epoch, which may come twice and late; True: the high watermark moved."""
        if state.leader_epoch != self.leader_epoch or state.version < self.version:
            return False
        self._pending = None
        if state.version == self.version:
            return False
        self._proposed, self._quiet = frozenset(), False
        self._take(state, now_ms)
        return self._raise_high_watermark()

    def configure(self, min_isr: int) -> bool:
        """min.insync.replicas is ``min_isr`` now; True: the high watermark moved."""
        self.min_isr = min_isr
        self.lacks_replicas = len(self.isr) < min_isr
        return self._raise_high_watermark()

    def _take(self, state: InSync, now_ms: MonotonicMs) -> None:
        self._state = state
        others = [broker for broker in state.replicas if broker != self.broker_id]
        self.is_alone = not others
        """Whether there are no other replicas."""
        self.lacks_replicas = len(state.isr) < self.min_isr
        """Whether appends with acks=all are refused."""
        known, self.followers = self.followers, {}
        for broker in others:
            replica = known.get(broker) or Replica()
            if broker in state.isr and replica.caught_up_ms is None:
                replica.caught_up_ms = now_ms
            if replica.epoch < state.incarnations.get(broker, UNKNOWN_EPOCH) and replica.epoch != UNKNOWN_EPOCH:
                replica.begin(state.incarnations[broker])
            self.followers[broker] = replica

    def proposal(self, now_ms: MonotonicMs, live: Mapping[BrokerId, BrokerEpoch]) -> Proposal | None:
        """The ISR to ask the controller for, if another one is due; call this every so often, and when a fetch says so.

        ``live``: the registered brokers and their incarnations. From now on until :meth:`update` or :meth:`refused` no
        other proposal comes.
        """
        self._quiet = self.wants_proposal = False
        self._look(now_ms)
        if self._pending is not None or self.is_alone:
            return None
        stay = [
            member
            for member in self.isr
            if member == self.broker_id
            or ((replica := self.followers.get(member)) is not None and self._is_in_sync(replica, now_ms))
        ]
        join = [
            broker
            for broker, replica in self.followers.items()
            if broker not in self.isr and live.get(broker) == replica.epoch and self.may_join(replica)
        ]
        wanted = (*stay, *join)
        if len(stay) == len(self.isr) and not join and self._proposed <= set(wanted):
            return None
        self._pending = Proposal(
            self.leader_epoch, self.version, tuple((member, self._incarnation(member, live)) for member in wanted)
        )
        self._proposed = self._proposed.union(wanted)
        return self._pending

    def refused(self, version: int) -> None:
        """The proposal made at ``version`` was not taken, or nobody knows what became of it. Its members count on for
        the high watermark; the next proposal may be another one.
        """
        if self._pending is not None and self._pending.version == version:
            self._pending = None
            self._quiet = True

    def may_join(self, replica: Replica) -> bool:
        """Whether it may join the ISR: it has all that is committed, all from before this leader epoch, and nothing
        that was told to be deleted."""
        has_all = replica.end >= max(self.high_watermark, self.start_offset)
        return has_all and replica.log_start >= self._deleted_before

    def _look(self, now_ms: MonotonicMs) -> None:
        """A follower at the end is caught up without a fetch, and fell behind after it was last seen there."""
        for replica in self.followers.values():
            at_end = replica.end >= self.end
            if at_end or replica.was_at_end:
                replica.caught_up_ms = now_ms
            replica.was_at_end = at_end

    def _is_in_sync(self, replica: Replica, now_ms: MonotonicMs) -> bool:
        """Kafka's rule: at the end, or it was less than replica.lag.time.max.ms ago."""
        if replica.end >= self.end:
            return True
        return replica.caught_up_ms is not None and now_ms - replica.caught_up_ms <= self.lag_ms

    def _incarnation(self, member: BrokerId, live: Mapping[BrokerId, BrokerEpoch]) -> BrokerEpoch:
        """The incarnation that is in sync: a new one only once it has shown that it still has everything."""
        written = self._state.incarnations.get(member, UNKNOWN_EPOCH)
        if member == self.broker_id:
            return live.get(member, written)
        replica = self.followers[member]
        return replica.epoch if written == UNKNOWN_EPOCH or self.may_join(replica) else written

    def describe(self) -> dict[str, Any]:
        """Plain facts for `describe` calls and tests."""
        return {
            "isr": list(self.isr),
            "version": self.version,
            "proposed": None if self._pending is None else [member for member, _ in self._pending.isr],
            "is_frozen": self.is_frozen,
            "followers": {
                int(broker): {"log_end_offset": replica.end, "broker_epoch": replica.epoch}
                for broker, replica in self.followers.items()
            },
        }
