"""A partition: its log and this broker's role in it. The socket server and actor calls both end here.

Threads: any thread may call anything. Appends run one at a time under the log's lock; reads take no lock, they
work on one consistent snapshot of the offsets and segments. Waiting for a flush happens outside the lock, so
that appends of other connections go on meanwhile (and share the next fdatasync).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

from raylog.broker.config import FOREVER
from raylog.broker.storage.checkpoint import encode_topic_id
from raylog.broker.storage.cleaning import delete_records
from raylog.broker.storage.files import FileSlice
from raylog.broker.storage.log import Log
from raylog.broker.storage.log_config import LogConfig
from raylog.broker.storage.offsets import LogOffsets, Mark
from raylog.broker.storage.producers import ProducedBatch, ProducerFacts
from raylog.broker.storage.timestamps import TimestampedOffset, max_timestamp_offset, offset_for_timestamp
from raylog.broker.storage.validation import check_client, check_policy, checked_headers
from raylog.protocol.errors import FencedLeaderEpoch, NotLeaderOrFollower, UnknownLeaderEpoch
from raylog.protocol.ids import NO_EPOCH, NO_TIMESTAMP, LeaderEpoch, Offset, TimestampMs, TopicId, TopicPartition
from raylog.protocol.settings import Settings


class Isolation(Enum):
    """How far a reader sees."""

    LOG_END = "log_end"  # replicas, and nobody else
    HIGH_WATERMARK = "high_watermark"  # read_uncommitted consumers
    COMMITTED = "committed"  # read_committed consumers: up to the last stable offset


class Origin(Enum):
    """Who appends; it decides what is checked and who assigns offsets."""

    CLIENT = "client"  # everything is checked; the leader assigns offsets, epoch and, by setting, time
    REPLICA = "replica"  # offsets and epoch are the leader's and are kept
    COORDINATOR = "coordinator"  # as client, and control batches are allowed


class AppendInfo(NamedTuple):
    """Where an append landed."""

    base_offset: Offset
    last_offset: Offset
    log_append_time: TimestampMs
    """The time stamped into the batches (LogAppendTime), or -1."""
    log_start_offset: Offset
    duplicate: bool
    """True when an idempotent producer's batch was there already: the offsets are those of the first time."""


class ReadInfo(NamedTuple):
    """What a read found; the reader releases ``data``."""

    data: FileSlice | None
    """Batches, perhaps with a part of another at the end; the first may begin below the asked offset."""
    high_watermark: Offset
    last_stable_offset: Offset
    log_start_offset: Offset
    bound: Offset
    """How far the reader may read now."""
    aborted: tuple[tuple[int, int], ...] = ()
    """Aborted transactions in the range, (producer id, first offset): none before transactions are built."""


class Partition:
    """See the module. There is one replica, the leader: what it has, and flushed as asked, is committed."""

    def __init__(self, tp: TopicPartition, topic_id: TopicId, log: Log, settings: Settings) -> None:
        """``settings`` are the topic's (config.topic_settings); after a change call :meth:`configure`.

        The partition starts as nobody's leader: :meth:`append` and :meth:`read` raise NotLeaderOrFollower
        until :meth:`become_leader`.
        """
        self.tp = tp
        self.topic_id = topic_id
        self.log = log
        self.settings = settings
        self.log.on_start = self._start_moved
        self.on_start: Callable[[TopicPartition], None] | None = None
        """Called when the log's start moved, under the log's lock: it must only take note."""
        self.on_advance: Callable[[TopicPartition, int], None] | None = None
        """Called with the appended bytes once the high watermark advanced, outside the lock: wakes fetches."""
        self._leader_epoch = NO_EPOCH
        self._leading = False
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Take the topic's settings as they are now; they count from the next append on."""
        self.settings = settings
        self.log.configure(LogConfig.of(settings))

    def _start_moved(self) -> None:
        if self.on_start is not None:
            self.on_start(self.tp)

    # --- role ------------------------------------------------------------------------------------------------

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The epoch in which this broker leads, or last led; -1 before any."""
        return self._leader_epoch

    @property
    def is_leader(self) -> bool:
        """Whether this broker serves the partition."""
        return self._leading

    def become_leader(self, leader_epoch: LeaderEpoch) -> None:
        """Lead from ``leader_epoch`` on; idempotent, and an older epoch raises FencedLeaderEpoch.

        Where the epoch begins is on the disk before the first append in it. Raises StorageError.
        """
        with self.log.lock:
            if leader_epoch < self._leader_epoch:
                raise FencedLeaderEpoch(f"{self.tp}: epoch {leader_epoch}, but {self._leader_epoch} is known")
            if leader_epoch == self._leader_epoch and self._leading:
                return
            self.log.check_open()
            end = self.log.offsets.end
            self.log.assign_epoch(leader_epoch, end.offset)
            self.log.publish(high_watermark=end)
            self._leader_epoch = leader_epoch
            self._leading = True

    def resign(self) -> None:
        """Stop leading: appends and reads raise NotLeaderOrFollower from now on."""
        with self.log.lock:
            self._leading = False

    def check_leader_epoch(self, known: LeaderEpoch = NO_EPOCH) -> None:
        """Refuse a caller whose ``known`` epoch is not ours (KIP-320); -1 claims nothing.

        Raises NotLeaderOrFollower, FencedLeaderEpoch (the caller is behind), UnknownLeaderEpoch (we are).
        """
        if not self._leading:
            raise NotLeaderOrFollower(f"{self.tp}: this broker does not lead it; refresh the metadata")
        if known in (NO_EPOCH, self._leader_epoch):
            return
        where = f"{self.tp}: leader epoch {known}, the current one is {self._leader_epoch}"
        if known < self._leader_epoch:
            raise FencedLeaderEpoch(f"{where}: refresh the metadata")
        raise UnknownLeaderEpoch(f"{where}: this broker has not heard of it yet; try again")

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

    # --- appending -------------------------------------------------------------------------------------------

    def append(
        self,
        batches: memoryview,
        *,
        origin: Origin = Origin.CLIENT,
        leader_epoch: LeaderEpoch | None = None,
        now_ms: TimestampMs,
    ) -> AppendInfo:
        """Validate, deduplicate, stamp in place and write ``batches``; durable as flush.messages says.

        ``batches``: writable, whole batches. ``leader_epoch``: the epoch that the caller believes in; None
        skips that check. Raises NotLeaderOrFollower, FencedLeaderEpoch, CorruptMessage, InvalidRecord,
        InvalidTimestamp, MessageTooLarge, RecordListTooLarge, UnsupportedCompressionType, OutOfOrderSequence,
        DuplicateSequence, InvalidProducerEpoch, StorageError. Nothing was appended when it raises, except
        after StorageError, where it is unknown.
        """
        if origin is Origin.REPLICA:
            return self._append_as_replica(batches, now_ms)
        headers = checked_headers(batches, self.tp)
        config = self.log.config
        check_policy(headers, len(batches), config, self.tp, now_ms)
        if origin is Origin.CLIENT:
            check_client(headers, self.tp)
        log = self.log
        with log.lock:
            self.check_leader_epoch(NO_EPOCH if leader_epoch is None else leader_epoch)
            if headers[0].producer_id >= 0:
                known = log.producers.check(headers[0])
                if known is not None:
                    return self._duplicate(known)
            before = log.recovery_point
            base = log.append(
                batches,
                headers,
                leader_epoch=self._leader_epoch,
                now_ms=now_ms,
                visible=config.flush_messages == FOREVER,
            )
            offsets = log.offsets
        if config.flush_messages != FOREVER:
            self._flush_as_asked(before, offsets.end, config.flush_messages)
        on_advance = self.on_advance
        if on_advance is not None:
            on_advance(self.tp, len(batches))
        return AppendInfo(
            base,
            Offset(offsets.end.offset - 1),
            now_ms if config.log_append_time else NO_TIMESTAMP,
            offsets.start,
            False,
        )

    def _flush_as_asked(self, flushed: Offset, end: Mark, flush_messages: int) -> None:
        """Flush when enough records are unflushed; then let the high watermark follow, up to our own end."""
        log = self.log
        if end.offset - flushed >= flush_messages:
            log.flush()
        with log.lock:
            if log.offsets.high_watermark.offset < end.offset:
                log.publish(high_watermark=end)

    def _duplicate(self, known: ProducedBatch) -> AppendInfo:
        """The answer to a retry: durable first, as the first time's answer may never have been given."""
        if self.log.config.flush_messages != FOREVER:
            self.log.flush()
        return AppendInfo(known.base_offset, known.last_offset, known.timestamp, self.log.offsets.start, duplicate=True)

    def _append_as_replica(self, batches: memoryview, now_ms: TimestampMs) -> AppendInfo:
        headers = checked_headers(batches, self.tp, sparse=True)
        with self.log.lock:
            self.log.append_as_replica(batches, headers, now_ms)
            offsets = self.log.offsets
        first = Offset(headers[0].base_offset)
        return AppendInfo(first, Offset(offsets.end.offset - 1), NO_TIMESTAMP, offsets.start, False)

    # --- deleting --------------------------------------------------------------------------------------------

    def delete_records(self, offset: Offset) -> Offset:
        """Make ``offset`` the first one that is kept, unless a later one is already; answers the first one.

        Durable once :meth:`save_start` returns. Raises OffsetOutOfRange beyond the high watermark,
        NotLeaderOrFollower, StorageError.
        """
        self.check_leader_epoch()
        return delete_records(self.log, offset)

    def save_start(self) -> None:
        """Make the log starts durable of this partition and of all others in its log directory."""
        self.log.save_checkpoints()

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
        min_one_batch: bool = True,
    ) -> ReadInfo:
        """Find what lies at ``offset``; copies nothing. ``data`` is None when nothing is readable there yet.

        At most ``max_bytes``, but with ``min_one_batch`` always the whole first batch. Raises
        OffsetOutOfRange, NotLeaderOrFollower, FencedLeaderEpoch, UnknownLeaderEpoch (KIP-320), StorageError,
        and CorruptMessage when the disk holds no batch there.
        """
        self.check_leader_epoch(current_leader_epoch)
        offsets = self.log.offsets
        bound = self._bound(isolation, offsets)
        data = self.log.read(offset, max_bytes, bound, min_one_batch=min_one_batch)
        return ReadInfo(data, offsets.high_watermark.offset, offsets.stable.offset, offsets.start, bound.offset)

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
        self.check_leader_epoch(current_leader_epoch)
        return offset_for_timestamp(self.log, timestamp, self._bound(isolation, self.log.offsets).offset)

    def max_timestamp_offset(self) -> TimestampedOffset | None:
        """The record with the highest timestamp below the high watermark (KIP-734); None if there is none."""
        self.check_leader_epoch()
        return max_timestamp_offset(self.log, self.high_watermark)

    def end_offset_for_epoch(self, current_leader_epoch: LeaderEpoch, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        """The largest epoch ≤ ``epoch`` in the log and its end (KIP-101, 279); (-1, -1) when unknown.

        Raises NotLeaderOrFollower, FencedLeaderEpoch, UnknownLeaderEpoch.
        """
        self.check_leader_epoch(current_leader_epoch)
        with self.log.lock:
            return self.log.epochs.end_offset(epoch, self.log.offsets.end.offset)

    # --- life ------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make all that was appended durable."""
        self.log.flush()

    def close(self) -> None:
        """Resign, flush and close the log; LogDirs.close does the same for all and marks the stop as clean."""
        self.resign()
        self.log.close()

    def active_producers(self) -> list[ProducerFacts]:
        """The idempotent producers that are remembered. Raises NotLeaderOrFollower."""
        self.check_leader_epoch()
        with self.log.lock:
            return self.log.producers.describe()

    def describe(self) -> dict[str, Any]:
        """Plain facts for `describe` calls and tests: offsets, epoch, size, segments, directory."""
        offsets = self.log.offsets
        return {
            "topic": self.tp.topic,
            "partition": self.tp.partition,
            "topic_id": encode_topic_id(self.topic_id),
            "leader": self._leading,
            "leader_epoch": self._leader_epoch,
            "log_start_offset": offsets.start,
            "last_stable_offset": offsets.stable.offset,
            "high_watermark": offsets.high_watermark.offset,
            "log_end_offset": offsets.end.offset,
            "recovery_point": self.log.recovery_point,
            "size_bytes": self.log.size,
            "segments": len(self.log.segments),
            "directory": str(self.log.directory),
        }
