"""A partition that follows: it carries out on its log what the follower's rules make of the leader's answers."""

from __future__ import annotations

from raylog.broker.config import FOREVER
from raylog.broker.events import EventLog
from raylog.broker.replication.follower import Append, Follower, StartAnew, Step, Truncate
from raylog.broker.storage.log.doomed import move_start, settle_start
from raylog.broker.storage.log.log import Log
from raylog.broker.storage.log.validation import checked_headers
from raylog.broker.storage.state.marks import RecentMarks
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import NO_EPOCH, LeaderEpoch, Offset, TimestampMs
from raylog.protocol.wire.fetch import FetchedPartition

logger = EventLog(__name__)


class FollowerRole:
    """One partition's, in one leader epoch. It is the :class:`~raylog.broker.replication.follower.ReplicaLog`, too.

    The caller holds the log's lock, but for :meth:`settle`.
    """

    def __init__(self, log: Log, rules: Follower, marks: RecentMarks) -> None:
        self._log = log
        self._rules = rules
        self._marks = marks

    def begin(self) -> None:
        """Follow from here. Epochs without records go: this broker led in them, and nobody will have them."""
        self._marks.clear()
        self._log.truncate(self._rules.first_offset(self), TimestampMs(0))

    # --- what the rules ask

    @property
    def log_start_offset(self) -> Offset:
        return self._log.offsets.start

    @property
    def log_end_offset(self) -> Offset:
        return self._log.offsets.end.offset

    @property
    def high_watermark(self) -> Offset:
        return self._log.offsets.high_watermark.offset

    @property
    def last_fetched_epoch(self) -> LeaderEpoch:
        """The leader epoch of the last record; -1 when there is none."""
        offsets = self._log.offsets
        if offsets.end.offset == offsets.start:
            return NO_EPOCH
        return self._log.epochs.epoch_at(Offset(offsets.end.offset - 1))

    def end_offset(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        return self._log.epochs.end_offset(epoch, self.log_end_offset)

    # --- what the leader answers

    def fetched(self, found: FetchedPartition[memoryview], now_ms: TimestampMs) -> int:
        """Take a successful answer in; how many bytes were appended.

        Raises CorruptMessage, OffsetOutOfRange when a batch overlaps what is here, StorageError.
        """
        appended = sum(self._do(step, now_ms) for step in self._rules.steps(found, self))
        if found.diverging_epoch.epoch >= 0:
            return 0  # what is left may differ still: the next answer says so
        self._commit(Offset(found.high_watermark))
        start = min(Offset(found.log_start_offset), self.high_watermark)
        if start > self.log_start_offset:
            move_start(self._log, start, "deleted at the leader")
        return appended

    def fetch_failed(self, error: RaylogError, found: FetchedPartition[memoryview], now_ms: TimestampMs) -> None:
        """Do what the error asks for; raises it when that is to ask again later."""
        self._do(self._rules.after_failure(error, found, self), now_ms)

    def _do(self, step: Step, now_ms: TimestampMs) -> int:
        log = self._log
        match step:
            case Append(batches):
                headers = checked_headers(batches, log.tp, sparse=True)
                log.append_as_replica(batches, headers, now_ms)
                self._marks.note(log.offsets.end)
                return len(batches)
            case Truncate(offset):
                logger.info("truncating to the leader's log", partition=log.tp, offset=offset, end=self.log_end_offset)
                self._marks.clear()
                log.truncate(offset, now_ms)
            case StartAnew(offset):
                self._marks.clear()
                log.start_anew(offset, now_ms)
        return 0

    def _commit(self, leader_high_watermark: Offset) -> None:
        log = self._log
        offset = self._rules.high_watermark(leader_high_watermark, self)
        if offset > self.high_watermark:
            log.publish(high_watermark=self._marks.take(offset) or log.mark(offset))

    def settle(self) -> None:
        """Before the leader hears by the next fetch of what is here: make the log's start durable, for what clients
        were told is deleted must not come back; and flush when flush.messages asks for it.
        """
        log = self._log
        settle_start(log)
        unflushed = self.log_end_offset - log.recovery_point
        if log.config.flush_messages != FOREVER and unflushed >= log.config.flush_messages:
            log.flush()
