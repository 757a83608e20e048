"""Spark's own Kafka connector against our brokers: what it reads and writes is what ``raylog.spark`` does, by the same
options.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from kit.cluster import InProcessCluster
from kit.demanded import java_left_out
from kit.kafka_connector import connector_jars
from kit.spark import SPARK_MARKS
from raylog.client import Admin, Producer
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition
from raylog.spark import read, stream, write

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
def connector() -> str:
    """Its jars."""
    return connector_jars()


@pytest.fixture(scope="module")
def spark_configs(connector: str) -> dict[str, str]:
    return {"spark.jars": connector}


@pytest.fixture(scope="module")
def servers(cluster: InProcessCluster) -> str:
    """Topics of every kind that the tests read."""
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
    return cluster.bootstrap_servers


def partition(topic: str, number: int = 0) -> TopicPartition:
    return TopicPartition(TopicName(topic), PartitionIndex(number))


def by_connector(spark: SparkSession, servers: str, **options: Any) -> DataFrame:
    return spark.read.format("kafka").options(**{"kafka.bootstrap.servers": servers, **options}).load()


def by_us(spark: SparkSession, servers: str, **options: Any) -> DataFrame:
    return read(spark, **{"kafka.bootstrap.servers": servers, **options})


def streamed_by_connector(spark: SparkSession, servers: str, **options: Any) -> DataFrame:
    return spark.readStream.format("kafka").options(**{"kafka.bootstrap.servers": servers, **options}).load()


def streamed_by_us(spark: SparkSession, servers: str, **options: Any) -> DataFrame:
    return stream(spark, **{"kafka.bootstrap.servers": servers, **options})


STREAMS = {"connector": streamed_by_connector, "raylog": streamed_by_us}


def rows(frame: DataFrame) -> Rows:
    return sorted(map(tuple, frame.collect()), key=lambda row: row[2:5])


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"subscribe": "numbers"}, COUNT),
        ({"subscribe": "numbers, stamped", "includeHeaders": "true"}, COUNT + 1),
        ({"subscribePattern": "num.*|with-.*"}, COUNT + 2),
        ({"assign": json.dumps({"numbers": [0, 2], "stamped": [0]})}, None),
        ({"subscribe": "numbers", "kafka.isolation.level": "read_committed"}, COUNT),
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


WRITTEN = """
    select string(id % 40) key, if(id % 7 = 0, null, string(id)) value, if(id = 5, 3, null) partition,
        array(named_struct('key', 'h', 'value', binary(string(id))), named_struct('key', 'h', 'value', null)) headers
    from range(1000)
"""


def test_both_write_the_same_records_to_the_same_partitions(spark: SparkSession, servers: str) -> None:
    frame = spark.sql(WRITTEN).coalesce(1)
    with Admin(servers) as admin:
        for topic in ("by-connector", "by-us"):
            admin.create_topic(topic, 4)
    options = {"kafka.bootstrap.servers": servers, "topic": "by-connector", "includeHeaders": "true"}
    frame.write.format("kafka").options(**options).save()
    assert write(frame, topic="by-us", bootstrap_servers=servers) == 1_000
    theirs = by_us(spark, servers, subscribe="by-connector", includeHeaders=True).collect()
    ours = by_connector(spark, servers, subscribe="by-us", includeHeaders=True).collect()
    assert len(theirs) == 1_000
    for found in (theirs, ours):
        [row] = [row for row in found if row.value == b"5"]
        assert (row.partition, [tuple(header) for header in row.headers]) == (3, [("h", b"5"), ("h", None)])
    assert contents(ours) == contents(theirs)


def contents(found: list[Row]) -> Rows:
    """What was written, by partition."""
    written = [(row.partition, row.key, row.value or b"", str(row.headers)) for row in found]
    return sorted(written)


@pytest.mark.parametrize("streaming", ["connector", "raylog"])
def test_streams_take_bounded_batches_and_go_on_where_they_were(
    spark: SparkSession, servers: str, tmp_path: Path, streaming: str
) -> None:
    """From a topic into a topic, by availableNow; the second query of the checkpoint gets what came in between."""
    source, target = f"into-{streaming}", f"out-of-{streaming}"
    with Admin(servers) as admin:
        admin.create_topic(source, 2)
        admin.create_topic(target, 2)

    def send(numbers: range) -> None:
        with Producer(servers) as producer:
            for number in numbers:
                producer.send(source, b"%d" % number, b"%d" % (number % 10))

    def run() -> list[int]:
        """The rows of each batch."""
        frame = STREAMS[streaming](
            spark, servers, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=200
        )
        query = (
            frame.selectExpr("key", "value")
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", servers)
            .option("topic", target)
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    send(range(500))
    assert run() == [200, 200, 100]
    send(range(500, 600))
    assert run() == [100]
    values = [int(row.value) for row in by_us(spark, servers, subscribe=target, columns=["value"]).collect()]
    assert sorted(values) == [*range(600)]


@pytest.mark.parametrize("streaming", ["connector", "raylog"])
def test_streams_are_loud_about_records_that_are_gone(
    spark: SparkSession, servers: str, tmp_path: Path, streaming: str
) -> None:
    frame = STREAMS[streaming](spark, servers, subscribe="shortened", startingOffsets='{"shortened": {"0": 3}}')
    query = (
        frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    )
    with pytest.raises(PySparkException, match="failOnDataLoss"):
        query.awaitTermination(60)
