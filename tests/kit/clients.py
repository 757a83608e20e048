"""Kafka clients behind one small face: write rows to a partition, read a partition from its beginning.

Each runs with its own defaults; what differs from them is said here. A row is (key, value, headers).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import islice
from typing import Any, Protocol

import confluent_kafka
import kafka

from raylog.client import Consumer, Producer

Headers = Sequence[tuple[str, bytes | None]]
Row = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]

TIMEOUT_S = 20.0


class Client(Protocol):
    """One client library."""

    name: str
    null_headers: bool
    """Whether it can write a header without a value."""

    def write(self, servers: str, topic: str, partition: int, rows: Sequence[Row], compression: str) -> None:
        """Send the rows in order and return once all are acknowledged; raises when one is not."""

    def read(self, servers: str, topic: str, partition: int, count: int) -> list[Row]:
        """The first ``count`` rows of the partition."""


class Confluent:
    """confluent-kafka over librdkafka. ``linger.ms``: its records come in batches; large messages are let through."""

    name = "confluent-kafka"
    null_headers = True

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


class KafkaPython:
    """kafka-python; its producer is idempotent by default."""

    name = "kafka-python"
    null_headers = False

    def write(self, servers: str, topic: str, partition: int, rows: Sequence[Row], compression: str) -> None:
        codec = None if compression == "none" else compression
        producer = kafka.KafkaProducer(bootstrap_servers=servers.split(","), compression_type=codec, linger_ms=50)
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
            bootstrap_servers=servers.split(","), auto_offset_reset="earliest", group_id=None
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


class Raylog:
    """Our own."""

    name = "raylog"
    null_headers = True

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
            found = islice(consumer.iterate(timeout_ms=TIMEOUT_S * 1_000), count)
            return [(record.key, record.value, list(record.headers)) for record in found]


CLIENTS: tuple[Client, ...] = (Confluent(), KafkaPython(), Raylog())
