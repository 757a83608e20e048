"""◆ Record batches to columns by numpy: what runs where the compiled kernel is missing.

A record's length must be known before the next one can be found, so one lean loop finds where records begin. All
that follows works on all records at once: numpy reads each field's variable-length number at all positions, and
Arrow copies keys and values together. For that the batches' bodies are seen as a binary array whose slots alternate
between what is wanted and what lies between; taking every other slot leaves what is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from raylog.client.batches.column_schema import HEADERS, FoundColumns, Integers
from raylog.protocol.batches.column_buffers import count_records
from raylog.protocol.batches.compression import Buffer
from raylog.protocol.batches.header import BatchHeader, TimestampType
from raylog.protocol.batches.rows import long_varint
from raylog.protocol.errors import CorruptMessage

_PADDING = bytes(16)
"""Behind the bodies: a number that claims to go on is read beyond the end, and then found out."""


def decode_by_numpy(
    batches: Sequence[tuple[BatchHeader, Buffer]], *, keys: bool, values: bool, headers: bool
) -> FoundColumns:
    """The records of ``batches``: headers and bodies, these decompressed. All is checked, whatever is wanted.

    Raises CorruptMessage where ``rows.decode_records`` does, and as ``column_buffers.count_records``.
    """
    count_records(batches)
    data = b"".join([*(body for _, body in batches), _PADDING])
    starts, ends, counts = _boundaries(data, batches)
    fields = _Fields(data, starts, ends)
    return FoundColumns(
        _offsets(fields, batches, counts),
        _timestamps(fields, batches, counts),
        fields.slices(fields.key) if keys else None,
        fields.slices(fields.value) if values else None,
        fields.header_lists() if headers else None,
    )


def _boundaries(data: bytes, batches: Sequence[tuple[BatchHeader, Buffer]]) -> tuple[Integers, Integers, Integers]:
    """Where each record begins, behind its length, and where it ends; and how many each batch has."""
    starts: list[int] = []
    ends: list[int] = []
    begin, end = starts.append, ends.append
    pos = limit = 0
    for header, body in batches:
        limit += len(body)
        try:
            for _ in range(header.record_count):
                number = data[pos]
                if number < 0x80:
                    pos += 1
                elif (high := data[pos + 1]) < 0x80:
                    number = number & 0x7F | high << 7
                    pos += 2
                else:
                    number, pos = long_varint(data, pos)
                begin(pos)
                pos += number >> 1
                end(pos)
                if number & 1:
                    raise CorruptMessage("a record in a batch has a negative length")
        except IndexError:
            pos = -1
        if pos != limit or header.record_count < 0 or header.last_offset_delta < 0:
            raise CorruptMessage(f"{header.record_count} records do not fill a batch of {len(body)} bytes")
    counts = np.array([header.record_count for header, _ in batches], np.int64)
    return np.array(starts, np.int64), np.array(ends, np.int64), counts


class _Fields:
    """The fields of records that lie at ``starts`` to ``ends`` of ``data``."""

    def __init__(self, data: bytes, starts: Integers, ends: Integers) -> None:
        self._data = data
        self._bytes = np.frombuffer(data, np.uint8)
        self._ends = ends
        self.timestamp_delta, pos = self._numbers(starts + 1)  # behind the attributes
        self.offset_delta, pos = self._numbers(pos)
        self.key, pos = self._blob(pos)
        self.value, pos = self._blob(pos)
        self._headers: list[list[tuple[str, bytes | None]]] = []
        count, behind = self._numbers(pos)
        if count.any():
            self._headers, behind = self._read_headers(count, behind)
        if (behind != ends).any():
            raise CorruptMessage("a record in a batch does not fill its length")

    def slices(self, field: tuple[Integers, Integers]) -> pa.Array:
        """The bytes of one field of all records; a length of -1 is null."""
        begin, size = field
        count = len(begin)
        edges = np.empty(2 * count + 1, np.int32)
        edges[0:-1:2] = begin
        edges[1::2] = begin + np.maximum(size, 0)
        edges[-1] = edges[-2] if count else 0
        slots = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(edges), pa.py_buffer(self._data)])
        nulls = size < 0
        wanted = np.arange(0, 2 * count, 2, dtype=np.int32)
        return slots.take(pa.array(wanted, mask=nulls if nulls.any() else None))

    def header_lists(self) -> pa.Array:
        """The headers of all records, mostly empty lists."""
        if self._headers:
            return pa.array(self._headers, HEADERS)
        nothing = pa.array([], HEADERS.value_type)
        return pa.ListArray.from_arrays(pa.array(np.zeros(len(self._ends) + 1, np.int32)), nothing)

    def _numbers(self, pos: Integers) -> tuple[Integers, Integers]:
        """The zigzag varints at ``pos``, and the positions behind them."""
        if (pos >= self._ends).any():
            raise CorruptMessage("a field of a record lies beyond its end")
        byte = self._bytes[pos]
        behind = pos + 1
        raw = (byte & 0x7F).astype(np.uint64)
        shift = 7
        more = np.flatnonzero(byte & 0x80)
        while len(more):
            if shift > 63:
                raise CorruptMessage("a number in a record does not fit 64 bits")
            byte = self._bytes[np.minimum(behind[more], len(self._bytes) - 1)]
            if shift == 63 and (byte > 1).any():
                raise CorruptMessage("a number in a record does not fit 64 bits")
            raw[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            behind[more] += 1
            more = more[(byte & 0x80) != 0]
            shift += 7
        sign = (raw & np.uint64(1)).astype(np.int64)
        return (raw >> np.uint64(1)).astype(np.int64) ^ -sign, behind

    def _blob(self, pos: Integers) -> tuple[tuple[Integers, Integers], Integers]:
        """Begin and length of the bytes whose length is at ``pos``, and the positions behind them."""
        size, begin = self._numbers(pos)
        room = self._ends - begin
        if (size < -1).any() or (size > room).any() or (room < 0).any():
            raise CorruptMessage("a key or value of a record does not fit it")
        return (begin, size), begin + np.maximum(size, 0)

    def _read_headers(self, counts: Integers, pos: Integers) -> tuple[list[list[tuple[str, bytes | None]]], Integers]:
        """Record by record, where there are any: headers are rare."""
        rows: list[list[tuple[str, bytes | None]]] = [[]] * len(counts)
        behind = pos.copy()
        for row in np.flatnonzero(counts).tolist():
            count, at, end = int(counts[row]), int(pos[row]), int(self._ends[row])
            if not 0 < count <= end - at:
                raise CorruptMessage(f"a record's headers have the count {count}")
            rows[row], behind[row] = self._headers_at(count, at, end)
        return rows, behind

    def _headers_at(self, count: int, at: int, end: int) -> tuple[list[tuple[str, bytes | None]], int]:
        found: list[tuple[str, bytes | None]] = []
        for _ in range(count):
            name, at = self._bytes_at(at, end)
            value, at = self._bytes_at(at, end)
            if name is None:
                raise CorruptMessage("a record's header has no name")
            try:
                found.append((name.decode(), value))
            except UnicodeDecodeError as error:
                raise CorruptMessage(f"a record's header has a damaged name: {error}") from None
        return found, at

    def _bytes_at(self, at: int, end: int) -> tuple[bytes | None, int]:
        if at >= end:
            raise CorruptMessage("a record's headers go beyond its end")
        number, at = long_varint(self._data, at)
        if number == 1:
            return None, at
        if number & 1 or number >> 1 > end - at:
            raise CorruptMessage("a record's header does not fit it")
        return self._data[at : at + (number >> 1)], at + (number >> 1)


def _offsets(fields: _Fields, batches: Sequence[tuple[BatchHeader, Buffer]], counts: Integers) -> Integers:
    """Absolute offsets; they must rise within a batch, and not go beyond the offset that it claims to end at."""
    deltas = fields.offset_delta
    last = np.repeat(np.array([header.last_offset_delta for header, _ in batches], np.int64), counts)
    if (deltas < 0).any() or (deltas > last).any():
        raise CorruptMessage("a record in a batch has an offset outside the batch")
    rising = np.diff(deltas) > 0
    firsts = np.cumsum(counts)[:-1]
    rising[firsts[(firsts > 0) & (firsts < len(deltas))] - 1] = True  # from one batch to the next
    if not rising.all():
        raise CorruptMessage("the offsets in a batch do not rise")
    return deltas + np.repeat(np.array([header.base_offset for header, _ in batches], np.int64), counts)


def _timestamps(fields: _Fields, batches: Sequence[tuple[BatchHeader, Buffer]], counts: Integers) -> Integers:
    """In ms since 1970, the broker's where the batch says so."""
    appended = [header.timestamp_type is TimestampType.LOG_APPEND_TIME for header, _ in batches]
    base = [
        header.max_timestamp if on_append else header.base_timestamp
        for (header, _), on_append in zip(batches, appended, strict=True)
    ]
    own = np.repeat(np.array(appended, bool), counts)
    times: Integers = np.repeat(np.array(base, np.int64), counts) + np.where(own, 0, fields.timestamp_delta)
    return times
