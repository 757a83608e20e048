"""◆ Columns to record batches by numpy and Arrow: what runs where the compiled kernel is missing.

Every piece of every record (lengths, deltas, key, value) is one column of bytes, and Arrow joins these row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raylog.client.batches.column_schema import Rows
from raylog.protocol.batches.compression import Buffer
from raylog.protocol.batches.rows import encode_varint

_TABLED = 8192
_VARINTS = pa.array([encode_varint(number) for number in range(_TABLED)], pa.binary())
_NULL_LENGTH = encode_varint(-1)


def encode_by_numpy(rows: Rows, cuts: Sequence[int]) -> tuple[Buffer, Sequence[int]]:
    """The bytes of all records, and where each batch begins in them and where the last ends.

    Batch n has the rows from ``cuts[n]`` up to ``cuts[n + 1]``; deltas are from its first row.
    """
    counts = np.diff(cuts)
    firsts = np.array(cuts[:-1], np.int64)
    deltas = np.arange(len(rows.values)) - np.repeat(firsts, counts)
    times = rows.timestamps - np.repeat(rows.timestamps[firsts], counts)
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
    whole = _join([_lengths(record), record])
    edges = np.frombuffer(whole.buffers()[1], np.int32)[whole.offset : whole.offset + len(whole) + 1]
    return memoryview(whole.buffers()[2]), edges[np.array(cuts)].tolist()


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
        name, value = header["key"].encode(), header["value"]
        parts += [encode_varint(len(name)), name]
        parts += [_NULL_LENGTH] if value is None else [encode_varint(len(value)), value]
    return b"".join(parts)
