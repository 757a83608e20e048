# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# mypy: ignore-errors
"""◆ Columns to the records of batches, compiled: the inverse of :mod:`raylog.protocol.batches.decode_kernel`.

The columns' offsets are checked before they are followed. Each record is measured before room for all of them is made,
and written by the same sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import cython

from raylog.protocol.batches.column_buffers import Blobs, HeaderLists
from raylog.protocol.batches.compression import Buffer
from raylog.protocol.errors import InvalidRecord

if cython.compiled:
    from cython.cimports.libc.string import memcpy

COMPILED: bool = cython.compiled
"""False for the source as it is."""

_MASK = (1 << 64) - 1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _difference(number: cython.ulonglong, base: cython.ulonglong) -> cython.ulonglong:
    """The inverse of :func:`_sum`: ``number - base``, in zigzag."""
    difference: cython.ulonglong = number - base
    if not cython.compiled:
        difference &= _MASK
    difference = (difference << 1) ^ (0 - (difference >> 63))
    if not cython.compiled:
        difference &= _MASK
    return difference


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _written_width(number: cython.ulonglong) -> cython.int:
    """How many bytes the number takes."""
    width: cython.int = 1
    while number >= 0x80:
        number >>= 7
        width += 1
    return width


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _write(out: cython.uchar[::1], at: cython.Py_ssize_t, number: cython.ulonglong) -> cython.Py_ssize_t:
    """Write the number at ``at``; the position behind it."""
    while number >= 0x80:
        out[at] = cython.cast(cython.uchar, number & 0x7F | 0x80)
        number >>= 7
        at += 1
    out[at] = cython.cast(cython.uchar, number)
    return at + 1


@cython.final
@cython.cclass
class _Source:
    """A column of bytes to read from, which is sound, or InvalidRecord."""

    rows: cython.Py_ssize_t
    _offset: cython.const[cython.uint][::1]
    _data: cython.const[cython.uchar][::1]
    _valid: cython.const[cython.uchar][::1]
    _first_bit: cython.Py_ssize_t
    _has_nulls: cython.bint

    def __init__(self, blobs: Blobs) -> None:
        row: cython.Py_ssize_t
        self._offset = memoryview(blobs.offsets).cast("B").cast("I")
        self._data = memoryview(blobs.data).cast("B")
        self._valid = memoryview(b"" if blobs.valid is None else blobs.valid).cast("B")
        self._first_bit = blobs.first_bit
        self._has_nulls = blobs.valid is not None
        self.rows = len(self._offset) - 1
        sound = self.rows >= 0 and self._first_bit >= 0 and self._offset[self.rows] <= len(self._data)
        if self._has_nulls:
            sound = sound and self._first_bit + self.rows <= 8 * len(self._valid)
        for row in range(self.rows if sound else 0):
            if self._offset[row] > self._offset[row + 1]:
                sound = False
        if not sound:
            raise InvalidRecord("a column of bytes contradicts itself: its offsets fall, or go beyond its data")

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def size(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """In bytes; -1 for null."""
        bit: cython.Py_ssize_t = self._first_bit + row
        if self._has_nulls and not self._valid[bit >> 3] >> (bit & 7) & 1:
            return -1
        return self._offset[row + 1] - self._offset[row]

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def width(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """The bytes of the row and of its length."""
        size: cython.Py_ssize_t = self.size(row)
        return 1 if size < 0 else _written_width(2 * size) + size

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def write(self, row: cython.Py_ssize_t, out: cython.uchar[::1], at: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Write the row behind its length; the position behind it."""
        size: cython.Py_ssize_t = self.size(row)
        if size < 0:
            out[at] = 1
            return at + 1
        at = _write(out, at, 2 * size)
        start: cython.Py_ssize_t = self._offset[row]
        if size > 0:
            if cython.compiled:
                memcpy(cython.address(out[at]), cython.address(self._data[start]), size)
            else:
                out[at : at + size] = self._data[start : start + size]
        return at + size


@cython.final
@cython.cclass
class _HeaderSource:
    """The headers of rows to read from, which are sound, or InvalidRecord."""

    _offset: cython.const[cython.uint][::1]
    _names: _Source
    _values: _Source

    def __init__(self, headers: HeaderLists, rows: int) -> None:
        row: cython.Py_ssize_t
        self._offset = memoryview(headers.offsets).cast("B").cast("I")
        self._names = _Source(headers.names)
        self._values = _Source(headers.values)
        count: cython.Py_ssize_t = rows
        if len(self._offset) != count + 1 or self._names.rows != self._values.rows:
            raise InvalidRecord("a column of headers contradicts itself: its parts have different lengths")
        sound = self._offset[count] <= self._names.rows
        for row in range(count):
            if self._offset[row] > self._offset[row + 1]:
                sound = False
        if not sound:
            raise InvalidRecord("a column of headers contradicts itself: its offsets fall, or go beyond the headers")

    @cython.cfunc
    @cython.exceptval(check=False)
    def width(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """The bytes of the row's headers and of their count."""
        number: cython.Py_ssize_t
        width: cython.Py_ssize_t = _written_width(2 * (self._offset[row + 1] - self._offset[row]))
        for number in range(self._offset[row], self._offset[row + 1]):
            width += self._names.width(number) + self._values.width(number)
        return width

    @cython.cfunc
    @cython.exceptval(check=False)
    def write(self, row: cython.Py_ssize_t, out: cython.uchar[::1], at: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Write the row's headers behind their count; the position behind them."""
        number: cython.Py_ssize_t
        at = _write(out, at, 2 * (self._offset[row + 1] - self._offset[row]))
        for number in range(self._offset[row], self._offset[row + 1]):
            at = self._names.write(number, out, at)
            at = self._values.write(number, out, at)
        return at


@cython.final
@cython.cclass
class _Records:
    """All rows, and how long each record is behind its length."""

    rows: cython.Py_ssize_t
    _keys: _Source
    _values: _Source
    _headers: _HeaderSource | None
    _time: cython.const[cython.ulonglong][::1]
    _length: cython.ulonglong[::1]

    def __init__(self, keys: Blobs, values: Blobs, timestamps: Buffer, headers: HeaderLists | None) -> None:
        self._keys = _Source(keys)
        self._values = _Source(values)
        self.rows = self._values.rows
        self._headers = None if headers is None else _HeaderSource(headers, self.rows)
        self._time = memoryview(timestamps).cast("B").cast("Q")
        self._length = memoryview(bytearray(8 * self.rows)).cast("Q")
        if self._keys.rows != self.rows or len(self._time) != self.rows:
            raise InvalidRecord("the columns have different lengths")

    @cython.cfunc
    @cython.exceptval(check=False)
    def measure(self, first: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """The bytes of the rows from ``first`` to ``end`` as records of one batch."""
        total: cython.Py_ssize_t = 0
        length: cython.Py_ssize_t
        row: cython.Py_ssize_t
        for row in range(first, end):
            length = 1 + _written_width(_difference(self._time[row], self._time[first]))
            length += _written_width(2 * (row - first)) + self._keys.width(row) + self._values.width(row)
            length += 1 if self._headers is None else self._headers.width(row)
            self._length[row] = length
            total += _written_width(2 * length) + length
        return total

    @cython.cfunc
    @cython.exceptval(check=False)
    def write(
        self, first: cython.Py_ssize_t, end: cython.Py_ssize_t, out: cython.uchar[::1], at: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Write them at ``at``; the position behind them."""
        row: cython.Py_ssize_t
        for row in range(first, end):
            at = _write(out, at, 2 * self._length[row])
            out[at] = 0  # attributes
            at = _write(out, at + 1, _difference(self._time[row], self._time[first]))
            at = _write(out, at, 2 * (row - first))
            at = self._keys.write(row, out, at)
            at = self._values.write(row, out, at)
            if self._headers is None:
                out[at] = 0
                at += 1
            else:
                at = self._headers.write(row, out, at)
        return at


def encode(
    keys: Blobs, values: Blobs, timestamps: Buffer, headers: HeaderLists | None, cuts: Sequence[int]
) -> tuple[bytearray, list[int]]:
    """The bytes of all records, and where each batch begins in them and where the last ends.

    ``timestamps`` are int64, in ms; batch n has the rows from ``cuts[n]`` up to ``cuts[n + 1]``. Deltas are from its
    first row. Raises InvalidRecord when the columns do not fit each other or contradict themselves.
    """
    records: _Records = _Records(keys, values, timestamps, headers)
    edges = []
    row = total = 0
    for first, end in pairwise(cuts):
        if first != row or end < first or end > records.rows:
            raise InvalidRecord(f"rows {first} to {end} do not make a batch behind row {row} of {records.rows}")
        edges.append(total)
        total += records.measure(first, end)
        row = end
    if row != records.rows:
        raise InvalidRecord(f"the batches end at row {row} of {records.rows}")
    data = bytearray(total)
    out: cython.uchar[::1] = memoryview(data)
    for (first, end), at in zip(pairwise(cuts), edges, strict=True):
        records.write(first, end, out, at)
    return data, [*edges, total]
