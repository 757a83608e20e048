"""DataFrames as records: real Spark, real brokers."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from kit.cluster import InProcessCluster
from kit.reading import all_records
from kit.spark import SPARK_MARKS
from raylog.client.batches.partitioner import KeyPartitioner
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


def test_each_row_is_a_record_where_clients_put_its_key(spark: SparkSession, servers: str, topic: str) -> None:
    count = 30_000
    frame = spark.range(0, count, 1, 4).selectExpr("string(id) value", "string(id % 97) key", "id other")
    assert write(frame, topic=topic, bootstrap_servers=servers) == count
    found = all_records(servers, topic)
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
    found = {record.value: record for record in all_records(servers, topic)}
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
    assert [int(record.value) % 2 for record in all_records(servers, odd)] == [1] * 50
    assert write(frame, topic=even, bootstrap_servers=servers) == 100
    assert len(all_records(servers, even)) == 150
    with pytest.raises(PySparkException, match=r"InvalidRecord.*row 3 of 5 has no topic"):
        write(
            spark.range(0, 5, 1, 1).selectExpr("string(id) value", f"if(id < 3, '{even}', null) topic"),
            bootstrap_servers=servers,
        )


def test_no_rows_are_no_records(spark: SparkSession, servers: str, topic: str) -> None:
    assert write(spark.range(0).selectExpr("string(id) value"), topic=topic, bootstrap_servers=servers) == 0
    assert all_records(servers, topic) == []


def test_what_can_not_be_delivered_fails_the_job(spark: SparkSession, servers: str, topic: str) -> None:
    frame = spark.range(10).selectExpr("string(id) value", "int(7) partition")
    with pytest.raises(PySparkException, match=rf"InvalidPartitions.*{topic} has partitions 0 to 2, not 7"):
        write(frame, topic=topic, bootstrap_servers=servers, **{"kafka.max.block.ms": 2_000})
    large = spark.range(1).selectExpr("repeat('x', 2000000) value")
    with pytest.raises(PySparkException, match=rf"MessageTooLarge.*{topic}: row 0.*max.request.size"):
        write(large, topic=topic, bootstrap_servers=servers)
    refused = {"kafka.max.request.size": 4_000_000, "kafka.batch.size": 4_000_000}
    with pytest.raises(PySparkException, match=rf"MessageTooLarge.*{topic}-"):
        write(large, topic=topic, bootstrap_servers=servers, **refused)
    assert all_records(servers, topic) == []


def test_batches_too_large_for_the_topic_are_split(spark: SparkSession, cluster: InProcessCluster) -> None:
    name, count = next(names), 2_000
    cluster.create_topic(name, config={"max.message.bytes": "2000"})
    frame = spark.range(0, count, 1, 2).selectExpr("lpad(id, 100, '0') value")
    assert write(frame, topic=name, bootstrap_servers=cluster.bootstrap_servers) == count
    assert sorted(int(record.value) for record in all_records(cluster.bootstrap_servers, name)) == list(range(count))


def test_settings_reach_the_producers(spark: SparkSession, servers: str, topic: str) -> None:
    options: dict[str, Any] = {"kafka.bootstrap.servers": servers, "kafka.partitioner": "roundrobin"}
    frame = spark.range(0, 300, 1, 1).selectExpr("string(id) value", "'one' key")
    assert write(frame, topic=topic, **options) == 300
    places = [record.partition for record in all_records(servers, topic)]
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
