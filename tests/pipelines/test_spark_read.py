"""Topics as DataFrames: real brokers, a real Spark."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kit.cluster import InProcessCluster
from kit.odd_logs import append_as_stored, compacted, control_batch
from kit.spark import SPARK_MARKS
from raylog.client import Admin, Producer
from raylog.client.ranges.offset_ranges import DataLoss
from raylog.protocol.errors import UnknownTopicOrPartition
from raylog.protocol.records import Record
from raylog.spark import read

pytestmark = SPARK_MARKS

COUNT = 3_000
PARTITIONS = 3


@pytest.fixture(scope="module")
def spark_configs() -> dict[str, str]:
    return {"spark.sql.session.timeZone": "Asia/Tokyo"}  # timestamps are instants, wherever Spark is


@pytest.fixture(scope="module")
def servers(cluster: InProcessCluster) -> str:
    """The topic "numbers" has COUNT records, keyed, in batches of each compression in turn."""
    cluster.create_topic("numbers", partitions=PARTITIONS)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        with Producer(cluster.bootstrap_servers, compression_type=codec, linger_ms=5) as producer:
            for number in range(COUNT // 5):
                producer.send("numbers", b"%d" % number, b"%d" % (number % 50), timestamp=1_500 + number)
    return cluster.bootstrap_servers


def test_every_record_is_read_once_with_spark_s_columns(spark: SparkSession, servers: str) -> None:
    frame = read(spark, subscribe="numbers", bootstrap_servers=servers)
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    assert frame.rdd.getNumPartitions() == PARTITIONS
    frame.createOrReplaceTempView("numbers")
    [row] = spark.sql(
        "select count(*) n, count(distinct partition, offset) places, sum(int(string(value))) total, "
        "count(distinct topic) topics, min(timestamp) first, max(timestampType) kind from numbers"
    ).collect()
    assert (row.n, row.places, row.total) == (COUNT, COUNT, 5 * sum(range(COUNT // 5)))
    assert (row.topics, row.kind) == (1, 0)
    [stamp] = spark.sql("select cast(min(timestamp) as double) from numbers").collect()
    assert stamp[0] == 1.5
    assert isinstance(row.first, datetime)


def test_a_key_is_in_one_partition_and_in_order(spark: SparkSession, servers: str) -> None:
    frame = read(spark, subscribe="numbers", bootstrap_servers=servers, columns=["key", "partition"])
    assert frame.columns == ["key", "partition"]
    assert frame.distinct().count() == 50


def test_ranges_are_cut_and_bounded(spark: SparkSession, servers: str) -> None:
    frame = read(spark, subscribe="numbers", bootstrap_servers=servers, columns=["offset"], minPartitions=7)
    assert frame.rdd.getNumPartitions() == 7
    assert frame.count() == COUNT
    some = read(
        spark,
        subscribe="numbers",
        bootstrap_servers=servers,
        columns=["partition", "offset"],
        startingOffsets='{"numbers": {"0": 5, "1": -2, "2": 100}}',
        endingOffsets='{"numbers": {"0": 9, "1": 1, "2": 101}}',
    )
    assert sorted(map(tuple, some.collect())) == [(0, 5), (0, 6), (0, 7), (0, 8), (1, 0), (2, 100)]


def test_headers_and_nulls_come_through(spark: SparkSession, servers: str) -> None:
    with Producer(servers) as producer:
        producer.send("with-headers", None, b"k", headers=[("h", b"1"), ("h", None)])
        producer.send("with-headers", b"v")
    frame = read(spark, subscribe=["with-headers"], bootstrap_servers=servers, columns=["key", "value", "headers"])
    rows = sorted(frame.collect(), key=lambda row: row.value is not None)
    assert [(row.key, row.value) for row in rows] == [(b"k", None), (None, b"v")]
    assert [tuple(header) for header in rows[0].headers] == [("h", b"1"), ("h", None)]
    assert rows[1].headers is None


def test_nothing_is_an_empty_frame(spark: SparkSession, cluster: InProcessCluster, servers: str) -> None:
    """An empty topic, a range without offsets, a pattern that matches nothing."""
    cluster.create_topic("empty", partitions=2)
    for frame in (
        read(spark, subscribe="empty", bootstrap_servers=servers, includeHeaders=True, minPartitions=4),
        read(spark, subscribePattern="none-.*", bootstrap_servers=servers, includeHeaders=True),
        read(spark, assign='{"numbers": [0]}', bootstrap_servers=servers, includeHeaders=True,
             startingOffsets='{"numbers": {"0": 7}}', endingOffsets='{"numbers": {"0": 7}}'),
    ):  # fmt: skip
        assert frame.count() == 0
        assert frame.columns[-1] == "headers"
        assert frame.groupBy("topic").count().collect() == []


def test_a_range_without_records_is_an_end_like_any_other(spark: SparkSession, cluster: InProcessCluster) -> None:
    """Control records and offsets that were compacted away, at the end, in the middle, and nothing else; beside them an
    empty partition."""
    cluster.create_topic("odd", partitions=3)
    records = [Record(value=b"%d" % number) for number in range(5)]
    append_as_stored(cluster, "odd", 0, compacted(records, {0, 2}), control_batch(), compacted(records, {1}))
    append_as_stored(cluster, "odd", 1, control_batch())
    frame = read(spark, subscribe="odd", bootstrap_servers=cluster.bootstrap_servers, maxRecordsPerPartition=3)
    assert frame.rdd.getNumPartitions() == 5
    assert [tuple(row) for row in frame.select("partition", "offset", "value").collect()] == [
        (0, 0, b"0"), (0, 2, b"2"), (0, 7, b"1"),
    ]  # fmt: skip


def test_the_broker_s_timestamps_are_of_type_1(spark: SparkSession, cluster: InProcessCluster) -> None:
    cluster.create_topic("stamped", config={"message.timestamp.type": "LogAppendTime"})
    with Producer(cluster.bootstrap_servers) as producer:
        producer.send("stamped", b"v", timestamp=1_500)
    frame = read(spark, subscribe="stamped", bootstrap_servers=cluster.bootstrap_servers)
    [row] = frame.selectExpr("timestampType", "timestamp > now() - interval 1 hour recent").collect()
    assert tuple(row) == (1, True)


def test_ranges_may_begin_and_end_at_times(spark: SparkSession, servers: str) -> None:
    frame = read(
        spark, subscribe="numbers", bootstrap_servers=servers, columns=["timestamp"], startingTimestamp=1_600,
        endingTimestamp=1_700, endingOffsets="latest",
    )  # fmt: skip
    [row] = frame.selectExpr("min(timestamp) >= timestamp_millis(1600) early", "count(*) n").collect()
    assert row.early
    assert 0 < row.n < COUNT


def test_offsets_that_are_gone_are_a_loud_loss(spark: SparkSession, servers: str) -> None:
    gone = '{"numbers": {"0": 0, "1": 0, "2": 1000000}}'
    with pytest.raises(DataLoss, match=r"numbers-2 has offsets 0 to .*, not 1000000: .*failOnDataLoss=False"):
        read(spark, subscribe="numbers", bootstrap_servers=servers, endingOffsets=gone)
    accepted = read(
        spark, subscribe="numbers", bootstrap_servers=servers, columns=["offset"], failOnDataLoss=False,
        endingOffsets=gone,
    )  # fmt: skip
    assert 0 < accepted.count() < COUNT


def test_what_goes_after_planning_fails_the_task(spark: SparkSession, servers: str) -> None:
    with Producer(servers) as producer:
        for number in range(10):
            producer.send("short-lived", b"%d" % number)
    loud = read(spark, subscribe="short-lived", bootstrap_servers=servers)
    quiet = read(spark, subscribe="short-lived", bootstrap_servers=servers, failOnDataLoss=False)
    with Admin(servers) as admin:
        admin.delete_topics(["short-lived"])
        admin.create_topic("short-lived", 1)
    with pytest.raises(
        PySparkException, match=r"DataLoss.*short-lived-0: the topic was deleted, and created again since.* are gone"
    ):
        loud.count()
    assert quiet.count() == 0


def test_unfit_options_and_topics_are_named(spark: SparkSession, servers: str) -> None:
    with pytest.raises(UnknownTopicOrPartition, match="there is no topic 'nosuch': create it"):
        read(spark, subscribe="nosuch", bootstrap_servers=servers)
    with pytest.raises(UnknownTopicOrPartition, match="there is no partition numbers-9: see which there are"):
        read(spark, assign='{"numbers": [0, 9]}', bootstrap_servers=servers)
    with pytest.raises(ValueError, match="unknown option 'startingoffset': did you mean startingOffsets"):
        read(spark, subscribe="numbers", bootstrap_servers=servers, startingoffset="earliest")
    with pytest.raises(ValueError, match="names no topic"):
        read(spark, subscribe=" ,", bootstrap_servers=servers)


def test_kafka_options_reach_the_consumer(spark: SparkSession, servers: str) -> None:
    options = {"kafka.bootstrap.servers": servers, "kafka.fetch.max.bytes": 10_000}
    assert read(spark, subscribe="numbers", columns=["offset"], **options).count() == COUNT


def test_ranges_prefer_their_leaders_hosts(spark: SparkSession, servers: str) -> None:
    frame = read(spark, subscribe="numbers", bootstrap_servers=servers, minPartitions=6)
    rdd = frame._jdf.queryExecution().toRdd()
    context = spark.sparkContext._jsc.sc()
    assert [context.getPreferredLocs(rdd, number).mkString(",") for number in range(6)] == ["127.0.0.1"] * 6


@pytest.fixture(scope="module")
def clicks(servers: str) -> str:
    """A topic of JSON, with a tombstone and two damaged values; one partition."""
    values = [b'{"id": 0, "page": "/"}', b'{"id": 1}', b"{", None, b'{"id": "x"}', b'{"id": 5, "page": "/b"}']
    with Producer(servers) as producer:
        for number, value in enumerate(values):
            producer.send("clicks", value, b"%d" % number)
    return "clicks"


def test_values_are_decoded_as_they_are_read(spark: SparkSession, servers: str, clicks: str) -> None:
    ending = '{"clicks": {"0": 2}}'
    frame = read(
        spark, subscribe=clicks, bootstrap_servers=servers, value="json", schema="id long not null, page string",
        columns=["key", "value"], endingOffsets=ending,
    )  # fmt: skip
    assert frame.select("key", "value.*").collect() == [(b"0", 0, "/"), (b"1", 1, None)]
    assert frame.where("value.page is null").count() == 1
    texts = read(spark, subscribe=clicks, bootstrap_servers=servers, value="string", columns=["value"])
    assert texts.where("value is null or value like '%id%'").count() == 5


def test_a_value_that_does_not_decode_fails_the_task_and_is_named(
    spark: SparkSession, servers: str, clicks: str
) -> None:
    frame = read(spark, subscribe=clicks, bootstrap_servers=servers, value="json", schema="id long")
    with pytest.raises(PySparkException, match=r"MalformedValue: clicks-0 offset 2: the value is not json"):
        frame.count()


def test_a_value_that_does_not_decode_is_null_with_its_bytes_kept(
    spark: SparkSession, servers: str, clicks: str
) -> None:
    frame = read(
        spark, subscribe=clicks, bootstrap_servers=servers, value="json", schema="id long", mode="PERMISSIVE",
        columns=["offset", "value"],
    )  # fmt: skip
    assert frame.columns == ["offset", "value", "_corrupt_record"]
    rows = frame.select("offset", "value.id", "_corrupt_record").collect()
    assert rows == [
        (0, 0, None), (1, 1, None), (2, None, b"{"), (3, None, None), (4, None, b'{"id": "x"}'), (5, 5, None)
    ]  # fmt: skip


def test_a_value_that_does_not_decode_is_dropped_and_counted(spark: SparkSession, servers: str, clicks: str) -> None:
    dropped = spark.sparkContext.accumulator(0)
    frame = read(
        spark, subscribe=clicks, bootstrap_servers=servers, value="json", schema="id long", mode="DROPMALFORMED",
        dropped=dropped,
    )  # fmt: skip
    assert [row.offset for row in frame.collect()] == [0, 1, 3, 5]
    assert dropped.value == 2


@pytest.mark.parametrize("zone", ["+09:00", "GMT+9", "JST", "Asia/Tokyo"])
def test_times_without_a_zone_are_in_the_session_s(spark: SparkSession, servers: str, zone: str) -> None:
    topic = f"times-{zone.lower().translate(str.maketrans('+:/', '---'))}"
    with Producer(servers) as producer:
        producer.send(topic, b'{"t": "1970-01-01T10:00:00"}')
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        frame = read(spark, subscribe=topic, bootstrap_servers=servers, value="json", schema="t timestamp")
        assert frame.selectExpr("cast(value.t as long) seconds").collect() == [(3_600,)]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ("id lng", "schema='id lng' is no schema"),
        ("i interval", "schema='i interval' is no schema"),
        (7, "schema=7 must be DDL"),
        ("a long, b struct<c: int, c: string>", "schema.b has the field c 2 times"),
        ("a array<map<long, string>>", r"schema.a\[\] is map<bigint,string>: in JSON, keys are texts"),
        ("a array<void>", r"schema.a\[\] is void"),
        ("a varchar(3)", "schema: values are not decoded to such a type: .*VarcharType"),
    ],
)
def test_an_unfit_schema_is_refused(
    spark: SparkSession, servers: str, clicks: str, schema: Any, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        read(spark, subscribe=clicks, bootstrap_servers=servers, value="json", schema=schema)


def test_what_counts_the_dropped_is_an_accumulator(spark: SparkSession, servers: str, clicks: str) -> None:
    with pytest.raises(ValueError, match="dropped=0 must be an accumulator"):
        read(
            spark, subscribe=clicks, bootstrap_servers=servers, value="json", schema="id long", mode="DROPMALFORMED",
            dropped=0,
        )  # fmt: skip
