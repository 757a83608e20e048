"""Topics as streams: real brokers, a real Spark, its own offset log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming import StreamingQuery

from kit.cluster import InProcessCluster
from kit.odd_logs import append_as_stored, control_batch
from kit.spark import SPARK_MARKS
from kit.waiting import wait_until
from raylog.client import Admin, Producer
from raylog.protocol.errors import UnknownTopicOrPartition
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition
from raylog.spark import stream

pytestmark = SPARK_MARKS

WAIT_S = 120.0


def create(servers: str, topic: str, *, partitions: int = 1, count: int = 0) -> None:
    """A topic with so many numbers in each partition."""
    with Admin(servers) as admin:
        admin.create_topic(topic, partitions)
    send(servers, topic, count, partitions=partitions)


def send(servers: str, topic: str, count: int, *, partitions: int = 1, first: int = 0) -> None:
    with Producer(servers) as producer:
        for partition in range(partitions):
            for number in range(first, first + count):
                producer.send(topic, b"%d" % number, partition=partition, timestamp=number * 1_000)


@contextmanager
def running(frame: DataFrame, checkpoint: Path, **trigger: Any) -> Iterator[StreamingQuery]:
    """The frame's rows, appended to Parquet files beside the checkpoint."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(checkpoint / "checkpoint"))
    if trigger:
        writer = writer.trigger(**trigger)
    query = writer.start(str(checkpoint / "rows"))
    try:
        yield query
    finally:
        query.stop()


def run(frame: DataFrame, checkpoint: Path) -> StreamingQuery:
    """A query over what is there now, to its end."""
    with running(frame, checkpoint, availableNow=True) as query:
        assert query.awaitTermination(int(WAIT_S)), query.status
    return query


def rows(spark: SparkSession, checkpoint: Path) -> list[tuple[int, int]]:
    """What the queries on the checkpoint have written, in order."""
    found = spark.read.schema("partition int, offset long").parquet(str(checkpoint / "rows"))
    return sorted((row["partition"], row["offset"]) for row in found.collect())


def every(partitions: int, count: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition in range(partitions) for offset in range(count)]


def sizes(query: StreamingQuery) -> list[int]:
    """How many records each batch had."""
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def wait_rows(spark: SparkSession, checkpoint: Path, wanted: list[tuple[int, int]]) -> None:
    """Until the running query has written these rows; no other ones."""

    def written() -> bool:
        return (checkpoint / "rows").is_dir() and rows(spark, checkpoint) == wanted

    wait_until(written, WAIT_S, f"{len(wanted)} rows", interval_s=0.25)  # each look is a job of Spark


def committed(servers: str, group: str) -> dict[TopicPartition, int]:
    with Admin(servers) as admin:
        return {tp: found.offset for tp, found in admin.list_group_offsets(group).items()}


def tp(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(TopicName(topic), PartitionIndex(partition))


def test_a_query_goes_on_where_the_last_one_ended(spark: SparkSession, servers: str, tmp_path: Path) -> None:
    """Also when its group's offsets, which only show its progress, are reset."""
    create(servers, "resumed", partitions=2, count=10)
    group = {"kafka.group.id": "resumed-group"}
    frame = stream(spark, subscribe="resumed", bootstrap_servers=servers, startingOffsets="earliest", **group)
    assert frame.isStreaming
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    run(frame, tmp_path)
    assert rows(spark, tmp_path) == every(2, 10)
    send(servers, "resumed", 5, partitions=2)
    with Admin(servers) as admin:
        admin.alter_group_offsets("resumed-group", {("resumed", 0): 0, ("resumed", 1): 0})
    run(frame, tmp_path)
    assert rows(spark, tmp_path) == every(2, 15)
    assert committed(servers, "resumed-group") == {tp("resumed", 0): 15, tp("resumed", 1): 15}
    again = run(stream(spark, subscribe="resumed", bootstrap_servers=servers), tmp_path)
    assert sizes(again) == []
    assert rows(spark, tmp_path) == every(2, 15)


def test_a_stream_starts_at_the_end_and_shows_its_progress(spark: SparkSession, servers: str, tmp_path: Path) -> None:
    create(servers, "from-now", partitions=2, count=10)
    frame = stream(spark, subscribe="from-now", bootstrap_servers=servers, groupIdPrefix="etl")
    with running(frame, tmp_path) as query:
        group = f"etl-{query.id}"
        # What comes after the first batch was planned, which is empty, is new.
        wait_until(lambda: query.lastProgress, WAIT_S, "the first batch")
        wait_until(lambda: committed(servers, group) == {tp("from-now", 0): 10, tp("from-now", 1): 10}, WAIT_S, "group")
        send(servers, "from-now", 3, partitions=2)
        wait_rows(spark, tmp_path, [(partition, 10 + number) for partition in range(2) for number in range(3)])
        wait_until(lambda: committed(servers, group) == {tp("from-now", 0): 13, tp("from-now", 1): 13}, WAIT_S, "group")
        [source] = next(p for p in reversed(query.recentProgress) if p["numInputRows"])["sources"]
        assert source["description"] == "raylog[from-now]"
        assert source["endOffset"]["positions"] == {"from-now": {"0": 13, "1": 13}}
        assert source["metrics"] == {
            "minOffsetsBehindLatest": "0", "maxOffsetsBehindLatest": "0", "avgOffsetsBehindLatest": "0.0"
        }  # fmt: skip
    assert query.exception() is None


def test_batches_are_bounded_and_available_now_ends(spark: SparkSession, servers: str, tmp_path: Path) -> None:
    """Also where each batch makes more records: what was there at the start is the end."""
    create(servers, "bounded", partitions=2, count=30)
    frame = stream(
        spark, subscribe="bounded", bootstrap_servers=servers, startingTimestamp=5_000, maxOffsetsPerTrigger="20",
        minPartitions=4, columns=["value", "partition", "offset"], **{"kafka.group.id": "bounded-group"},
    )  # fmt: skip
    seen: list[tuple[int, int]] = []

    def keep(batch: DataFrame, _: int) -> None:
        seen.append((batch.rdd.getNumPartitions(), batch.count()))
        send(servers, "bounded", 1)

    query = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path))
    started = query.trigger(availableNow=True).start()
    assert started.awaitTermination(int(WAIT_S))
    assert seen == [(4, 20), (4, 20), (4, 10)]
    assert committed(servers, "bounded-group") == {tp("bounded", 0): 30, tp("bounded", 1): 30}
    once = query.trigger(once=True).start()
    assert once.awaitTermination(int(WAIT_S))
    assert [size for _, size in seen[3:]] == [3]


def test_a_small_batch_waits_for_more(spark: SparkSession, servers: str, tmp_path: Path) -> None:
    create(servers, "waiting", count=3)
    frame = stream(
        spark, subscribe="waiting", bootstrap_servers=servers, startingOffsets="earliest", minOffsetsPerTrigger=10,
        maxTriggerDelay="1h",
    )  # fmt: skip
    with running(frame, tmp_path) as query:
        wait_rows(spark, tmp_path, every(1, 3))  # the first batch never waits
        send(servers, "waiting", 4)
        send(servers, "waiting", 6)
        wait_until(lambda: sum(sizes(query)) == 13, WAIT_S, "all records")
        assert sizes(query) == [3, 10]


def test_partitions_and_topics_that_are_added_are_read_from_their_beginning(
    spark: SparkSession, servers: str, tmp_path: Path
) -> None:
    create(servers, "grown-a", count=5)
    frame = stream(spark, subscribePattern="grown-.*", bootstrap_servers=servers, columns=["topic", "offset"])
    counts = frame.groupBy("topic").count()
    query = counts.writeStream.format("memory").queryName("grown").outputMode("complete").start()
    try:
        wait_until(lambda: query.lastProgress, WAIT_S, "the first batch")
        with Admin(servers) as admin:
            admin.create_partitions("grown-a", 3)
        create(servers, "grown-b", partitions=2, count=4)
        send(servers, "grown-a", 2, partitions=3)

        def found() -> dict[str, int]:
            return {row["topic"]: row["count"] for row in spark.table("grown").collect()}

        wait_until(
            lambda: found() == {"grown-a": 6, "grown-b": 8},
            WAIT_S,
            "the new partitions",
            instead=found,
            interval_s=0.25,
        )
    finally:
        query.stop()


def test_a_topic_deleted_under_a_stream_is_a_loud_loss(spark: SparkSession, servers: str, tmp_path: Path) -> None:
    """The other topics go on, where the loss is accepted."""
    create(servers, "deleted", count=5)
    create(servers, "kept", count=5)
    asked = {"subscribe": "deleted,kept", "bootstrap_servers": servers, "startingOffsets": "earliest"}
    loud, quiet = stream(spark, **asked), stream(spark, **asked, failOnDataLoss="false")
    with running(loud, tmp_path / "loud") as failing, running(quiet, tmp_path / "quiet"):
        wait_rows(spark, tmp_path / "loud", [(0, offset) for offset in range(5) for _ in range(2)])
        wait_rows(spark, tmp_path / "quiet", [(0, offset) for offset in range(5) for _ in range(2)])
        with Admin(servers) as admin:
            admin.delete_topics(["deleted"])
        with pytest.raises(StreamingQueryException, match=r"DataLoss: deleted-0 is gone .* from offset 5 on"):
            failing.awaitTermination(int(WAIT_S))
        send(servers, "kept", 1)
        wait_rows(spark, tmp_path / "quiet", [*((0, offset) for offset in range(5) for _ in range(2)), (0, 5)])


def test_what_went_while_no_query_ran_is_a_loud_loss(spark: SparkSession, servers: str, tmp_path: Path) -> None:
    """Records deleted, and a topic that was created again; where that is accepted, what is there is read."""
    create(servers, "cut", count=5)
    asked = {"subscribe": "cut", "bootstrap_servers": servers, "startingOffsets": "earliest"}
    loud, quiet = stream(spark, **asked), stream(spark, **asked, failOnDataLoss=False)
    run(loud, tmp_path)
    send(servers, "cut", 5)
    with Admin(servers) as admin:
        admin.delete_records({("cut", 0): 8})
    with pytest.raises(StreamingQueryException, match=r"DataLoss: cut-0: offsets 5 to 7 are gone.*failOnDataLoss"):
        run(loud, tmp_path)
    run(quiet, tmp_path)
    assert rows(spark, tmp_path) == [(0, offset) for offset in (0, 1, 2, 3, 4, 8, 9)]
    with Admin(servers) as admin:
        admin.delete_topics(["cut"])
    create(servers, "cut", count=2)
    with pytest.raises(StreamingQueryException, match=r"DataLoss: cut-0 was deleted and created again"):
        run(loud, tmp_path)
    run(quiet, tmp_path)
    assert rows(spark, tmp_path) == [(0, offset) for offset in (0, 0, 1, 1, 2, 3, 4, 8, 9)]


def test_windows_with_a_watermark_keep_their_state_over_a_restart(
    spark: SparkSession, servers: str, tmp_path: Path
) -> None:
    create(servers, "timed", partitions=2, count=25)  # a record a second
    frame = stream(spark, subscribe="timed", bootstrap_servers=servers, startingOffsets="earliest")
    late = frame.withWatermark("timestamp", "5 seconds").groupBy(sf.window("timestamp", "10 seconds")).count()
    counts = late.select(sf.col("window.start").cast("int").alias("partition"), sf.col("count").alias("offset"))
    run(counts, tmp_path)
    assert rows(spark, tmp_path) == [(0, 20)]  # 24 - 5 s: only the first window is complete
    send(servers, "timed", 20, partitions=2, first=25)
    send(servers, "timed", 1, first=3)  # too late
    run(counts, tmp_path)
    assert rows(spark, tmp_path) == [(0, 20), (10, 20), (20, 20)]


def test_two_queries_of_one_frame_read_all_of_it_each(spark: SparkSession, servers: str, tmp_path: Path) -> None:
    create(servers, "shared", count=30)
    frame = stream(
        spark, subscribe="shared", bootstrap_servers=servers, startingOffsets="earliest", maxOffsetsPerTrigger=15
    )
    with running(frame, tmp_path / "one"):
        run(frame, tmp_path / "two")
        wait_rows(spark, tmp_path / "one", every(1, 30))
    assert rows(spark, tmp_path / "two") == every(1, 30)
    run(frame.union(frame), tmp_path / "twice")
    assert rows(spark, tmp_path / "twice") == sorted(every(1, 30) * 2)


def test_a_second_query_on_a_checkpoint_takes_over_or_is_refused(
    spark: SparkSession, servers: str, tmp_path: Path
) -> None:
    """Nothing is written twice. (A second driver on it is refused, too: see test_spark_stream_restarts.)"""
    create(servers, "one-owner", count=20)
    frame = stream(
        spark, subscribe="one-owner", bootstrap_servers=servers, startingOffsets="earliest", maxOffsetsPerTrigger=5
    )
    with running(frame, tmp_path) as first:
        wait_until(lambda: first.recentProgress, WAIT_S, "a batch")
        with running(frame, tmp_path) as second:
            assert not first.isActive
            wait_rows(spark, tmp_path, every(1, 20))
            spark.conf.set("spark.sql.streaming.stopActiveRunOnRestart", "false")
            try:
                with pytest.raises(Exception, match="another query with same id is already active"):
                    run(frame, tmp_path)
            finally:
                spark.conf.unset("spark.sql.streaming.stopActiveRunOnRestart")
            assert second.isActive
    assert rows(spark, tmp_path) == every(1, 20)
    assert (first.exception(), second.exception()) == (None, None)


def test_values_are_decoded_in_a_stream(spark: SparkSession, servers: str, tmp_path: Path) -> None:
    with Producer(servers) as producer:
        for value in (b'{"id": 4}', b"{", b'{"id": 5}'):
            producer.send("decoded", value)
    frame = stream(
        spark, subscribe="decoded", bootstrap_servers=servers, startingOffsets="earliest", value="json",
        schema="id long", mode="DROPMALFORMED",
    )  # fmt: skip
    run(frame.select("partition", sf.col("value.id").alias("offset")), tmp_path)
    assert rows(spark, tmp_path) == [(0, 4), (0, 5)]


def test_a_topic_that_ends_in_control_records_ends(
    spark: SparkSession, cluster: InProcessCluster, servers: str, tmp_path: Path
) -> None:
    create(servers, "marked", count=4)
    append_as_stored(cluster, "marked", 0, control_batch())
    frame = stream(
        spark, subscribe="marked", bootstrap_servers=servers, startingOffsets="earliest", maxOffsetsPerTrigger=4,
        **{"kafka.group.id": "marked-group"},
    )  # fmt: skip
    run(frame, tmp_path)
    assert rows(spark, tmp_path) == every(1, 4)
    assert committed(servers, "marked-group") == {tp("marked", 0): 5}


def test_what_cannot_be_streamed_is_named(spark: SparkSession, servers: str, tmp_path: Path) -> None:
    with pytest.raises(UnknownTopicOrPartition, match="nosuch"):
        stream(spark, subscribe="nosuch", bootstrap_servers=servers)
    with pytest.raises(ValueError, match="option 'endingOffsets' is only for read"):
        stream(spark, subscribe="nosuch", bootstrap_servers=servers, endingOffsets="latest")
    create(servers, "another-source")
    ticks = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    ended = ticks.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert ended.trigger(availableNow=True).start().awaitTermination(int(WAIT_S))
    with pytest.raises(StreamingQueryException, match=r"is none of a raylog stream .*take a new checkpoint location"):
        run(stream(spark, subscribe="another-source", bootstrap_servers=servers), tmp_path)
    asked = '{"another-source": {"0": 7}}'
    with pytest.raises(StreamingQueryException, match=r"DataLoss: another-source-0: the log ends at offset 0 .* at 7"):
        run(stream(spark, subscribe="another-source", bootstrap_servers=servers, startingOffsets=asked), tmp_path / "b")
