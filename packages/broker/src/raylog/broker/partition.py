"""A partition: its log and this broker's role in it. The socket server and actor calls both end here.

Threads: any thread may call anything. Appends run one at a time under the log's lock; reads take no lock, they
work on one consistent snapshot of the offsets and segments. Waiting for a flush happens outside the lock, so
that appends of other connections go on meanwhile (and share the next fdatasync).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

from raylog.broker.storage.files import FileSlice
from raylog.broker.storage.log import Log
from raylog.protocol.ids import NO_EPOCH, LeaderEpoch, Offset, TimestampMs, TopicId, TopicPartition
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
    aborted: tuple[tuple[int, int], ...] = ()
    """Aborted transactions in the range, (producer id, first offset): none before transactions are built."""


class Partition:
    """See the module."""

    def __init__(self, tp: TopicPartition, topic_id: TopicId, log: Log, settings: Settings) -> None:
        """``settings`` are the topic's (config.topic_settings); a change takes effect at the next append.

        The partition starts as nobody's leader: :meth:`append` and :meth:`read` raise NotLeaderOrFollower
        until :meth:`become_leader`.
        """
        self.tp = tp
        self.topic_id = topic_id
        self.log = log
        self.settings = settings
        self.on_advance: Callable[[TopicPartition, int], None] | None = None
        """Called with the appended bytes once the high watermark advanced, outside the lock: wakes fetches."""

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The epoch in which this broker leads, or last heard of; -1 before any."""
        raise NotImplementedError

    @property
    def is_leader(self) -> bool:
        raise NotImplementedError

    @property
    def log_start_offset(self) -> Offset:
        raise NotImplementedError

    @property
    def last_stable_offset(self) -> Offset:
        raise NotImplementedError

    @property
    def high_watermark(self) -> Offset:
        raise NotImplementedError

    @property
    def log_end_offset(self) -> Offset:
        raise NotImplementedError

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
        raise NotImplementedError

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
        OffsetOutOfRange, NotLeaderOrFollower, FencedLeaderEpoch, UnknownLeaderEpoch (KIP-320), StorageError.
        """
        raise NotImplementedError

    def bytes_available(self, offset: Offset, isolation: Isolation = Isolation.HIGH_WATERMARK) -> int:
        """How many bytes reads from ``offset`` on could return now (for fetch.min.bytes); 0 beyond the limit."""
        raise NotImplementedError

    def offset_for_timestamp(
        self,
        timestamp: TimestampMs,
        *,
        isolation: Isolation = Isolation.HIGH_WATERMARK,
        current_leader_epoch: LeaderEpoch = NO_EPOCH,
    ) -> tuple[Offset, TimestampMs, LeaderEpoch] | None:
        """The first record at or after ``timestamp``, exact inside its batch; None when there is none."""
        raise NotImplementedError

    def max_timestamp_offset(self) -> tuple[Offset, TimestampMs, LeaderEpoch] | None:
        """The record with the highest timestamp below the high watermark (KIP-734); None if there is none."""
        raise NotImplementedError

    def end_offset_for_epoch(
        self, current_leader_epoch: LeaderEpoch, epoch: LeaderEpoch
    ) -> tuple[LeaderEpoch, Offset]:
        """The largest epoch ≤ ``epoch`` in the log and its end (KIP-101, 279); (-1, -1) when unknown."""
        raise NotImplementedError

    def become_leader(self, leader_epoch: LeaderEpoch) -> None:
        """Lead from ``leader_epoch`` on; idempotent, and an older epoch raises FencedLeaderEpoch."""
        raise NotImplementedError

    def resign(self) -> None:
        """Stop leading: appends and reads raise NotLeaderOrFollower from now on."""
        raise NotImplementedError

    def flush(self) -> None:
        """Make all that was appended durable."""
        raise NotImplementedError

    def close(self) -> None:
        """Resign, flush and close the log; LogDirs writes the clean-stop marker once all are closed."""
        raise NotImplementedError

    def delete(self) -> None:
        """Resign and delete the log; slices that are being sent stay readable."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Plain facts for `describe` calls and tests: offsets, epoch, size, segments, directory."""
        raise NotImplementedError
