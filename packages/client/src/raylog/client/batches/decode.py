"""◆ Record batches to Arrow columns, without a Python object per record: the one door for all who read columns.

Behind it is the compiled kernel where there is one, else numpy. They find the same records in any bytes, or the same
damage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Protocol

import numpy as np
import pyarrow as pa

from raylog.client.batches.column_schema import HEADERS, SCHEMA, TIMESTAMP, FoundColumns, Integers, schema_of
from raylog.client.batches.numpy_decode import decode_by_numpy
from raylog.protocol.batches.column_buffers import MAX_BYTES, Blobs, HeaderLists
from raylog.protocol.batches.compiled import KERNEL
from raylog.protocol.batches.compression import Buffer, Codec, decompress
from raylog.protocol.batches.header import HEADER_SIZE, BatchHeader
from raylog.protocol.errors import MessageTooLarge
from raylog.protocol.ids import TopicPartition

__all__ = ["HEADERS", "SCHEMA", "TIMESTAMP", "Integers", "body_of", "decode_columns", "schema_of"]


class Decode(Protocol):
    """As :func:`raylog.client.batches.numpy_decode.decode_by_numpy`."""

    def __call__(
        self, batches: Sequence[tuple[BatchHeader, Buffer]], *, keys: bool, values: bool, headers: bool
    ) -> FoundColumns: ...


def decode_by(kernel: ModuleType) -> Decode:
    """The decoder of the module :mod:`raylog.protocol.batches.decode_kernel`, its buffers wrapped in Arrow."""

    def decode(
        batches: Sequence[tuple[BatchHeader, Buffer]], *, keys: bool, values: bool, headers: bool
    ) -> FoundColumns:
        found = kernel.decode(batches, keys=keys, values=values, headers=headers)
        return FoundColumns(
            np.frombuffer(found.offsets, np.int64),
            np.frombuffer(found.timestamps, np.int64),
            None if found.keys is None else _array(pa.binary(), found.keys),
            None if found.values is None else _array(pa.binary(), found.values),
            None if found.headers is None else _header_array(found.headers),
        )

    return decode


DECODE = decode_by_numpy if KERNEL is None else decode_by(KERNEL[0])


def body_of(data: bytes, pos: int, header: BatchHeader) -> Buffer:
    """The records' bytes of the batch at ``pos``, decompressed; a view of ``data`` where they are not compressed.

    Checks no checksum. Raises as ``records.decode_batch``.
    """
    body = memoryview(data)[pos + HEADER_SIZE : pos + header.size]
    return body if header.codec is Codec.NONE else decompress(header.codec, body)


def decode_columns(
    tp: TopicPartition,
    batches: Sequence[tuple[BatchHeader, Buffer]],
    schema: pa.Schema,
    *,
    from_offset: int,
    until_offset: int | None = None,
    decode: Decode = DECODE,
) -> pa.RecordBatch:
    """The records from ``from_offset`` up to, without, ``until_offset`` (None: to the end) of data batches, which are
    given in the order of their offsets, as headers and :func:`body_of` each.

    Raises CorruptMessage where ``records.decode_batch`` does, without saying which batch it was, and MessageTooLarge
    for more than a column of Arrow holds (2 GiB): decode fewer batches at once.
    """
    names = schema.names
    found = decode(batches, keys="key" in names, values="value" in names, headers="headers" in names)
    count = len(found.offsets)
    makers: dict[str, Callable[[], pa.Array]] = {
        "key": lambda: found.keys,
        "value": lambda: found.values,
        "topic": lambda: _repeated(tp.topic.encode(), count),
        "partition": lambda: pa.array(np.full(count, tp.partition, np.int32)),
        "offset": lambda: pa.array(found.offsets),
        "timestamp": lambda: pa.array(found.timestamps).view(TIMESTAMP),
        "timestamp_type": lambda: pa.array(_timestamp_types(batches)),
        "headers": lambda: found.headers,
    }
    columns = pa.RecordBatch.from_arrays([makers[name]() for name in names], schema=schema)
    first = int(np.searchsorted(found.offsets, from_offset))
    end = count if until_offset is None else int(np.searchsorted(found.offsets, until_offset))
    return columns.slice(first, max(end - first, 0))


def _repeated(text: bytes, count: int) -> pa.Array:
    """A column of one text."""
    if count * len(text) > MAX_BYTES:
        raise MessageTooLarge(f"the topic's name {count} times is more than a column of Arrow holds; leave it out")
    offsets = np.arange(0, count * len(text) + 1, len(text), dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text * count)])


def _timestamp_types(batches: Sequence[tuple[BatchHeader, Buffer]]) -> np.ndarray[tuple[int], np.dtype[np.int8]]:
    kinds = np.array([header.timestamp_type for header, _ in batches], np.int8)
    return np.repeat(kinds, [header.record_count for header, _ in batches])


def _array(kind: pa.DataType, blobs: Blobs) -> pa.Array:
    count = len(blobs.offsets) // 4 - 1
    valid = None if blobs.valid is None else pa.py_buffer(blobs.valid)
    return pa.Array.from_buffers(kind, count, [valid, pa.py_buffer(blobs.offsets), pa.py_buffer(blobs.data)])


def _header_array(headers: HeaderLists) -> pa.Array:
    fields = [_array(pa.string(), headers.names), _array(pa.binary(), headers.values)]
    pairs = pa.StructArray.from_arrays(fields, fields=list(HEADERS.value_type))
    count = len(headers.offsets) // 4 - 1
    return pa.Array.from_buffers(HEADERS, count, [None, pa.py_buffer(headers.offsets)], children=[pairs])
