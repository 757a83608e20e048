"""What a Spark task does: fetch ranges of partitions and hand out Arrow batches with Spark's columns.

Runs in executors' Python workers, and so imports neither pyspark nor Ray.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from raylog.client.offset_ranges import OffsetRange
from raylog.client.range_reader import RangeReading, read_range
from raylog.protocol.ids import Offset, PartitionIndex, TopicName, TopicPartition
from raylog.spark.columns import to_spark


@dataclass(frozen=True, slots=True)
class RangeTask:
    """How tasks read ranges, the same for all of a DataFrame; it travels to executors pickled."""

    reading: RangeReading
    columns: Sequence[str]
    """Spark's names of the columns to hand out."""


def range_text(piece: OffsetRange) -> str:
    """A range as a row of the DataFrame of ranges has it."""
    return json.dumps([*piece.tp, piece.start, piece.end])


def parse_range(text: str) -> OffsetRange:
    """The inverse of :func:`range_text`."""
    topic, partition, start, end = json.loads(text)
    return OffsetRange(TopicPartition(TopicName(topic), PartitionIndex(partition)), Offset(start), Offset(end))


def read_ranges(task: RangeTask, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The records of the ranges that are in the first column of ``rows``, as :func:`range_text`.

    Raises as :func:`~raylog.client.range_reader.read_range`, and InvalidTimestamp.
    """
    for texts in rows:
        for text in texts.column(0).to_pylist():
            piece = parse_range(text)
            for batch in read_range(task.reading, piece):
                yield to_spark(piece.tp, batch, task.columns)
