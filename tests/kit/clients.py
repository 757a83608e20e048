"""Kafka clients behind one small face: write rows to a partition, read a partition from its beginning.

Each runs with its own defaults; what differs from them is said here. A row is (key, value, headers).
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from itertools import islice
from typing import Any, Protocol

import aiokafka
import confluent_kafka
import kafka

from kit.machine import SLOWNESS
from raylog.client import Consumer, Producer

Headers = Sequence[tuple[str, bytes | None]]
Row = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]

TIMEOUT_S = 20.0 * SLOWNESS


class Client(Protocol):
    """One client library."""

    name: str
    idempotent: bool
    """Whether its producer is, as it is used here."""

    def writable(self, rows: Sequence[Row]) -> list[Row]:
        """What of the rows it can write."""

    def readable(self, row: Row) -> Row:
        """What it can tell of a row."""

    def write(self, servers: str, topic: str, partition: int, rows: Sequence[Row], compression: str) -> None:
        """Send the rows in order and return once all are acknowledged; raises when one is not."""

    def read(self, servers: str, topic: str, partition: int, count: int) -> list[Row]:
        """The first ``count`` rows of the partition."""


class Whole:
    """Writes and reads everything that a record can hold."""

    def writable(self, rows: Sequence[Row]) -> list[Row]:
        return list(rows)

    def readable(self, row: Row) -> Row:
        return row


class NoNullHeaders(Whole):
    """Cannot write a header without a value."""

    def writable(self, rows: Sequence[Row]) -> list[Row]:
        return [(key, value, [header for header in headers if header[1] is not None]) for key, value, headers in rows]


class Confluent(Whole):
    """confluent-kafka over librdkafka. ``linger.ms``: its records come in batches; large messages are let through."""

    name = "confluent-kafka"
    idempotent = False

    def write(self, servers: str, topic: str, partition: int, rows: Sequence[Row], compression: str) -> None:
        config = {
            "bootstrap.servers": servers,
            "compression.type": compression,
            "linger.ms": 50,
            "message.max.bytes": 1_100_000,
        }
        producer = confluent_kafka.Producer(config)
        errors: list[object] = []

        def note(error: object, _: object) -> None:
            if error is not None:
                errors.append(error)

        for key, value, headers in rows:
            producer.produce(topic, value, key, partition, note, headers=list[Any](headers))
        left = producer.flush(TIMEOUT_S)
        assert (left, errors) == (0, [])

    def read(self, servers: str, topic: str, partition: int, count: int) -> list[Row]:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": servers, "group.id": "unused", "enable.auto.commit": False}
        )
        try:
            consumer.list_topics(topic, TIMEOUT_S)  # whoever assigns what it does not know waits half a second
            consumer.assign([confluent_kafka.TopicPartition(topic, partition, confluent_kafka.OFFSET_BEGINNING)])
            rows: list[Row] = []
            deadline = time.monotonic() + TIMEOUT_S
            while len(rows) < count:
                assert time.monotonic() < deadline, f"{len(rows)} of {count} records within {TIMEOUT_S} s"
                for message in consumer.consume(count - len(rows), 0.2):
                    assert message.error() is None, message.error()
                    found: Any = message.headers() or []
                    rows.append((message.key(), message.value(), list(found)))
            return rows
        finally:
            consumer.close()


class KafkaPython(NoNullHeaders):
    """kafka-python; its producer is idempotent by default. ``api_version``: the release of Kafka whose API versions
    it is to use, instead of the newest that it shares with the broker.
    """

    name = "kafka-python"
    idempotent = True

    def __init__(self, api_version: tuple[int, ...] | None = None) -> None:
        self._release: dict[str, Any] = {}
        if api_version is not None:
            self.name += "-" + ".".join(map(str, api_version))
            self._release = {"api_version": api_version}

    def write(self, servers: str, topic: str, partition: int, rows: Sequence[Row], compression: str) -> None:
        codec = None if compression == "none" else compression
        producer = kafka.KafkaProducer(
            bootstrap_servers=servers.split(","), compression_type=codec, linger_ms=50, **self._release
        )
        try:
            futures = [
                producer.send(topic, value, key, headers=headers, partition=partition) for key, value, headers in rows
            ]
            producer.flush(TIMEOUT_S)
            for future in futures:
                future.get(TIMEOUT_S)
        finally:
            producer.close()

    def read(self, servers: str, topic: str, partition: int, count: int) -> list[Row]:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=servers.split(","), auto_offset_reset="earliest", group_id=None, **self._release
        )
        try:
            consumer.assign([kafka.TopicPartition(topic, partition)])
            rows: list[Row] = []
            deadline = time.monotonic() + TIMEOUT_S
            while len(rows) < count:
                assert time.monotonic() < deadline, f"{len(rows)} of {count} records within {TIMEOUT_S} s"
                for records in consumer.poll(timeout_ms=200).values():
                    rows += [(record.key, record.value, list(record.headers)) for record in records]
            return rows
        finally:
            consumer.close()


class AioKafka(NoNullHeaders):
    """aiokafka, whose requests are of old, non-flexible versions."""

    name = "aiokafka"
    idempotent = False

    def write(self, servers: str, topic: str, partition: int, rows: Sequence[Row], compression: str) -> None:
        codec = None if compression == "none" else compression

        async def send() -> None:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=servers.split(","), compression_type=codec, linger_ms=50
            )
            await producer.start()
            try:
                sent = [
                    await producer.send(topic, value, key, partition=partition, headers=headers)
                    for key, value, headers in rows
                ]
                await asyncio.wait_for(asyncio.gather(*sent), TIMEOUT_S)
            finally:
                await producer.stop()

        asyncio.run(send())

    def read(self, servers: str, topic: str, partition: int, count: int) -> list[Row]:
        async def receive() -> list[Row]:
            consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=servers.split(","), auto_offset_reset="earliest")
            await consumer.start()
            try:
                consumer.assign([aiokafka.TopicPartition(topic, partition)])
                rows: list[Row] = []
                while len(rows) < count:
                    record = await asyncio.wait_for(consumer.getone(), TIMEOUT_S)
                    rows.append((record.key, record.value, list(record.headers)))
                return rows
            finally:
                await consumer.stop()

        return asyncio.run(receive())


class Kcat:
    """kcat, a command in C over librdkafka. It cannot write empty or null values nor headers of single records, and
    what it says of headers cannot be told apart, so they are left to a test of their own.
    """

    name = "kcat"
    idempotent = False
    _ROW, _KEY = "<row raylog>", "<key raylog>"

    @staticmethod
    def missing() -> bool:
        """Whether it is not installed."""
        return shutil.which("kcat") is None

    def writable(self, rows: Sequence[Row]) -> list[Row]:
        return [(key, value, []) for key, value, _ in rows if value and key != b""]

    def readable(self, row: Row) -> Row:
        return row[0], row[1], []

    def write(self, servers: str, topic: str, partition: int, rows: Sequence[Row], compression: str) -> None:
        keyed = [(b"" if key is None else key + self._KEY.encode()) + (value or b"") for key, value, _ in rows]
        settings = [f"compression.codec={compression}", "queue.buffering.max.ms=50", "message.max.bytes=1100000"]
        options = [word for setting in settings for word in ("-X", setting)]
        self.run("-P", servers, topic, partition, "-D", self._ROW, "-K", self._KEY, *options,
                 stdin=self._ROW.encode().join(keyed))  # fmt: skip

    def read(self, servers: str, topic: str, partition: int, count: int) -> list[Row]:
        output = self.run("-C", servers, topic, partition, "-o", "beginning", "-c", count, "-f", "%K %S\n%k%s")
        rows: list[Row] = []
        at = 0
        while at < len(output):
            lengths = re.compile(rb"(-?\d+) (-?\d+)\n").match(output, at)
            assert lengths is not None, output[at : at + 40]
            at = lengths.end()
            fields: list[bytes | None] = []
            for length in map(int, lengths.groups()):
                fields.append(None if length < 0 else output[at : at + length])
                at += max(length, 0)
            rows.append((fields[0], fields[1], []))
        return rows

    def run(self, mode: str, servers: str, topic: str, partition: int, *options: object, stdin: bytes = b"") -> bytes:
        """Run one command; its output."""
        command = ["kcat", mode, "-q", "-b", servers, "-t", topic, "-p", str(partition), *map(str, options)]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout


class Raylog(Whole):
    """Our own."""

    name = "raylog"
    idempotent = True

    def write(self, servers: str, topic: str, partition: int, rows: Sequence[Row], compression: str) -> None:
        with Producer(servers, compression_type=compression, linger_ms=50) as producer:
            deliveries = [
                producer.send(topic, value, key, partition=partition, headers=headers) for key, value, headers in rows
            ]
        for delivery in deliveries:
            delivery.result(0)

    def read(self, servers: str, topic: str, partition: int, count: int) -> list[Row]:
        with Consumer(servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([(topic, partition)])
            found = islice(consumer.iterate(timeout_ms=int(TIMEOUT_S * 1_000)), count)
            return [(record.key, record.value, list(record.headers)) for record in found]


PYTHON_CLIENTS: tuple[Client, ...] = (Confluent(), KafkaPython(), AioKafka(), Raylog())
