"""A partition: its log and this broker's role in it. The socket server and actor calls both end here.

Threads: any thread may call anything. Appends run one at a time under the log's lock; reads take no lock, they
work on one consistent snapshot of the offsets and segments. Waiting for a flush happens outside the lock, so
that appends of other connections go on meanwhile (and share the next fdatasync).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raylog.broker.config import FOREVER
from raylog.broker.partition.role import Role
from raylog.broker.partition.types import ACKS_LEADER, NOBODY, AppendInfo, Isolation, Origin, ReadInfo, Subscriptions
from raylog.broker.replication.leader import Leadership
from raylog.broker.storage.disk.checkpoint import encode_topic_id
from raylog.broker.storage.log.cleaning import delete_records
from raylog.broker.storage.log.decompression import RequestDecompression
from raylog.broker.storage.log.log import Log
from raylog.broker.storage.log.timestamps import TimestampedOffset, max_timestamp_offset, offset_for_timestamp
from raylog.broker.storage.log.validation import check_client, check_policy, checked_headers
from raylog.broker.storage.state.log_config import LogConfig
from raylog.broker.storage.state.offsets import LogOffsets, Mark
from raylog.broker.storage.state.producers import ProducedBatch, ProducerFacts
from raylog.protocol.batches.header import CODEC_MASK
from raylog.protocol.errors import OffsetOutOfRange
from raylog.protocol.ids import (
    NO_EPOCH,
    NO_TIMESTAMP,
    LeaderEpoch,
    Offset,
    TimestampMs,
    TopicId,
    TopicPartition,
)
from raylog.protocol.settings import Settings

__all__ = ["AppendInfo", "Isolation", "Origin", "Partition", "ReadInfo"]


class Partition:
    """See the module. All but plain facts raises NotLeaderOrFollower where this broker does not lead; a follower serves
    consumers' reads, too.
    """

    def __init__(
        self,
        tp: TopicPartition,
        topic_id: TopicId,
        log: Log,
        settings: Settings,
        subscriptions: Subscriptions = NOBODY,
        *,
        role: Callable[[TopicPartition, TopicId, Log, Settings, Subscriptions], Role] = Role,
    ) -> None:
        """``settings`` are the topic's (config.topic_settings); after a change call :meth:`configure`. ``role`` makes
        the role; tests may have it decide wrongly.
        """
        self.tp = tp
        self.topic_id = topic_id
        self.log = log
        self._subscriptions = subscriptions
        self.role = role(tp, topic_id, log, settings, subscriptions)
        log.on_start = self._start_moved
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Take the topic's settings as they are now; they count from the next append on."""
        self.settings = settings
        self.log.configure(LogConfig.of(settings))
        self.role.configure(settings)

    def _start_moved(self) -> None:
        if self._subscriptions.on_start is not None:
            self._subscriptions.on_start(self.tp)

    # --- appending -------------------------------------------------------------------------------------------

    @property
    def syncs(self) -> bool:
        """Whether an append may end in a sync (`flush.messages`)."""
        return self.log.config.flush_messages != FOREVER

    def append(
        self,
        batches: memoryview,
        *,
        origin: Origin = Origin.CLIENT,
        acks: int = ACKS_LEADER,
        leader_epoch: LeaderEpoch | None = None,
        decompression: RequestDecompression | None = None,
        now_ms: TimestampMs,
    ) -> AppendInfo:
        """Validate, deduplicate, stamp in place and write ``batches``; durable as flush.messages says.

        ``batches``: writable, whole batches. ``decompression``: refuses a client's batch that cannot be
        decompressed; None trusts it. ``leader_epoch``: the epoch that the caller believes in; None skips that check.
        ``acks``: ACKS_ALL refuses with too few in-sync replicas; then see Role.check_committed.
        Raises NotLeaderOrFollower, FencedLeaderEpoch, NotEnoughReplicas, CorruptMessage, InvalidRecord,
        InvalidTimestamp, MessageTooLarge, RecordListTooLarge, UnsupportedCompressionType, OutOfOrderSequence,
        InvalidProducerEpoch, TransactionalIdAuthorizationFailed, StorageError. Nothing was appended when it raises,
        except after StorageError, where it is unknown.
        """
        headers = checked_headers(batches, self.tp)
        config = self.log.config
        check_policy(headers, len(batches), config, self.tp, now_ms)
        if origin is Origin.CLIENT:
            check_client(headers, self.tp)
            if decompression is not None and headers[0].attributes & CODEC_MASK:
                with self.log.lock:
                    self.role.appending(acks, leader_epoch)  # a refusal should not cost a decompression
                decompression.check(headers[0], batches, self.tp)
        log, role = self.log, self.role
        with log.lock:
            leadership = role.appending(acks, leader_epoch)
            known = log.producers.check(headers[0]) if headers[0].producer_id >= 0 else None
            before = log.recovery_point
            flushes = config.flush_messages != FOREVER
            is_alone = leadership.is_alone
            if known is None:
                base = log.append(
                    batches,
                    headers,
                    leader_epoch=leadership.leader_epoch,
                    now_ms=now_ms,
                    visible=is_alone and not flushes,
                )
            offsets = log.offsets
            if known is None and not is_alone:
                role.marks.note(offsets.end)
        if known is not None:
            return self._duplicate(known, leadership)
        if flushes and offsets.end.offset - before >= config.flush_messages:
            log.flush()
        if flushes or not is_alone:
            role.durable(leadership, offsets.end, len(batches))
        elif self._subscriptions.on_advance is not None:
            self._subscriptions.on_advance(self.tp, len(batches), offsets.end.offset)
        return AppendInfo(
            base,
            Offset(offsets.end.offset - 1),
            now_ms if config.log_append_time else NO_TIMESTAMP,
            offsets.start,
            False,
            leadership.leader_epoch,
        )

    def _duplicate(self, known: ProducedBatch, leadership: Leadership) -> AppendInfo:
        """The answer to a retry: durable first, as the first time's answer may never have been given.

        With acks=all the caller waits as for the first time: it may not be committed yet (Role.check_committed).
        """
        if self.syncs:
            self.log.flush()
        start, epoch = self.log.offsets.start, leadership.leader_epoch
        return AppendInfo(
            known.base_offset, known.last_offset, known.timestamp, start, duplicate=True, leader_epoch=epoch
        )

    # --- deleting --------------------------------------------------------------------------------------------

    def delete_records(self, offset: Offset) -> Offset:
        """Make ``offset`` the first one that is kept, unless a later one is already; answers the first one.

        Durable once :meth:`save_start` returns. Raises OffsetOutOfRange beyond the high watermark,
        NotLeaderOrFollower, StorageError.
        """
        self.role.check_leader_epoch()
        return delete_records(self.log, offset)

    def save_start(self) -> None:
        """Make the log starts durable of this partition and of all others in its log directory."""
        self.log.save_start()

    # --- reading ---------------------------------------------------------------------------------------------

    def _bound(self, isolation: Isolation, offsets: LogOffsets) -> Mark:
        match isolation:
            case Isolation.HIGH_WATERMARK:
                return offsets.high_watermark
            case Isolation.COMMITTED:
                return offsets.stable
            case Isolation.LOG_END:
                return offsets.end

    def read(
        self,
        offset: Offset,
        max_bytes: int,
        *,
        isolation: Isolation = Isolation.HIGH_WATERMARK,
        current_leader_epoch: LeaderEpoch = NO_EPOCH,
        last_fetched_epoch: LeaderEpoch = NO_EPOCH,
        min_one_batch: bool = True,
        may_wait: bool = True,
    ) -> ReadInfo:
        """Find what lies at ``offset``; copies nothing. ``data`` is None when nothing is readable there yet.

        At most ``max_bytes``, but with ``min_one_batch`` always the whole first batch. ``last_fetched_epoch``: that of
        the reader's last record; where its log differs from ours, it gets ``diverging`` and no data. A follower serves
        consumers (KIP-392), below its own high watermark. Raises OffsetOutOfRange, also where a consumer's epoch is yet
        to come, NotLeaderOrFollower, FencedLeaderEpoch, UnknownLeaderEpoch (KIP-320), OffsetNotAvailable when a
        follower has not come that far, StorageError, and CorruptMessage when the disk holds no batch there; without
        ``may_wait`` WouldWait, where it takes the disk to know.
        """
        self.role.check_readable(offset, current_leader_epoch, leader_only=isolation is Isolation.LOG_END)
        diverging = self._divergence(offset, last_fetched_epoch, isolation) if last_fetched_epoch >= 0 else None
        offsets = self.log.offsets
        bound = self._bound(isolation, offsets)
        if diverging is not None:
            hw, stable = offsets.high_watermark.offset, offsets.stable.offset
            return ReadInfo(None, hw, stable, offsets.start, bound.offset, (), diverging)
        data = self.log.read(offset, max_bytes, bound, min_one_batch=min_one_batch, may_wait=may_wait)
        return ReadInfo(data, offsets.high_watermark.offset, offsets.stable.offset, offsets.start, bound.offset)

    def _divergence(
        self, offset: Offset, epoch: LeaderEpoch, isolation: Isolation
    ) -> tuple[LeaderEpoch, Offset] | None:
        """Where a log that ends at ``offset`` with a record of ``epoch`` differs from ours; None when it does not."""
        log = self.log
        with log.lock:
            latest = log.epochs.latest
            known, end = log.epochs.end_offset(min(epoch, latest), log.offsets.end.offset)
        if epoch > latest and isolation is not Isolation.LOG_END:  # a follower truncates, a consumer has no log
            raise OffsetOutOfRange(f"{self.tp}: nothing of epoch {epoch} is here yet, the newest epoch is {latest}")
        return (known, end) if known < epoch or end < offset else None

    def offset_for_timestamp(
        self,
        timestamp: TimestampMs,
        *,
        isolation: Isolation = Isolation.HIGH_WATERMARK,
        current_leader_epoch: LeaderEpoch = NO_EPOCH,
    ) -> TimestampedOffset | None:
        """The first record at or after ``timestamp``, exact inside its batch; None when there is none.

        Raises NotLeaderOrFollower, FencedLeaderEpoch, UnknownLeaderEpoch, StorageError.
        """
        self.role.check_leader_epoch(current_leader_epoch)
        return offset_for_timestamp(self.log, timestamp, self._bound(isolation, self.log.offsets).offset)

    def max_timestamp_offset(self) -> TimestampedOffset | None:
        """The record with the highest timestamp below the high watermark (KIP-734); None if there is none."""
        self.role.check_leader_epoch()
        return max_timestamp_offset(self.log, self.high_watermark)

    def earliest(self) -> tuple[Offset, LeaderEpoch]:
        """The log's start, and the epoch in which the record there was written (KIP-320); -1 when that is not known."""
        log = self.log
        with log.lock:
            start = log.offsets.start
            return start, log.epochs.epoch_at(start)

    def end_offset_for_epoch(self, current_leader_epoch: LeaderEpoch, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        """The largest epoch ≤ ``epoch`` in the log and its end (KIP-101, 279); (-1, -1) when unknown.

        Raises NotLeaderOrFollower, FencedLeaderEpoch, UnknownLeaderEpoch.
        """
        self.role.check_leader_epoch(current_leader_epoch)
        with self.log.lock:
            return self.log.epochs.end_offset(epoch, self.log.offsets.end.offset)

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

    # --- life ------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make all that was appended durable."""
        self.log.flush()

    def close(self) -> None:
        """Resign, flush and close the log; LogDirs.close does the same for all and marks the stop as clean."""
        self.role.resign()
        self.log.close()

    def active_producers(self) -> list[ProducerFacts]:
        """The idempotent producers that are remembered. Raises NotLeaderOrFollower."""
        self.role.check_leader_epoch()
        with self.log.lock:
            return self.log.producers.describe()

    def describe(self) -> dict[str, Any]:
        """Plain facts for `describe` calls and tests: offsets, epoch, size, segments, directory."""
        offsets = self.log.offsets
        return {
            "topic": self.tp.topic,
            "partition": self.tp.partition,
            "topic_id": encode_topic_id(self.topic_id),
            "leader": self.role.is_leader,
            "follower": self.role.is_follower,
            "leader_epoch": self.role.leader_epoch,
            "log_start_offset": offsets.start,
            "last_stable_offset": offsets.stable.offset,
            "high_watermark": offsets.high_watermark.offset,
            "log_end_offset": offsets.end.offset,
            "recovery_point": self.log.recovery_point,
            "size_bytes": self.log.size,
            "segments": len(self.log.segments),
            "directory": str(self.log.directory),
            "damage": None if self.log.damage is None else str(self.log.damage),
            "replication": self.role.describe(),
        }
