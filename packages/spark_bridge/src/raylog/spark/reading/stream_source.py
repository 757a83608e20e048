"""A topic's records as a streaming DataFrame: ``stream(spark, subscribe="flights")``.

It is a Spark ``Source`` (V1) whose methods are Python's: py4j calls back, as it does for ``foreachBatch``. Spark keeps
the offsets (its offset log in the checkpoint) and asks three things again and again, always in the thread of the query:
how far the next batch goes (``latestOffset``), its DataFrame (``getBatch``), and figures for its progress
(``metrics``). docs/adr/0005-a-streaming-source-in-python.md has the reasons.

Class, method and argument names are Spark's: org.apache.spark.sql.execution.streaming.Source, and in
org.apache.spark.sql.connector.read.streaming SupportsTriggerAvailableNow and ReportsSourceMetrics.
"""
# ruff: noqa: N802 (Spark calls the methods by its names)

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession

from raylog.client import connect
from raylog.client.admin import Admin
from raylog.client.ranges.offset_ranges import DataLoss, split
from raylog.client.ranges.range_planner import select
from raylog.client.ranges.range_reader import LOSS_HINT
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import TopicPartition
from raylog.protocol.logs import Logger
from raylog.spark.reading.frames import FramePlan, frame_plan, range_frame
from raylog.spark.reading.options import ReadOptions, read_options
from raylog.spark.reading.stream_brokers import Progress, StreamBrokers
from raylog.spark.reading.stream_offsets import (
    Backlog,
    Positions,
    Seen,
    StreamOffset,
    advance,
    backlog,
    beginning,
    behind,
    is_early,
    ranges_between,
)
from raylog.spark.scala_objects import scala_object

LOOK_EVERY_S = 0.1
"""How often brokers are asked when there is nothing new; Spark would every 10 ms."""

log = Logger(__name__)


def stream(
    spark: SparkSession,
    *,
    bootstrap_servers: str | None = None,
    columns: Sequence[str] | None = None,
    **options: Any,
) -> DataFrame:
    """The streaming DataFrame over the records of topics: watermarks, windows, state, every sink and trigger.

    Columns and options are those of :func:`~raylog.spark.reading.source.read`, by the names of Spark's Kafka source;
    but a stream has no end, starts at the latest offsets by default, and has ``maxOffsetsPerTrigger``,
    ``minOffsetsPerTrigger`` and ``maxTriggerDelay`` (docs/spark.md). ``startingOffsets`` is for a query's first start;
    one that has a checkpoint goes on from there. Partitions that are added are read from their beginning.

    Finished batches are shown as the offsets of the group ``kafka.group.id``, by default ``groupIdPrefix`` and the
    query's id, so that the group's lag is the query's.

    Raises ValueError for an unfit option, UnknownTopicOrPartition, and BrokerNotAvailable. The query fails with
    DataLoss for records that are gone before it has read them (deleted by retention, or with the topic), unless
    ``failOnDataLoss`` is false.
    """
    asked = read_options(options, streaming=True, bootstrap_servers=bootstrap_servers, columns=columns)
    servers = asked.bootstrap_servers or connect().bootstrap_servers
    with Admin(servers) as admin:
        topic_ids = select(admin, asked.selection).topic_ids
    source = TopicSource(spark, asked, servers, frame_plan(spark, asked, servers, topic_ids))
    context: Any = spark.sparkContext
    ensure_callback_server_started(context._gateway)
    jvm, session = context._jvm, _java(spark)
    relations = scala_object(jvm.org.apache.spark.sql.execution.streaming, "StreamingExecutionRelation")
    datasets = scala_object(jvm.org.apache.spark.sql, "Dataset")
    return DataFrame(datasets.ofRows(session, relations.apply(source, session)), spark)


@dataclass(slots=True)
class _Query:
    """What is known of one running query beyond its offsets; a restart does without."""

    progress: Progress
    until: Positions | None = None
    """``availableNow``: where it ends."""
    planned_at: float | None = None
    """When its last batch was planned, or it was asked for its first; None: not yet."""
    seen: Seen | None = None
    """What brokers told last."""
    seen_at: float = 0.0


class TopicSource:
    """The source of one DataFrame, and so of all queries that are started from it."""

    class Java:
        """For py4j."""

        implements = (
            "org.apache.spark.sql.execution.streaming.Source",
            "org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow",
            "org.apache.spark.sql.connector.read.streaming.ReportsSourceMetrics",
        )

    def __init__(self, spark: SparkSession, asked: ReadOptions, servers: str, plan: FramePlan) -> None:
        self._spark = spark
        self._asked = asked
        self._servers = servers
        self._plan = plan
        self._brokers = StreamBrokers(servers, asked)
        self._queries: dict[str, _Query] = {}
        context: Any = spark.sparkContext
        self._context = context
        self._jvm = context._jvm

    # --- how far the next batch goes ---

    def getDefaultReadLimit(self) -> Any:
        """``maxOffsetsPerTrigger`` and ``minOffsetsPerTrigger``, for :meth:`latestOffset`."""
        limits = self._jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit
        most, least = self._asked.max_offsets_per_trigger, self._asked.min_offsets_per_trigger
        if most is not None:
            return limits.maxRows(most)
        return limits.allAvailable() if least is None else limits.minRows(least, self._asked.max_trigger_delay_ms)

    def prepareForTriggerAvailableNow(self) -> None:
        """The query shall end where the topics end now."""
        self._query().until = {tp: log.next for tp, log in self._brokers.look().bounds.items()}

    def latestOffset(self, start: Any, limit: Any) -> Any:
        """Where the next batch ends, as a Spark offset; ``start``, where the last one ended, means that there is none
        for now, and comes after a while.

        Spark asks when the batch up to ``start`` is done, or before the first one with null.
        """
        query = self._query()
        all_of_it = limit.equals(self._jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.allAvailable())
        if start is None:
            seen = self._look(query)
            begin = beginning(self._brokers.starting(seen), seen)
            end = self._next_offset(query, begin, seen, all_of_it=all_of_it)
            return _spark_offset(self._jvm, replace(end, initial=begin.positions))
        done = StreamOffset.from_json(start.json())
        query.progress.commit(done.positions)
        seen = self._look(query, done)
        end = self._next_offset(query, done, seen, all_of_it=all_of_it)
        if end is done:
            time.sleep(max(0.0, query.seen_at + LOOK_EVERY_S - time.monotonic()))
            return start
        return _spark_offset(self._jvm, end)

    def _next_offset(self, query: _Query, start: StreamOffset, seen: Seen, *, all_of_it: bool) -> StreamOffset:
        """Where the next batch after ``start`` ends; ``start`` itself: there is none for now. Raises DataLoss."""
        asked, now = self._asked, time.monotonic()
        found = backlog(start, seen, query.until)
        if found.losses and asked.fail_on_data_loss:
            raise DataLoss(f"{'; '.join(found.losses)}: {LOSS_HINT}")
        if not all_of_it and self._is_early(query, found, now):
            return start
        for loss in found.losses:
            log.warning("%s; failOnDataLoss is false, so the stream goes on without", loss)
        end = advance(start, seen, found, None if all_of_it else asked.max_offsets_per_trigger)
        if end is not start or query.planned_at is None:
            query.planned_at = now
        return end

    def _is_early(self, query: _Query, found: Backlog, now: float) -> bool:
        """Whether the batch waits for ``minOffsetsPerTrigger``; the first one, and those of ``availableNow``, don't."""
        asked = self._asked
        if query.until is not None or query.planned_at is None:
            return False
        waited_ms = (now - query.planned_at) * 1_000
        return is_early(found.size, asked.min_offsets_per_trigger, waited_ms, asked.max_trigger_delay_ms)

    # --- a batch ---

    def schema(self) -> Any:
        """Spark's schema of every batch."""
        return self._jvm.org.apache.spark.sql.types.StructType.fromJson(self._plan.schema.json())

    def getBatch(self, start: Any, end: Any) -> Any:
        """The rows from ``start`` (none for the first batch) to ``end``; the same ones whenever it is asked again.

        Spark asks for a batch that is done, too, when a query goes on: so what tasks would miss, only they tell.
        """
        begin = StreamOffset.from_json(start.get().json()) if start.isDefined() else None
        until = StreamOffset.from_json(end.json())
        asked = self._asked
        pieces = split(
            ranges_between(begin, until),
            min_partitions=asked.min_partitions,
            max_records=asked.max_records_per_partition,
        )
        task = self._plan.task
        task = replace(task, reading=replace(task.reading, topic_ids=until.topic_ids))
        frame: Any = range_frame(self._spark, self._plan._replace(task=task), pieces, self._hosts(until))
        java_frame = frame._jdf
        rows = java_frame.queryExecution().toRdd()
        return _java(self._spark).internalCreateDataFrame(rows, java_frame.schema(), True)

    def _hosts(self, end: StreamOffset) -> dict[TopicPartition, tuple[str, ...]]:
        """Where leaders are; reading near them is only a preference."""
        query = self._query()
        try:
            return self._brokers.hosts(query.seen or self._look(query, end))
        except RaylogError as error:
            log.warning("the batch is read from anywhere, since the leaders' hosts are not known: %s", error)
            return {}

    def commit(self, _end: Any) -> None:
        """Spark has planned the batch after this one; :meth:`latestOffset` was told before."""

    # --- what is told of it ---

    def reportLatestOffset(self) -> Any:
        """The ends of the topics, for the query's progress."""
        seen = self._query().seen
        if seen is None:
            return None
        ends = StreamOffset({tp: log.next for tp, log in seen.bounds.items()}, seen.topic_ids)
        return _spark_offset(self._jvm, ends)

    def metrics(self, latest_consumed: Any) -> Any:
        """How far the query is behind, as Spark's Kafka source tells it."""
        told = self._jvm.java.util.HashMap()
        seen = self._query().seen
        if seen is not None and latest_consumed.isPresent():
            consumed = StreamOffset.from_json(latest_consumed.get().json())
            for name, figure in behind(consumed.positions, seen.bounds).items():
                told.put(name, figure)
        return told

    def stop(self) -> None:
        """The query has ended."""
        query = self._queries.pop(self._query_id(), None)
        if query is not None:
            query.progress.close()
        if not self._queries:
            self._brokers.close()

    def toString(self) -> str:
        """Its name in plans and in the query's progress."""
        chosen = self._asked.selection
        return f"raylog[{chosen.pattern or ', '.join(map(str, chosen.topics or chosen.partitions))}]"

    def hashCode(self) -> int:
        """As Java's objects: by identity."""
        return hash(self) & 0x7FFFFFFF

    def equals(self, other: object) -> bool:
        """As Java's objects: by identity."""
        return other is self

    # --- shared ---

    def _query_id(self) -> str:
        """Of the query in whose thread Spark calls; it stays the same when the query goes on from its checkpoint."""
        return str(self._context.getLocalProperty("sql.streaming.queryId"))

    def _query(self) -> _Query:
        query_id = self._query_id()
        if query_id not in self._queries:
            group = self._asked.group_id or f"{self._asked.group_id_prefix}-{query_id}"
            self._queries[query_id] = _Query(Progress(self._servers, group))
        return self._queries[query_id]

    def _look(self, query: _Query, start: StreamOffset | None = None) -> Seen:
        """What the topics hold beyond ``start``, no longer ago than LOOK_EVERY_S."""
        if query.seen is None or time.monotonic() - query.seen_at >= LOOK_EVERY_S:
            query.seen = self._brokers.look() if start is None else self._brokers.look(start.positions)
            query.seen_at = time.monotonic()
        return query.seen


def _spark_offset(jvm: Any, offset: StreamOffset) -> Any:
    return jvm.org.apache.spark.sql.execution.streaming.SerializedOffset(offset.to_json())


def _java(spark: Any) -> Any:
    return spark._jsparkSession
