"""◆ Arrow columns to record batches, without a Python object per record: the inverse of :mod:`columns`.

Rows are put in order of their partitions, cut into batches, and written all at once: every piece of every record
(lengths, deltas, key, value) is one column of bytes, and Arrow joins these row by row. The batches are slices of what
comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raylog.client.accumulator import RECORD_OVERHEAD, EncodedRecords
from raylog.client.columns import HEADERS, Integers
from raylog.protocol.errors import InvalidPartitions, InvalidRecord, MessageTooLarge
from raylog.protocol.rows import encode_varint

_TABLED = 8192
_VARINTS = pa.array([encode_varint(number) for number in range(_TABLED)], pa.binary())
_NULL_LENGTH = encode_varint(-1)
_ROWS_AT_ONCE = 65_536


class Rows(NamedTuple):
    """Columns of records to send, equally long: binary keys and values, timestamps in ms, headers or None."""

    keys: pa.Array
    values: pa.Array
    timestamps: Integers
    headers: pa.Array | None

    def slice(self, start: int, count: int) -> Rows:
        headers = None if self.headers is None else self.headers.slice(start, count)
        keys, values = self.keys.slice(start, count), self.values.slice(start, count)
        return Rows(keys, values, self.timestamps[start : start + count], headers)

    def take(self, order: Integers) -> Rows:
        wanted = pa.array(order)
        headers = None if self.headers is None else self.headers.take(wanted)
        return Rows(self.keys.take(wanted), self.values.take(wanted), self.timestamps[order], headers)


def binary(column: Any, count: int, what: str) -> pa.Array:
    """A column of bytes from an Arrow array, a list of bytes, or None for all null. Raises InvalidRecord."""
    if column is None:
        return pa.nulls(count, pa.binary())
    try:
        array = _one_chunk(column, pa.binary())
        return array if array.type == pa.binary() else array.cast(pa.binary())
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise InvalidRecord(f"the {what} are not bytes: {error}") from error


def integers(column: Any, what: str) -> Integers:
    """A column of whole numbers, none of them null. Raises InvalidRecord."""
    try:
        array = _one_chunk(column, pa.int64())
        if pa.types.is_timestamp(array.type):
            array = array.cast(pa.timestamp("ms"), safe=False)
        array = array.cast(pa.int64())
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise InvalidRecord(f"the {what} are not whole numbers: {error}") from error
    if array.null_count:
        raise InvalidRecord(f"the {what} have nulls")
    numbers: Integers = array.to_numpy()
    return numbers


def header_column(column: Any) -> pa.Array | None:
    """Headers as lists of (name, bytes or None); None when no record has any. Raises InvalidRecord."""
    if column is None:
        return None
    try:
        array = _one_chunk(column, HEADERS).cast(HEADERS)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise InvalidRecord(f"headers must be lists of (str, bytes or None): {error}") from error
    return array if len(array.flatten()) else None


def _one_chunk(column: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        return column.combine_chunks()
    return column if isinstance(column, pa.Array) else pa.array(column, kind)


def record_sizes(rows: Rows) -> Integers:
    """The most bytes that each record takes in a batch."""
    sizes = np.full(len(rows.values), RECORD_OVERHEAD, np.int64)
    for column in (rows.keys, rows.values):
        sizes += pc.fill_null(pc.binary_length(column), 0).to_numpy()
    if rows.headers is not None:
        sizes += pc.fill_null(pc.binary_length(_written_headers(rows.headers)), 0).to_numpy()
    return sizes


def encode_rows(
    rows: Rows, choose: Callable[[Rows, Integers], NDArray[Any] | None], spread: Callable[[int], int], batch_size: int
) -> Iterator[EncodedRecords]:
    """Batches of at most ``batch_size`` bytes (a larger record goes alone), in row order within each partition.

    ``choose`` gives the partition of each of some rows, given their sizes, or None when that is free: then whole
    batches go where ``spread(size)`` says. Works on some ten thousand rows at a time, so that memory stays bounded.
    """
    at = 0
    while at < len(rows.values):
        part = rows.slice(at, _ROWS_AT_ONCE)
        at += len(part.values)
        sizes = record_sizes(part)
        partitions = choose(part, sizes)
        if partitions is not None:
            order = np.argsort(partitions, kind="stable")
            part, sizes, partitions = part.take(order), sizes[order], partitions[order]
        cuts = _cuts(sizes, partitions, batch_size)
        body = _encode(part, cuts)
        edges = np.frombuffer(body.buffers()[1], np.int32)[body.offset : body.offset + len(body) + 1]
        data = body.buffers()[2]
        for start, end in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
            times = part.timestamps[start:end]
            partition = spread(int(sizes[start:end].sum())) if partitions is None else int(partitions[start])
            encoded = data[int(edges[start]) : int(edges[end])].to_pybytes()
            yield EncodedRecords(partition, encoded, end - start, int(times[0]), int(times.max()))


def check_rows(rows: Rows, largest: int, topic: str) -> None:
    """Refuse rows that can never be sent, before any of them is: MessageTooLarge or InvalidRecord."""
    if len({len(rows.keys), len(rows.values), len(rows.timestamps)} | _length_of(rows.headers)) > 1:
        raise InvalidRecord(f"{topic}: the columns have different lengths")
    sizes = record_sizes(rows)
    if len(sizes) and sizes.max() > largest:
        row = int(sizes.argmax())
        raise MessageTooLarge(
            f"{topic}: row {row} is a record of {sizes[row]} bytes; max.request.size and buffer.memory allow {largest}"
        )
    if (rows.timestamps < 0).any():
        raise InvalidRecord(f"{topic}: a timestamp is not in milliseconds since 1970")


def check_partitions(partitions: Integers, count: int, topic: str) -> None:
    """InvalidPartitions when a row names a partition that the topic hasn't got."""
    wrong = (partitions < 0) | (partitions >= count)
    if wrong.any():
        raise InvalidPartitions(f"{topic} has partitions 0 to {count - 1}, not {partitions[wrong][0]}")


def _length_of(column: pa.Array | None) -> set[int]:
    return set() if column is None else {len(column)}


def _cuts(sizes: Integers, partitions: NDArray[Any] | None, batch_size: int) -> Integers:
    """Where batches begin, and the end of the last."""
    total = len(sizes)
    stops = [total] if partitions is None else [*(np.flatnonzero(np.diff(partitions)) + 1).tolist(), total]
    filled = np.concatenate(([0], np.cumsum(sizes)))
    cuts = [0]
    for stop in stops:
        while cuts[-1] < stop:
            start = cuts[-1]
            fits = int(np.searchsorted(filled, filled[start] + batch_size, "right")) - 1
            cuts.append(min(stop, max(start + 1, fits)))
    return np.array(cuts, np.int64)


def _encode(rows: Rows, cuts: Integers) -> pa.Array:
    """Each record's bytes; deltas are from the first record of the batch that the cuts put it into."""
    counts = np.diff(cuts)
    deltas = np.arange(len(rows.values)) - np.repeat(cuts[:-1], counts)
    times = rows.timestamps - np.repeat(rows.timestamps[cuts[:-1]], counts)
    pieces = [
        pa.repeat(pa.scalar(b"\0", pa.binary()), len(deltas)),  # attributes
        _varints(times),
        _varints(deltas),
        _lengths(rows.keys),
        rows.keys,
        _lengths(rows.values),
        rows.values,
        pa.repeat(pa.scalar(b"\0", pa.binary()), len(deltas))
        if rows.headers is None
        else _written_headers(rows.headers),
    ]
    record = _join(pieces)
    return _join([_lengths(record), record])


def _join(pieces: Sequence[pa.Array]) -> pa.Array:
    nothing = pa.scalar(b"", pa.binary())
    return pc.binary_join_element_wise(*pieces, nothing, null_handling="replace", null_replacement=b"")


def _lengths(column: pa.Array) -> pa.Array:
    """The lengths as varints; that of null is -1."""
    written = _varints(pc.fill_null(pc.binary_length(column), 0).to_numpy())
    return pc.if_else(column.is_null(), _NULL_LENGTH, written) if column.null_count else written


def _varints(numbers: NDArray[Any]) -> pa.Array:
    """Each number as a zigzag varint: looked up when it is small, as nearly all are."""
    if len(numbers) and numbers.min() >= 0 and numbers.max() < _TABLED:
        return _VARINTS.take(pa.array(numbers))
    distinct, index = np.unique(numbers, return_inverse=True)
    return pa.array([encode_varint(number) for number in distinct.tolist()], pa.binary()).take(pa.array(index))


def _written_headers(headers: pa.Array) -> pa.Array:
    """The count and the headers of each record, record by record: headers are rare."""
    none = b"\0"
    return pa.array([none if not row else _write_headers(row) for row in headers.to_pylist()], pa.binary())


def _write_headers(row: list[dict[str, Any]]) -> bytes:
    parts = [encode_varint(len(row))]
    for header in row:
        if header is None or header["key"] is None:
            raise InvalidRecord("a header has no name")
        name, value = header["key"].encode(), header["value"]
        parts += [encode_varint(len(name)), name]
        parts += [_NULL_LENGTH] if value is None else [encode_varint(len(value)), value]
    return b"".join(parts)
