"""Reading a segment's log file, which cannot be closed meanwhile.

:func:`hold` gives a :class:`HeldSegment`, and nothing else reads a log file (tests/test_rules.py). Deletion,
truncation and the end of a log close files at any moment, and the kernel gives a closed descriptor's number to the next
file that is opened: a read without a hold would fail, or answer with the bytes of another file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import nullcontext
from types import TracebackType
from typing import NamedTuple

from raylog.broker.events import EventLog
from raylog.broker.storage.disk.files import File, FileClosed, WouldWait
from raylog.broker.storage.disk.slices import FileSlice
from raylog.broker.storage.segments.segment import Segment, placed
from raylog.protocol.errors import CorruptMessage
from raylog.protocol.ids import FilePosition, Offset
from raylog.protocol.records import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, read_header

logger = EventLog(__name__)

LOOKUP_BYTES = 4096
SCAN_BYTES = 1 << 20
_PREFIX = struct.Struct(">qiibIhi")  # up to the last offset delta
_MIN_BATCH_LENGTH = HEADER_SIZE - LOG_OVERHEAD


class Located(NamedTuple):
    """A batch in the file."""

    position: FilePosition
    size: int
    base_offset: Offset


class HeldSegment:
    """See the module. A context manager that gives the hold back; one thread uses it. Methods raise OSError."""

    __slots__ = ("_file", "may_wait", "segment")

    def __init__(self, segment: Segment, file: File, *, may_wait: bool = True) -> None:
        """Takes over one hold on ``file``: the caller has called ``file.acquire()``.

        ``may_wait``: whether :meth:`find` may wait for the disk; else it raises WouldWait instead.
        """
        self.segment, self.may_wait = segment, may_wait
        self._file: File | None = file

    def __enter__(self) -> HeldSegment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        file = self._file
        if file is not None:
            self._file = None
            file.release()

    def _held(self) -> File:
        file = self._file
        if file is None:
            raise FileClosed(f"{self.segment.log_path}: the hold was given back before this read")
        return file

    def slice(self, position: FilePosition, length: int) -> FileSlice:
        """Bytes to send. The slice takes the hold over: nothing more can be read here."""
        file = self._file or self._held()
        self._file = None
        return FileSlice(file, position, length)

    def pread(self, length: int, position: int) -> bytes:
        """Up to ``length`` bytes from ``position``; fewer only at the file's end."""
        return self._held().pread(length, position)

    def read_batch(self, located: Located) -> bytes:
        """The bytes of a whole batch; fewer when the file was truncated meanwhile."""
        return self._held().pread(located.size, located.position)

    def forget(self, position: int, length: int) -> None:
        """The page cache may drop these bytes."""
        self._held().forget(position, length)

    def find(self, offset: Offset) -> Located | None:
        """The first batch that ends at or after ``offset``; None when there is none.

        One index look-up and, as a rule, one read of 4 KB. An index that leads astray is rebuilt. Raises
        CorruptMessage when the log file itself is damaged there, WouldWait.
        """
        segment = self.segment
        if not (self.may_wait or segment.index.is_loaded):
            raise WouldWait(f"{segment.index.path} is not in memory")
        try:
            return self._find_from(segment.index.lookup(offset), offset, trust=False)
        except CorruptMessage as error:
            if not self.may_wait:
                raise WouldWait(f"the indexes have to be made anew: {error}") from error
            self.rebuild_indexes()
            return self._find_from(segment.index.lookup(offset), offset, trust=True)

    def _find_from(self, position: FilePosition, offset: Offset, *, trust: bool) -> Located | None:
        segment, file = self.segment, self._file or self._held()
        pread = file.pread if self.may_wait else file.pread_cached
        end = segment.size
        first = position > 0 and not trust
        if first and position >= end:
            raise CorruptMessage(f"{segment.index.path} points beyond the log")
        while position < end:
            chunk = pread(min(LOOKUP_BYTES, end - position), position)
            at, last = 0, len(chunk) - _PREFIX.size
            if last < 0:
                raise CorruptMessage(f"{segment.log_path} ends inside a batch header at position {position}")
            while at <= last:
                base, length, _, magic, _, _, delta = _PREFIX.unpack_from(chunk, at)
                if magic != 2 or length < _MIN_BATCH_LENGTH or base < segment.base_offset or delta < 0:
                    raise CorruptMessage(f"{segment.log_path} has no batch at position {position + at}")
                if first and base > offset:
                    raise CorruptMessage(f"{segment.index.path} points beyond offset {offset}")
                first = False
                if base + delta >= offset:
                    return Located(FilePosition(position + at), LOG_OVERHEAD + length, Offset(base))
                at += LOG_OVERHEAD + length
            position = FilePosition(position + at)
        return None

    def headers(
        self, position: int = 0, end: int | None = None, *, chunk_bytes: int = SCAN_BYTES
    ) -> Iterator[tuple[FilePosition, BatchHeader]]:
        """Position and header of each batch from ``position`` on; no checksum is looked at.

        Ends quietly before a batch that reaches beyond ``end`` (default: the size). ``chunk_bytes`` are read at once:
        few for a look-up, which ends soon. CorruptMessage at what cannot be a header.
        """
        end = self.segment.size if end is None else end
        while end - position >= HEADER_SIZE:
            chunk = self._held().pread(min(chunk_bytes, end - position), position)
            if len(chunk) < HEADER_SIZE:
                return
            at = 0
            while len(chunk) - at >= HEADER_SIZE:
                header = read_header(chunk, at)
                if position + at + header.size > end:
                    return
                yield FilePosition(position + at), header
                at += header.size
            position += at

    def rebuild_indexes(self, index_interval: int = LOOKUP_BYTES) -> None:
        """Make both indexes from the batch headers; CorruptMessage when one cannot be read.

        Of a closed segment all is read without the lock: appends to the log do not wait for that.
        """
        while not self._rebuilt(index_interval):
            pass
        logger.warning("indexes made anew", path=self.segment.log_path)

    def _rebuilt(self, index_interval: int) -> bool:
        """False when the segment was cut meanwhile."""
        segment = self.segment
        with nullcontext() if segment.sealed else segment.lock:
            size = segment.size
            fresh = self._indexed(size, index_interval)
            with segment.lock:
                if size != segment.size:
                    return False
                segment.index, segment.time_index = fresh.index, fresh.time_index
                return True

    def _indexed(self, size: int, index_interval: int) -> Segment:
        """Counts and indexes of the first ``size`` bytes as another object has them."""
        segment = self.segment
        fresh = Segment(
            segment.fs, segment.directory, segment.base_offset, self._held(), segment.created_ms, segment.sums
        )
        fresh.index.clear()
        fresh.time_index.clear()
        for position, header in self.headers(0, size):
            if not 0 <= header.base_offset - segment.base_offset <= header.last_offset - segment.base_offset < 2**31:
                raise CorruptMessage(f"{segment.log_path} has an impossible offset at position {position}")
            fresh.note((placed(header),), index_interval)
        fresh.seal()
        return fresh


def hold(segment: Segment, *, may_wait: bool = True) -> HeldSegment:
    """What reads the log file, which stays open until that is given back. FileClosed when it is closed already."""
    return HeldSegment(segment, segment.acquire(), may_wait=may_wait)
