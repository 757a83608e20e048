"""Ctrl-C and signal handlers may come at any line: a consumer goes on reading, where it was or where it was sent to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count, islice
from pathlib import Path

import pytest

from kit.cluster import InProcessCluster
from kit.forms import NIGHTLY, begin
from kit.interrupts import Interrupt, struck
from kit.machine import scaled
from kit.waiting import wait_until
from raylog.client import consumer as shell
from raylog.client import consumer_core, producer_core
from raylog.client.aio import AsyncProducer
from raylog.client.consumer import Consumer
from raylog.client.delivery import Delivery
from raylog.client.fetch import epoch_checks, fetch_session, fetch_state, fetcher, offset_searches, subscription
from raylog.client.network import connection, network, pool
from raylog.client.producer import Producer

STRIKES = 40 if NIGHTLY else 20
EACH = 1 if NIGHTLY else 3
"""Of the lines, each so many'th is interrupted."""
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

            interrupts, sent = begin(EACH), 0
            while True:
                producer.send("t", b"v")
                producer.flush()
                sent += 1
                try:
                    with Interrupt(interrupts, *MODULES):
                        read(5_000)
                    break
                except KeyboardInterrupt:
                    interrupts += EACH
                wait_until(lambda: read() or len(found) >= sent, 20, f"record {sent} came")  # noqa: B023
                assert found == list(range(sent)), f"interrupted at line {interrupts - EACH}"
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
    records = 6
    with InProcessCluster(tmp_path) as cluster:
        cluster.create_topic("t")
        servers = cluster.bootstrap_servers
        with Producer(servers) as producer:
            for _ in range(3):
                producer.send_batch("t", [b"v"] * (records // 3)).result(scaled(20))
        with Consumer(servers, ["t"], fetch_max_wait_ms=50, max_partition_fetch_bytes=100) as consumer:
            seeks: list[int] = []
            for nth in count(begin(EACH), EACH):
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
                wait_until(lambda: found.extend(read(consumer)) or found[-1:] == [records - 1], 20, "the end")  # noqa: B023
                before, after = found[:-records], found[-records:]
                assert (before, after) == (list(range(len(before))), list(range(records))), f"at line {nth}"
    assert len(seeks) * EACH > 50


@pytest.mark.parametrize("rows", [None, [b"v"]], ids=["record", "columns"])
def test_record_behind_an_interrupted_one_is_sent(tmp_path: Path, rows: list[bytes] | None) -> None:
    """In any line of the call: it had a batch opened, say, and the sender was not woken for it."""
    with InProcessCluster(tmp_path) as cluster:
        cluster.create_topic("t")
        with Producer(cluster.bootstrap_servers) as producer:
            producer.send("t", b"first").result(scaled(20))
            for nth in count(begin(EACH), EACH):
                with suppress(KeyboardInterrupt), Interrupt(nth, producer_core) as interrupt:
                    producer.send("t", b"v") if rows is None else producer.send_batch("t", rows)
                producer.send("t", b"behind it").result(scaled(20))
                if not interrupt.reached:
                    break
    assert nth > 10


def test_interrupted_producer_goes_on_and_keeps_its_promises(tmp_path: Path) -> None:
    """Ctrl-C at any time of a loop that sends, and of one that waits for what it sent."""
    with InProcessCluster(tmp_path) as cluster:
        cluster.create_topic("t")
        with Producer(cluster.bootstrap_servers, batch_size=2_000) as producer:
            promised: list[Delivery] = []

            def send() -> None:
                promised.append(producer.send("t", b"v" * 50))

            def send_and_wait() -> None:
                promised.append(producer.send("t", b"v" * 50))
                producer.flush(20)

            for nth in range(2 * STRIKES):
                struck((send, send_and_wait)[nth % 2], 0.005)
                producer.send("t", b"after").result(scaled(20))
            offsets = [delivery.result(scaled(20)).offset for delivery in promised]
    assert offsets == sorted(set(offsets))


def test_interrupted_loop_reads_on_and_can_be_closed(tmp_path: Path) -> None:
    """Ctrl-C at any time of a loop that reads: each record comes once, and the consumer is free."""
    with InProcessCluster(tmp_path) as cluster:
        cluster.create_topic("t")
        servers = cluster.bootstrap_servers
        with Producer(servers) as producer:
            producer.send_batch("t", [b"v"] * 200_000).result(scaled(20))
        found: list[int] = []
        with Consumer(servers, ["t"], auto_offset_reset="earliest", max_partition_fetch_bytes=10_000) as consumer:

            def read() -> None:
                for record in islice(consumer, 1_000):
                    found.append(record.offset)

            for _ in range(STRIKES):
                found.clear()
                consumer.seek("t", 0, 0)
                struck(read, 0.005)
                polled = wait_until(lambda: consumer.poll(1_000, max_records=1), 20, "it reads on")
                found.extend(record.offset for records in polled.values() for record in records)
                assert found == list(range(len(found)))


def test_interrupted_event_loop_goes_on_sending(tmp_path: Path) -> None:
    """In a loop that asyncio.run did not begin, Ctrl-C is raised in whatever it does: here, as a producer sends."""
    config = {"reconnect_backoff_ms": 1, "reconnect_backoff_max_ms": 1, "retry_backoff_ms": 1, "linger_ms": 0}
    with InProcessCluster(tmp_path) as cluster:
        cluster.create_topic("t")
        loop = asyncio.new_event_loop()

        async def made() -> AsyncProducer:
            return AsyncProducer(cluster.bootstrap_servers, **config)

        async def send() -> None:
            promised.append(await producer.aiosend("t", b"v"))
            await producer.flush(20)

        producer = loop.run_until_complete(made())
        promised: list[Delivery] = []
        for nth in range(0, 140, 5):
            sending = loop.create_task(send())
            with suppress(KeyboardInterrupt), Interrupt(nth, pool, connection):
                loop.run_until_complete(sending)
            if not sending.done():
                loop.run_until_complete(sending)
            loop.run_until_complete(producer.flush(20))
        offsets = [delivery.result().offset for delivery in promised]
        loop.run_until_complete(producer.close())
        loop.close()
    assert offsets == list(range(len(offsets)))
    assert len(offsets) > 20
