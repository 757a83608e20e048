"""Clients whose metadata is old are told by brokers who leads now (KIP-951), and go there at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.cluster import InProcessCluster
from kit.leaders import move_leader
from kit.machine import scaled, scaled_ms
from raylog.client import Consumer, Producer
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition

TP = TopicPartition(TopicName("t"), PartitionIndex(0))
PATIENCE = dict.fromkeys(("retry_backoff_ms", "retry_backoff_max_ms"), scaled_ms(30_000))
"""Without the hint nothing happens for so long."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    with InProcessCluster(tmp_path, brokers=2) as running:
        running.create_topic("t")
        yield running


def test_producer_and_consumer_go_where_the_old_leader_sends_them(cluster: InProcessCluster) -> None:
    servers = cluster.bootstrap_servers
    with (
        Producer(servers, linger_ms=0, **PATIENCE) as producer,
        Consumer(servers, ["t"], auto_offset_reset="earliest", fetch_max_wait_ms=50, **PATIENCE) as consumer,
    ):
        producer.send("t", b"before").result(scaled(10))
        assert [record.value for records in consumer.poll(scaled_ms(10_000)).values() for record in records] == [
            b"before"
        ]
        move_leader(cluster, TP)
        begun = time.monotonic()
        # The new leader's log is empty: it is no replica. The consumer, at offset 1, goes back to where it begins.
        assert producer.send("t", b"other").result(scaled(20)).offset == 0
        assert producer.send("t", b"after").result(scaled(20)).offset == 1
        values: list[bytes | None] = []
        while len(values) < 2 and (polled := consumer.poll(scaled_ms(20_000))):
            values += [record.value for records in polled.values() for record in records]
        assert values == [b"other", b"after"]
        assert time.monotonic() - begun < PATIENCE["retry_backoff_ms"] / 2_000
