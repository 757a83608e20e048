"""Records that a group's handler refuses, sent to a topic of their own with what went wrong."""

from __future__ import annotations

import traceback
from typing import Protocol

from raylog.client.group_batches import HandlerBatch
from raylog.client.producer import Producer
from raylog.protocol.ids import GroupId

SETTLE_S = 60.0
"""How long a dead letter may take to be acknowledged. The member is not polled meanwhile: far below
max.poll.interval.ms."""
PREFIX = "__connect.errors."
MOST_TEXT = 10_000
"""Characters of a message or a stack trace; the rest is cut off, or a letter might grow too large to be sent."""


class DeadLetters(Protocol):
    """Where refused records go."""

    def send(self, batch: HandlerBatch, error: Exception) -> None:
        """Returns once all records are safe; else raises what the producer raises, or TimeoutError."""

    def close(self) -> None: ...


class DeadLetterTopic:
    """Sends records as they were read, key, value, headers and timestamp, with headers in addition.

    These have Kafka Connect's names: ``__connect.errors.topic``, ``.partition``, ``.offset``, ``.connector.name`` (the
    group), ``.exception.class.name``, ``.exception.message``, ``.exception.stacktrace``; all are text. A record that is
    refused again after a crash is sent again.
    """

    def __init__(self, bootstrap_servers: str, topic: str, group: GroupId) -> None:
        self._servers = bootstrap_servers
        self._topic = topic
        self._group = group
        self._producer: Producer | None = None

    def send(self, batch: HandlerBatch, error: Exception) -> None:
        """See :class:`DeadLetters`."""
        if self._producer is None:  # most groups never need one
            self._producer = Producer(self._servers, delivery_timeout_ms=int(SETTLE_S * 1_000))
        told = _told(error)
        deliveries = []
        for raw in batch.raw():
            origin = {
                "topic": batch.tp.topic,
                "partition": str(batch.tp.partition),
                "offset": str(raw.offset),
                "connector.name": self._group,
            }
            headers = [(PREFIX + name, text.encode()) for name, text in (origin | told).items()]
            timestamp = raw.timestamp if raw.timestamp >= 0 else None
            deliveries.append(
                self._producer.send(
                    self._topic, raw.value, raw.key, headers=[*raw.headers, *headers], timestamp=timestamp
                )
            )
        for delivery in deliveries:
            delivery.result(SETTLE_S)

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()


def _told(error: Exception) -> dict[str, str]:
    kind = type(error)
    return {
        "exception.class.name": f"{kind.__module__}.{kind.__qualname__}",
        "exception.message": str(error)[:MOST_TEXT],
        "exception.stacktrace": "".join(traceback.format_exception(error))[-MOST_TEXT:],
    }
