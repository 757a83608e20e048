"""Ctrl-C may come at any line: a consumer that is interrupted while it talks to brokers goes on reading."""

from __future__ import annotations

from pathlib import Path

from kit.cluster import InProcessCluster
from kit.interrupts import Interrupt
from kit.waiting import wait_until
from raylog.client import connection, epoch_checks, fetch_session, fetcher, network, offset_searches, pool
from raylog.client.consumer import Consumer
from raylog.client.producer import Producer

MODULES = (connection, epoch_checks, fetch_session, fetcher, network, offset_searches, pool)


def test_interrupt_in_any_line_of_an_exchange_loses_nothing(tmp_path: Path) -> None:
    settings = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 50, "retry_backoff_ms": 5}
    with InProcessCluster(tmp_path) as cluster:
        cluster.create_topic("t", partitions=1)
        servers = cluster.bootstrap_servers
        with Producer(servers) as producer, Consumer(servers, ["t"], **settings) as consumer:
            found: list[int] = []

            def read(timeout_ms: float = 500) -> None:
                found.extend(record.offset for records in consumer.poll(timeout_ms).values() for record in records)

            interrupts, sent = 0, 0
            while True:
                producer.send("t", b"v")
                producer.flush()
                sent += 1
                try:
                    with Interrupt(interrupts, *MODULES):
                        read(5_000)
                    break
                except KeyboardInterrupt:
                    interrupts += 1
                wait_until(lambda: read() or len(found) >= sent, 20, f"record {sent} came")  # noqa: B023
                assert found == list(range(sent)), f"interrupted at line {interrupts - 1}"
    assert found == list(range(sent))
    assert interrupts > 100
