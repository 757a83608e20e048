"""Measures a cluster with this package's own clients: what ``raylog perf`` prints.

Rates are over the wall clock, from the first record to the last one acknowledged or read; MB are 10^6 bytes of values.
Brokers' CPU seconds are those of the processes that listen at the brokers' addresses, where these are on this machine.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import psutil

from raylog.client.admin import Admin
from raylog.client.consumer import Consumer
from raylog.client.delivery import Delivery
from raylog.client.producer import Producer
from raylog.client.results import BrokerDescription
from raylog.protocol.errors import RaylogError, RequestTimedOut

_SAMPLES = 100_000
"""About so many records have their latency taken: more would slow the sender down."""
_PAYLOADS = 64
_IDLE_MS = 5_000
"""How long to wait for a record that should come."""
_POLL_RECORDS = 5_000
_DEFAULTS: Mapping[str, Any] = MappingProxyType({})
_PERCENTILES = (0.5, 0.99, 0.999, 1.0)

Step = Callable[[int, int], None]
"""Told of so many more records and bytes."""


class Report(NamedTuple):
    """What a measurement gives; latencies are None when there was nothing to take them of."""

    test: str
    records: int
    bytes: int
    seconds: float
    records_per_s: float
    mb_per_s: float
    p50_ms: float | None
    p99_ms: float | None
    p99_9_ms: float | None
    max_ms: float | None
    broker_cpu_s: float | None
    """None when a broker runs on another machine, or as somebody else's process."""


def measure_produce(
    servers: str,
    topic: str,
    *,
    records: int,
    record_size: int,
    throughput: float | None = None,
    step: Step = lambda records, size: None,
    config: Mapping[str, Any] = _DEFAULTS,
) -> Report:
    """Send ``records`` values of ``record_size`` random bytes, at most ``throughput`` a second.

    Latency is from send() to the acknowledgement. Raises the error of a delivery that failed.
    """
    payloads = _payloads(record_size)
    every = max(1, records // _SAMPLES)
    latencies: list[float] = []
    failed: list[RaylogError] = []

    def note(begun: float, delivery: Delivery) -> None:
        latencies.append(time.perf_counter() - begun)
        error = delivery.exception()
        if error is not None:
            failed.append(error)

    with Producer(servers, **_names(config)) as producer:
        producer.partitions_for(topic)
        clock = _Clock(servers)
        for number in range(records):
            if throughput is not None:
                _wait_until(clock.begun + number / throughput)
            delivery = producer.send(topic, payloads[number % _PAYLOADS])
            if number % every == 0:
                delivery.add_done_callback(partial(note, time.perf_counter()))
            step(1, record_size)
        producer.flush()
        delivery.result()
        if failed:
            raise failed[0]
        return clock.report("produce", records, records * record_size, latencies)


def measure_consume(
    servers: str,
    topic: str,
    *,
    records: int | None = None,
    step: Step = lambda records, size: None,
    config: Mapping[str, Any] = _DEFAULTS,
) -> Report:
    """Read ``records`` records of the topic from its beginning, by default all that are there now.

    Latency is how long a poll took. Raises RequestTimedOut when there are fewer.
    """
    settings = {"auto.offset.reset": "earliest", "max.poll.records": _POLL_RECORDS, **_names(config)}
    latencies: list[float] = []
    count = size = 0
    with Consumer(servers, [topic], **settings) as consumer:
        if records is None:
            partitions = consumer.assignment()
            ends, starts = consumer.end_offsets(partitions), consumer.beginning_offsets(partitions)
            records = sum(ends[tp] - starts[tp] for tp in partitions)
        clock = _Clock(servers)
        while count < records:
            begun = time.perf_counter()
            polled = consumer.poll(_IDLE_MS, max_records=min(records - count, _POLL_RECORDS))
            latencies.append(time.perf_counter() - begun)
            if not polled:
                raise RequestTimedOut(f"{topic} has {count} records, not {records}; produce more, or ask for fewer")
            got = sum(map(len, polled.values()))
            got_bytes = sum(len(record.value or b"") for batch in polled.values() for record in batch)
            count += got
            size += got_bytes
            step(got, got_bytes)
        return clock.report("consume", count, size, latencies)


def measure_e2e(
    servers: str,
    topic: str,
    *,
    records: int,
    record_size: int,
    step: Step = lambda records, size: None,
    config: Mapping[str, Any] = _DEFAULTS,
) -> Report:
    """Send one record after the other, each when the one before was read; latency is from send() until it was read.

    ``config`` is the producer's; it does not linger.
    """
    latencies: list[float] = []
    payloads = _payloads(record_size)
    with (
        Producer(servers, **{"linger.ms": 0, **_names(config)}) as producer,
        Consumer(servers, [topic]) as consumer,
    ):
        consumer.seek_to_end()
        for tp in consumer.assignment():
            consumer.position(*tp)
        clock = _Clock(servers)
        for number in range(records):
            begun = time.perf_counter()
            delivery = producer.send(topic, payloads[number % _PAYLOADS])
            if not consumer.poll(_IDLE_MS):
                delivery.result(0 if delivery.done() else _IDLE_MS / 1_000)
                raise RequestTimedOut(f"{topic}: a record did not come within {_IDLE_MS} ms of its sending")
            latencies.append(time.perf_counter() - begun)
            step(1, record_size)
        return clock.report("e2e", records, records * record_size, latencies)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest of the ordered values that at least ``share`` of all do not exceed."""
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


class BrokerCpu:
    """The CPU time of brokers' processes; none when one is out of sight."""

    def __init__(self, brokers: Iterable[BrokerDescription]) -> None:
        self._processes: list[psutil.Process] | None = _listeners(brokers)

    def seconds(self) -> float | None:
        """User and system time of all of them so far."""
        if not self._processes:
            return None
        try:
            times = [process.cpu_times() for process in self._processes]
        except psutil.Error:
            return None
        return float(sum(spent.user + spent.system for spent in times))


class _Clock:
    """Begins when it is made."""

    def __init__(self, servers: str) -> None:
        with Admin(servers) as admin:
            self._cpu = BrokerCpu(admin.describe_cluster().brokers)
        self._cpu_before = self._cpu.seconds()
        self.begun = time.perf_counter()

    def report(self, test: str, records: int, size: int, latencies: list[float]) -> Report:
        seconds = max(time.perf_counter() - self.begun, 1e-9)
        cpu = self._cpu.seconds()
        spent = None if cpu is None or self._cpu_before is None else cpu - self._cpu_before
        ordered = sorted(latency * 1_000 for latency in latencies)
        p50, p99, p99_9, most = (round(percentile(ordered, at), 3) if ordered else None for at in _PERCENTILES)
        return Report(
            test, records, size, round(seconds, 3), round(records / seconds, 1), round(size / seconds / 1e6, 3),
            p50, p99, p99_9, most, None if spent is None else round(spent, 3),
        )  # fmt: skip


def _listeners(brokers: Iterable[BrokerDescription]) -> list[psutil.Process] | None:
    """The processes that listen at the brokers' addresses, each once; None when one can't be found here."""
    try:
        listening = {
            (connection.laddr.ip, connection.laddr.port): connection.pid
            for connection in psutil.net_connections(kind="tcp")
            if connection.status == psutil.CONN_LISTEN
        }
        pids = {next(filter(None, map(listening.get, _bound_to(broker))), None) for broker in brokers}
        return None if None in pids else [psutil.Process(pid) for pid in pids]
    except (psutil.Error, OSError):
        return None


def _bound_to(broker: BrokerDescription) -> Iterator[tuple[str, int]]:
    """Where a broker of this machine may be bound to; nothing for another machine's."""
    ours = {address.address for addresses in psutil.net_if_addrs().values() for address in addresses}
    for *_, (ip, *_) in socket.getaddrinfo(broker.host, broker.port, type=socket.SOCK_STREAM):
        if ip in ours:
            yield from ((bound, broker.port) for bound in (str(ip), "0.0.0.0", "::"))


def _payloads(size: int) -> list[bytes]:
    return [os.urandom(size) for _ in range(_PAYLOADS)]


def _names(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "."): value for name, value in config.items()}


def _wait_until(due: float) -> None:
    left = due - time.perf_counter()
    if left > 0:
        time.sleep(left)
