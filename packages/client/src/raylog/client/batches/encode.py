"""◆ Arrow columns to record batches, without a Python object per record: the inverse of :mod:`columns`.

Rows are put in order of their partitions, cut into batches, and written all at once, by the compiled kernel where there
is one, else by numpy and Arrow: the same bytes. The batches are slices of what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raylog.client.batches.accumulator import RECORD_OVERHEAD, EncodedRecords
from raylog.client.batches.column_schema import HEADERS, Integers, Rows
from raylog.client.batches.numpy_encode import encode_by_numpy
from raylog.protocol.batches.column_buffers import Blobs, HeaderLists
from raylog.protocol.batches.compiled import KERNEL
from raylog.protocol.batches.compression import Buffer
from raylog.protocol.errors import InvalidPartitions, InvalidRecord, MessageTooLarge

ROWS_AT_ONCE = 65_536
_BYTES_AT_ONCE = 16 << 20
_MOST_LENGTH_BYTES = 5
"""What the length of a header's name or value takes at most, and the count of headers."""

_UNFIT = (pa.ArrowException, ValueError, TypeError, OverflowError)
"""What Arrow raises for values that are not of a column's type."""

Encode = Callable[[Rows, Sequence[int]], tuple[Buffer, Sequence[int]]]
"""As :func:`raylog.client.batches.numpy_encode.encode_by_numpy`."""


def encode_by(kernel: ModuleType) -> Encode:
    """The encoder of the module :mod:`raylog.protocol.batches.encode_kernel`, fed with Arrow's buffers."""

    def encode(rows: Rows, cuts: Sequence[int]) -> tuple[Buffer, Sequence[int]]:
        headers = None if rows.headers is None else _header_lists(rows.headers)
        times = np.ascontiguousarray(rows.timestamps)
        encoded: tuple[Buffer, Sequence[int]] = kernel.encode(
            _blobs(rows.keys), _blobs(rows.values), times.data, headers, cuts
        )
        return encoded

    return encode


ENCODE = encode_by_numpy if KERNEL is None else encode_by(KERNEL[1])


def binary(column: Any, count: int, what: str) -> pa.Array:
    """A column of bytes from an Arrow array, a list of bytes, or None for all null. Raises InvalidRecord."""
    if column is None:
        return pa.nulls(count, pa.binary())
    try:
        array = _one_chunk(column, pa.binary())
        return array if array.type == pa.binary() else array.cast(pa.binary())
    except _UNFIT as error:
        raise InvalidRecord(f"the {what} are not bytes: {error}") from error


def integers(column: Any, what: str) -> Integers:
    """A column of whole numbers, none of them null. Raises InvalidRecord."""
    try:
        array = _one_chunk(column, None)
        if pa.types.is_timestamp(array.type):
            array = array.cast(pa.timestamp("ms"), safe=False)
        elif not (pa.types.is_integer(array.type) or pa.types.is_null(array.type)):
            raise TypeError(f"they are of type {array.type}")
        array = array.cast(pa.int64())
    except _UNFIT as error:
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
    except _UNFIT as error:
        raise InvalidRecord(f"headers must be lists of (str, bytes or None): {error}") from error
    headers = array.flatten()
    if headers.null_count or headers.field("key").null_count:
        raise InvalidRecord("a header has no name")
    return array if len(headers) else None


def _one_chunk(column: Any, kind: pa.DataType | None) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        return column.combine_chunks()
    return column if isinstance(column, pa.Array) else pa.array(column, kind)


def record_sizes(rows: Rows) -> Integers:
    """The most bytes that each record takes in a batch."""
    sizes = np.full(len(rows.values), RECORD_OVERHEAD, np.int64)
    for column in (rows.keys, rows.values):
        sizes += pc.fill_null(pc.binary_length(column), 0).to_numpy()
    if rows.headers is not None:
        names, values = rows.headers.flatten().flatten()
        of_header = pc.add(pc.binary_length(names), pc.fill_null(pc.binary_length(values), 0)).to_numpy()
        filled = np.concatenate(([0], np.cumsum(of_header + 2 * _MOST_LENGTH_BYTES)))
        sizes += np.diff(filled[_list_offsets(rows.headers)]) + _MOST_LENGTH_BYTES
    return sizes


def encode_rows(
    rows: Rows,
    choose: Callable[[Rows, Integers], NDArray[Any] | None],
    spread: Callable[[int], int],
    batch_size: int,
    *,
    encode: Encode = ENCODE,
) -> Iterator[EncodedRecords]:
    """Batches of at most ``batch_size`` bytes (a larger record goes alone), in row order within each partition.

    ``choose`` gives the partition of each of some rows, given their sizes, or None when that is free: then whole
    batches go where ``spread(size)`` says. Works on some ten thousand rows at a time, and 16 MB of them (or one row),
    so that memory stays bounded, and Arrow's offsets in 32 bits suffice.
    """
    all_sizes = record_sizes(rows)
    filled = np.cumsum(all_sizes)
    at = 0
    while at < len(rows.values):
        before = int(filled[at - 1]) if at else 0
        fits = int(np.searchsorted(filled, before + _BYTES_AT_ONCE, "right")) - at
        part = rows.slice(at, min(ROWS_AT_ONCE, max(fits, 1)))
        sizes = all_sizes[at : at + len(part.values)]
        at += len(part.values)
        partitions = choose(part, sizes)
        if partitions is not None:
            order = np.argsort(partitions, kind="stable")
            part, sizes, partitions = part.take(order), sizes[order], partitions[order]
        cuts = _cuts(sizes, partitions, batch_size)
        data, edges = encode(part, cuts)
        for batch, (start, end) in enumerate(pairwise(cuts)):
            times = part.timestamps[start:end]
            partition = spread(int(sizes[start:end].sum())) if partitions is None else int(partitions[start])
            encoded = bytes(data[edges[batch] : edges[batch + 1]])
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


def _cuts(sizes: Integers, partitions: NDArray[Any] | None, batch_size: int) -> list[int]:
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
    return cuts


def _list_offsets(lists: pa.Array) -> NDArray[np.int32]:
    """Where each list begins in what they hold, from 0 on, and where the last ends; null is an empty list."""
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int32)


def _header_lists(headers: pa.Array) -> HeaderLists:
    names, values = headers.flatten().flatten()
    return HeaderLists(_list_offsets(headers).data, _blobs(names), _blobs(values))


def _blobs(array: pa.Array) -> Blobs:
    """The buffers of an array of ``binary`` or ``string``."""
    count, first = len(array), array.offset
    if not count:
        return Blobs(bytes(4), b"", None)
    valid, offsets, data = array.buffers()
    return Blobs(
        memoryview(offsets)[4 * first : 4 * (first + count + 1)],
        b"" if data is None else memoryview(data),
        memoryview(valid) if array.null_count else None,
        first,
    )
