"""DataFrames as records: real Spark, real brokers."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from kit.cluster import InProcessCluster
from kit.spark import SPARK_MARKS
from raylog.client import Admin, Consumer
from raylog.client.offset_ranges import DataLoss
from raylog.client.partitioner import KeyPartitioner
from raylog.client.results import ConsumerRecord
from raylog.protocol.errors import InvalidConfig, InvalidTopic
from raylog.spark import sink, write

pytestmark = SPARK_MARKS

PARTITIONS = 3
names = (f"written-{number}" for number in itertools.count())


@pytest.fixture
def topic(cluster: InProcessCluster) -> str:
    """An empty topic of this test alone."""
    name = next(names)
    cluster.create_topic(name, partitions=PARTITIONS)
    return name


def records(servers: str, topic: str) -> list[ConsumerRecord]:
    """Of the topic, per partition in order."""
    with Consumer(servers, [topic], auto_offset_reset="earliest") as consumer:
        found = list(consumer.iterate(until_end=True))
    return sorted(found, key=lambda record: (record.partition, record.offset))


def test_each_row_is_a_record_where_clients_put_its_key(spark: SparkSession, servers: str, topic: str) -> None:
    count = 30_000
    frame = spark.range(0, count, 1, 4).selectExpr("string(id) value", "string(id % 97) key", "id other")
    assert write(frame, topic=topic, bootstrap_servers=servers) == count
    found = records(servers, topic)
    assert sorted(int(record.value) for record in found) == list(range(count))
    assert all(int(record.key) == int(record.value) % 97 for record in found)
    keys = KeyPartitioner()
    assert all(record.partition == keys.partition(record.key, PARTITIONS) for record in found)


def test_headers_nulls_and_partitions_come_through(spark: SparkSession, servers: str, topic: str) -> None:
    frame = spark.sql(
        "select * from values"
        " (binary('v'), binary('k'), array(struct('h', binary('1')), struct('h', null)), 2),"
        " (null, binary('k'), null, 1),"
        " (binary('free'), binary('k'), array(), null) as t(value, key, headers, partition)"
    ).select("value", "key", F.col("headers").cast("array<struct<key:string,value:binary>>"), "partition")
    assert write(frame, topic=topic, bootstrap_servers=servers) == 3
    found = {record.value: record for record in records(servers, topic)}
    assert found[b"v"].partition == 2
    assert list(found[b"v"].headers) == [("h", b"1"), ("h", None)]
    assert (found[None].partition, found[None].key, list(found[None].headers)) == (1, b"k", [])
    assert list(found[b"free"].headers) == []


def test_rows_may_name_their_topic(spark: SparkSession, cluster: InProcessCluster, servers: str) -> None:
    even, odd = next(names), next(names)
    for name in (even, odd):
        cluster.create_topic(name)
    frame = spark.range(100).selectExpr("string(id) value", f"if(id % 2 = 0, '{even}', '{odd}') topic")
    assert write(frame, bootstrap_servers=servers) == 100
    assert [int(record.value) % 2 for record in records(servers, odd)] == [1] * 50
    assert write(frame, topic=even, bootstrap_servers=servers) == 100
    assert len(records(servers, even)) == 150
    with pytest.raises(PySparkException, match=r"InvalidRecord.*row 3 of 5 has no topic"):
        write(
            spark.range(0, 5, 1, 1).selectExpr("string(id) value", f"if(id < 3, '{even}', null) topic"),
            bootstrap_servers=servers,
        )


def test_no_rows_are_no_records(spark: SparkSession, servers: str, topic: str) -> None:
    assert write(spark.range(0).selectExpr("string(id) value"), topic=topic, bootstrap_servers=servers) == 0
    assert records(servers, topic) == []


def test_what_can_not_be_delivered_fails_the_job(spark: SparkSession, servers: str, topic: str) -> None:
    frame = spark.range(10).selectExpr("string(id) value", "int(7) partition")
    with pytest.raises(PySparkException, match=rf"InvalidPartitions.*{topic} has partitions 0 to 2, not 7"):
        write(frame, topic=topic, bootstrap_servers=servers)
    large = spark.range(1).selectExpr("repeat('x', 2000000) value")
    with pytest.raises(PySparkException, match=rf"MessageTooLarge.*{topic}: row 0.*max.request.size"):
        write(large, topic=topic, bootstrap_servers=servers)
    refused = {"kafka.max.request.size": 4_000_000, "kafka.batch.size": 4_000_000}
    with pytest.raises(PySparkException, match=rf"MessageTooLarge.*{topic}-"):
        write(large, topic=topic, bootstrap_servers=servers, **refused)
    assert records(servers, topic) == []


def test_settings_reach_the_producers(spark: SparkSession, servers: str, topic: str) -> None:
    options: dict[str, Any] = {"kafka.bootstrap.servers": servers, "kafka.partitioner": "roundrobin"}
    frame = spark.range(0, 300, 1, 1).selectExpr("string(id) value", "'one' key")
    assert write(frame, topic=topic, **options) == 300
    places = [record.partition for record in records(servers, topic)]
    assert [places.count(partition) for partition in range(PARTITIONS)] == [100] * PARTITIONS


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (["id"], {}, "no column value, only id"),
        (["id value"], {}, r"column value is bigint, not binary or string: .*to_json"),
        (["string(id) value", "id key"], {}, "column key is bigint"),
        (["string(id) value", "'1' partition"], {}, "column partition is string, not integer"),
        (["string(id) value", "array('h') headers"], {}, r"column headers is array<string>, not array<struct<key:"),
        (["string(id) value", "'k' KEY"], {}, "column KEY would be left out: rename it to key"),
        (["string(id) value"], {"topic": None}, "where to"),
        (["string(id) value", "id topic"], {"topic": None}, "column topic is bigint"),
        (["string(id) value"], {"linger_ms": 5}, r"unknown option 'linger_ms': .* as kafka\.linger\.ms"),
        (["string(id) value"], {"kafka.key.serializer": "x"}, r"'kafka\.key\.serializer' cannot be set"),
    ],
)
def test_unfit_columns_and_options_are_named(
    spark: SparkSession, columns: list[str], options: dict[str, Any], message: str
) -> None:
    frame = spark.range(1).selectExpr(*columns)
    with pytest.raises(ValueError, match=message):
        write(frame, **{"topic": "t", "bootstrap_servers": "localhost:1", **options})


def test_an_unfit_topic_is_found_before_anything_runs(spark: SparkSession) -> None:
    with pytest.raises(InvalidTopic, match="a/b"):
        write(spark.range(1).selectExpr("string(id) value"), topic="a/b", bootstrap_servers="localhost:1")
    with pytest.raises(InvalidTopic, match="a/b"):
        sink(topic="a/b", location="here", bootstrap_servers="localhost:1")


def test_unfit_settings_are_found_before_anything_runs(spark: SparkSession) -> None:
    frame = spark.range(1).selectExpr("string(id) value")
    with pytest.raises(InvalidConfig, match="nosuch"):
        write(frame, topic="t", bootstrap_servers="localhost:1", **{"kafka.nosuch.setting": 1})


# --- the sink that writes each batch once ---


def query_to(sink: Callable[[DataFrame, int], None], frame: DataFrame, checkpoint: Path) -> str:
    """Run all that there is through the sink; the query's id."""
    query = frame.writeStream.foreachBatch(sink).trigger(availableNow=True)
    started = query.option("checkpointLocation", str(checkpoint)).start()
    assert started.awaitTermination(120)
    return str(started.id)


def values(servers: str, topic: str) -> Counter[int]:
    return Counter(int(record.value.strip()) for record in records(servers, topic))


def test_a_stream_s_batches_are_written_once(spark: SparkSession, servers: str, topic: str, tmp_path: Path) -> None:
    to_topic = sink(topic=topic, location=str(tmp_path / "sink"), bootstrap_servers=servers)
    lines = tmp_path / "lines"
    lines.mkdir()
    frame = (
        spark.readStream.option("maxFilesPerTrigger", 1)
        .text(str(lines))
        .select("value", F.expr("string(int(value) % 97)").alias("key"))
        .repartition(3)
    )
    for number in range(4):
        (lines / f"{number}.txt").write_text("\n".join(str(row) for row in range(number * 5_000, (number + 1) * 5_000)))
        if number != 1:  # so that the second query has several batches
            query_id = query_to(to_topic, frame, tmp_path / "checkpoint")
    assert values(servers, topic) == Counter(range(20_000))
    keys = KeyPartitioner()
    assert all(record.partition == keys.partition(record.key, PARTITIONS) for record in records(servers, topic))
    assert sorted(path.name for path in (tmp_path / "sink" / query_id).glob("[!.]*")) == ["3.done", "3.plan"]


def test_a_batch_that_comes_again_is_not_written_again(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    to_topic = sink(topic=topic, location=str(tmp_path), bootstrap_servers=servers)
    frame = spark.range(0, 1_000, 1, 5).selectExpr("string(id) value")
    for batch_id in (0, 0, 1, 0):
        to_topic(frame, batch_id)
    assert values(servers, topic) == Counter(dict.fromkeys(range(1000), 2))
    to_topic(spark.range(0).selectExpr("string(id) value"), 2)
    assert len(records(servers, topic)) == 2_000
    with pytest.raises(ValueError, match=rf"a sink to topic '{topic}' has written batch 2 here.*location of its own"):
        sink(topic="other", location=str(tmp_path), bootstrap_servers=servers)(frame, 3)


def test_a_batch_comes_whole_in_one_call(spark: SparkSession, servers: str, topic: str, tmp_path: Path) -> None:
    """The second call would find the batch done, and drop its rows. But a query that goes on may bring it again."""
    to_topic = sink(topic=topic, location=str(tmp_path / "sink"), bootstrap_servers=servers)
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "0.txt").write_text("0\n1\n2\n3")
    frame = spark.readStream.text(str(tmp_path / "lines"))

    def in_halves(rows: DataFrame, batch_id: int) -> None:
        to_topic(rows.where("value < 2"), batch_id)
        to_topic(rows.where("value >= 2"), batch_id)

    with pytest.raises(PySparkException, match="the sink was called twice for batch 0, and the rows of the second"):
        query_to(in_halves, frame, tmp_path / "checkpoint")
    query_to(to_topic, frame, tmp_path / "checkpoint")
    assert values(servers, topic) == Counter([0, 1])


def test_a_batch_that_failed_halfway_goes_on_where_it_was(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    """The file with the large row fails when all of its rows before the large one's ten thousand have left."""
    count = 48_000
    frame = spark.range(0, count, 1, 4).selectExpr("if(id = 47500, rpad(id, 1100000, ' '), string(id)) value")
    with pytest.raises(PySparkException, match=r"MessageTooLarge"):
        sink(topic=topic, location=str(tmp_path), bootstrap_servers=servers)(frame, 0)
    before = values(servers, topic)
    assert 0 < len(before) < count
    larger = {"kafka.max.request.size": 2_000_000}
    wide = sink(topic=topic, location=str(tmp_path), bootstrap_servers=servers, **larger)
    with Admin(servers) as admin:
        admin.alter_topic_configs(topic, {"max.message.bytes": "2000000"})
    wide(frame, 0)
    assert values(servers, topic) == Counter(range(count))


def test_rows_of_a_batch_may_go_to_several_topics(
    spark: SparkSession, cluster: InProcessCluster, servers: str, tmp_path: Path
) -> None:
    even, odd = next(names), next(names)
    for name in (even, odd):
        cluster.create_topic(name, partitions=2)
    to_topics = sink(location=str(tmp_path), bootstrap_servers=servers)
    frame = spark.range(1_000).selectExpr("string(id) value", f"if(id % 2 = 0, '{even}', '{odd}') topic", "1 partition")
    to_topics(frame, 0)
    assert values(servers, even) + values(servers, odd) == Counter(range(1_000))
    assert {record.partition for record in records(servers, odd)} == {1}
    with pytest.raises(ValueError, match="batch 1: a row has no topic"):
        to_topics(frame.withColumn("topic", F.lit(None).cast("string")), 1)
    to_topics(frame, 1)
    assert values(servers, odd) == Counter(dict.fromkeys(range(1, 1000, 2), 2))


@pytest.mark.parametrize("loss", ["recreated", "deleted"])
def test_what_is_gone_from_the_log_is_a_loud_loss(
    spark: SparkSession, cluster: InProcessCluster, servers: str, topic: str, tmp_path: Path, loss: str
) -> None:
    to_topic = sink(topic=topic, location=str(tmp_path), bootstrap_servers=servers)
    with pytest.raises(PySparkException, match=r"MessageTooLarge"):
        to_topic(spark.range(1).selectExpr("lpad(id, 1100000, '0') value"), 0)
    frame = spark.range(100).selectExpr("string(id) value")
    with Admin(servers) as admin:
        if loss == "recreated":
            assert admin.delete_topics([topic]) == {topic: None}
            admin.create_topic(topic, PARTITIONS)
        else:
            write(frame.withColumn("partition", F.lit(0)), topic=topic, bootstrap_servers=servers)
            admin.delete_records({(topic, 0): -1})
    match = "was deleted and made anew" if loss == "recreated" else f"{topic}-0.*nobody can tell what it has written"
    with pytest.raises(DataLoss, match=match):
        to_topic(frame, 0)
    (tmp_path / "no-query" / "0.plan").unlink()
    to_topic(frame, 0)
    assert values(servers, topic) == Counter(range(100))


def test_a_staged_file_that_is_gone_is_named(spark: SparkSession, servers: str, topic: str, tmp_path: Path) -> None:
    to_topic = sink(topic=topic, location=str(tmp_path), bootstrap_servers=servers)
    frame = spark.range(0, 100, 1, 2).selectExpr("lpad(id, 1100000, '0') value")
    with pytest.raises(PySparkException, match=r"MessageTooLarge"):
        to_topic(frame, 0)
    [first, *_] = sorted((tmp_path / "no-query").glob("rows-0-*/part-*"))
    first.unlink()
    with pytest.raises(FileNotFoundError, match=rf"batch 0: {first.name} of .* is gone"):
        to_topic(frame, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"location": "/tmp/{a,b}"}, "which Spark takes for patterns"),
        ({"location": Path("/tmp/a?")}, "which Spark takes for patterns"),
        ({"location": ""}, "location='' must be a directory of this sink"),
        ({"location": "/"}, "location='/' must be a directory of this sink"),
        ({"kafka.acks": "1"}, r"option 'kafka\.acks' cannot be set: each record is there once only"),
        ({"kafka.partitioner": "roundrobin"}, r"'kafka\.partitioner' cannot be set"),
        ({"acks": "1"}, r"unknown option 'acks': .*kafka\.acks"),
    ],
)
def test_unfit_options_of_a_sink_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sink(**{"topic": "t", "location": "here", "bootstrap_servers": "localhost:1", **options})
