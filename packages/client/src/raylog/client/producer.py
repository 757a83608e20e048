"""The producer: records in, whole batches out, a future for every record."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from threading import Condition
from types import TracebackType
from typing import Any, Self

from raylog.client.accumulator import RECORD_OVERHEAD, Accumulator
from raylog.client.config import (
    BATCH_SIZE,
    BUFFER_MEMORY,
    LINGER_MS,
    MAX_BLOCK_MS,
    MAX_REQUEST_SIZE,
    PARTITIONER,
    PRODUCER_SETTINGS,
    client_settings,
    producer_guarantees,
)
from raylog.client.delivery import BatchOutcome, Delivery
from raylog.client.network import Network
from raylog.client.partitioner import KeyPartitioner, StickyPartitioner
from raylog.client.pool import monotonic_ms
from raylog.client.sender import Sender
from raylog.client.serde import Serializer, serializer
from raylog.protocol.errors import (
    InvalidPartitions,
    InvalidRecord,
    InvalidTopic,
    MessageTooLarge,
    RaylogError,
    RequestTimedOut,
    is_retriable,
)
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition
from raylog.protocol.records import HEADER_SIZE, Record

_MAX_INT64 = 2**63 - 1
Headers = Sequence[tuple[str, bytes | None]]


class _Route:
    """Where one topic's records go: what of the metadata is needed per record."""

    __slots__ = ("count", "led", "next", "sticky", "tps", "version")

    def __init__(self, topic: str, count: int, led: tuple[int, ...], sticky: StickyPartitioner, version: int) -> None:
        self.tps = [TopicPartition(TopicName(topic), PartitionIndex(index)) for index in range(count)]
        self.count = count
        self.led = led
        self.sticky = sticky
        self.next = 0
        self.version = version


class Producer:
    """Sends records in batches; safe to use from many threads.

    ``config`` takes Kafka's producer settings with underscores (``linger_ms=20, compression_type="zstd"``).
    ``key_serializer`` and ``value_serializer`` are msgpack, bytes, str, json or a function; bytes and None
    pass through msgpack, str and bytes as they are. Raises InvalidConfig.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        key_serializer: str | Serializer = "msgpack",
        value_serializer: str | Serializer = "msgpack",
        **config: Any,
    ) -> None:
        settings = client_settings(PRODUCER_SETTINGS, bootstrap_servers, config)
        producer_guarantees(settings)
        self._serialize_key = serializer(key_serializer)
        self._serialize_value = serializer(value_serializer)
        self._max_block_s = settings[MAX_BLOCK_MS] / 1_000
        self._largest = min(settings[MAX_REQUEST_SIZE], settings[BUFFER_MEMORY]) - HEADER_SIZE
        self._batch_size = settings[BATCH_SIZE]
        self._by_key = settings[PARTITIONER] == "murmur2"
        self._keys = KeyPartitioner()
        self._routes: dict[str, _Route] = {}
        self._lock = Condition()
        self._accumulator: Accumulator[BatchOutcome] = Accumulator(
            batch_size=settings[BATCH_SIZE],
            linger_ms=settings[LINGER_MS],
            buffer_memory=settings[BUFFER_MEMORY],
            new_outcome=lambda tp: BatchOutcome(tp.topic, tp.partition),
        )
        self._network = Network(settings, allow_auto_create=True)
        self._sender = Sender(settings, self._network, self._accumulator, self._lock)
        self._closed = False

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> Delivery:
        """Queue one record and promise its delivery; ``.result(timeout_s)`` gives its RecordMetadata.

        ``timestamp`` is in ms, by default now. Blocks while ``buffer.memory`` is used up or the topic's
        metadata is missing, at most ``max.block.ms`` (then RequestTimedOut). Raises MessageTooLarge,
        InvalidPartitions, InvalidTopic or InvalidRecord for a record that can never be sent.
        """
        if type(value) is not bytes and value is not None:
            value = self._serialize_value(value)
        if type(key) is not bytes and key is not None:
            key = self._serialize_key(key)
        size = RECORD_OVERHEAD
        if value is not None:
            size += len(value)
        if key is not None:
            size += len(key)
        if headers:
            headers, header_bytes = _checked(headers)
            size += header_bytes
        if size > self._largest:
            raise MessageTooLarge(
                f"{topic}: a record of {size} bytes; max.request.size and buffer.memory allow {self._largest}"
            )
        if timestamp is None:
            timestamp = time.time_ns() // 1_000_000
        elif not 0 <= timestamp <= _MAX_INT64:
            raise InvalidRecord(f"{topic}: timestamp {timestamp} is not in milliseconds since 1970")
        route = self._routes.get(topic)
        if route is None or route.version != self._network.metadata.view.version:
            route = self._route(topic)
        record = Record(value, key, headers, timestamp)
        wake = False
        with self._lock:
            if partition is None:
                if key is not None and self._by_key:
                    partition = self._keys.partition(key, route.count)
                else:
                    partition = self._spread(route, size)
            elif not 0 <= partition < route.count:
                raise InvalidPartitions(f"{topic} has partitions 0 to {route.count - 1}, not {partition}")
            tp = route.tps[partition]
            batch = self._accumulator.open.get(tp)
            if batch is None or batch.size + size > batch.limit:
                batch, wake = self._open_batch(tp, size)
            records = batch.records
            index = len(records)
            records.append(record)
            batch.size += size
        if wake:
            self._network.pool.wakeup()
        return Delivery(batch.outcome, index, timestamp)

    def flush(self, timeout_s: float | None = None) -> None:
        """Return when every record sent so far was delivered or has failed; its Delivery tells which.

        Raises RequestTimedOut when that takes longer than ``timeout_s``.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            outcomes = [batch.outcome for batch in self._accumulator.incomplete if not batch.abandoned]
            for tp in list(self._accumulator.open):
                self._accumulator.close_batch(tp)
        self._network.pool.wakeup()
        for outcome in outcomes:
            try:
                outcome.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
            except TimeoutError as error:
                raise RequestTimedOut(f"flush: not all records were settled within {timeout_s} s") from error

    def partitions_for(self, topic: str) -> int:
        """How many partitions the topic has; waits for its metadata as :meth:`send` does."""
        return self._route(topic).count

    def close(self, timeout_s: float | None = None) -> None:
        """Flush, then stop. What isn't settled within ``timeout_s`` fails. Twice does no harm."""
        if self._closed:
            return
        try:
            self.flush(timeout_s)
        except RequestTimedOut:
            pass  # the rest fails when the sender stops: each record's Delivery says so
        finally:
            self._closed = True
            self._sender.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _spread(self, route: _Route, size: int) -> int:
        """The partition of a record whose key doesn't decide."""
        if self._by_key:
            return route.sticky.partition(size, route.led, route.count)
        route.next = (route.next + 1) % route.count
        return route.next

    def _open_batch(self, tp: TopicPartition, size: int) -> tuple[Any, bool]:
        """A batch with room for ``size`` bytes, waiting for memory if need be; and whether to wake the
        sender."""
        accumulator = self._accumulator
        was_open = tp in accumulator.open
        now_ms = monotonic_ms()
        batch = None if self._closed else accumulator.open_batch(tp, size, now_ms)
        if batch is None:
            batch = self._wait(lambda: self._try_open(tp, size), f"{tp}: no buffer.memory free; brokers are slow")
            return batch, True
        return batch, was_open or accumulator.linger_ms + now_ms < self._sender.wakes_at_ms

    def _try_open(self, tp: TopicPartition, size: int) -> Any:
        """Another thread may have opened a batch in the meantime: that has room, or the memory is used up
        again."""
        batch = self._accumulator.open.get(tp)
        if batch is not None and batch.size + size <= batch.limit:
            return batch
        return self._accumulator.open_batch(tp, size, monotonic_ms())

    def _route(self, topic: str) -> _Route:
        """Partitions of ``topic``, waiting for metadata when it isn't known yet."""
        if not isinstance(topic, str) or not topic:
            raise InvalidTopic(f"{topic!r} is no topic name")
        with self._lock:
            metadata = self._network.metadata
            if topic not in metadata.view.topics:
                metadata.want((topic,))
                self._wait(lambda: self._known(topic), f"topic {topic!r}: no metadata")
            view = metadata.view
            before = self._routes.get(topic)
            sticky = before.sticky if before else StickyPartitioner(random.randrange, self._batch_size)
            route = _Route(topic, len(view.topics[topic].partitions), view.led[topic], sticky, view.version)
            self._routes[topic] = route
            return route

    def _known(self, topic: str) -> bool:
        view = self._network.metadata.view
        error = view.errors.get(topic)
        if error is not None and not is_retriable(error):
            raise error
        return topic in view.topics

    def _wait(self, condition: Callable[[], Any], what: str) -> Any:
        """The first true answer of ``condition``, asked whenever the sender has news; the lock is held."""
        deadline = time.monotonic() + self._max_block_s
        self._accumulator.in_a_hurry += 1
        try:
            while True:
                if self._closed:
                    raise RaylogError("the producer is closed")
                if self._sender.fatal is not None:
                    raise self._sender.fatal
                answer = condition()
                if answer:
                    return answer
                left = deadline - time.monotonic()
                self._network.pool.wakeup()
                if left <= 0 or not self._lock.wait(left):
                    raise self._blocked(what)
        finally:
            self._accumulator.in_a_hurry -= 1

    def _blocked(self, what: str) -> RaylogError:
        if not self._network.metadata.view.brokers:
            return self._network.unreachable()
        errors = "; ".join(str(error) for error in self._network.metadata.view.errors.values())
        return RequestTimedOut(f"{what} within max.block.ms={self._max_block_s * 1_000:g}{errors and f' ({errors})'}")


def _checked(headers: Headers) -> tuple[Headers, int]:
    """The headers as a tuple, and the most bytes they take. Raises InvalidRecord."""
    size = 0
    for name, value in (kept := tuple(headers)):
        if not isinstance(name, str) or not isinstance(value, bytes | None):
            raise InvalidRecord(f"header {name!r} must be a str with bytes or None, not {type(value).__name__}")
        size += 10 + 4 * len(name) + (len(value) if value is not None else 0)
    return kept, size
