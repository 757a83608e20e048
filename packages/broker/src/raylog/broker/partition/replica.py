"""A replica of a partition: a log, and this broker's role in replicating it.

The log's lock guards the role. Callbacks come outside it, unless they say otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from raylog.broker.config import MIN_INSYNC_REPLICAS, REPLICA_LAG_TIME_MAX_MS
from raylog.broker.partition.follower import FollowerRole
from raylog.broker.partition.types import AppendInfo
from raylog.broker.replication.follower import Follower
from raylog.broker.replication.leader import InSync, Leadership
from raylog.broker.storage.log.log import Log
from raylog.broker.storage.state.log_config import LogConfig
from raylog.broker.storage.state.marks import RecentMarks
from raylog.broker.storage.state.offsets import LogOffsets
from raylog.coordination.control.proposals import IsrChange
from raylog.coordination.metadata.model import PartitionState
from raylog.protocol.errors import (
    FencedLeaderEpoch,
    NotLeaderOrFollower,
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


class Replica:
    """See the module. It leads, or follows, or does neither."""

    leadership: Callable[..., Leadership] = Leadership
    """What judges in-sync replicas and high watermark while it leads; tests may have it judge wrongly."""
    follower = Follower()
    """The rules while it follows."""

    def __init__(self, tp: TopicPartition, topic_id: TopicId, log: Log, settings: Settings) -> None:
        """``settings`` are the topic's (config.topic_settings); after a change call :meth:`configure`."""
        self.tp = tp
        self.topic_id = topic_id
        self.log = log
        self.log.on_start = self._start_moved
        self.on_start: Callable[[TopicPartition], None] | None = None
        """Called when the log's start moved, under the log's lock: it must only take note."""
        self.on_append: Callable[[TopicPartition, int], None] | None = None
        """Called with the appended bytes when followers may read them; without any, ``on_advance`` says it all."""
        self.on_advance: Callable[[TopicPartition, int, Offset], None] | None = None
        """Called once the high watermark advanced, with the bytes that consumers can read now, and with it."""
        self.on_caught_up: Callable[[TopicPartition], None] | None = None
        """Called when a follower may join the ISR: a :meth:`proposal` is due."""
        self.on_low_watermark: Callable[[TopicPartition, Offset], None] | None = None
        """Called with the low watermark when a follower's log begins elsewhere than before."""
        self._leader_epoch = NO_EPOCH
        self._leadership: Leadership | None = None
        self._following: FollowerRole | None = None
        self._marks = RecentMarks()
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Take the topic's settings as they are now; they count from the next append on."""
        self.settings = settings
        self.log.configure(LogConfig.of(settings))
        with self.log.lock:
            leadership = self._leadership
            moved = leadership is not None and leadership.configure(settings[MIN_INSYNC_REPLICAS])
            readable = self._follow_leadership() if moved else 0
        if moved:
            self._tell_advance(readable)

    def _start_moved(self) -> None:
        if self.on_start is not None:
            self.on_start(self.tp)

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
            self._marks.clear()
            leadership = self.leadership(
                self.tp,
                state.leader,
                _in_sync(state),
                end=offsets.end.offset,
                log_start=offsets.start,
                start_offset=log.epochs.latest_start,
                high_watermark=offsets.high_watermark.offset,
                now_ms=now_ms,
                min_isr=self.settings[MIN_INSYNC_REPLICAS],
                lag_ms=(self.settings.parent or self.settings)[REPLICA_LAG_TIME_MAX_MS],
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
            self._following = FollowerRole(self.log, self.follower, self._marks)
            self._following.begin()

    def mend(self, leader_epoch: LeaderEpoch, now_ms: TimestampMs) -> None:
        """Drop what is damaged and all behind it, before ``leader_epoch`` is followed, in which nobody counts on us.

        Only when it is a new one: no leader of it has heard yet how far this log reached. Raises StorageError.
        """
        with self.log.lock:
            if self.log.damage is not None and leader_epoch > self._leader_epoch:
                self._marks.clear()
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
        self._leading(known)

    def _refuse_epoch(self, known: LeaderEpoch) -> None:
        where = f"{self.tp}: leader epoch {known}, the current one is {self._leader_epoch}"
        if known < self._leader_epoch:
            raise FencedLeaderEpoch(f"{where}: refresh the metadata")
        raise UnknownLeaderEpoch(f"{where}: this broker has not heard of it yet; try again")

    def _leading(self, known: LeaderEpoch = NO_EPOCH) -> Leadership:
        """The role of a leader; raises as :meth:`check_leader_epoch`. Without the lock it may be over at once."""
        leadership = self._leadership
        if leadership is None:
            raise NotLeaderOrFollower(f"{self.tp}: this broker does not lead it; refresh the metadata")
        if known not in (NO_EPOCH, leadership.leader_epoch):
            self._refuse_epoch(known)
        return leadership

    # --- replication: leading --------------------------------------------------------------------------------

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
        return self._leading().start_offset

    @property
    def low_watermark(self) -> Offset:
        """See Leadership.low_watermark. Raises NotLeaderOrFollower."""
        with self.log.lock:
            return self._leading().low_watermark(self.log.offsets.start)

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
            leadership = self._leading(leader_epoch)
            follower = leadership.followers.get(replica)
            start_moved = follower is not None and follower.log_start != log_start
            fetched = leadership.fetched(replica, broker_epoch, offset, log_start, now_ms)
            if fetched.hw_moved:
                readable = self._follow_leadership()
            if start_moved:
                low_watermark = leadership.low_watermark(self.log.offsets.start)
        if fetched.hw_moved:
            self._tell_advance(readable)
        if low_watermark is not None and self.on_low_watermark is not None:
            self.on_low_watermark(self.tp, low_watermark)
        if fetched.wants_in and self.on_caught_up is not None:
            self.on_caught_up(self.tp)

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
        return None if wanted is None else IsrChange(self.tp, self.topic_id, *wanted)

    def refused(self, version: int) -> None:
        """What was proposed at ``version`` was not taken, or nobody knows; see Leadership.refused."""
        with self.log.lock:
            if self._leadership is not None:
                self._leadership.refused(version)

    def check_committed(self, info: AppendInfo) -> bool:
        """Whether an append may be acknowledged with acks=all; False: not yet.

        Raises NotLeaderOrFollower when its leader epoch is over, NotEnoughReplicasAfterAppend.
        """
        high_watermark = self.high_watermark  # first: what was committed while we led in this epoch, stays so
        return self._leading().is_committed(high_watermark, Offset(info.last_offset + 1), info.leader_epoch)

    def _follow_leadership(self) -> int:
        """Publish the leadership's high watermark; how many bytes became readable. The caller holds the lock."""
        assert self._leadership is not None
        offset = self._leadership.high_watermark
        log = self.log
        before = log.offsets.high_watermark
        if offset <= before.offset:
            return 0
        mark = self._marks.take(offset) or log.mark(offset)
        log.publish(high_watermark=mark)
        return mark.position - before.position if mark.segment_base == before.segment_base else ANOTHER_SEGMENT

    def _tell_advance(self, readable: int) -> None:
        if self.on_advance is not None:
            self.on_advance(self.tp, readable, self.high_watermark)

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

    # --- offsets ---------------------------------------------------------------------------------------------

    @property
    def offsets(self) -> LogOffsets:
        """All four offsets at one moment."""
        return self.log.offsets

    @property
    def log_start_offset(self) -> Offset:
        """The first offset that is kept."""
        return self.log.offsets.start

    @property
    def durable_start(self) -> Offset:
        """A log start that a crash does not take back: at most :attr:`log_start_offset`. Leaders are told this one."""
        return min(self.log.durable_start, self.log.offsets.start)

    @property
    def last_stable_offset(self) -> Offset:
        """Below it no transaction is open."""
        return self.log.offsets.stable.offset

    @property
    def high_watermark(self) -> Offset:
        """Below it everything is committed."""
        return self.log.offsets.high_watermark.offset

    @property
    def log_end_offset(self) -> Offset:
        """The next record's offset."""
        return self.log.offsets.end.offset


def _in_sync(state: PartitionState) -> InSync:
    """What the leader of this state must know of it."""
    return InSync(state.leader_epoch, state.version, state.replicas, state.isr, state.incarnations, state.elr)
