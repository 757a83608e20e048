"""What a Spark task of a write does: send its rows and wait until the brokers have them.

Runs in executors' Python workers, and so imports neither pyspark nor Ray.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raylog.client.delivery import Deliveries
from raylog.client.producer import Producer
from raylog.protocol.errors import InvalidRecord
from raylog.protocol.ids import TopicName


@dataclass(frozen=True, slots=True)
class WriteTask:
    """How tasks send rows, the same for all of a DataFrame; it travels to executors pickled."""

    bootstrap_servers: str
    topic: str | None
    """None: each row names its own."""
    producer: Mapping[str, Any]
    """Settings with underscores."""


def send_rows(task: WriteTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Send the rows and answer one row: how many there were. A record that was not delivered raises why.

    Columns are value and, where there are any, key, headers, partition and topic. A row without a partition goes
    where clients send its key.
    """
    deliveries = Deliveries()
    with Producer(task.bootstrap_servers, **task.producer) as producer:
        for batch in batches:
            for topic, rows in rows_by_topic(batch, task.topic):
                for part in _by_having_a_partition(rows):
                    deliveries.add(producer.send_batch(topic, part))
        producer.flush()
        deliveries.finish()
    yield pa.RecordBatch.from_pydict({"records": pa.array([deliveries.delivered], pa.int64())})


def rows_by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[TopicName, pa.RecordBatch]]:
    """The rows of each topic, without that column: all of them go to ``topic``, or where each says (None).

    Raises InvalidRecord when a row should say that and doesn't.
    """
    if topic is not None:
        yield TopicName(topic), batch
        return
    column = batch.column("topic")
    rows = batch.drop_columns(["topic"])
    if column.null_count:
        row = pc.index(column.is_null(), True).as_py()
        raise InvalidRecord(f"row {row} of {len(column)} has no topic: fill the column topic, or write with topic=")
    for name in column.unique().to_pylist():
        yield TopicName(name), rows.filter(pc.equal(column, name))


def _by_having_a_partition(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows that name their partition, and those that don't, without that column."""
    if "partition" not in rows.schema.names:
        yield rows
        return
    named = rows.column("partition").is_valid()
    for part in (rows.filter(named), rows.filter(pc.invert(named)).drop_columns(["partition"])):
        if len(part):
            yield part
