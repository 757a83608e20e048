"""Records that a group's handler refuses, sent to a topic of their own with what went wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from raylog.client.delivery import Delivery
from raylog.client.handlers.batches import HandlerBatch, RawRecord
from raylog.client.producer import Producer
from raylog.protocol.errors import InvalidTimestamp, MessageTooLarge, RecordListTooLarge
from raylog.protocol.ids import NO_TIMESTAMP, GroupId, TopicPartition
from raylog.protocol.logs import Logger
from raylog.protocol.texts import safe_text, says, traced

log = Logger(__name__)

SETTLE_S = 60.0
"""How long a dead letter may take to be acknowledged. The member is not polled meanwhile: far below
max.poll.interval.ms."""
MAX_LETTER = 32 << 20
"""Bytes: below that the topic's max.message.bytes alone says how large a letter may be."""
PREFIX = "__connect.errors."
LEFT_OUT = "__raylog.errors.left.out"
TIMESTAMP = "__raylog.errors.timestamp"
TOO_LARGE = (MessageTooLarge, RecordListTooLarge)
Headers = dict[str, str]


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

    What is larger with them than the topic's max.message.bytes goes without message and stack trace. What is too large
    even so goes without its own key, value and headers, and ``__raylog.errors.left.out`` says how large they were; the
    record lies where the headers say, for as long as its topic keeps it. A record whose timestamp the topic does not
    take (``message.timestamp.after.max.ms``) goes with the present one, and its own in ``__raylog.errors.timestamp``.
    """

    def __init__(self, bootstrap_servers: str, topic: str, group: GroupId) -> None:
        self._servers = bootstrap_servers
        self._topic = topic
        self._group = group
        self._producer: Producer | None = None

    def send(self, batch: HandlerBatch, error: Exception) -> None:
        """See :class:`DeadLetters`."""
        if self._producer is None:  # most groups never need one
            self._producer = Producer(
                self._servers,
                delivery_timeout_ms=int(SETTLE_S * 1_000),
                max_request_size=MAX_LETTER,
                buffer_memory=MAX_LETTER,
            )
        producer, kind = self._producer, type(error)
        short = {"connector.name": self._group, "exception.class.name": f"{kind.__module__}.{kind.__qualname__}"}
        full = short | {"exception.message": says(error), "exception.stacktrace": traced(error)}

        def whole(raw: RawRecord) -> Delivery:
            return self._letter(producer, batch.tp, raw, full)

        def without_trace(raw: RawRecord) -> Delivery:
            return self._letter(producer, batch.tp, raw, short)

        def without_record(raw: RawRecord) -> Delivery:
            size = len(raw.key or b"") + len(raw.value or b"")
            log.error(
                "%s, offset %d: the record (%d bytes) is too large for dead-letter topic %s, which gets its place "
                "alone; raise that topic's max.message.bytes",
                batch.tp, raw.offset, size, self._topic,
            )  # fmt: skip
            left_out = f"key and value of {size} bytes, {len(raw.headers)} headers"
            bare = raw._replace(key=None, value=None, headers=[(LEFT_OUT, left_out.encode())])
            return self._letter(producer, batch.tp, bare, full)

        left = list(batch.raw())
        for write in (whole, without_trace):
            left = _too_large(left, write)
        for delivery in [without_record(raw) for raw in left]:
            delivery.result(SETTLE_S)

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()

    def _letter(self, producer: Producer, tp: TopicPartition, raw: RawRecord, told: Headers) -> Delivery:
        place = {"topic": tp.topic, "partition": str(tp.partition), "offset": str(raw.offset)}
        headers = [(PREFIX + name, safe_text(text, len(text)).encode()) for name, text in (place | told).items()]
        timestamp = raw.timestamp if raw.timestamp >= 0 else None
        return producer.send(self._topic, raw.value, raw.key, headers=[*raw.headers, *headers], timestamp=timestamp)


def _too_large(records: Iterable[RawRecord], write: Callable[[RawRecord], Delivery]) -> list[RawRecord]:
    """Write letters for these, and wait for them; those whose letters are too large. What is refused for its timestamp
    is written without. Raises other errors."""
    found: list[RawRecord] = []
    untimely: list[RawRecord] = []
    under_way: list[tuple[RawRecord, Delivery]] = []
    for raw in records:
        try:
            under_way.append((raw, write(raw)))
        except TOO_LARGE:
            found.append(raw)
    for raw, delivery in under_way:
        try:
            delivery.result(SETTLE_S)
        except TOO_LARGE:
            found.append(raw)
        except InvalidTimestamp:
            if raw.timestamp < 0:
                raise
            headers = [*raw.headers, (TIMESTAMP, b"%d" % raw.timestamp)]
            untimely.append(raw._replace(timestamp=NO_TIMESTAMP, headers=headers))
    return found + (_too_large(untimely, write) if untimely else [])
