"""◆ Record batches to Arrow columns: what a Spark partition is made of, without any I/O.

The columns are those of Spark's own Kafka source, so that queries carry over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from raylog.protocol.batch_header import TimestampType, batch_headers
from raylog.protocol.errors import InvalidTimestamp
from raylog.protocol.records import Batches, Record, decode_batch
from raylog.spark.offsets import OffsetRange

SPARK_TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "long",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
"""Every column there is, in order. ``headers`` comes only when asked for."""

TIMESTAMP = pa.timestamp("us", tz="UTC")
_FARTHEST_MS = (2**63 - 1) // 1000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

ROWS_PER_ARROW_BATCH = 10_000
"""As spark.sql.execution.arrow.maxRecordsPerBatch: enough to spread an Arrow batch's fixed costs."""

BYTES_PER_ARROW_BATCH = 1 << 20
"""Encoded bytes after which an Arrow batch ends, however few records it has."""


def choose_columns(columns: Sequence[str] | None, *, include_headers: bool) -> tuple[str, ...]:
    """The names of the columns to read. Raises ValueError for an unknown or repeated name, and for none."""
    if columns is None:
        return tuple(name for name in SPARK_TYPES if include_headers or name != "headers")
    unknown = [name for name in columns if name not in SPARK_TYPES]
    if unknown or not columns or len(set(columns)) < len(columns):
        raise ValueError(f"columns={list(columns)!r} must be some of {', '.join(SPARK_TYPES)}, each once")
    return tuple(columns)


def spark_schema(columns: Sequence[str]) -> str:
    """The columns' schema in Spark's DDL."""
    return ", ".join(f"{name} {SPARK_TYPES[name]}" for name in columns)


class RangeDecoder:
    """Turns what fetches return for one range into Arrow batches, and knows when the range is through.

    It is through when ``position`` reaches the range's end, whether by a record, by a control batch, which
    consumers don't see, or by a gap that compaction left: a *record* at the end may never come.
    """

    def __init__(self, piece: OffsetRange, columns: Sequence[str], *, rows: int = ROWS_PER_ARROW_BATCH) -> None:
        self.piece = piece
        self.position: int = piece.start
        self._columns = tuple(columns)
        self._rows = rows
        self._records: list[Record] = []
        self._runs: list[tuple[TimestampType, int]] = []
        """How many of the records, in order, have which timestamp type."""
        self._bytes = 0

    @property
    def done(self) -> bool:
        """True once nothing of the range can follow."""
        return self.position >= self.piece.end

    def feed(self, fetched: Batches) -> Iterator[pa.RecordBatch]:
        """Arrow batches of the range's records in ``fetched``, the last one perhaps small.

        Raises CorruptMessage or UnsupportedCompressionType for a batch that can't be decoded.
        """
        start, end = self.position, self.piece.end
        for pos, header in batch_headers(fetched.data):
            if header.base_offset >= end:
                self.position = end
                break
            if header.last_offset < start:
                continue
            if not header.is_control:
                records = decode_batch(fetched.data, pos)
                if header.base_offset < start or header.next_offset > end:
                    records = [record for record in records if start <= record.offset < end]
                self._records += records
                self._runs.append((header.timestamp_type, len(records)))
                self._bytes += header.size
            self.position = max(self.position, min(header.next_offset, end))
            if len(self._records) >= self._rows or self._bytes >= BYTES_PER_ARROW_BATCH:
                yield self._take()
        if self._records:
            yield self._take()

    def _take(self) -> pa.RecordBatch:
        records, runs = self._records, self._runs
        self._records, self._runs, self._bytes = [], [], 0
        return pa.RecordBatch.from_arrays(
            [self._array(name, records, runs) for name in self._columns], names=list(self._columns)
        )

    def _array(self, name: str, records: list[Record], runs: Sequence[tuple[TimestampType, int]]) -> pa.Array:
        match name:
            case "key":
                return pa.array([record.key for record in records], pa.binary())
            case "value":
                return pa.array([record.value for record in records], pa.binary())
            case "topic":
                return pa.repeat(pa.scalar(self.piece.tp.topic, pa.string()), len(records))
            case "partition":
                return pa.repeat(pa.scalar(self.piece.tp.partition, pa.int32()), len(records))
            case "offset":
                return pa.array([record.offset for record in records], pa.int64())
            case "timestamp":
                return self._timestamps(records)
            case "timestampType":
                return pa.array([kind for kind, count in runs for _ in range(count)], pa.int32())
            case "headers":
                return pa.array([_headers(record) for record in records], HEADERS)
        raise AssertionError(name)

    def _timestamps(self, records: list[Record]) -> pa.Array:
        try:
            return pa.array([record.timestamp * 1000 for record in records], TIMESTAMP)
        except OverflowError:
            far = next(record for record in records if abs(record.timestamp) > _FARTHEST_MS)
            raise InvalidTimestamp(
                f"{self.piece.tp} offset {far.offset}: Spark's timestamps cannot hold {far.timestamp} ms; "
                "read without the column, by columns="
            ) from None


def _headers(record: Record) -> list[dict[str, str | bytes | None]] | None:
    """Spark's Kafka source has null where a record has no headers."""
    return [{"key": key, "value": value} for key, value in record.headers] or None
