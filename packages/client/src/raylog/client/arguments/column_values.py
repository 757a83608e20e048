"""◆ What a user gives for many records at once, to columns of bytes and numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

import numpy as np
import pyarrow as pa

from raylog.client.arguments.record_values import serialized, whole_number
from raylog.client.arguments.serde import Serializer
from raylog.client.batches.column_schema import Integers, Rows
from raylog.client.batches.encode import ROWS_AT_ONCE, binary, header_column, integers
from raylog.protocol.errors import InvalidPartitions, InvalidRecord

_COLUMNS = {"value", "key", "partition", "headers", "timestamp"}
_NO_COLUMNS = (str, bytes, bytearray, memoryview, Mapping, Set)
"""They have a length and items, but are one value, or have no order."""


class ColumnValues:
    """Makes columns with the serializers of one producer, of which None is the default one's: bytes stay as they
    are."""

    def __init__(self, key: Serializer, value: Serializer, *, packs_key_bytes: bool, packs_value_bytes: bool) -> None:
        self._key, self._value = key, value
        self._packs_key_bytes, self._packs_value_bytes = packs_key_bytes, packs_value_bytes

    def pieces(
        self, values: Any, keys: Any, partition: Any, headers: Any, timestamps: Any, now_ms: int
    ) -> Iterator[tuple[Rows, Integers | None]]:
        """As :meth:`rows`, some ten thousand at a time: for those that have other things to do, too."""
        count = _count(values, keys, headers, timestamps)
        is_column = hasattr(partition, "__len__") and not isinstance(partition, _NO_COLUMNS)
        columns = [_sliceable(column) for column in (values, keys, headers, timestamps)]
        partition = _sliceable(partition) if is_column else partition
        for start in range(0, max(count, 1), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE if start + ROWS_AT_ONCE < count else None)
            of_values, of_keys, of_headers, of_timestamps = (
                None if column is None else column[part] for column in columns
            )
            of_partition = partition[part] if is_column else partition
            yield self.rows(of_values, of_keys, of_partition, of_headers, of_timestamps, now_ms)

    def rows(
        self, values: Any, keys: Any, partition: Any, headers: Any, timestamps: Any, now_ms: int
    ) -> tuple[Rows, Integers | None]:
        """Columns to send and their partitions, from what a user gives. Raises InvalidRecord for what can't be."""
        if isinstance(values, pa.Table | pa.RecordBatch):
            if not (keys is None and partition is None and headers is None and timestamps is None):
                raise InvalidRecord("give a table with all columns in it, or the columns one by one")
            unknown = set(values.column_names) - _COLUMNS
            if unknown:
                raise InvalidRecord(f"columns {sorted(unknown)}: a table to send has {', '.join(sorted(_COLUMNS))}")
            values, keys, partition, headers, timestamps = (
                values[name] if name in values.column_names else None
                for name in ("value", "key", "partition", "headers", "timestamp")
            )
        count = _count(values, keys, headers, timestamps)
        rows = Rows(
            binary(_serialized(keys, self._key, self._packs_key_bytes, "key"), count, "keys"),
            binary(_serialized(values, self._value, self._packs_value_bytes, "value"), count, "values"),
            np.full(count, now_ms, np.int64) if timestamps is None else integers(timestamps, "timestamps"),
            header_column(headers),
        )
        return rows, _partitions(partition, count)


def _count(values: Any, keys: Any, headers: Any, timestamps: Any) -> int:
    """How many records; columns of other lengths are found out later."""
    given = {"values": values, "keys": keys, "headers": headers, "timestamps": timestamps}
    lengths = [_length(column, what) for what, column in given.items() if column is not None]
    return lengths[0] if lengths else 0


def _sliceable(column: Any) -> Any:
    """The column, as a list where it has items but no slices, as a deque or a dict's values."""
    if column is None:
        return None
    try:
        column[:0]
    except TypeError:
        return list(column)
    return column


def _length(column: Any, what: str) -> int:
    if isinstance(column, _NO_COLUMNS) or not hasattr(column, "__len__"):
        raise InvalidRecord(
            f"{what} is a column, a list or an Arrow array with an item per record, not a {type(column).__name__}"
        )
    return len(column)


def _partitions(given: Any, count: int) -> Integers | None:
    if given is None:
        return None
    number = whole_number(given)
    if number is not None:
        return np.full(count, number, np.int64)
    if isinstance(given, (bool, float, *_NO_COLUMNS)):
        raise InvalidPartitions(f"partition is a whole number, or a column of them, not {given!r}")
    return integers(given, "partitions")


def _serialized(column: Any, serialize: Serializer, packs_bytes: bool, what: str) -> Any:
    """Arrow columns of bytes are taken as they are; everything else item by item."""
    if column is None:
        return None
    if isinstance(column, pa.Array | pa.ChunkedArray):
        kind = column.type
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_null(kind):
            return column
        column = column.to_pylist()
    return [
        item
        if item is None or (type(item) is bytes and not packs_bytes)
        else made
        if type(made := serialize(item)) is bytes
        else serialized(made, what)
        for item in column
    ]
