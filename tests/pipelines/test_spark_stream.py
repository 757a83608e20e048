"""Topics as streams: real brokers, a real Spark, its own offset log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

from kit.cluster import InProcessCluster
from kit.spark import SPARK_MARKS, local_spark
from raylog.client import Admin, Producer
from raylog.spark import stream

pytestmark = SPARK_MARKS

WAIT_S = 60.0
AVAILABLE = {"availableNow": True}
"""Up to what is there now, in as many batches as the options say."""


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with local_spark(tmp_path_factory.mktemp("spark")) as started:
        yield started


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with InProcessCluster(tmp_path_factory.mktemp("brokers"), brokers=2) as cluster:
        yield cluster.bootstrap_servers


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
    """The frame's rows, appended to the Parquet files beside the checkpoint."""
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


def rows(spark: SparkSession, checkpoint: Path) -> list[Row]:
    """What the queries on the checkpoint have written, in order."""
    found = spark.read.parquet(str(checkpoint / "rows")).select("partition", "offset").collect()
    return sorted(map(tuple, found))  # type: ignore[arg-type]


def every(partitions: int, count: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition in range(partitions) for offset in range(count)]


def sizes(query: StreamingQuery) -> list[int]:
    """How many records each batch had."""
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def test_a_query_goes_on_where_the_last_one_ended(spark: SparkSession, servers: str, tmp_path: Path) -> None:
    create(servers, "resumed", partitions=2, count=10)
    frame = stream(spark, subscribe="resumed", bootstrap_servers=servers, startingOffsets="earliest")
    assert frame.isStreaming
    run(frame, tmp_path)
    assert rows(spark, tmp_path) == every(2, 10)
    send(servers, "resumed", 5, partitions=2)
    run(frame, tmp_path)
    assert rows(spark, tmp_path) == every(2, 15)
    again = run(stream(spark, subscribe="resumed", bootstrap_servers=servers), tmp_path)
    assert sizes(again) == []
    assert rows(spark, tmp_path) == every(2, 15)
