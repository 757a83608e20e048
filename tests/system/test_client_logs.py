"""What clients log while brokers come and go: each event once, with its place, and no storm."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from kit.cluster import InProcessCluster
from kit.machine import scaled
from kit.proxy import Fate, FrameProxy
from kit.waiting import wait_until
from raylog.client import Consumer, Producer
from raylog.protocol.errors import RequestTimedOut

PRODUCE = 0
DOWN_MS = 10_000
HASTY = {"reconnect_backoff_ms": 5, "reconnect_backoff_max_ms": 10, "retry_backoff_ms": 5, "retry_backoff_max_ms": 10}
"""A hundred tries a second: a line for each would be a storm."""


@pytest.fixture
def proxied(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[FrameProxy]:
    """One broker behind a proxy, with a topic ``t``."""
    caplog.set_level(logging.INFO, "raylog.client")
    with FrameProxy() as proxy:
        config = {
            "listeners": "PLAINTEXT://{}:{}".format(*proxy.target),
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}",
        }
        with InProcessCluster(tmp_path, config=config) as running:
            running.create_topic("t", partitions=1)
            yield proxy


def lines(caplog: pytest.LogCaptureFixture, *words: str) -> list[str]:
    """Of clients, with all these words."""
    told = [record.getMessage() for record in caplog.records if record.name.startswith("raylog.client")]
    return [line for line in told if all(word in line for word in words)]


def test_a_broker_that_is_down_leaves_a_few_lines(proxied: FrameProxy, caplog: pytest.LogCaptureFixture) -> None:
    address = f"127.0.0.1:{proxied.port}"
    with (
        Producer(address, client_id="sender", delivery_timeout_ms=DOWN_MS, linger_ms=0, **HASTY) as producer,
        Consumer(address, ["t"], client_id="reader", auto_offset_reset="earliest", **HASTY) as consumer,
    ):
        producer.send("t", b"there").result(scaled(10))
        assert wait_until(lambda: consumer.poll(100), 10, "the record comes")
        assert len(lines(caplog, "client sender", "connected to", address)) == 1
        proxied.close()
        lost = producer.send("t", b"not there")
        wait_until(lambda: consumer.poll(100) or lost.done(), 30, "the broker was down for long")
        assert isinstance(lost.exception(0), RequestTimedOut)
        for client in ("client sender", "client reader"):
            assert len(lines(caplog, client, "lost", address)) == 1
            assert len(lines(caplog, client, "cannot be connected to", address)) == 1
        assert len(lines(caplog, "client sender", "t-0", "not delivered")) == 1
        assert len(lines(caplog)) <= 9, lines(caplog)
        proxied.reopen()
        producer.send("t", b"there again").result(scaled(10))
        assert wait_until(lambda: consumer.poll(100), 10, "the record comes")
    for client in ("client sender", "client reader"):
        assert len(lines(caplog, f"{client}: connected to broker {address} again")) == 1


def test_records_that_are_sent_again_are_told_once(proxied: FrameProxy, caplog: pytest.LogCaptureFixture) -> None:
    numbers = count()
    proxied.on_answer = lambda key: Fate.CUT if key == PRODUCE and next(numbers) < 20 else Fate.PASS
    address = f"127.0.0.1:{proxied.port}"
    with Producer(address, client_id="sender", linger_ms=0, **HASTY) as producer:
        producer.send("t", b"v").result(scaled(30))
        assert producer.metrics()["record-retry-total"] >= 20
    assert len(lines(caplog, "client sender", "t-0", "sent again", address)) == 1


def test_a_partition_without_a_leader_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with InProcessCluster(tmp_path, brokers=2) as cluster:
        cluster.create_topic("t", partitions=2)
        servers = cluster.bootstrap_servers
        stopped = next(number for number, broker in cluster.brokers.items() if broker is cluster.leader("t", 1))
        with Consumer(servers, ["t"], client_id="reader", auto_offset_reset="earliest", **HASTY) as consumer:
            consumer.poll(100)
            cluster.stop(stopped)
            wait_until(lambda: consumer.poll(50) or lines(caplog, "client reader", "t-1", "nobody leads"), 20, "a line")
            for _ in range(10):
                consumer.poll(50)
    assert len(lines(caplog, "nobody leads")) == 1
