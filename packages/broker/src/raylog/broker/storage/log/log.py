"""One partition's log: segments in a directory, and what is derived from them (epochs, producers, offsets).

Writers hold :attr:`Log.lock`. Readers take no lock: :attr:`Log.offsets` and the segments are immutable tuples that are
replaced as a whole, offsets after the bytes, so that whoever sees an offset can read what is below it. Flushing has a
lock of its own, taken after :attr:`Log.lock` or alone, never before it: an append never waits for another's fdatasync.

An OSError takes the log directory offline and surfaces as StorageError (health.py).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from raylog.broker.storage.disk import checkpoint
from raylog.broker.storage.disk.files import FileClosed, FileSystem, LogClosed, remove_tree
from raylog.broker.storage.disk.health import Health
from raylog.broker.storage.disk.index_sums import IndexSums
from raylog.broker.storage.log.doomed import Doomed
from raylog.broker.storage.log.reading import read
from raylog.broker.storage.log.snapshots import save_snapshot
from raylog.broker.storage.log.truncation import Damage, mend, start_anew, truncate_to
from raylog.broker.storage.segments.segment import Placed, Segment, placed
from raylog.broker.storage.segments.segments import number_at
from raylog.broker.storage.segments.warm_indexes import WarmIndexes
from raylog.broker.storage.state.epochs import LeaderEpochs
from raylog.broker.storage.state.log_config import LogConfig
from raylog.broker.storage.state.offsets import LogOffsets, Mark
from raylog.broker.storage.state.producers import Producers
from raylog.protocol.errors import OffsetOutOfRange
from raylog.protocol.ids import FilePosition, LeaderEpoch, Offset, TimestampMs, TopicPartition
from raylog.protocol.records import BatchHeader, stamp, stamp_log_append_time


class Log:
    """See the module. Made by recovery.load_log."""

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

    # --- appending -------------------------------------------------------------------------------------------

    def append(
        self,
        batches: memoryview,
        headers: Sequence[BatchHeader],
        *,
        leader_epoch: LeaderEpoch,
        now_ms: TimestampMs,
        visible: bool,
    ) -> Offset:
        """Stamp checked ``batches`` and write them at the end, by one call; answers the base offset.

        ``visible``: the high watermark follows at once. The caller holds the lock.
        """
        self.check_open()
        config = self.config
        base = offset = self._offsets.end.offset
        if leader_epoch != self.epochs.latest:  # its row went away with a truncation
            self.assign_epoch(leader_epoch, base)
        entries: list[Placed] = []
        pos = 0
        for header in headers:
            stamp(batches, pos, offset, leader_epoch)
            timestamp = TimestampMs(header.max_timestamp)
            if config.log_append_time:
                stamp_log_append_time(batches, pos, now_ms)
                timestamp = now_ms
            size = header.size
            last = Offset(offset + header.last_offset_delta)
            entries.append(Placed(size, last, timestamp))
            pos += size
            offset = Offset(last + 1)
        mark = self._write(batches, entries, now_ms)
        append_time = now_ms if config.log_append_time else TimestampMs(-1)
        for header, entry in zip(headers, entries, strict=True):
            if header.producer_id >= 0:
                first = Offset(entry.last_offset - header.last_offset_delta)
                self.producers.update(header, first, append_time, now_ms)
        self.publish(end=mark, high_watermark=mark if visible else None)
        return base

    def append_as_replica(self, batches: memoryview, headers: Sequence[BatchHeader], now_ms: TimestampMs) -> None:
        """Write a leader's batches as they are. OffsetOutOfRange when they do not begin at or after the end."""
        self.check_open()
        offset = self._offsets.end.offset
        for header in headers:
            if header.base_offset < offset:
                raise OffsetOutOfRange(f"{self.tp}: a batch of the leader begins at {header.base_offset}, not {offset}")
            offset = Offset(header.next_offset)
        for header in headers:  # first, as recovery takes no batch of an epoch that should not be there
            self.assign_epoch(LeaderEpoch(header.leader_epoch), Offset(header.base_offset))
        mark = self._write(batches, [placed(header) for header in headers], now_ms)
        for header in headers:
            if header.producer_id >= 0:
                self.producers.replay(header, now_ms)
        self.publish(end=mark)

    def _write(self, batches: memoryview, entries: Sequence[Placed], now_ms: TimestampMs) -> Mark:
        config = self.config
        segment = self._segments[-1]
        last = entries[-1]
        if segment.must_roll(config, len(batches), last.last_offset, last.max_timestamp, now_ms):
            segment = self.roll(now_ms)
        try:
            segment.append(batches, entries, config.index_interval_bytes)
        except OSError as error:
            raise self.health.fail(error, f"append to {self.tp}") from error
        return Mark(Offset(last.last_offset + 1), segment.base_offset, FilePosition(segment.size))

    def roll(self, now_ms: TimestampMs) -> Segment:
        """Close the active segment and begin another; the caller holds the lock."""
        end = self._offsets.end.offset
        with self.health.guard(f"roll of {self.tp} at offset {end}"):
            old = self._segments[-1]
            old.seal()
            old.unlink_indexes()  # of an earlier stop: whole ones come with the next flush
            segment = Segment.create(self.fs, self.directory, end, now_ms, self.sums)
        self.note_producers()
        self.unsaved.append(old)
        self.set_segments((*self._segments, segment))
        return segment

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

    # --- truncating ------------------------------------------------------------------------------------------

    def truncate(self, offset: Offset, now_ms: TimestampMs) -> Offset:
        """Drop every batch that reaches to or beyond ``offset``; see truncation.truncate_to."""
        return truncate_to(self, offset, now_ms)

    def start_anew(self, offset: Offset, now_ms: TimestampMs) -> None:
        """Drop everything; the log begins, empty, at ``offset``; see truncation.start_anew."""
        start_anew(self, offset, now_ms)

    def mend(self, now_ms: TimestampMs) -> None:
        """Drop what is damaged and all that follows, to be fetched anew; see truncation.mend."""
        mend(self, now_ms)

    # --- flushing --------------------------------------------------------------------------------------------

    def flush(self, *, sealed_only: bool = False) -> None:
        """Make everything (or all but the active segment) durable that was appended before the call.

        Callers that come while one is at work share the next fdatasync. StorageError when it fails: never retried.
        LogClosed when the log is closed meanwhile.
        """
        wanted = self._segments[-1].base_offset if sealed_only else self._offsets.end.offset
        with self.flush_lock:
            self.check_open()
            if wanted <= self.recovery_point and not self.unsaved:
                return
            with self.health.guard(f"flush of {self.tp}"):
                end = self._offsets.end.offset
                segments = self._segments
                self.save_snapshots()
                while self.unsaved and self.unsaved[0] is not segments[-1]:
                    self._save(self.unsaved[0])
                    self.unsaved.popleft()
                self.sums.save({segment.base_offset for segment in segments})
                if not sealed_only and not segments[-1].sync():
                    raise LogClosed(f"{self.tp} was closed before its last records were flushed")
            self.recovery_point = max(self.recovery_point, segments[-1].base_offset if sealed_only else end)

    def save_snapshots(self) -> None:
        """Write the producers of the last rolls; the caller holds the flush lock. Raises OSError."""
        while self.unsaved_snapshots:
            offset, snapshot = self.unsaved_snapshots[0]
            save_snapshot(self.fs, self.directory, snapshot, offset)
            self.unsaved_snapshots.popleft()

    def _save(self, segment: Segment) -> None:
        """Make a closed segment durable and give its memory back, unless it was deleted meanwhile."""
        if segment.sync():
            segment.save_indexes()
            segment.index.unload()
            segment.time_index.unload()

    # --- reading ---------------------------------------------------------------------------------------------

    read = read

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
        with self.health.guard(f"look-up of {self.tp} at offset {offset}"), segment.hold() as held:
            located = held.find(offset)
        return Mark(offset, segment.base_offset, located.position if located else FilePosition(segment.size))

    def end_of(self, segment: Segment) -> Offset:
        """The offset after a segment's last; the caller holds the lock. FileClosed when the log has it no more."""
        number = number_at(self._segments, segment.base_offset)
        if self._segments[number] is not segment:
            raise FileClosed(f"{segment.log_path} was deleted or replaced meanwhile")
        following = self._segments[number + 1 : number + 2]
        return following[0].base_offset if following else self._offsets.end.offset

    # --- the end -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush, save what spares the next start its work, and close the files. Idempotent."""
        with self.lock:
            if self._closed:
                return
            self.flush()
            with self.health.guard(f"close of {self.tp}"):
                self._segments[-1].seal()
                self._segments[-1].save_indexes()
                self.sums.save({segment.base_offset for segment in self._segments})
                save_snapshot(self.fs, self.directory, self.producers.encode(), self._offsets.end.offset)
            self.abandon()

    def abandon(self) -> None:
        """Close the files and write nothing, as a crash would. Idempotent."""
        with self.lock:
            self._closed = True
            for segment in (*self._segments, *(doomed.segment for doomed in self.doomed.copy())):
                segment.close()

    def delete(self, doomed: Path) -> None:
        """Move the directory to ``doomed`` (a name that the next start sweeps up) and delete it."""
        self.abandon()  # whatever the disk says to the rest
        with self.health.guard(f"deletion of {self.tp}"):
            with self.flush_lock:  # so that nobody is at work in it
                self.fs.rename(self.directory, doomed)
                self.fs.fsync_dir(doomed.parent)
            remove_tree(self.fs, doomed)
