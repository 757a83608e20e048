"""◆ The client's Arrow columns as Spark's own Kafka source names and types them, so that queries carry over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from raylog.client.batches.decode import HEADERS
from raylog.protocol.errors import InvalidTimestamp
from raylog.protocol.ids import TopicPartition

SPARK_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
"""Every column there is, in order. ``headers`` comes only when asked for."""

TIMESTAMP = pa.timestamp("us", tz="UTC")
_FARTHEST_MS = (2**63 - 1) // 1000
_CLIENT_NAMES = {"timestampType": "timestamp_type"}


def choose_columns(columns: Sequence[str] | None, *, include_headers: bool) -> tuple[str, ...]:
    """The names of the columns to read. Raises ValueError for an unknown or repeated name, and for none."""
    if columns is None:
        return tuple(name for name in SPARK_COLUMNS if include_headers or name != "headers")
    names = tuple(columns) if isinstance(columns, Iterable) and not isinstance(columns, str | bytes) else (columns,)
    unknown = [name for name in names if name not in SPARK_COLUMNS]
    if unknown or not names or len(set(names)) < len(names):
        raise ValueError(f"columns={list(names)!r} must be some of {', '.join(SPARK_COLUMNS)}, each once")
    return names


def client_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """What has to be read for ``columns``: the client's names, and always the offset, by which errors name records."""
    names = tuple(_CLIENT_NAMES.get(name, name) for name in columns)
    return names if "offset" in names else (*names, "offset")


def to_spark(tp: TopicPartition, batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """``columns`` of what was read of ``tp`` as :func:`client_columns`, as Spark has them.

    Raises InvalidTimestamp, naming the record, for a time that Spark's microseconds cannot hold.
    """
    arrays = [_array(tp, batch, name) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _array(tp: TopicPartition, batch: pa.RecordBatch, name: str) -> pa.Array:
    array = batch.column(_CLIENT_NAMES.get(name, name))
    match name:
        case "timestamp":
            return _timestamps(tp, batch, array)
        case "timestampType":
            return array.cast(pa.int32())
        case "headers":
            return _headers(array)
    return array


def _headers(lists: pa.Array) -> pa.Array:
    """Spark's Kafka source has null where a record has no headers."""
    empty = pc.equal(pc.list_value_length(lists), 0)
    return pc.if_else(empty, pa.scalar(None, HEADERS), lists)


def _timestamps(tp: TopicPartition, batch: pa.RecordBatch, array: pa.Array) -> pa.Array:
    try:
        return array.cast(TIMESTAMP)
    except pa.ArrowInvalid:
        times = array.cast(pa.int64()).to_pylist()
        row = next(row for row, time in enumerate(times) if abs(time) > _FARTHEST_MS)
        raise InvalidTimestamp(
            f"{tp} offset {batch.column('offset')[row]}: Spark's timestamps cannot hold {times[row]} ms; "
            "read without the column, by columns="
        ) from None
