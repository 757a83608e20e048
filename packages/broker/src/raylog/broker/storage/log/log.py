"""One partition's log: appending, reading, truncating, flushing, the end. ``contents`` is what it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raylog.broker.storage.disk.files import LogClosed, remove_tree
from raylog.broker.storage.disk.slices import FileSlice
from raylog.broker.storage.log.contents import LogContents
from raylog.broker.storage.log.reading import read
from raylog.broker.storage.log.snapshots import save_snapshot
from raylog.broker.storage.log.truncation import mend, start_anew, truncate_to
from raylog.broker.storage.segments.segment import Placed, Segment, placed
from raylog.broker.storage.state.offsets import Mark
from raylog.protocol.errors import OffsetOutOfRange
from raylog.protocol.ids import FilePosition, LeaderEpoch, Offset, TimestampMs
from raylog.protocol.records import BatchHeader, stamp, stamp_log_append_time


class Log(LogContents):
    """Made by recovery.load_log."""

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

    # --- reading and truncating ------------------------------------------------------------------------------

    def read(
        self, offset: Offset, max_bytes: int, bound: Mark, *, min_one_batch: bool, may_wait: bool = True
    ) -> FileSlice | None:
        """See reading.read."""
        return read(self, offset, max_bytes, bound, min_one_batch=min_one_batch, may_wait=may_wait)

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

    def _save(self, segment: Segment) -> None:
        """Make a closed segment durable and give its memory back, unless it was deleted meanwhile."""
        if segment.sync():
            segment.save_indexes()
            segment.index.unload()
            segment.time_index.unload()

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
