"""Our own producer and consumer, one process against a broker in another; the last line is one JSON object.

``python tests/bench/bench_client.py [--records N] [--rounds N]``. Rates are records a second of the client's *CPU*
time, of all its threads: what one core does, whatever else runs on the machine. Wall-clock rates stand beside them.
Every round is checked: as many records acknowledged, and the same values read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import pyarrow as pa
from bench_broker import Served

from raylog.client import Consumer, Producer
from raylog.client.aio import AsyncConsumer, AsyncProducer

VALUE_BYTES = 100

TARGETS: dict[str, float] = {"client_send_per_s": 300_000, "client_iterate_per_s": 500_000}
"""Records a second of CPU time by the row API."""


def values(count: int) -> list[bytes]:
    """``count`` values, all different, that compress about as well as text does."""
    return [
        (b"%012d some words that every record has, and then %012d" % (n * 7919, n)).ljust(100) for n in range(count)
    ]


class Rates:
    """Records per CPU second and per second, by name, one of each per round."""

    def __init__(self) -> None:
        self.cpu: dict[str, list[float]] = {}
        self.wall: dict[str, list[float]] = {}

    @contextmanager
    def measure(self, name: str, records: int) -> Iterator[None]:
        cpu, wall = time.process_time(), time.perf_counter()
        yield
        self.cpu.setdefault(name, []).append(records / (time.process_time() - cpu))
        self.wall.setdefault(name, []).append(records / (time.perf_counter() - wall))


def produce(servers: str, topic: str, data: list[bytes], rates: Rates) -> None:
    with Producer(servers, linger_ms=5, batch_size=65_536) as producer, rates.measure("client_send", len(data)):
        deliveries = [producer.send(topic, value) for value in data]
        producer.flush(120)
    assert all(delivery.exception(0) is None for delivery in deliveries)


def produce_columns(servers: str, topic: str, data: pa.Array, rates: Rates) -> None:
    with Producer(servers, batch_size=65_536) as producer, rates.measure("client_send_batch", len(data)):
        landed = producer.send_batch(topic, data).result(120)
    assert sum(run.record_count for run in landed) == len(data)


def iterate(servers: str, topic: str, data: list[bytes], rates: Rates) -> None:
    with (
        Consumer(servers, [topic], auto_offset_reset="earliest") as consumer,
        rates.measure("client_iterate", len(data)),
    ):
        read = [record.value for record in consumer.iterate(until_end=True)]
    assert read == data


def poll(servers: str, topic: str, data: list[bytes], rates: Rates) -> None:
    seen = 0
    with Consumer(servers, [topic], auto_offset_reset="earliest") as consumer, rates.measure("client_poll", len(data)):
        while seen < len(data):
            seen += sum(map(len, consumer.poll(10_000).values()))


def columns(servers: str, topic: str, data: pa.Array, rates: Rates) -> None:
    read: list[pa.ChunkedArray] = []
    with (
        Consumer(servers, [topic], auto_offset_reset="earliest") as consumer,
        rates.measure("client_columns", len(data)),
    ):
        while sum(map(len, read)) < len(data):
            read.append(consumer.poll_columns(10_000)["value"])
    assert pa.chunked_array([chunk for column in read for chunk in column.chunks]).combine_chunks() == data


async def async_produce(servers: str, topic: str, data: list[bytes], rates: Rates) -> None:
    async with AsyncProducer(servers, linger_ms=5, batch_size=65_536) as producer:
        with rates.measure("client_aiosend", len(data)):
            deliveries = [await producer.aiosend(topic, value) for value in data]
            await producer.flush()
    assert all(delivery.exception(0) is None for delivery in deliveries)


async def async_iterate(servers: str, topic: str, data: list[bytes], rates: Rates) -> None:
    seen = 0
    async with AsyncConsumer(servers, [topic], auto_offset_reset="earliest") as consumer:
        with rates.measure("client_async_for", len(data)):
            async for _ in consumer:
                seen += 1
                if seen == len(data):
                    break


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    data = values(options.records)
    column = pa.array(data, pa.binary())
    rates = Rates()
    rounds: list[Callable[[str, str], None]] = [
        lambda servers, topic: produce(servers, topic, data, rates),
        lambda servers, topic: iterate(servers, topic, data, rates),
        lambda servers, topic: poll(servers, topic, data, rates),
        lambda servers, topic: columns(servers, topic, column, rates),
        lambda servers, topic: produce_columns(servers, topic + "-columns", column, rates),
        lambda servers, topic: asyncio.run(async_produce(servers, topic + "-async", data, rates)),
        lambda servers, topic: asyncio.run(async_iterate(servers, topic, data, rates)),
    ]
    with tempfile.TemporaryDirectory() as directory:
        broker = Served("broker", directory)
        try:
            servers = f"{broker.facts['host']}:{broker.facts['port']}"
            for number in range(options.rounds):
                for topic in (names := [f"r{number}", f"r{number}-columns", f"r{number}-async"]):
                    broker.tell(f"create {topic} 1")
                for run in rounds:
                    run(servers, names[0])
                for topic in names:
                    broker.tell(f"delete {topic}")
        finally:
            broker.close()
    figures = {f"{name}_per_s": round(median(found)) for name, found in rates.cpu.items()}
    print(f"{VALUE_BYTES}-byte values, records a second: {'of CPU time':>24} {'of the clock':>14}")
    for name, found in rates.wall.items():
        print(f"{name:<52} {figures[name + '_per_s']:>14,} {round(median(found)):>14,}")
    print(json.dumps(figures))
    return int(any(figures[name] < least for name, least in TARGETS.items()))


if __name__ == "__main__":
    raise SystemExit(main())
