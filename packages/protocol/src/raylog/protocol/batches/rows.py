"""The records inside a batch to and from bytes: the two inner loops of the codec, and nothing else.

A record is a length and, in so many bytes: attributes (one byte, unused), timestamp and offset as differences
from the batch's, key, value, headers. All numbers are zigzag varints; a length of -1 stands for null. Most
numbers take one or two bytes, so the loops look those up or unroll them and leave longer ones to functions.
Bounds are not tested at each step: positions only grow, so one comparison at a record's end and one at the
batch's find every overrun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from raylog.protocol.errors import CorruptMessage

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(slots=True)
class Record:
    """One record.

    ``timestamp`` is in ms since the epoch, -1 for none; ``offset`` is -1 until a log gave it one.
    """

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp: int = -1
    offset: int = -1


R = TypeVar("R")
NewRow = Callable[[bytes | None, bytes | None, Headers, int, int], R]
"""Makes what stands for one record from its value, key, headers, timestamp and offset, as Record does."""


def encode_varint(value: int) -> bytes:
    """``value``, of 64 bits, as a zigzag varint."""
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _as_int64(number: int) -> int:
    """The number as 64 bits hold it, as Java's long: from 2**63 on it goes on at -2**63."""
    return number if -_HALF <= number < _HALF else (number + _HALF & _MASK) - _HALF


_HALF, _MASK = 1 << 63, (1 << 64) - 1
_FAR = 1 << 62
"""A sum of two numbers less than this fits 64 bits."""
_TABLED = 8192  # numbers from 0 up to here take at most two bytes
_VARINT = [encode_varint(number) for number in range(_TABLED)]
_NULL = b"\x01"
_AFTER_NULL_KEY = [_NULL + varint for varint in _VARINT]
_TIME = [b"\x00" + varint for varint in _VARINT]  # attributes before it
_DELTA_SIZES = ((64, 1), (8192, 2), (1 << 20, 3), (1 << 27, 4), (1 << 31, 5))
"""Up to which offset delta (exclusive) a delta takes how many bytes."""


def encode_records(records: Sequence[Record]) -> tuple[list[bytes], int]:
    """The records' bytes in pieces, in order, and the largest timestamp.

    Differences are from the first record's.
    """
    parts: list[bytes] = []
    extend = parts.extend
    varint, after_null_key = _VARINT, _AFTER_NULL_KEY
    base_timestamp = last_timestamp = max_timestamp = records[0].timestamp
    time = _TIME[0]
    delta = 0
    for stop, delta_size in _DELTA_SIZES:
        fixed = len(time) + delta_size + 3  # one byte each for key length, value length and header count
        for record in records[delta:stop] if len(records) > 64 else records:
            if record.timestamp != last_timestamp:
                last_timestamp = record.timestamp
                difference = last_timestamp - base_timestamp
                is_tabled = 0 <= difference < _TABLED
                time = _TIME[difference] if is_tabled else b"\x00" + encode_varint(_as_int64(difference))
                fixed = len(time) + delta_size + 3
                if last_timestamp > max_timestamp:
                    max_timestamp = last_timestamp
            key, value = record.key, record.value
            if record.headers or value is None or (size := len(value)) >= _TABLED - 64:
                extend(_encode_record(record, time, delta))
            elif key is None:
                length = fixed + size if size < 64 else fixed + 1 + size
                extend((varint[length], time, varint[delta] if delta < _TABLED else encode_varint(delta),
                        after_null_key[size], value, b"\x00"))  # fmt: skip
            elif (key_size := len(key)) < 64 and size < _TABLED - 128:
                length = fixed + key_size + (size if size < 64 else size + 1)
                extend((varint[length], time, varint[delta] if delta < _TABLED else encode_varint(delta),
                        varint[key_size], key, varint[size], value, b"\x00"))  # fmt: skip
            else:
                extend(_encode_record(record, time, delta))
            delta += 1
        if delta == len(records):
            break
    return parts, max_timestamp


def _encode_record(record: Record, time: bytes, delta: int) -> list[bytes]:
    """Any record, without hurry."""
    parts = [b"", time, _varint(delta)]
    append = parts.append
    for data in (record.key, record.value):
        append(_NULL if data is None else _varint(len(data)))
        append(data or b"")
    append(_varint(len(record.headers)))
    for name, value in record.headers:
        encoded = name.encode()
        append(_varint(len(encoded)))
        append(encoded)
        append(_NULL if value is None else _varint(len(value)))
        append(value or b"")
    parts[0] = _varint(sum(map(len, parts)))
    return parts


def _varint(number: int) -> bytes:
    """A number that is not negative."""
    return _VARINT[number] if number < _TABLED else encode_varint(number)


def decode_records(
    new: NewRow[R],
    data: bytes,
    count: int,
    *,
    base_offset: int,
    last_delta: int,
    base_timestamp: int,
    append_time: int | None,
) -> list[R]:
    """What ``new`` makes of ``count`` records that fill ``data`` exactly; with ``append_time`` that is the timestamp
    of each.

    A sum beyond 64 bits goes on at the other end, as in Java. Raises CorruptMessage for any other ``data``, and when
    offsets do not rise or go beyond ``last_delta``.
    """
    rows: list[R] = []
    if append_time is not None:
        new = _appended_at(append_time, new)
    elif not -_FAR < base_timestamp < _FAR:
        new = _in_64_bits(new)
    try:
        pos = _decode_into(rows, new, data, count, base_offset, last_delta, base_timestamp)
    except (IndexError, UnicodeDecodeError) as error:
        raise CorruptMessage(f"record {len(rows)} of {count} in a batch is damaged: {error}") from None
    if pos != len(data):
        raise CorruptMessage(f"{count} records in a batch end at byte {pos} of {len(data)}")
    return rows


def _appended_at(append_time: int, new: NewRow[R]) -> NewRow[R]:
    return lambda value, key, headers, _, offset: new(value, key, headers, append_time, offset)


def _in_64_bits(new: NewRow[R]) -> NewRow[R]:
    return lambda value, key, headers, time, offset: new(value, key, headers, _as_int64(time), offset)


def _near(time: int, base_timestamp: int) -> int:
    """A zigzag difference that is far from 0, with what fits 64 bits when it is added to the base."""
    difference = _as_int64(base_timestamp + _signed(time)) - base_timestamp
    return (difference << 1) ^ (difference >> 64)


def _decode_into(  # noqa: C901 (a call for each field would double its time)
    rows: list[R], new: NewRow[R], data: bytes, count: int, base_offset: int, last_delta: int, base_timestamp: int
) -> int:
    append = rows.append
    pos = 0
    previous = -1
    for _ in range(count):
        number = data[pos]  # length
        if number < 0x80:
            pos += 1
        elif (high := data[pos + 1]) < 0x80:
            number = number & 0x7F | high << 7
            pos += 2
        else:
            number, pos = long_varint(data, pos)
        end = pos + (number >> 1)
        if number & 1:
            raise CorruptMessage(f"a record in a batch has the length {_signed(number)}")

        time = data[pos + 1]  # timestamp, behind the attributes
        if time < 0x80:
            pos += 2
        elif (high := data[pos + 2]) < 0x80:
            time = time & 0x7F | high << 7
            pos += 3
        else:
            time, pos = long_varint(data, pos + 1)
            if time >= _HALF:
                time = _near(time, base_timestamp)

        delta = data[pos]  # offset
        if delta < 0x80:
            pos += 1
        elif (high := data[pos + 1]) < 0x80:
            delta = delta & 0x7F | high << 7
            pos += 2
        else:
            delta, pos = long_varint(data, pos)
        if delta & 1 or not previous < (delta := delta >> 1) <= last_delta:
            raise CorruptMessage(f"record {len(rows)} in a batch has the offset delta {delta}")
        previous = delta

        number = data[pos]  # key
        if number == 1:
            key = None
            pos += 1
        else:
            if number < 0x80:
                pos += 1
            else:
                number, pos = long_varint(data, pos)
            start = pos
            pos += number >> 1
            key = data[start:pos]
            if number & 1:
                if number != 1:
                    raise CorruptMessage(f"record {len(rows)} in a batch has a key of length {_signed(number)}")
                key = None

        number = data[pos]  # value
        if number < 0x80:
            pos += 1
        elif (high := data[pos + 1]) < 0x80:
            number = number & 0x7F | high << 7
            pos += 2
        else:
            number, pos = long_varint(data, pos)
        if number & 1:
            if number != 1:
                raise CorruptMessage(f"record {len(rows)} in a batch has a value of length {_signed(number)}")
            value = None
        else:
            start = pos
            pos += number >> 1
            value = data[start:pos]

        if data[pos]:
            headers, pos = _headers(data, pos)
        else:
            headers = ()
            pos += 1
        if pos != end:
            raise CorruptMessage(f"record {len(rows)} in a batch does not fill its length")
        append(new(value, key, headers, base_timestamp + ((time >> 1) ^ -(time & 1)), base_offset + delta))
    return pos


_LONGEST_START = 31
"""Bytes of a record's length, attributes, timestamp and offset, at the most."""


def scan_times(
    pieces: Iterable[bytes], count: int, *, base_offset: int, base_timestamp: int
) -> Iterator[tuple[int, int]]:
    """Offset and timestamp of each of ``count`` records in ``pieces`` joined, looking at nothing else, keeping nothing.

    Timestamps are as in :func:`decode_records`. Takes no piece before it is needed. Raises CorruptMessage at a record
    that does not lie within them.
    """
    times = _scan_times(pieces, count, base_offset, base_timestamp)
    return times if -_FAR < base_timestamp < _FAR else ((offset, _as_int64(time)) for offset, time in times)


def _scan_times(
    pieces: Iterable[bytes], count: int, base_offset: int, base_timestamp: int
) -> Iterator[tuple[int, int]]:
    data, pos, number = b"", 0, 0  # pos may lie beyond the data, where the next record begins
    for piece in chain(pieces, (None,)):
        left = data[pos:]
        pos = max(pos - len(data), 0)
        if piece is None:  # the last records, whose start may be cut off: what is beyond reads as zeros
            size = stop = len(left)
            data = left + bytes(_LONGEST_START)
        else:
            data = left + piece if left else piece
            size, stop = 1 << 62, len(data) - _LONGEST_START
        while pos < stop and number < count:
            length = data[pos]
            pos += 1
            if length > 0x7F:
                length, pos = long_varint(data, pos - 1)
            end = pos + (length >> 1)
            time = data[pos + 1]  # behind the attributes
            pos += 2
            if time > 0x7F:
                if (high := data[pos]) < 0x80:
                    time = time & 0x7F | high << 7
                    pos += 1
                else:
                    time, pos = long_varint(data, pos - 1)
                    if time >= _HALF:
                        time = _near(time, base_timestamp)
            delta = data[pos]
            pos += 1
            if delta > 0x7F:
                if (high := data[pos]) < 0x80:
                    delta = delta & 0x7F | high << 7
                    pos += 1
                else:
                    delta, pos = long_varint(data, pos - 1)
            if length & 1 or not pos <= end <= size:
                raise CorruptMessage(f"record {number} of {count} in a batch does not fill its length")
            pos = end
            number += 1
            yield base_offset + ((delta >> 1) ^ -(delta & 1)), base_timestamp + ((time >> 1) ^ -(time & 1))
        if number == count and pos <= min(size, len(data)):
            return
    raise CorruptMessage(f"record {number} of {count} in a batch is damaged")


def _signed(number: int) -> int:
    return (number >> 1) ^ -(number & 1)


def long_varint(data: bytes, pos: int) -> tuple[int, int]:
    """The varint at ``pos``, zigzag not undone, and the position behind it."""
    number = shift = 0
    while (byte := data[pos]) & 0x80:
        number |= (byte & 0x7F) << shift
        shift += 7
        pos += 1
        if shift > 63:
            raise CorruptMessage("a number in a record does not fit 64 bits")
    number |= byte << shift
    if number >> 64:
        raise CorruptMessage("a number in a record does not fit 64 bits")
    return number, pos + 1


def _headers(data: bytes, pos: int) -> tuple[Headers, int]:
    """The headers whose count is at ``pos``, and the position behind them."""
    count, pos = _length(data, pos)
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        size, pos = _length(data, pos)
        start, pos = pos, pos + size
        name = data[start:pos].decode()
        number, start = long_varint(data, pos)
        if number & 1 and number != 1:
            raise CorruptMessage(f"a record's header has a value of length {_signed(number)}")
        pos = start + (number >> 1)
        headers.append((name, None if number == 1 else data[start:pos]))
    return headers, pos


def _length(data: bytes, pos: int) -> tuple[int, int]:
    """A length or count that must not be negative, and the position behind it."""
    number = data[pos]
    if number < 0x80:
        pos += 1
    else:
        number, pos = long_varint(data, pos)
    if number & 1:
        raise CorruptMessage(f"a record's headers have the length or count {_signed(number)}")
    return number >> 1, pos
