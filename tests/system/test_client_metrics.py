"""What clients tell of themselves, against real brokers in this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from math import isnan
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from kit.cluster import InProcessCluster
from kit.machine import scaled, scaled_ms
from kit.waiting import wait_until
from raylog.client import Consumer, Producer
from raylog.client.aio import AsyncConsumer, AsyncProducer
from raylog.client.telemetry.metrics import CONSUMER_METRICS, PRODUCER_METRICS
from raylog.protocol.errors import RequestTimedOut

RECORDS = 300
EARLIEST = {"auto_offset_reset": "earliest"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    with InProcessCluster(tmp_path) as running:
        running.create_topic("t", partitions=2)
        yield running


def test_a_producer_counts_what_it_sent(cluster: InProcessCluster) -> None:
    with Producer(cluster.bootstrap_servers, linger_ms=50) as producer:
        for number in range(RECORDS):
            producer.send("t", b"v" * 100, partition=number % 2)
        producer.flush()
        found = producer.metrics()
    assert found.keys() == {row.name for row in PRODUCER_METRICS}
    assert found["record-send-total"] == RECORDS
    assert found["record-error-total"] == found["record-retry-total"] == found["batch-split-total"] == 0
    assert RECORDS * 100 < found["outgoing-byte-total"] < RECORDS * 200
    assert found["records-per-request-avg"] * (found["request-total"] - 2) >= RECORDS
    assert 100 < found["batch-size-avg"] <= found["batch-size-max"] < RECORDS * 200
    assert found["connection-count"] == found["connection-creation-total"] >= 1
    assert found["connection-close-total"] == found["requests-in-flight"] == 0
    assert found["request-total"] == found["response-total"]
    assert 0 <= found["request-latency-avg"] <= found["request-latency-max"] < 10_000
    assert found["buffer-available-bytes"] == found["buffer-total-bytes"] == 33_554_432
    after = producer.metrics()
    assert after["connection-count"] == 0
    assert after["connection-close-total"] == after["connection-creation-total"]


def test_records_that_cannot_be_delivered_are_counted_as_errors(cluster: InProcessCluster) -> None:
    with Producer(cluster.bootstrap_servers, delivery_timeout_ms=1_000, retry_backoff_ms=10) as producer:
        producer.send("t", b"there", partition=0).result(scaled(10))
        cluster.stop(0)
        lost = producer.send("t", b"not there", partition=0)
        assert isinstance(lost.exception(scaled(10)), RequestTimedOut)
        found = producer.metrics()
    assert found["record-error-total"] == 1
    assert found["connection-count"] == 0
    assert found["connection-close-total"] == found["connection-creation-total"]


def test_a_consumer_counts_what_it_read_and_how_far_it_is_behind(cluster: InProcessCluster) -> None:
    with Producer(cluster.bootstrap_servers, linger_ms=50) as producer:
        producer.send_batch("t", [b"v" * 100] * RECORDS, partition=0).result(scaled(10))
    with Consumer(cluster.bootstrap_servers, ["t"], **EARLIEST) as consumer:
        assert isnan(consumer.metrics()["records-lag-max"])
        assert sum(map(len, consumer.poll(scaled_ms(10_000), max_records=10).values())) == 10
        assert consumer.metrics()["records-lag-max"] == RECORDS - 10
        assert sum(1 for _ in consumer.iterate(until_end=True)) == RECORDS - 10
        found = consumer.metrics()
    assert found.keys() == {row.name for row in CONSUMER_METRICS}
    assert found["records-consumed-total"] == RECORDS
    assert RECORDS * 100 < found["bytes-consumed-total"] < found["incoming-byte-total"]
    assert found["fetch-total"] >= 1
    assert 0 <= found["fetch-latency-avg"] <= found["fetch-latency-max"]
    assert found["fetch-size-max"] > RECORDS * 100
    assert (found["records-lag-max"], found["assigned-partitions"]) == (0, 2)


def test_clients_for_asyncio_count_the_same(cluster: InProcessCluster) -> None:
    async def run() -> tuple[dict[str, float], dict[str, float]]:
        servers = cluster.bootstrap_servers
        async with AsyncProducer(servers) as producer, AsyncConsumer(servers, ["t"], **EARLIEST) as consumer:
            await (await producer.send_batch("t", [b"v"] * RECORDS))
            left = RECORDS
            async for _ in consumer:
                left -= 1
                if not left:
                    break
            return producer.metrics(), consumer.metrics()

    produced, consumed = asyncio.run(run())
    assert produced["record-send-total"] == consumed["records-consumed-total"] == RECORDS


def test_a_callback_hears_the_metrics_while_the_client_works(cluster: InProcessCluster) -> None:
    produced: SimpleQueue[dict[str, float]] = SimpleQueue()
    consumed: SimpleQueue[dict[str, float]] = SimpleQueue()
    with Producer(cluster.bootstrap_servers, stats_cb=produced.put, statistics_interval_ms=5) as producer:
        producer.send("t", b"v").result(scaled(10))
        wait_until(
            lambda: produced.get(timeout=scaled(10))["record-send-total"] == 1, 10, "the callback hears of the record"
        )
        assert len([thread for thread in threading.enumerate() if thread.name == "raylog-statistics"]) == 1

    async def read() -> None:
        config: dict[str, Any] = {"stats_cb": consumed.put, "statistics_interval_ms": 5, **EARLIEST}
        async with AsyncConsumer(cluster.bootstrap_servers, ["t"], **config) as consumer:
            await anext(consumer)
            await asyncio.to_thread(
                wait_until,
                lambda: consumed.get(timeout=scaled(10))["records-consumed-total"] == 1,
                10,
                "it is heard of",
            )

    asyncio.run(read())
    wait_until(
        lambda: not [thread for thread in threading.enumerate() if thread.name == "raylog-statistics"],
        10,
        "the threads end",
    )
