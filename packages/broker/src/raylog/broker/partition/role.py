"""A broker's role in replicating a partition: it leads, or follows, or does neither.

The log's lock guards it: each change of the role is made under that. ``types.Subscriptions`` says when it calls back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn

from raylog.broker.config import MIN_INSYNC_REPLICAS, REPLICA_LAG_TIME_MAX_MS
from raylog.broker.partition.follower import FollowerRole
from raylog.broker.partition.types import ACKS_ALL, AppendInfo, Subscriptions
from raylog.broker.replication.follower import Follower
from raylog.broker.replication.leader import InSync, Leadership
from raylog.broker.storage.log.log import Log
from raylog.broker.storage.state.marks import RecentMarks
from raylog.broker.storage.state.offsets import Mark
from raylog.coordination.control.proposals import IsrChange
from raylog.coordination.metadata.model import PartitionState
from raylog.protocol.errors import (
    FencedLeaderEpoch,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    RaylogError,
    UnknownLeaderEpoch,
)
from raylog.protocol.ids import (
    NO_EPOCH,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    TimestampMs,
    TopicId,
    TopicPartition,
)
from raylog.protocol.settings import Settings
from raylog.protocol.wire.fetch import FetchedPartition

ANOTHER_SEGMENT = 2**31
"""Readable bytes as they are told when the high watermark crossed into another segment: enough for any fetch."""


class Role:
    """See the module."""

    leadership: ClassVar[type[Leadership]] = Leadership
    """What judges in-sync replicas and high watermark while it leads; tests may have it judge wrongly."""
    follower: ClassVar[Follower] = Follower()
    """The rules while it follows."""

    def __init__(
        self, tp: TopicPartition, topic_id: TopicId, log: Log, settings: Settings, subscriptions: Subscriptions
    ) -> None:
        """``settings`` are the topic's (config.topic_settings); after a change call :meth:`configure`."""
        self.tp = tp
        self._topic_id = topic_id
        self.log = log
        self._settings = settings
        self._subscriptions = subscriptions
        self._leader_epoch = NO_EPOCH
        self._leadership: Leadership | None = None
        self._following: FollowerRole | None = None
        self.marks = RecentMarks()  # where appends end that followers are yet to have

    def configure(self, settings: Settings) -> None:
        """Take the topic's settings as they are now."""
        self._settings = settings
        with self.log.lock:
            leadership = self._leadership
            moved = leadership is not None and leadership.configure(settings[MIN_INSYNC_REPLICAS])
            readable = self._follow_leadership() if moved else 0
        if moved:
            self._tell_advance(readable)

    # --- role ------------------------------------------------------------------------------------------------

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The epoch in which this broker leads or follows, or did so last; -1 before any."""
        return self._leader_epoch

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads the partition."""
        return self._leadership is not None

    @property
    def is_follower(self) -> bool:
        """Whether this broker follows the partition's leader: it serves consumers below its own high watermark."""
        return self._following is not None

    def describe(self) -> dict[str, Any] | None:
        """What its leader knows of the replicas, in plain values; None when this broker does not lead."""
        leadership = self._leadership
        return None if leadership is None else leadership.describe()

    def become_leader(self, state: PartitionState, now_ms: MonotonicMs) -> None:
        """Lead as ``state`` says, its leader being this broker; idempotent. An older epoch raises FencedLeaderEpoch.

        Where the epoch begins is on the disk before the first append in it. Without followers all that is here is
        committed at once. Raises StorageError.
        """
        log, epoch = self.log, state.leader_epoch
        with log.lock:
            self._check_not_older(epoch)
            if epoch == self._leader_epoch and self._leadership is not None:
                self.update(state, now_ms)
                return
            log.check_open()
            offsets = log.offsets
            log.assign_epoch(epoch, offsets.end.offset)
            self.marks.clear()
            leadership = self.leadership(
                self.tp,
                state.leader,
                _in_sync(state),
                end=offsets.end.offset,
                log_start=offsets.start,
                start_offset=log.epochs.latest_start,
                high_watermark=offsets.high_watermark.offset,
                now_ms=now_ms,
                min_isr=self._settings[MIN_INSYNC_REPLICAS],
                lag_ms=(self._settings.parent or self._settings)[REPLICA_LAG_TIME_MAX_MS],
            )
            self._leader_epoch, self._following = epoch, None
            self._leadership = leadership
            if leadership.is_alone:
                log.publish(high_watermark=offsets.end)
            else:
                self._follow_leadership()

    def become_follower(self, leader_epoch: LeaderEpoch) -> None:
        """Follow the leader of ``leader_epoch`` from now on; an older epoch raises FencedLeaderEpoch.

        Nothing is truncated before that leader has said where logs differ. Raises StorageError.
        """
        with self.log.lock:
            self._check_not_older(leader_epoch)
            self.log.check_open()
            self._leader_epoch, self._leadership = leader_epoch, None
            self._following = FollowerRole(self.log, self.follower, self.marks)
            self._following.begin()

    def mend(self, leader_epoch: LeaderEpoch, now_ms: TimestampMs) -> None:
        """Drop what is damaged and all behind it, before ``leader_epoch`` is followed, in which nobody counts on us.

        Only when it is a new one: no leader of it has heard yet how far this log reached. Raises StorageError.
        """
        with self.log.lock:
            if self.log.damage is not None and leader_epoch > self._leader_epoch:
                self.marks.clear()
                self.log.mend(now_ms)

    def resign(self) -> None:
        """Neither lead nor follow: appends and reads raise NotLeaderOrFollower from now on."""
        with self.log.lock:
            self._leadership = self._following = None

    def _check_not_older(self, epoch: LeaderEpoch) -> None:
        if epoch < self._leader_epoch:
            raise FencedLeaderEpoch(f"{self.tp}: leader epoch {epoch}, but {self._leader_epoch} is known")

    def check_leader_epoch(self, known: LeaderEpoch = NO_EPOCH) -> None:
        """Refuse a caller whose ``known`` epoch is not ours (KIP-320); -1 claims nothing.

        Raises NotLeaderOrFollower, FencedLeaderEpoch (the caller is behind), UnknownLeaderEpoch (we are).
        """
        self.leading(known)

    def check_readable(self, offset: Offset, known: LeaderEpoch, *, leader_only: bool) -> None:
        """Refuse a reader at ``offset`` that this broker does not serve; a follower serves unless ``leader_only``.

        Raises as :meth:`check_leader_epoch`, and OffsetNotAvailable when a follower has not come that far.
        """
        if leader_only or self._following is None:
            self.leading(known)
        elif known not in (NO_EPOCH, self._leader_epoch):
            self._refuse_epoch(known)
        elif offset > (end := self.log.offsets.end.offset):
            raise OffsetNotAvailable(
                f"{self.tp}: this follower ends at {end} and has not come to offset {offset} yet: "
                "try again, or ask the leader"
            )

    def _refuse_epoch(self, known: LeaderEpoch) -> NoReturn:
        where = f"{self.tp}: leader epoch {known}, the current one is {self._leader_epoch}"
        if known < self._leader_epoch:
            raise FencedLeaderEpoch(f"{where}: refresh the metadata")
        raise UnknownLeaderEpoch(f"{where}: this broker has not heard of it yet; try again")

    def leading(self, known: LeaderEpoch = NO_EPOCH) -> Leadership:
        """The role of a leader; raises as :meth:`check_leader_epoch`. Without the lock it may be over at once."""
        leadership = self._leadership
        if leadership is None:
            raise NotLeaderOrFollower(f"{self.tp}: this broker does not lead it; refresh the metadata")
        if known not in (NO_EPOCH, leadership.leader_epoch):
            self._refuse_epoch(known)
        return leadership

    # --- replication: leading --------------------------------------------------------------------------------

    def appending(self, acks: int, leader_epoch: LeaderEpoch | None) -> Leadership:
        """The role of a leader that may append now; raises as Partition.append. The caller holds the log's lock."""
        leadership = self.leading(NO_EPOCH if leader_epoch is None else leader_epoch)
        if acks == ACKS_ALL:
            leadership.check_enough()
        return leadership

    def durable(self, leadership: Leadership, end: Mark, size: int) -> None:
        """Our own log is durable up to ``end``, as far as that was asked for: count it, and tell what waits for it."""
        readable = 0
        with self.log.lock:
            if leadership is not self._leadership:
                return  # the log may have been truncated meanwhile
            if not leadership.is_alone:
                is_alone, moved = False, leadership.appended(end.offset)
                readable = self._follow_leadership() if moved else 0
            else:
                is_alone, moved = True, self.log.offsets.high_watermark.offset < end.offset
                if moved:
                    self.log.publish(high_watermark=end)
                    readable = size
        on_append = self._subscriptions.on_append
        if not is_alone and on_append is not None:
            on_append(self.tp, size)
        if moved:
            self._tell_advance(readable)

    def check_committed(self, info: AppendInfo) -> bool:
        """Whether an append may be acknowledged with acks=all; False: not yet.

        Raises NotLeaderOrFollower when its leader epoch is over, NotEnoughReplicasAfterAppend.
        """
        high_watermark = self.log.offsets.high_watermark.offset  # first: what was committed in this epoch stays so
        return self.leading().is_committed(high_watermark, Offset(info.last_offset + 1), info.leader_epoch)

    @property
    def isr(self) -> tuple[BrokerId, ...]:
        """The in-sync replicas as the controller wrote them; none when this broker does not lead."""
        leadership = self._leadership
        return () if leadership is None else leadership.isr

    @property
    def epoch_start_offset(self) -> Offset:
        """Where the current leader epoch begins: only from there on is the high watermark of a new leader not behind
        what the one before may have told (KIP-207). Raises NotLeaderOrFollower.
        """
        return self.leading().start_offset

    @property
    def low_watermark(self) -> Offset:
        """See Leadership.low_watermark. Raises NotLeaderOrFollower."""
        with self.log.lock:
            return self.leading().low_watermark(self.log.offsets.start)

    def readable_replicas(self, offset: Offset) -> list[tuple[BrokerId, Offset]]:
        """The in-sync followers that a consumer at ``offset`` can read from, each with its log end as the leader knows
        it; none when this broker does not lead.
        """
        leadership = self._leadership
        return [] if leadership is None else leadership.readable_replicas(offset)

    @property
    def wants_proposal(self) -> bool:
        """Whether a follower may join the ISR and nobody has been asked yet."""
        leadership = self._leadership
        return leadership is not None and leadership.wants_proposal

    def replica_fetched(
        self,
        replica: BrokerId,
        broker_epoch: BrokerEpoch,
        offset: Offset,
        log_start: Offset,
        now_ms: MonotonicMs,
        *,
        leader_epoch: LeaderEpoch,
    ) -> None:
        """A follower whose log does not diverge has all before ``offset``: it fetched from there in ``leader_epoch``.

        Raises NotLeaderOrFollower, FencedLeaderEpoch, UnknownLeaderEpoch, StaleBrokerEpoch.
        """
        readable = 0
        low_watermark = None
        with self.log.lock:
            leadership = self.leading(leader_epoch)
            follower = leadership.followers.get(replica)
            start_moved = follower is not None and follower.log_start != log_start
            fetched = leadership.fetched(replica, broker_epoch, offset, log_start, now_ms)
            if fetched.hw_moved:
                readable = self._follow_leadership()
            if start_moved:
                low_watermark = leadership.low_watermark(self.log.offsets.start)
        if fetched.hw_moved:
            self._tell_advance(readable)
        told = self._subscriptions
        if low_watermark is not None and told.on_low_watermark is not None:
            told.on_low_watermark(self.tp, low_watermark)
        if fetched.wants_in and told.on_caught_up is not None:
            told.on_caught_up(self.tp)

    def update(self, state: PartitionState, now_ms: MonotonicMs) -> None:
        """The controller's word on a partition that is led here; an old one, or of another epoch, changes nothing."""
        readable = 0
        with self.log.lock:
            leadership = self._leadership
            if leadership is None:
                return
            offsets = self.log.offsets
            if leadership.is_alone:  # then it was not asked
                leadership.end = leadership.high_watermark = offsets.high_watermark.offset
            moved = leadership.update(_in_sync(state), now_ms)
            if leadership.is_alone:
                self.log.publish(high_watermark=offsets.end)
            elif moved:
                readable = self._follow_leadership()
        if moved:
            self._tell_advance(readable)

    def proposal(self, now_ms: MonotonicMs, live: Mapping[BrokerId, BrokerEpoch]) -> IsrChange | None:
        """The ISR change to ask the controller for, if one is due; see Leadership.proposal."""
        with self.log.lock:
            leadership = self._leadership
            wanted = None if leadership is None else leadership.proposal(now_ms, live)
        return None if wanted is None else IsrChange(self.tp, self._topic_id, *wanted)

    def refused(self, version: int) -> None:
        """What was proposed at ``version`` was not taken, or nobody knows; see Leadership.refused."""
        with self.log.lock:
            if self._leadership is not None:
                self._leadership.refused(version)

    def _follow_leadership(self) -> int:
        """Publish the leadership's high watermark; how many bytes became readable. The caller holds the lock."""
        assert self._leadership is not None
        offset = self._leadership.high_watermark
        log = self.log
        before = log.offsets.high_watermark
        if offset <= before.offset:
            return 0
        mark = self.marks.take(offset) or log.mark(offset)
        log.publish(high_watermark=mark)
        return mark.position - before.position if mark.segment_base == before.segment_base else ANOTHER_SEGMENT

    def _tell_advance(self, readable: int) -> None:
        on_advance = self._subscriptions.on_advance
        if on_advance is not None:
            on_advance(self.tp, readable, self.log.offsets.high_watermark.offset)

    # --- replication: following ------------------------------------------------------------------------------

    @property
    def last_fetched_epoch(self) -> LeaderEpoch:
        """The leader epoch of the last record here, as a fetch names it; -1 without records or when not following."""
        following = self._following
        if following is None:
            return NO_EPOCH
        with self.log.lock:
            return following.last_fetched_epoch

    def fetched(self, found: FetchedPartition[memoryview], leader_epoch: LeaderEpoch, now_ms: TimestampMs) -> None:
        """Take in what the leader of ``leader_epoch`` answered: batches verbatim, or where to truncate (KIP-595).

        :meth:`settle` follows. The same answer twice does no harm. Raises NotLeaderOrFollower when another leader is
        followed by now, CorruptMessage, OffsetOutOfRange, StorageError.
        """
        with self.log.lock:
            following = self._following_in(leader_epoch)
            before = self.log.offsets.high_watermark.offset
            size = following.fetched(found, now_ms)
            after = self.log.offsets.high_watermark.offset
        if after > before:
            self._tell_advance(size or ANOTHER_SEGMENT)

    def settle(self) -> None:
        """See FollowerRole.settle. One write serves all logs of a directory whose starts have moved."""
        if (following := self._following) is not None:
            following.settle()

    def fetch_failed(
        self, error: RaylogError, found: FetchedPartition[memoryview], leader_epoch: LeaderEpoch, now_ms: TimestampMs
    ) -> None:
        """The leader answered an error: start anew when its log begins later, else raise ``error``: ask again later."""
        with self.log.lock:
            self._following_in(leader_epoch).fetch_failed(error, found, now_ms)

    def _following_in(self, leader_epoch: LeaderEpoch) -> FollowerRole:
        if self._following is None or leader_epoch != self._leader_epoch:
            raise NotLeaderOrFollower(
                f"{self.tp}: an answer of the leader in epoch {leader_epoch} came late: it is {self._leader_epoch} now"
            )
        return self._following


def _in_sync(state: PartitionState) -> InSync:
    """What the leader of this state must know of it."""
    return InSync(state.leader_epoch, state.version, state.replicas, state.isr, state.incarnations, state.elr)
