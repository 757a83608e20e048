"""Ctrl-C and signal handlers may come at any line: a consumer goes on reading, where it was or where it was sent to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

import pytest

from kit.cluster import InProcessCluster
from kit.interrupts import Interrupt
from kit.waiting import wait_until
from raylog.client import (
    connection,
    consumer_core,
    epoch_checks,
    fetch_session,
    fetch_state,
    fetcher,
    network,
    offset_searches,
    pool,
    subscription,
)
from raylog.client import consumer as shell
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


def polled(consumer: Consumer) -> Iterable[int]:
    return [record.offset for records in consumer.poll(200, max_records=1).values() for record in records]


def batches(consumer: Consumer) -> Iterable[int]:
    return [record.offset for found in consumer.poll_batches(200).values() for record in found.records()]


def columns(consumer: Consumer) -> Iterable[int]:
    return consumer.poll_columns(200)["offset"].to_pylist()  # type: ignore[no-any-return]


def iterated(consumer: Consumer) -> Iterable[int]:
    return [record.offset for record in islice(consumer.iterate(timeout_ms=20), 2)]


def iterated_to_end(consumer: Consumer) -> Iterable[int]:
    return [record.offset for record in islice(consumer.iterate(until_end=True), 2)]


@pytest.mark.parametrize("read", [polled, batches, columns, iterated, iterated_to_end])
def test_seek_in_any_line_of_a_call_holds(read: Callable[[Consumer], Iterable[int]], tmp_path: Path) -> None:
    """By a signal handler, or another thread: nothing that was read before it moves the position."""
    count = 6
    with InProcessCluster(tmp_path) as cluster:
        cluster.create_topic("t")
        servers = cluster.bootstrap_servers
        with Producer(servers) as producer:
            for _ in range(3):
                producer.send_batch("t", [b"v"] * (count // 3)).result(20)
        with Consumer(servers, ["t"], fetch_max_wait_ms=50, max_partition_fetch_bytes=100) as consumer:
            seeks: list[int] = []
            for nth in range(10_000):
                found: list[int] = []
                consumer.seek("t", 0, 0)
                wait_until(lambda: found.extend(read(consumer)) or found, 20, "the first records")  # noqa: B023
                with Interrupt(
                    nth,
                    *(shell, consumer_core, fetch_state, subscription, fetcher),
                    handler=lambda: (seeks.append(nth), consumer.seek("t", 0, 0)),  # noqa: B023
                    but=(subscription.Place.move, subscription.Place.one_by_one),
                ):
                    found.extend(read(consumer))
                if nth not in seeks:
                    break
                wait_until(lambda: found.extend(read(consumer)) or found[-1:] == [count - 1], 20, "the end")  # noqa: B023
                before, after = found[:-count], found[-count:]
                assert (before, after) == (list(range(len(before))), list(range(count))), f"at line {nth}"
    assert len(seeks) > 50
