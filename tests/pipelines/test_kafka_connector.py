"""Spark's own Kafka connector against our brokers: what it reads and writes is what ``raylog.spark`` does, by the same
options.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from kit.cluster import InProcessCluster
from kit.demanded import java_left_out
from kit.kafka_connector import connector_jars
from kit.spark import SPARK_MARKS, local_spark
from raylog.client import Admin, Producer
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition
from raylog.spark import read

pytestmark = [
    *SPARK_MARKS,
    pytest.mark.conformance,
    pytest.mark.skipif(java_left_out(), reason="java and mvn are not installed"),
]

COUNT = 3_000
PARTITIONS = 3
FIRST_MS = 1_700_000_000_000
LEFT_MS = FIRST_MS + 100
"""Timestamps go up to FIRST_MS + COUNT // 5; from here on, 500 are left in each round of the codecs."""
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

Rows = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with local_spark(tmp_path_factory.mktemp("spark"), {"spark.jars": connector_jars()}) as started:
        yield started


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Two brokers with topics of every kind that the tests read."""
    with InProcessCluster(tmp_path_factory.mktemp("brokers"), brokers=2) as cluster:
        cluster.create_topic("numbers", partitions=PARTITIONS)
        for codec in CODECS:
            with Producer(cluster.bootstrap_servers, compression_type=codec, linger_ms=5) as producer:
                for number in range(COUNT // len(CODECS)):
                    producer.send("numbers", b"%d" % number, b"%d" % (number % 50), timestamp=FIRST_MS + number)
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("stamped", 1, configs={"message.timestamp.type": "LogAppendTime"})
            admin.create_topic("with-headers", 1)
            admin.create_topic("shortened", 1)
        with Producer(cluster.bootstrap_servers) as producer:
            producer.send("stamped", b"late", timestamp=1)
            producer.send("with-headers", None, b"k", headers=[("h", b"1"), ("h", None), ("ü", b"")])
            producer.send("with-headers", b"")
            for number in range(20):
                producer.send("shortened", b"%d" % number)
        with Admin(cluster.bootstrap_servers) as admin:
            admin.delete_records({partition("shortened"): 15})
        yield cluster.bootstrap_servers


def partition(topic: str, number: int = 0) -> TopicPartition:
    return TopicPartition(TopicName(topic), PartitionIndex(number))


def by_connector(spark: SparkSession, servers: str, **options: Any) -> DataFrame:
    return spark.read.format("kafka").options(**{"kafka.bootstrap.servers": servers, **options}).load()


def by_us(spark: SparkSession, servers: str, **options: Any) -> DataFrame:
    return read(spark, **{"kafka.bootstrap.servers": servers, **options})


def rows(frame: DataFrame) -> Rows:
    return sorted(map(tuple, frame.collect()), key=lambda row: row[2:5])


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"subscribe": "numbers"}, COUNT),
        ({"subscribe": "numbers, stamped", "includeHeaders": "true"}, COUNT + 1),
        ({"subscribePattern": "num.*|with-.*"}, COUNT + 2),
        ({"assign": json.dumps({"numbers": [0, 2], "stamped": [0]})}, None),
        ({"subscribe": "with-headers", "includeHeaders": "true"}, 2),
        ({"subscribe": "stamped"}, 1),
        ({"subscribe": "numbers", "startingTimestamp": LEFT_MS}, None),
        ({"subscribe": "numbers", "endingTimestamp": LEFT_MS}, None),
        ({"subscribe": "numbers", "minPartitions": 7}, COUNT),
        ({"subscribe": "numbers", "kafka.max.partition.fetch.bytes": 2_000}, COUNT),
        ({"subscribe": "shortened"}, 5),
        (
            {
                "subscribe": "numbers",
                "startingOffsets": '{"numbers": {"0": 5, "1": -2, "2": 100}}',
                "endingOffsets": '{"numbers": {"0": 9, "1": 1, "2": -1}}',
            },
            None,
        ),
        (
            {
                "subscribe": "numbers",
                "startingOffsetsByTimestamp": json.dumps({"numbers": dict.fromkeys("012", LEFT_MS)}),
                "endingOffsetsByTimestamp": json.dumps({"numbers": dict.fromkeys("012", LEFT_MS + 100)}),
            },
            None,
        ),
    ],
    ids=lambda options: "-".join(options) if isinstance(options, dict) else "",
)
def test_both_read_the_same_rows(spark: SparkSession, servers: str, options: dict[str, Any], count: int | None) -> None:
    theirs, ours = by_connector(spark, servers, **options), by_us(spark, servers, **options)
    assert ours.schema.simpleString() == theirs.schema.simpleString()
    assert ours.rdd.getNumPartitions() == theirs.rdd.getNumPartitions()
    found = rows(theirs)
    assert rows(ours) == found
    if count is None:
        assert 0 < len(found) < COUNT
    else:
        assert len(found) == count


def test_both_refuse_offsets_that_are_gone_and_read_on_when_told_to(spark: SparkSession, servers: str) -> None:
    options = {"subscribe": "shortened", "startingOffsets": '{"shortened": {"0": 3}}'}
    for reading in (by_connector, by_us):
        with pytest.raises(Exception, match=r"(?i)data loss|failOnDataLoss"):
            reading(spark, servers, **options).collect()
        assert [row[4] for row in rows(reading(spark, servers, failOnDataLoss="false", **options))] == [*range(15, 20)]


def test_both_refuse_a_topic_that_is_not_there(spark: SparkSession, servers: str) -> None:
    for reading in (by_connector, by_us):
        with pytest.raises(Exception, match=r"UnknownTopicOrPartition|nosuch"):
            reading(spark, servers, subscribe="nosuch", startingOffsets="earliest").collect()


def test_the_connector_writes_what_we_read(spark: SparkSession, servers: str) -> None:
    with Admin(servers) as admin:
        admin.create_topic("written", 4)
    frame = spark.sql(
        "select string(id % 40) key, if(id % 7 = 0, null, string(id)) value, "
        "array(named_struct('key', 'h', 'value', binary(string(id))), named_struct('key', 'h', 'value', null)) headers,"
        " if(id = 5, 3, null) partition from range(1000)"
    )
    options = {"kafka.bootstrap.servers": servers, "topic": "written", "includeHeaders": "true"}
    frame.write.format("kafka").options(**options).save()
    found = by_us(spark, servers, subscribe="written", includeHeaders=True)
    assert found.count() == 1_000
    assert rows(found) == rows(by_connector(spark, servers, subscribe="written", includeHeaders=True))
    [row] = found.where("string(value) = '5'").collect()
    assert (row.partition, [tuple(header) for header in row.headers]) == (3, [("h", b"5"), ("h", None)])


def test_the_connector_streams_in_bounded_batches_and_goes_on_where_it_was(
    spark: SparkSession, servers: str, tmp_path: Path
) -> None:
    """From a topic into a topic, by availableNow; the second query of the checkpoint gets what came in between."""
    with Admin(servers) as admin:
        admin.create_topic("in", 2)
        admin.create_topic("out", 2)

    def send(numbers: range) -> None:
        with Producer(servers) as producer:
            for number in numbers:
                producer.send("in", b"%d" % number, b"%d" % (number % 10))

    def run() -> list[int]:
        """The rows of each batch."""
        options = {"kafka.bootstrap.servers": servers, "subscribe": "in"}
        frame = spark.readStream.format("kafka").options(
            **options, startingOffsets="earliest", maxOffsetsPerTrigger=200
        )
        sink = frame.load().selectExpr("key", "value").writeStream.format("kafka")
        query = (
            sink.option("kafka.bootstrap.servers", servers)
            .option("topic", "out")
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(60)
        assert query.exception() is None
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    send(range(500))
    first = run()
    assert sum(first) == 500
    assert max(first) <= 200
    send(range(500, 600))
    assert sum(run()) == 100
    values = [int(row.value) for row in by_us(spark, servers, subscribe="out", columns=["value"]).collect()]
    assert sorted(values) == [*range(600)]


def test_the_connector_s_stream_is_loud_about_records_that_are_gone(
    spark: SparkSession, servers: str, tmp_path: Path
) -> None:
    with Admin(servers) as admin:
        admin.create_topic("deleted-under-it", 1)
    with Producer(servers) as producer:
        for number in range(10):
            producer.send("deleted-under-it", b"%d" % number)
    with Admin(servers) as admin:
        admin.delete_records({partition("deleted-under-it"): 5})
    options = {"kafka.bootstrap.servers": servers, "subscribe": "deleted-under-it"}
    frame = spark.readStream.format("kafka").options(**options, startingOffsets='{"deleted-under-it": {"0": 2}}')
    query = (
        frame.load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(PySparkException, match="failOnDataLoss"):
        query.awaitTermination(60)
