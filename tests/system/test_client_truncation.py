"""A leader that takes over and lacks what was read: consumers see it, and go on where the logs diverge (KIP-320)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.cluster import InProcessCluster
from kit.leaders import move_leader
from kit.machine import scaled, scaled_ms
from raylog.client import Consumer, Producer
from raylog.client.aio import AsyncConsumer
from raylog.client.read_errors import LogTruncated
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition

TP = TopicPartition(TopicName("t"), PartitionIndex(0))
QUICK = {"fetch_max_wait_ms": 50, "retry_backoff_ms": 20}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    with InProcessCluster(tmp_path, brokers=2) as running:
        running.create_topic("t")
        yield running


def send(cluster: InProcessCluster, *values: bytes) -> None:
    with Producer(cluster.bootstrap_servers, linger_ms=0) as producer:
        for value in values:
            producer.send("t", value).result(scaled(10))


def read(consumer: Consumer, count: int) -> list[tuple[int, bytes | None]]:
    """At least ``count`` records, fewer only when no more come."""
    found: list[tuple[int, bytes | None]] = []
    while len(found) < count and (polled := consumer.poll(scaled_ms(5_000))):
        found += [(record.offset, record.value) for records in polled.values() for record in records]
    return found


def diverge(cluster: InProcessCluster) -> None:
    """The other broker, whose log is empty, leads; then there are two records, where the consumer read five."""
    move_leader(cluster, TP)
    send(cluster, b"new 0", b"new 1")


@pytest.mark.parametrize("reset", ["latest", "earliest"])
def test_a_move_to_a_shorter_log_does_not_reset_the_consumer(
    cluster: InProcessCluster, reset: str, caplog: pytest.LogCaptureFixture
) -> None:
    send(cluster, *(b"old %d" % number for number in range(5)))
    with Consumer(cluster.bootstrap_servers, ["t"], auto_offset_reset=reset, **QUICK) as consumer:
        consumer.seek_to_beginning()
        assert len(read(consumer, 5)) == 5
        with caplog.at_level(logging.WARNING, "raylog.client"):
            diverge(cluster)
            assert read(consumer, 2) == [(0, b"new 0"), (1, b"new 1")]
    assert any("t-0: the log was truncated" in line and "offset 5" in line for line in caplog.messages)


def test_a_longer_log_is_recognized_as_another_one(cluster: InProcessCluster) -> None:
    """By offsets alone nobody would know: the position is within the new leader's log."""
    send(cluster, b"old 0")
    with Consumer(cluster.bootstrap_servers, ["t"], auto_offset_reset="latest", **QUICK) as consumer:
        consumer.seek_to_beginning()
        assert read(consumer, 1) == [(0, b"old 0")]
        diverge(cluster)
        assert read(consumer, 2) == [(0, b"new 0"), (1, b"new 1")]


def test_without_a_reset_truncation_is_an_error_until_the_user_seeks(cluster: InProcessCluster) -> None:
    send(cluster, *(b"old %d" % number for number in range(5)))
    with Consumer(cluster.bootstrap_servers, ["t"], auto_offset_reset="none", **QUICK) as consumer:
        consumer.seek("t", 0, 0)
        consumer.seek("t", 0, 0)
        assert len(read(consumer, 5)) == 5
        diverge(cluster)
        for _ in range(2):
            with pytest.raises(LogTruncated, match=r"t-0: the log was truncated.* before offset 5") as caught:
                consumer.poll(scaled_ms(5_000))
        assert (caught.value.position, caught.value.diverging_offset) == (5, 0)
        consumer.seek("t", 0, caught.value.diverging_offset)
        assert read(consumer, 2) == [(0, b"new 0"), (1, b"new 1")]


def test_an_asynchronous_consumer_sees_it_too(cluster: InProcessCluster) -> None:
    send(cluster, *(b"old %d" % number for number in range(5)))

    async def run() -> list[bytes | None]:
        async with AsyncConsumer(cluster.bootstrap_servers, ["t"], auto_offset_reset="latest", **QUICK) as consumer:
            consumer.seek_to_beginning()
            values: list[bytes | None] = []
            for expected in (5, 7):
                while len(values) < expected and (polled := await consumer.poll(scaled_ms(5_000))):
                    values += [record.value for records in polled.values() for record in records]
                if expected == 5:
                    await asyncio.to_thread(diverge, cluster)
            return values

    assert asyncio.run(run())[5:] == [b"new 0", b"new 1"]
