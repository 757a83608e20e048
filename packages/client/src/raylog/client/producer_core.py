"""What both producers do: records in, whole batches out, a future for every record.

:class:`~raylog.client.producer.Producer` waits in a thread, :class:`~raylog.client.aio.AsyncProducer` in an event
loop; all that differs is :meth:`ProducerCore._wait`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Condition
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raylog.client.accumulator import RECORD_OVERHEAD, Accumulator, EncodedRecords, header_size
from raylog.client.column_batches import (
    binary,
    check_partitions,
    check_rows,
    encode_rows,
    header_column,
    integers,
)
from raylog.client.column_schema import Integers, Rows
from raylog.client.config import (
    BATCH_SIZE,
    BUFFER_MEMORY,
    LINGER_MS,
    MAX_BLOCK_MS,
    MAX_REQUEST_SIZE,
    PARTITIONER,
    PRODUCER_SETTINGS,
    REQUEST_TIMEOUT_MS,
    client_settings,
    producer_guarantees,
)
from raylog.client.delivery import BatchDelivery, BatchOutcome, Delivery
from raylog.client.guards import ForkGuard
from raylog.client.network import Network
from raylog.client.partitioner import KeyPartitioner, StickyPartitioner
from raylog.client.producer_state import Continuation
from raylog.client.row_partitions import partitions_by_key
from raylog.client.sender import Sender
from raylog.client.serde import Serializer, serializer
from raylog.coordination.clocks import monotonic_ms, wall_ms
from raylog.protocol.errors import (
    InvalidConfig,
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
_NO_MEMORY = "{}: no buffer.memory free; brokers are slow"
Headers = Sequence[tuple[str, bytes | None]]
_COLUMNS = {"value", "key", "partition", "headers", "timestamp"}
Partitioner = Callable[[bytes | None, Sequence[int], Sequence[int]], int]
"""``partitioner(key, all_partitions, available_partitions)``: a partition's number, for one record."""


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


class ProducerCore:
    """Routes records to partitions and gathers them in batches; a :class:`Sender` delivers these."""

    _delivery: type[Delivery] = Delivery

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        key_serializer: str | Serializer | None,
        value_serializer: str | Serializer | None,
        partitioner: str | Partitioner | None,
        config: Mapping[str, Any],
        continues: Continuation | None = None,
    ) -> None:
        """See :class:`~raylog.client.producer.Producer`."""
        if partitioner is not None and not callable(partitioner):
            config = {**config, "partitioner": partitioner}
        settings = client_settings(PRODUCER_SETTINGS, bootstrap_servers, config)
        _, idempotent = producer_guarantees(settings)
        if continues is not None and not idempotent:
            raise InvalidConfig("a producer that goes on as another one needs enable.idempotence")
        self._serialize_key = serializer(key_serializer)
        self._serialize_value = serializer(value_serializer)
        self._request_timeout_ms = settings[REQUEST_TIMEOUT_MS]
        self._max_block_s = settings[MAX_BLOCK_MS] / 1_000
        self._largest = min(settings[MAX_REQUEST_SIZE], settings[BUFFER_MEMORY]) - HEADER_SIZE
        self._batch_size = settings[BATCH_SIZE]
        self._own_partitioner = partitioner if callable(partitioner) else None
        self._by_key = settings[PARTITIONER] == "murmur2" and self._own_partitioner is None
        # A serializer that was asked for also sees bytes; the default leaves them as they are.
        self._packs_key_bytes, self._packs_value_bytes = key_serializer is not None, value_serializer is not None
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
        self._sender = Sender(settings, self._network, self._accumulator, self._lock, self._tell_news, continues)
        self._closed = False
        # In a forked child every topic has to be looked up again, and that tells what is wrong.
        self._fork = ForkGuard("producer", self._routes.clear)

    def _send(
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

        ``timestamp`` is in ms, by default now. Waits while ``buffer.memory`` is used up or the topic's
        metadata is missing, at most ``max.block.ms`` (then RequestTimedOut). Raises MessageTooLarge,
        InvalidPartitions, InvalidTopic or InvalidRecord for a record that can never be sent.
        """
        if value is not None and (type(value) is not bytes or self._packs_value_bytes):
            value = self._serialize_value(value)
        if key is not None and (type(key) is not bytes or self._packs_key_bytes):
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
            timestamp = wall_ms()
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
                    partition = self._spread(topic, route, key, size)
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
        return self._delivery(batch.outcome, index, timestamp)

    def _encoded(self, topic: str, rows: Rows, partitions: Integers | None) -> Iterator[EncodedRecords]:
        """The rows as batches; ``partitions`` None lets the partitioner choose. Raises as :meth:`_send`."""
        route = self._current_route(topic)
        check_rows(rows, self._largest, topic)
        if partitions is not None:
            if len(partitions) != len(rows.values):
                raise InvalidRecord(f"{topic}: {len(partitions)} partitions for {len(rows.values)} records")
            check_partitions(partitions, route.count, topic)
        at = 0

        def choose(part: Rows, sizes: Integers) -> NDArray[Any] | None:
            nonlocal at
            at += len(sizes)
            if partitions is not None:
                return partitions[at - len(sizes) : at]
            return self._choose(topic, route, part, sizes)

        def spread(size: int) -> int:
            return self._spread(topic, route, None, size)

        return encode_rows(rows, choose, spread, self._batch_size)

    def _choose(self, topic: str, route: _Route, rows: Rows, sizes: Integers) -> NDArray[Any] | None:
        """The partition of each row; None when whole batches may go anywhere."""
        if self._own_partitioner is not None:
            keys = rows.keys.to_pylist()
            pairs = zip(keys, sizes.tolist(), strict=True)
            return np.array([self._spread(topic, route, key, size) for key, size in pairs], np.int64)
        if not self._by_key:
            first = route.next + 1
            route.next = (route.next + len(sizes)) % route.count
            return np.arange(first, first + len(sizes)) % route.count
        if rows.keys.null_count == len(sizes):
            return None
        nulls = int(sizes[rows.keys.is_null().to_numpy(zero_copy_only=False)].sum())
        elsewhere = self._spread(topic, route, None, nulls) if nulls else 0
        return partitions_by_key(rows.keys, self._keys, route.count, elsewhere)

    def _add_encoded(self, topic: str, encoded: EncodedRecords, delivery: BatchDelivery) -> None:
        """Queue one batch behind what its partition has, waiting for memory if need be."""
        tp = self._current_route(topic).tps[encoded.partition]
        with self._lock:
            batch = None if self._over else self._accumulator.add_encoded(tp, encoded, monotonic_ms())
            if batch is None:
                batch = self._wait(
                    lambda: self._accumulator.add_encoded(tp, encoded, monotonic_ms()), _NO_MEMORY.format(tp)
                )
            delivery.add(batch.outcome, batch.count)
        self._network.pool.wakeup()

    def _rows(
        self, values: Any, keys: Any, partition: Any, headers: Any, timestamps: Any
    ) -> tuple[Rows, Integers | None]:
        """Columns to send and their partitions, from what a user gives. Raises InvalidRecord for what can't be."""
        if isinstance(values, pa.Table | pa.RecordBatch):
            if not (keys is None and partition is None and headers is None and timestamps is None):
                raise InvalidRecord("give a table with all columns in it, or the columns one by one")
            unknown = set(values.column_names) - _COLUMNS
            if unknown:
                raise InvalidRecord(f"columns {sorted(unknown)}: a table to send has {', '.join(sorted(_COLUMNS))}")
            values, keys, partition, headers, timestamps = (
                values[name] if name in values.column_names else None
                for name in ("value", "key", "partition", "headers", "timestamp")
            )
        given = next((column for column in (values, keys, headers, timestamps) if column is not None), ())
        count = len(given)
        now_ms = wall_ms()
        rows = Rows(
            binary(self._serialized(keys, self._serialize_key, self._packs_key_bytes), count, "keys"),
            binary(self._serialized(values, self._serialize_value, self._packs_value_bytes), count, "values"),
            np.full(count, now_ms, np.int64) if timestamps is None else integers(timestamps, "timestamps"),
            header_column(headers),
        )
        if partition is None:
            return rows, None
        single = isinstance(partition, int)
        return rows, np.full(count, partition, np.int64) if single else integers(partition, "partitions")

    def _serialized(self, column: Any, serialize: Serializer, packs_bytes: bool) -> Any:
        """Arrow columns of bytes are taken as they are; everything else item by item."""
        if column is None:
            return None
        if isinstance(column, pa.Array | pa.ChunkedArray):
            if (
                pa.types.is_binary(column.type)
                or pa.types.is_large_binary(column.type)
                or pa.types.is_null(column.type)
            ):
                return column
            column = column.to_pylist()
        return [
            item if item is None or (type(item) is bytes and not packs_bytes) else serialize(item) for item in column
        ]

    def _close_batches(self) -> list[BatchOutcome]:
        """Let everything be sent now; the outcomes that are still to come."""
        self._fork.check()
        with self._lock:
            outcomes = [batch.outcome.whole for batch in self._accumulator.incomplete if not batch.abandoned]
            for tp in list(self._accumulator.open):
                self._accumulator.close_batch(tp)
        self._network.pool.wakeup()
        return outcomes

    def _spread(self, topic: str, route: _Route, key: bytes | None, size: int) -> int:
        """The partition of a record whose key's hash doesn't decide."""
        if self._by_key:
            return route.sticky.partition(size, route.led, route.count)
        if self._own_partitioner is not None:
            chosen = self._own_partitioner(key, range(route.count), route.led)
            if not isinstance(chosen, int) or not 0 <= chosen < route.count:
                raise InvalidPartitions(
                    f"the partitioner chose {chosen!r} for {topic}, which has partitions 0 to {route.count - 1}"
                )
            return chosen
        route.next = (route.next + 1) % route.count
        return route.next

    def _open_batch(self, tp: TopicPartition, size: int) -> tuple[Any, bool]:
        """A batch with room for ``size`` bytes, waiting for memory if need be; and whether to wake the
        sender."""
        accumulator = self._accumulator
        was_open = tp in accumulator.open
        now_ms = monotonic_ms()
        batch = None if self._over else accumulator.open_batch(tp, size, now_ms)
        if batch is None:
            batch = self._wait(lambda: self._try_open(tp, size), _NO_MEMORY.format(tp))
            return batch, True
        return batch, was_open or accumulator.linger_ms + now_ms < self._sender.wakes_at_ms

    def _try_open(self, tp: TopicPartition, size: int) -> Any:
        """Another thread may have opened a batch in the meantime: that has room, or the memory is used up
        again."""
        batch = self._accumulator.open.get(tp)
        if batch is not None and batch.size + size <= batch.limit:
            return batch
        return self._accumulator.open_batch(tp, size, monotonic_ms())

    def _current_route(self, topic: str) -> _Route:
        route = self._routes.get(topic)
        return (
            route if route is not None and route.version == self._network.metadata.view.version else self._route(topic)
        )

    def _route(self, topic: str) -> _Route:
        """Partitions of ``topic``, waiting for metadata when it isn't known yet."""
        if not isinstance(topic, str) or not topic:
            raise InvalidTopic(f"{topic!r} is no topic name")
        self._fork.check()
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
        """The first true answer of ``condition``, asked under the lock, which is held; RequestTimedOut, saying
        ``what`` was missing, after ``max.block.ms``."""
        raise NotImplementedError

    def _tell_news(self) -> None:
        """Memory or metadata came, or all failed: what waits looks again. The lock is held."""
        raise NotImplementedError

    @property
    def _over(self) -> bool:
        """True when nothing can be sent any more; :meth:`_ask` raises why."""
        return self._closed or self._sender.fatal is not None

    def _ask(self, condition: Callable[[], Any]) -> Any:
        """``condition``'s answer while there is one to hope for."""
        if self._closed:
            raise RaylogError("the producer is closed")
        if self._sender.fatal is not None:
            raise self._sender.fatal
        return condition()

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
        size += header_size(name, value)
    return kept, size
