# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# mypy: ignore-errors
"""◆ The records of batches to columns, compiled: nothing happens in Python for each record.

The source is Python, in Cython's pure mode. It is compiled when the package is built where a compiler is, and only then
used (:mod:`raylog.protocol.batches.compiled`); as it is it computes the same, slowly, for tests.

Nothing that was read is trusted. A length is compared with what is left of its record before it is used; numbers are
unsigned, so that what goes beyond 64 bits comes round again, as in Java; and what is written was counted before room
for it was made. So bounds are not tested once more at each step.
"""

from __future__ import annotations

from collections.abc import Sequence

import cython

from raylog.protocol.batches.column_buffers import Blobs, Decoded, HeaderLists, count_records
from raylog.protocol.batches.compression import Buffer
from raylog.protocol.batches.header import TIMESTAMP_TYPE_FLAG, BatchHeader
from raylog.protocol.errors import CorruptMessage

if cython.compiled:
    from cython.cimports.libc.string import memcpy

COMPILED: bool = cython.compiled
"""False for the source as it is."""

_MASK = (1 << 64) - 1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _width(data: cython.const[cython.uchar][::1], pos: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.int:
    """How many bytes the number at ``pos`` takes; 0 when it doesn't end before ``end`` or doesn't fit 64 bits."""
    width: cython.int = 1
    while pos < end and data[pos] >= 0x80:
        pos += 1
        width += 1
    if pos >= end or width > 10 or (width == 10 and data[pos] > 1):
        return 0
    return width


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _number(data: cython.const[cython.uchar][::1], pos: cython.Py_ssize_t, width: cython.int) -> cython.ulonglong:
    """The number of ``width`` bytes at ``pos``, zigzag not undone."""
    number: cython.ulonglong = data[pos] & 0x7F
    at: cython.int
    for at in range(1, width):
        number |= cython.cast(cython.ulonglong, data[pos + at] & 0x7F) << (7 * at)
    return number


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _size(
    data: cython.const[cython.uchar][::1], pos: cython.Py_ssize_t, width: cython.int, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """The length of the bytes behind the number at ``pos``; -1 for null, -2 when it is negative or beyond ``end``."""
    number: cython.ulonglong = _number(data, pos, width)
    if number & 1:
        return -1 if number == 1 else -2
    number >>= 1
    if number > cython.cast(cython.ulonglong, end - pos - width):
        return -2
    return cython.cast(cython.Py_ssize_t, number)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _sum(base: cython.ulonglong, number: cython.ulonglong) -> cython.ulonglong:
    """``base`` and ``number``, its zigzag undone, modulo 2**64."""
    total: cython.ulonglong = base + ((number >> 1) ^ (0 - (number & 1)))
    if not cython.compiled:
        total &= _MASK
    return total


@cython.cfunc
@cython.exceptval(check=False)
def _is_text(data: cython.const[cython.uchar][::1], pos: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
    """Is this UTF-8, as Unicode's table 3-7 has it: nothing in more bytes than it needs, and no surrogates?"""
    lead: cython.uchar
    low: cython.uchar
    high: cython.uchar
    more: cython.int
    while pos < end:
        lead = data[pos]
        pos += 1
        if lead < 0x80:
            continue
        low, high = 0x80, 0xBF
        if 0xC2 <= lead <= 0xDF:
            more = 1
        elif 0xE0 <= lead <= 0xEF:
            more = 2
            low = 0xA0 if lead == 0xE0 else 0x80
            high = 0x9F if lead == 0xED else 0xBF
        elif 0xF0 <= lead <= 0xF4:
            more = 3
            low = 0x90 if lead == 0xF0 else 0x80
            high = 0x8F if lead == 0xF4 else 0xBF
        else:
            return False
        if more > end - pos or not low <= data[pos] <= high:
            return False
        pos += 1
        while more > 1:
            if data[pos] & 0xC0 != 0x80:
                return False
            pos += 1
            more -= 1
    return True


@cython.final
@cython.cclass
class _Column:
    """Where the bytes of a field lie in the batches' bodies, row by row."""

    filled: cython.uint
    _offsets: bytearray
    _bits: bytearray
    _offset: cython.uint[::1]
    _start: cython.uint[::1]
    _valid: cython.uchar[::1]
    _rows: cython.Py_ssize_t
    _nulls: cython.Py_ssize_t

    def __init__(self, room: int) -> None:
        self._offsets = bytearray(4 * (room + 1))
        self._bits = bytearray((room + 7) // 8)
        self._offset = memoryview(self._offsets).cast("I")
        self._start = memoryview(bytearray(4 * room)).cast("I")
        self._valid = memoryview(self._bits)
        self._rows = self._nulls = 0
        self.filled = 0

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def add(self, start: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.void:
        """One row: ``size`` bytes at ``start`` of its batch's body, or null for a size of -1."""
        row: cython.Py_ssize_t = self._rows
        if size < 0:
            self._nulls += 1
        else:
            self._valid[row >> 3] |= cython.cast(cython.uchar, 1 << (row & 7))
            self.filled += cython.cast(cython.uint, size)
        self._start[row] = cython.cast(cython.uint, start)
        self._offset[row + 1] = self.filled
        self._rows = row + 1

    def gathered(self, bodies: Sequence[Buffer], counts: Sequence[int]) -> Blobs:
        """The rows' bytes side by side; ``counts`` says how many rows there are of each body."""
        data = bytearray(self.filled)
        out: cython.uchar[::1] = memoryview(data)
        source: cython.const[cython.uchar][::1]
        row: cython.Py_ssize_t = 0
        end: cython.Py_ssize_t
        at: cython.Py_ssize_t
        start: cython.Py_ssize_t
        size: cython.Py_ssize_t
        for body, count in zip(bodies, counts, strict=True) if self.filled else ():
            source = memoryview(body)
            end = row + count
            while row < end:
                at, start = self._offset[row], self._start[row]
                size = self._offset[row + 1] - at
                if size and cython.compiled:
                    memcpy(cython.address(out[at]), cython.address(source[start]), size)
                elif size:
                    out[at : at + size] = source[start : start + size]
                row += 1
        return Blobs(self._offsets, data, self._bits if self._nulls else None)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _read_blob(
    data: cython.const[cython.uchar][::1], pos: cython.Py_ssize_t, end: cython.Py_ssize_t, column: _Column
) -> cython.Py_ssize_t:
    """Add the bytes whose length is at ``pos`` to ``column``; the position behind them, -1 when they are damaged."""
    width: cython.int = _width(data, pos, end)
    if width == 0:
        return -1
    size: cython.Py_ssize_t = _size(data, pos, width, end)
    if size == -2:
        return -1
    pos += width
    column.add(pos, size)
    return pos + size if size > 0 else pos


@cython.final
@cython.cclass
class _Table:
    """The columns while they fill; headers wait until it is known how many there are."""

    offsets: bytearray
    timestamps: bytearray
    keys: _Column
    values: _Column
    _header_offsets: bytearray
    _offset: cython.ulonglong[::1]
    _timestamp: cython.ulonglong[::1]
    _header_start: cython.uint[::1]
    _header_end: cython.uint[::1]
    _rows: cython.Py_ssize_t
    _headers: cython.uint

    def __init__(self, room: int) -> None:
        self.offsets = bytearray(8 * room)
        self.timestamps = bytearray(8 * room)
        self.keys = _Column(room)
        self.values = _Column(room)
        self._header_offsets = bytearray(4 * (room + 1))
        self._offset = memoryview(self.offsets).cast("Q")
        self._timestamp = memoryview(self.timestamps).cast("Q")
        self._header_start = memoryview(bytearray(4 * room)).cast("I")
        self._header_end = memoryview(self._header_offsets).cast("I")
        self._rows = 0
        self._headers = 0

    def read(self, header: BatchHeader, body: Buffer) -> None:
        """All records of one batch. Raises CorruptMessage."""
        appended = header.attributes & TIMESTAMP_TYPE_FLAG
        read: cython.Py_ssize_t = self._read(
            memoryview(body),
            header.record_count,
            header.last_offset_delta,
            header.base_offset & _MASK,
            (header.max_timestamp if appended else header.base_timestamp) & _MASK,
            0 if appended else 1,
        )
        if read != header.record_count:
            where = f"record {read}" if read >= 0 else "what follows the last"
            raise CorruptMessage(f"{where} of {header.record_count} records in a batch is damaged")

    @cython.cfunc
    @cython.exceptval(check=False)
    def _read(  # noqa: C901 (a call for each field would double its time)
        self,
        data: cython.const[cython.uchar][::1],
        count: cython.Py_ssize_t,
        last_delta: cython.ulonglong,
        base_offset: cython.ulonglong,
        base_timestamp: cython.ulonglong,
        own_time: cython.ulonglong,
    ) -> cython.Py_ssize_t:
        """How many records lie before the first damaged one; -1 when all are sound but do not fill ``data``."""
        keys: _Column = self.keys
        values: _Column = self.values
        limit: cython.Py_ssize_t = data.shape[0] if cython.compiled else len(data)
        pos: cython.Py_ssize_t = 0
        end: cython.Py_ssize_t
        size: cython.Py_ssize_t
        width: cython.int
        number: cython.ulonglong
        delta: cython.ulonglong
        next_delta: cython.ulonglong = 0
        row: cython.Py_ssize_t = self._rows
        record: cython.Py_ssize_t
        for record in range(count):
            width = _width(data, pos, limit)  # length
            if width == 0:
                return record
            size = _size(data, pos, width, limit)
            if size < 0:
                return record
            pos += width
            end = pos + size

            pos += 1  # timestamp, behind the attributes
            width = _width(data, pos, end)
            if width == 0:
                return record
            number = _number(data, pos, width)
            self._timestamp[row] = _sum(base_timestamp, number * own_time)
            pos += width

            width = _width(data, pos, end)  # offset
            if width == 0:
                return record
            number = _number(data, pos, width)
            delta = number >> 1
            if number & 1 or delta < next_delta or delta > last_delta:
                return record
            next_delta = delta + 1
            self._offset[row] = _sum(base_offset, number)
            pos += width

            pos = _read_blob(data, pos, end, keys)
            if pos < 0:
                return record
            pos = _read_blob(data, pos, end, values)
            if pos < 0:
                return record

            width = _width(data, pos, end)  # headers
            if width == 0:
                return record
            number = _number(data, pos, width)
            pos += width
            self._header_start[row] = cython.cast(cython.uint, pos)
            if number != 0:
                if number & 1 or number >> 1 > cython.cast(cython.ulonglong, end - pos):
                    return record
                pos = _behind_headers(data, pos, end, cython.cast(cython.Py_ssize_t, number >> 1))
                self._headers += cython.cast(cython.uint, number >> 1)
            if pos != end:
                return record
            row += 1
            self._header_end[row] = self._headers
        self._rows = row
        return count if pos == limit else -1

    def header_lists(self, bodies: Sequence[Buffer], counts: Sequence[int]) -> HeaderLists:
        """The headers of all records, which :meth:`read` found sound."""
        names: _Column = _Column(self._headers)
        values: _Column = _Column(self._headers)
        of_body = []
        source: cython.const[cython.uchar][::1]
        row: cython.Py_ssize_t = 0
        end: cython.Py_ssize_t
        limit: cython.Py_ssize_t
        before: cython.uint = 0
        pos: cython.Py_ssize_t
        number: cython.uint
        for body, count in zip(bodies, counts, strict=True) if self._headers else ():
            source = memoryview(body)
            limit = len(body)
            end = row + count
            while row < end:
                pos = self._header_start[row]
                for number in range(self._header_end[row + 1] - self._header_end[row]):  # noqa: B007
                    pos = _read_blob(source, pos, limit, names)
                    pos = _read_blob(source, pos, limit, values)
                row += 1
            of_body.append(self._header_end[row] - before)
            before = self._header_end[row]
        bodies = bodies if self._headers else ()
        return HeaderLists(self._header_offsets, names.gathered(bodies, of_body), values.gathered(bodies, of_body))


@cython.cfunc
@cython.exceptval(check=False)
def _behind_headers(
    data: cython.const[cython.uchar][::1], pos: cython.Py_ssize_t, end: cython.Py_ssize_t, count: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """The position behind ``count`` headers; -1 when they are damaged."""
    width: cython.int
    size: cython.Py_ssize_t
    number: cython.Py_ssize_t
    for number in range(2 * count):
        width = _width(data, pos, end)
        if width == 0:
            return -1
        size = _size(data, pos, width, end)
        pos += width
        if size == -2 or (size == -1 and number & 1 == 0):  # a name may not be null
            return -1
        if size > 0:
            if number & 1 == 0 and not _is_text(data, pos, pos + size):
                return -1
            pos += size
    return pos


def decode(
    batches: Sequence[tuple[BatchHeader, Buffer]], *, keys: bool = True, values: bool = True, headers: bool = True
) -> Decoded:
    """The records of ``batches``: headers and bodies, these decompressed. All is checked, whatever is wanted.

    Raises CorruptMessage where ``rows.decode_records`` does, and as ``column_buffers.count_records``.
    """
    table: _Table = _Table(count_records(batches))
    for header, body in batches:
        table.read(header, body)
    bodies = [body for _, body in batches]
    counts = [header.record_count for header, _ in batches]
    return Decoded(
        table.offsets,
        table.timestamps,
        table.keys.gathered(bodies, counts) if keys else None,
        table.values.gathered(bodies, counts) if values else None,
        table.header_lists(bodies, counts) if headers else None,
    )
