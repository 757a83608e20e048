"""What a task of an export does: write one partition's records to files, one after the other.

Runs in executors' Python workers, and so imports neither pyspark nor Ray. A task trusts nothing but the directory: it
reads there where to go on, before each file. So a task that Spark runs again, or twice at once, writes nothing twice.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pyarrow as pa
from pyarrow import parquet

from raylog.client.batches.decode import schema_of
from raylog.client.ranges.offset_ranges import OffsetRange
from raylog.client.ranges.range_reader import RangeReading, read_range
from raylog.protocol.ids import Offset, TopicId
from raylog.spark.exports.files import (
    Coverage,
    Disk,
    ExportedFile,
    PartitionDirectory,
    read_exported,
    temporary_file,
    topic_directory,
)
from raylog.spark.exports.plan import ExportRefused
from raylog.spark.reading.columns import SPARK_COLUMNS, client_columns
from raylog.spark.reading.reader import parse_range

_FILE_COLUMNS = tuple(name for name in SPARK_COLUMNS if name not in ("topic", "partition"))
"""What the files have, by Spark's names; topic and partition are in the directories' names."""

COLUMNS = client_columns(_FILE_COLUMNS)
"""What is read for that, by the client's names."""

ROW_GROUP_BYTES = 64 << 20
"""Bytes of records that make a row group: what a task holds in memory, and what readers take in at once."""

RESULT_SCHEMA = pa.schema([("path", pa.string())])
"""A row per published file."""


@dataclass(frozen=True, slots=True)
class ExportTask:
    """What tasks need to know beside their ranges; it travels to executors pickled."""

    reading: RangeReading
    root: str
    run: str
    """The name of a file in the topic's directory that is there while the run lasts."""
    max_records_per_file: int


def export_ranges(task: ExportTask, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Export the ranges that are in the first column, as ``range_text``; rows of RESULT_SCHEMA for the files."""
    for texts in rows:
        for text in texts.column(0).to_pylist():
            for exported in export_range(task, parse_range(text)):
                yield pa.RecordBatch.from_pylist([{"path": str(exported.path)}], RESULT_SCHEMA)


def export_range(task: ExportTask, wanted: OffsetRange, disk: Disk | None = None) -> Iterator[ExportedFile]:
    """Publish files until the partition is exported up to the end of ``wanted``, and hand out each.

    A file ends after ``max_records_per_file`` offsets. Raises ExportRefused when the directory is not that of the run's
    driver or has files of another topic; and what reading raises, as DataLoss, also for a topic that was made anew.
    """
    root, disk, topic_id = Path(task.root), disk or Disk(), task.reading.topic_ids[wanted.tp.topic]
    directory = PartitionDirectory.below(root, wanted.tp, disk)
    while True:
        check_run(topic_directory(root, wanted.tp.topic) / task.run)
        directory.path.mkdir(exist_ok=True)
        last = directory.last()
        if last is not None:
            check_same_topic(last, topic_id)
        base = last.coverage.next if last is not None else Offset(0)
        first = max(base, wanted.start)
        if first >= wanted.end:
            return
        end = Offset(min(first + task.max_records_per_file, wanted.end))
        coverage = Coverage(wanted.tp, topic_id, base, first, end)
        with temporary_file(directory.path, disk) as (file, path):
            _write(file, read_range(task.reading, OffsetRange(wanted.tp, first, end)), coverage)
            published = directory.publish(file, path, base)
        if published:
            yield read_exported(directory.file_at(base))


def _write(file: IO[bytes], batches: Iterator[pa.RecordBatch], coverage: Coverage) -> None:
    """All batches as Parquet, in row groups of about ROW_GROUP_BYTES."""
    schema = _file_schema().with_metadata(coverage.metadata())
    with parquet.ParquetWriter(file, schema) as writer:
        held: list[pa.RecordBatch] = []
        for batch in batches:
            held.append(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
            if sum(batch.nbytes for batch in held) >= ROW_GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(held))
                held = []
        if held:
            writer.write_table(pa.Table.from_batches(held))


def _file_schema() -> pa.Schema:
    """The client's columns under the names that Spark knows."""
    return pa.schema([field.with_name(name) for name, field in zip(_FILE_COLUMNS, schema_of(COLUMNS), strict=True)])


def check_run(marker: Path) -> None:
    """Raises ExportRefused when the run's file is not there: the directory is another one, or the run is over."""
    if not marker.exists():
        raise ExportRefused(
            f"{marker.parent} on {socket.gethostname()} is not the directory of the driver, or the driver is gone: "
            "an export needs a file system that all nodes share, or one node"
        )


def check_same_topic(last: ExportedFile, topic_id: TopicId) -> None:
    """Raises ExportRefused when the files are of another topic of this name."""
    if last.coverage.topic_id != topic_id:
        raise ExportRefused(
            f"{last.path} is of topic id {last.coverage.topic_id}, and {last.coverage.tp.topic} has {topic_id} now: "
            "the topic was deleted and made anew, or is of another cluster; export into another directory"
        )
