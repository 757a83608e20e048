"""What a Spark task does: fetch ranges of partitions and hand out Arrow batches with Spark's columns.

Runs in executors' Python workers, and so imports neither pyspark nor Ray.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc

from raylog.client.ranges.offset_ranges import OffsetRange
from raylog.client.ranges.range_reader import RangeReading, read_range
from raylog.protocol.ids import Offset, PartitionIndex, TopicName, TopicPartition
from raylog.protocol.logs import Logger
from raylog.spark.reading.columns import to_spark
from raylog.spark.reading.values import ParseMode, ValueDecoding, decode_values

log = Logger(__name__)


@dataclass(frozen=True, slots=True)
class RangeTask:
    """How tasks read ranges, the same for all of a DataFrame; it travels to executors pickled."""

    reading: RangeReading
    columns: Sequence[str]
    """Spark's names of the columns to hand out."""
    values: ValueDecoding | None = None
    """How values are decoded; None: they stay binary. ``PERMISSIVE`` adds a column at the end with the bytes of those
    that do not fit."""
    count_dropped: Callable[[int], object] | None = None
    """Told how many records ``DROPMALFORMED`` left out: an accumulator's ``add``."""


def range_text(piece: OffsetRange) -> str:
    """A range as a row of the DataFrame of ranges has it."""
    return json.dumps([*piece.tp, piece.start, piece.end])


def parse_range(text: str) -> OffsetRange:
    """The inverse of :func:`range_text`."""
    topic, partition, start, end = json.loads(text)
    return OffsetRange(TopicPartition(TopicName(topic), PartitionIndex(partition)), Offset(start), Offset(end))


def read_ranges(task: RangeTask, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The records of the ranges that are in the first column of ``rows``, as :func:`range_text`.

    Raises as :func:`~raylog.client.ranges.range_reader.read_range`, InvalidTimestamp, and MalformedValue.
    """
    _spare_the_collector()
    for texts in rows:
        for text in texts.column(0).to_pylist():
            piece = parse_range(text)
            dropped = 0
            for batch in read_range(task.reading, piece):
                found = spark_batch(task, piece.tp, batch)
                dropped += len(batch) - len(found)
                yield found
            if dropped:
                _tell_dropped(task, piece, dropped)


@cache
def _spare_the_collector() -> None:
    """Spark's Python worker collects garbage after each task, through all that modules hold: 50 ms of CPU, half of what
    a task costs. What is there at the first task stays until the worker ends, so it need not be looked at again.
    """
    gc.freeze()


def spark_batch(task: RangeTask, tp: TopicPartition, batch: pa.RecordBatch) -> pa.RecordBatch:
    """What Spark gets of a batch that was read."""
    found = to_spark(tp, batch, task.columns)
    if task.values is None:
        return found
    raw = batch.column("value")
    decoded, unfit = decode_values(task.values, tp, raw, batch.column("offset"))
    found = found.set_column(found.schema.get_field_index("value"), "value", decoded)
    match task.values.mode:
        case ParseMode.PERMISSIVE:
            nothing = pa.scalar(None, pa.binary())
            corrupt = pa.nulls(len(raw), pa.binary()) if unfit is None else pc.if_else(unfit, raw, nothing)
            return found.append_column(task.values.corrupt_column, corrupt)
        case ParseMode.DROPMALFORMED if unfit is not None:
            return found.filter(pc.invert(unfit))
    return found


def _tell_dropped(task: RangeTask, piece: OffsetRange, count: int) -> None:
    log.warning("%s, offsets %d to %d: left %d malformed values out", piece.tp, piece.start, piece.end - 1, count)
    if task.count_dropped is not None:
        task.count_dropped(count)
