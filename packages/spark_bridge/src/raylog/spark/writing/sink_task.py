"""What a Spark task of a sink does: send one file of a batch, each row under its name.

Runs in executors' Python workers, and so imports neither pyspark nor Ray.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from raylog.client.batches.decode import Integers
from raylog.client.batches.encode import check_partitions
from raylog.client.batches.partitioner import KeyPartitioner
from raylog.client.batches.row_partitions import numbers_within, settled_partitions
from raylog.client.delivery import Deliveries
from raylog.client.produce.producer_state import Continuation
from raylog.client.producer import Producer
from raylog.protocol.errors import OutOfOrderSequence, UnknownTopicOrPartition
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition
from raylog.spark.writing.sink_batch import SentMeanwhile, Written
from raylog.spark.writing.sink_plan import BatchPlan
from raylog.spark.writing.write_task import rows_by_topic

FILE = "raylog_sink_file"
"""The column with the name of the file that a row lies in."""
REFUSED = "refused"
"""The column of answers with what a broker said that has more of a file than the task knew."""


@dataclass(frozen=True, slots=True)
class SinkTask:
    """How tasks send files, the same for all of a batch; it travels to executors pickled."""

    bootstrap_servers: str
    topic: str | None
    """None: each row names its own."""
    producer: Mapping[str, Any]
    """Settings with underscores."""
    plan: BatchPlan
    written: Written


def send_files(task: SinkTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Send the rows of one file, all of them in their order, and answer one row: how many were sent, and, where the log
    has more of the file than ``task`` knows, cut otherwise, what the broker said to that. Then further tries have to
    read what is there.

    What ``task`` says is written is left out. A record that was not delivered raises why; no record behind it in its
    partition is there then.
    """
    first = next(batches, None)
    if first is None:
        return
    [name] = first.column(FILE).unique().to_pylist()
    identity = task.plan.files[name]
    written = task.written.get(identity, {})
    numbering = Numbering(task.plan, written)
    deliveries = Deliveries()
    with Producer(
        task.bootstrap_servers,
        continues=Continuation(identity, written, task.plan.topic_ids()),
        **{**task.producer, "batch_size": task.plan.batch_size},
    ) as producer:
        try:
            batch: pa.RecordBatch | None = first
            while batch is not None:
                if batch.column(FILE).unique().to_pylist() != [name]:
                    raise RuntimeError(f"rows of another file follow those of {name}: one task sends one file")
                for topic, rows in rows_by_topic(batch.drop_columns([FILE]), task.topic):
                    left, partitions = numbering.left_of(topic, rows)
                    if len(left):
                        deliveries.add(producer.send_batch(topic, with_partitions(left, partitions)))
                batch = next(batches, None)
            producer.flush()
            deliveries.finish()
        except OutOfOrderSequence as error:
            yield _answer(deliveries.delivered, str(error))
            return
    yield _answer(deliveries.delivered, None)


def _answer(records: int, refused: str | None) -> pa.RecordBatch:
    columns = {"records": pa.array([records], pa.int64()), REFUSED: pa.array([refused], pa.string())}
    return pa.RecordBatch.from_pydict(columns)


def records_sent(answers: Iterable[tuple[int, str | None]]) -> int:
    """The sum of what tasks answered. Raises SentMeanwhile when one of them was refused."""
    total = 0
    for records, refused in answers:
        if refused is not None:
            raise SentMeanwhile(f"an earlier try of the batch still sends: {refused}")
        total += records
    return total


class Numbering:
    """Gives the rows of one file their partitions and numbers, in the file's order."""

    def __init__(self, plan: BatchPlan, written: Mapping[TopicPartition, int]) -> None:
        self._plan = plan
        self._written = written
        self._hashes = KeyPartitioner()
        self._rows: dict[TopicName, int] = {}
        self._numbered: dict[TopicName, Integers] = {}

    def left_of(self, topic: TopicName, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, Integers]:
        """Those of the next rows that are not written, and their partitions."""
        target = self._plan.targets.get(topic)
        if target is None:
            raise UnknownTopicOrPartition(f"a row goes to topic {topic!r}, which the plan of its batch doesn't have")
        count = len(target.ends)
        names = rows.schema.names
        keys = rows.column("key") if "key" in names else pa.nulls(len(rows), pa.binary())
        given = rows.column("partition") if "partition" in names else None
        before = self._rows.get(topic, 0)
        partitions = settled_partitions(keys, given, self._hashes, count, before)
        check_partitions(partitions, count, topic)
        self._rows[topic] = before + len(rows)
        numbered = self._numbered.setdefault(topic, np.zeros(count, np.int64))
        numbers = numbered[partitions] + numbers_within(partitions)
        self._numbered[topic] = numbered + np.bincount(partitions, minlength=count)
        if not self._written:
            return rows, partitions
        there = [self._written.get(TopicPartition(topic, PartitionIndex(index)), 0) for index in range(count)]
        left = numbers >= np.array(there, np.int64)[partitions]
        return rows.filter(pa.array(left)), partitions[left]


def with_partitions(rows: pa.RecordBatch, partitions: Integers) -> pa.RecordBatch:
    """The rows with their partitions as a column."""
    columns = {name: rows.column(name) for name in rows.schema.names}
    return pa.RecordBatch.from_pydict({**columns, "partition": pa.array(partitions, pa.int64())})
