"""What a log is made of: segments, and what is derived from them (offsets, epochs, producers); and where each changes.

Writers hold :attr:`LogContents.lock`. Readers take no lock: :attr:`LogContents.offsets` and the segments are immutable
tuples that are replaced as a whole, offsets after the bytes, so that whoever sees an offset can read what is below it.
Flushing has a lock of its own, taken after :attr:`LogContents.lock` or alone, never before it: an append never waits
for another's fdatasync.

An OSError takes the log directory offline and surfaces as StorageError (health.py).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from raylog.broker.storage.disk import checkpoint
from raylog.broker.storage.disk.files import FileClosed, FileSystem, LogClosed
from raylog.broker.storage.disk.health import Health
from raylog.broker.storage.disk.index_sums import IndexSums
from raylog.broker.storage.log.snapshots import save_snapshot
from raylog.broker.storage.segments.held import hold
from raylog.broker.storage.segments.segment import Segment
from raylog.broker.storage.segments.segments import WarmIndexes, number_at
from raylog.broker.storage.state.epochs import LeaderEpochs
from raylog.broker.storage.state.log_config import LogConfig
from raylog.broker.storage.state.offsets import LogOffsets, Mark
from raylog.broker.storage.state.producers import Producers
from raylog.protocol.errors import OffsetOutOfRange
from raylog.protocol.ids import FilePosition, LeaderEpoch, Offset, TopicPartition


class Doomed(NamedTuple):
    """A segment that is no part of its log any more, and whose files are still there."""

    segment: Segment
    reason: str


class Damage(NamedTuple):
    """Where a log cannot be read on."""

    segment: Segment
    position: FilePosition
    """In the segment's file: what lies before it there is good. At the file's end, batches are missing behind it."""
    offset: Offset
    """The first one that cannot be read."""
    reason: str

    def is_in(self, log: LogContents) -> bool:
        """Whether what it is about was neither deleted nor cut off since. The caller holds the lock."""
        segment = self.segment
        if segment not in log.segments or self.position > segment.size:
            return False
        return self.position < segment.size or self.offset < log.end_of(segment)

    def __str__(self) -> str:
        return f"{self.segment.log_path} at position {self.position}, offset {self.offset}: {self.reason}"


class LogContents:
    """See the module. A Log, as what works on it sees it: ``reading``, ``first_read``, ``truncation``, ``doomed``."""

    def __init__(
        self,
        tp: TopicPartition,
        directory: Path,
        fs: FileSystem,
        health: Health,
        config: LogConfig,
        segments: Sequence[Segment],
        offsets: LogOffsets,
        epochs: LeaderEpochs,
        producers: Producers,
        sums: IndexSums,
    ) -> None:
        self.tp = tp
        self.directory = directory
        self.fs = fs
        self.health = health
        self.config = config
        self.retention_known = False
        """True once the topic's own settings are here: nothing is deleted by defaults alone."""
        self.epochs = epochs
        self.producers = producers
        self.sums = sums
        self.lock = threading.RLock()
        self.save_checkpoints: Callable[[], None] = lambda: None
        """Makes recovery point, start and high watermark durable; set by the log directory."""
        self.save_start: Callable[[], None] = lambda: None
        """Makes the start alone durable; set by the log directory."""
        self.durable_start = offsets.start
        """A start that is on the disk; see doomed.settle_start."""
        self.on_start: Callable[[], None] = lambda: None
        """Called when the start moved, under the lock: it must only take note."""
        self.last_flush_ms = 0
        """When it was flushed last as flush.ms wants it, by the monotonic clock."""
        self.flush_lock = threading.Lock()
        """Held while files are made durable or go away. Never take :attr:`lock` while holding it."""
        self.recovery_point = offsets.end.offset
        """Everything below is on the disk: recovery need not read it."""
        self.unsaved: deque[Segment] = deque()
        """Closed segments not on the disk yet, in order. Saving one makes its successor's name durable, too."""
        self.unsaved_snapshots: deque[tuple[Offset, bytes]] = deque()
        """Producers at the last rolls, and where recovery or truncation ended the log; not on the disk yet: a crash
        costs the reading of the batches.
        """
        self.doomed: deque[Doomed] = deque()
        """Segments taken off the front, whose files are still there. Filled under the lock, emptied under the flush
        lock (doomed.py).
        """
        self.damage: Damage | None = None
        """What the scrubber found first; reads fail there."""
        self.is_suspect = False
        """A reader met damage: the scrubber is to find out where it begins."""
        self.lost_in_recovery = False
        """Whether more was cut off when it was loaded than what a write left that was under way."""
        self._segments: tuple[Segment, ...] = ()
        for segment in segments:
            segment.seen_size = segment.size
        self.set_segments(tuple(segments))
        self.warm = WarmIndexes()
        self._offsets = offsets
        self._closed = False

    # --- state -----------------------------------------------------------------------------------------------

    @property
    def offsets(self) -> LogOffsets:
        """All four offsets, consistent."""
        return self._offsets

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments in order, the last one being appended to."""
        return self._segments

    @property
    def size(self) -> int:
        """Bytes in all segments."""
        return sum(segment.size for segment in self._segments)

    @property
    def closed(self) -> bool:
        """True after close, abandon and delete."""
        return self._closed

    def configure(self, config: LogConfig) -> None:
        """Take the topic's settings; they count from the next operation on."""
        self.config = config
        self.retention_known = True

    def publish(
        self,
        *,
        start: Offset | None = None,
        stable: Mark | None = None,
        high_watermark: Mark | None = None,
        end: Mark | None = None,
    ) -> LogOffsets:
        """The only place where offsets change; the caller holds the lock.

        Without transactions every record is stable at once: ``stable`` follows the high watermark when not given.
        """
        before = self._offsets
        hw = high_watermark or before.high_watermark
        after = LogOffsets(
            before.start if start is None else start, stable or hw, hw, before.end if end is None else end
        )
        if not after.start <= after.stable.offset <= hw.offset <= after.end.offset:
            raise AssertionError(f"{self.tp}: offsets out of order: {after}, before {before}")
        self._offsets = after
        if after.start != before.start:
            self.on_start()
        return after

    def set_segments(self, segments: tuple[Segment, ...]) -> None:
        """Replace the segments; the caller holds the lock."""
        for segment in segments:
            segment.lock = self.lock
        self._segments = segments

    # --- looking up ------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise LogClosed, or StorageError when the directory is offline."""
        if self._closed:
            raise LogClosed(f"{self.tp} is closed here; refresh the metadata and ask its leader")
        self.health.check()

    def await_change(self) -> None:
        """For a reader that met a closed file: come back once that change of the log is done, and look again.

        LogClosed when it was the log's end.
        """
        with self.lock:
            self.check_open()

    def check_range(self, offset: Offset) -> None:
        """Raise OffsetOutOfRange below the start and above the end, StorageError as :meth:`check_open`."""
        self.check_open()
        start, end = self._offsets.start, self._offsets.end.offset
        if not start <= offset <= end:
            raise OffsetOutOfRange(f"{self.tp}: offset {offset} is not in the log, which holds {start} to {end}")

    def mark(self, offset: Offset) -> Mark:
        """Where ``offset`` lies: the position of its batch, or of the end. The caller holds the lock."""
        end = self._offsets.end
        if offset >= end.offset:
            return end
        segments = self._segments
        segment = segments[number_at(segments, offset)]
        with self.health.guard(f"look-up of {self.tp} at offset {offset}"), hold(segment) as held:
            located = held.find(offset)
        return Mark(offset, segment.base_offset, located.position if located else FilePosition(segment.size))

    def end_of(self, segment: Segment) -> Offset:
        """The offset after a segment's last; the caller holds the lock. FileClosed when the log has it no more."""
        number = number_at(self._segments, segment.base_offset)
        if self._segments[number] is not segment:
            raise FileClosed(f"{segment.log_path} was deleted or replaced meanwhile")
        following = self._segments[number + 1 : number + 2]
        return following[0].base_offset if following else self._offsets.end.offset

    # --- what is derived ---------------------------------------------------------------------------------------

    def note_producers(self) -> None:
        """Have the producers written as they are at the log's end before a segment that tells of them is deleted."""
        self.unsaved_snapshots.append((self._offsets.end.offset, self.producers.encode()))

    def assign_epoch(self, epoch: LeaderEpoch, start: Offset) -> None:
        """Note, durably, that ``epoch`` begins at ``start``, unless it is known; the caller holds the lock."""
        if self.epochs.assign(epoch, start):
            with self.health.guard(f"write the leader epochs of {self.tp}"):
                self.save_epochs()

    def save_epochs(self) -> None:
        """Write ``leader-epoch-checkpoint``."""
        checkpoint.write_lines(self.fs, self.directory / checkpoint.LEADER_EPOCHS, self.epochs.rows())

    def save_snapshots(self) -> None:
        """Write the producers of the last rolls; the caller holds the flush lock. Raises OSError."""
        while self.unsaved_snapshots:
            offset, snapshot = self.unsaved_snapshots[0]
            save_snapshot(self.fs, self.directory, snapshot, offset)
            self.unsaved_snapshots.popleft()
