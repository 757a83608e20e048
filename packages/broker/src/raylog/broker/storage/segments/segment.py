"""A segment: one log file with its two indexes, named by the offset that it begins with.

One thread at a time writes (under the log's lock); any thread reads. A reader sees ``size`` bytes: that attribute
moves only after the bytes are in the file.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from raylog.broker.events import EventLog
from raylog.broker.storage.disk.files import File, FileClosed, FileSystem, remove_file
from raylog.broker.storage.disk.index_sums import IndexSum, IndexSums
from raylog.broker.storage.disk.room import Room
from raylog.broker.storage.segments.index import OffsetIndex, TimeIndex
from raylog.broker.storage.segments.unchecked import Unchecked
from raylog.broker.storage.state.log_config import LogConfig
from raylog.protocol.errors import CorruptMessage
from raylog.protocol.ids import NO_TIMESTAMP, FilePosition, Offset, TimestampMs
from raylog.protocol.records import HEADER_SIZE, BatchHeader, read_header

LOG, INDEX, TIME_INDEX, SNAPSHOT = ".log", ".index", ".timeindex", ".snapshot"

logger = EventLog(__name__)

MAX_RELATIVE_OFFSET = 2**31 - 1


class Placed(NamedTuple):
    """What the indexes need to know of a batch on its way into the file."""

    size: int
    last_offset: Offset
    max_timestamp: TimestampMs


class KeptPeak(NamedTuple):
    """The highest timestamp of what DeleteRecords has left of a segment, as far as somebody has looked for it."""

    start: Offset
    """The log's start then."""
    next_offset: Offset
    """Batches from here on are not counted."""
    timestamp: int


def file_name(base_offset: Offset, suffix: str) -> str:
    """Kafka's name for a segment's file: the base offset in twenty digits."""
    return f"{base_offset:020d}{suffix}"


class Segment:
    """See the module. Methods raise OSError; the log turns it into StorageError."""

    __slots__ = (
        "_file",
        "_room",
        "_since_index",
        "base_offset",
        "created_ms",
        "directory",
        "first_timestamp",
        "fs",
        "grown_ms",
        "index",
        "kept_peak",
        "lock",
        "log_path",
        "max_timestamp",
        "max_timestamp_offset",
        "sealed",
        "seen_size",
        "size",
        "sums",
        "time_index",
        "unchecked",
        "unchecked_end",
    )

    def __init__(
        self, fs: FileSystem, directory: Path, base_offset: Offset, file: File, now_ms: TimestampMs, sums: IndexSums
    ) -> None:
        self.fs = fs
        self.sums = sums
        self.directory = directory
        self.base_offset = base_offset
        self._file = file
        self.log_path = self.path(LOG)
        self.created_ms = now_ms
        self.size = 0
        self.lock = threading.RLock()
        """Held by who appends, and by readers that rebuild the indexes; the log puts its own here."""
        self.sealed = False
        """True once another segment follows."""
        self.index = OffsetIndex(fs, self.path(INDEX), base_offset)
        self.time_index = TimeIndex(fs, self.path(TIME_INDEX), base_offset)
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        """The last offset of the batch that brought :attr:`max_timestamp`. Written before it, and read after it: so
        a reader that takes no lock never finds an offset too low for the time.
        """
        self.kept_peak: KeptPeak | None = None
        self.first_timestamp = NO_TIMESTAMP
        """The first batch's highest timestamp; -1 when there is none, or when it has none."""
        self.unchecked, self.unchecked_end = Unchecked(), 0
        """Bytes below lay there at the start: they are checked when they are read first, whoever does that."""
        self.seen_size = 0
        self.grown_ms: int | None = None
        """Its size when retention looked last, and when that found it grown (None: not since it was loaded)."""
        self._since_index = 0
        self._room = Room(file)

    @classmethod
    def create(
        cls, fs: FileSystem, directory: Path, base_offset: Offset, now_ms: TimestampMs, sums: IndexSums
    ) -> Segment:
        """A new, empty one. Its name is durable once the caller has synced the directory.

        It replaces one that has its name, whose file is left to those who are still sending from it.
        """
        path = directory / file_name(base_offset, LOG)
        replaced = fs.exists(path)
        file = fs.open(path.with_name(path.name + ".tmp") if replaced else path, create=True)
        try:
            if replaced:
                fs.rename(file.path, path)
                file.path = path
            segment = cls(fs, directory, base_offset, file, now_ms, sums)
            segment.index.clear()
            segment.time_index.clear()
        except BaseException:
            file.close()
            raise
        return segment

    @classmethod
    def open(
        cls, fs: FileSystem, directory: Path, base_offset: Offset, now_ms: TimestampMs, sums: IndexSums
    ) -> Segment:
        """One that is there; the caller goes on with :meth:`reset` or one of the loads."""
        file = fs.open(directory / file_name(base_offset, LOG))
        segment = cls(fs, directory, base_offset, file, now_ms, sums)
        try:
            segment.size = file.size()
            head = file.pread(HEADER_SIZE, 0)
        except BaseException:
            file.close()
            raise
        if len(head) == HEADER_SIZE:
            try:
                segment.first_timestamp = TimestampMs(read_header(head).max_timestamp)
            except CorruptMessage:
                pass  # recovery or a reader will meet it and tell
        return segment

    def path(self, suffix: str) -> Path:
        """The path of one of the segment's files."""
        return self.directory / file_name(self.base_offset, suffix)

    # --- writing ---------------------------------------------------------------------------------------------

    def must_roll(
        self, config: LogConfig, size: int, last_offset: Offset, max_timestamp: TimestampMs, now_ms: TimestampMs
    ) -> bool:
        """Whether an append of ``size`` bytes up to ``last_offset`` belongs into a new segment."""
        if last_offset - self.base_offset > MAX_RELATIVE_OFFSET:
            return True
        if self.size == 0:
            return False
        if self.size + size > config.segment_bytes:
            return True
        if self.first_timestamp >= 0 and max_timestamp >= 0:
            waited = max_timestamp - self.first_timestamp
        else:
            waited = now_ms - self.created_ms
        if waited > config.segment_ms:
            return True
        limit = config.segment_index_bytes
        return self.index.size_bytes() + 8 > limit or self.time_index.size_bytes() + 12 > limit

    def append(self, batches: memoryview, placed: Sequence[Placed], index_interval: int) -> None:
        """Write stamped batches after the last one, all by one call. After an OSError a part may be there."""
        position = self.size
        self._room.make(position, len(batches))
        self._file.pwritev((batches,), position)
        self.note(placed, index_interval)

    def note(self, placed: Sequence[Placed], index_interval: int) -> None:
        """Count batches that are in the file from ``size`` on, and index them."""
        position = self.size
        if position == 0:
            self.first_timestamp = placed[0].max_timestamp
        for size, last_offset, max_timestamp in placed:
            if max_timestamp > self.max_timestamp:
                self.max_timestamp_offset = last_offset
                self.max_timestamp = max_timestamp
            if self._since_index > index_interval:
                # In this order: who sees the batch in one index finds in the other how high times were up to it.
                self.time_index.maybe_append(self.max_timestamp, self.max_timestamp_offset)
                self.index.append(last_offset, FilePosition(position))
                self._since_index = 0
            self._since_index += size
            position += size
        self.size = position

    def seal(self) -> None:
        """No more appends: give the highest timestamp its entry, and back what room is left. Writes nothing."""
        self.sealed = True
        self._room.give_back(self.size)
        self.time_index.maybe_append(self.max_timestamp, self.max_timestamp_offset)

    def save_indexes(self) -> None:
        """Make the indexes durable, only what was sealed; IndexSums.save must follow."""
        self.sums.note(
            self.base_offset,
            IndexSum(
                self.size, *self.index.save(), *self.time_index.save(), self.max_timestamp, self.max_timestamp_offset
            ),
        )

    def sync(self) -> bool:
        """Make the log file durable; False when the segment was deleted meanwhile."""
        if not self._file.acquire():
            return False
        try:
            self._file.fdatasync()
        finally:
            self._file.release()
        return True

    def cut_file(self, position: FilePosition) -> None:
        """Cut the file at ``position``, durably; the indexes still tell of what was there (see loading.truncate)."""
        self.size = min(self.size, position)
        self.unchecked_end = min(self.unchecked_end, position)
        self.kept_peak = None
        self._file.truncate(position)
        self._file.fdatasync()  # or the old content could come back under what is appended next

    def close(self) -> None:
        """Give the log file back; who holds it, and slices in flight, keep it open. Idempotent, for any thread."""
        self._file.close()

    def unlink(self) -> None:
        """Delete the files, the log first: an index without a log is swept up at the next start."""
        remove_file(self.fs, self.log_path)
        self.unlink_indexes()

    def unlink_indexes(self) -> None:
        """Delete the index files, if there are any."""
        self.index.unlink()
        self.time_index.unlink()

    # --- reading ---------------------------------------------------------------------------------------------

    def acquire(self) -> File:
        """One hold on the log file, for held.hold. FileClosed when it is closed already: the segment was deleted or
        cut off, or the log was closed.
        """
        file = self._file
        if not file.acquire():
            raise FileClosed(f"{self.log_path} was closed here meanwhile")
        return file

    @property
    def indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Both indexes, made at the same points of the log: what one says may be looked up in the other."""
        with self.lock:
            return self.index, self.time_index

    # --- loading ---------------------------------------------------------------------------------------------

    def count_on(self, max_timestamp: TimestampMs, max_timestamp_offset: Offset, since_index: int) -> None:
        """Take up counting where the file ends, ``since_index`` bytes behind the batch of the last index entry."""
        self.max_timestamp, self.max_timestamp_offset = max_timestamp, max_timestamp_offset
        self._since_index = since_index

    def reset(self) -> None:
        """Begin to count anew, from an empty file on: :meth:`note` what is good of it, then :meth:`cut` the rest."""
        self.size = self.unchecked_end = 0
        self.index.clear()
        self.time_index.clear()
        self.max_timestamp, self.max_timestamp_offset = NO_TIMESTAMP, self.base_offset
        self.first_timestamp = NO_TIMESTAMP
        self._since_index = 0

    def cut(self) -> None:
        """Take away what lies behind ``size`` in the file."""
        if self._file.size() > self.size:
            self._file.truncate(self.size)


def placed(header: BatchHeader) -> Placed:
    """A stored batch's entry."""
    return Placed(header.size, Offset(header.last_offset), TimestampMs(header.max_timestamp))
