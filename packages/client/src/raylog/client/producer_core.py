"""What both producers do: records in, whole batches out, a future for every record.

:class:`~raylog.client.producer.Producer` waits in a thread, :class:`~raylog.client.aio.AsyncProducer` in an event
loop; all that differs is :meth:`ProducerCore._wait`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raylog.client.arguments.arguments import interceptors_with
from raylog.client.arguments.column_values import ColumnValues
from raylog.client.arguments.interceptors import ProducerChain, ProducerInterceptor
from raylog.client.arguments.record_values import Headers, checked_headers, partition_index, serialized, timestamp_ms
from raylog.client.arguments.serde import Serializer, serializer
from raylog.client.batches.accumulator import RECORD_OVERHEAD, Accumulator, Batch, EncodedRecords
from raylog.client.batches.column_schema import Integers, Rows
from raylog.client.batches.encode import check_partitions, check_rows, encode_rows
from raylog.client.batches.partitioner import KEY_HASHES, KeyPartitioner, StickyPartitioner, Turns
from raylog.client.batches.row_partitions import hashed_keys, partitions_by_key
from raylog.client.config.client import (
    BATCH_SIZE,
    BUFFER_MEMORY,
    DELIVERY_TIMEOUT_MS,
    LINGER_MS,
    MAX_BLOCK_MS,
    MAX_REQUEST_SIZE,
    PARTITIONER,
    PRODUCER_SETTINGS,
    REQUEST_TIMEOUT_MS,
    client_settings,
    producer_guarantees,
)
from raylog.client.config.connection import METADATA_MAX_IDLE_MS
from raylog.client.delivery import BatchDelivery, BatchOutcome, Delivery
from raylog.client.network.guards import ForkGuard
from raylog.client.network.metadata import ClusterView
from raylog.client.network.network import Network
from raylog.client.produce.producer_state import Continuation
from raylog.client.produce.sender import Sender
from raylog.client.telemetry.metrics import PRODUCER_METRICS
from raylog.client.telemetry.metrics_reporter import MetricsReporter, Statistics
from raylog.coordination.host.clocks import monotonic_ms, wall_ms
from raylog.coordination.metadata.topic_names import check_topic_name
from raylog.protocol.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidRecord,
    MessageTooLarge,
    RaylogError,
    RequestTimedOut,
    is_retriable,
)
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition
from raylog.protocol.records import HEADER_SIZE, Record

_NO_MEMORY = "{}: no buffer.memory free; brokers are slow"
Partitioner = Callable[[bytes | None, Sequence[int], Sequence[int]], int]
"""``partitioner(key, all_partitions, available_partitions)``: a partition's number, for one record."""


class _Route:
    """Where one topic's records go: what of the metadata is needed per record."""

    __slots__ = ("count", "led", "sticky", "tps", "turns", "version")

    def __init__(self, topic: str, count: int, led: tuple[int, ...], batch_size: int, version: int) -> None:
        self.tps = [TopicPartition(TopicName(topic), PartitionIndex(index)) for index in range(count)]
        self.count = count
        self.led = led
        self.sticky = StickyPartitioner(random.randrange, batch_size)
        self.turns = Turns()
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
        stats_cb: Statistics | None = None,
        interceptors: Sequence[ProducerInterceptor] = (),
    ) -> None:
        """See :class:`~raylog.client.producer.Producer`."""
        if partitioner is not None and not callable(partitioner):
            config = {**config, "partitioner": partitioner}
        interceptors = interceptors_with("on_send", interceptors)
        settings = client_settings(PRODUCER_SETTINGS, bootstrap_servers, config)
        _, idempotent = producer_guarantees(settings)
        if continues is not None and not isinstance(continues, Continuation):
            raise InvalidConfig(f"continues={continues!r} is no Continuation")
        if continues is not None and not idempotent:
            raise InvalidConfig("a producer that goes on as another one needs enable.idempotence")
        self._serialize_key = serializer(key_serializer, "key_serializer")
        self._serialize_value = serializer(value_serializer, "value_serializer")
        self._request_timeout_ms = settings[REQUEST_TIMEOUT_MS]
        self._max_block_s = settings[MAX_BLOCK_MS] / 1_000
        self._largest = min(settings[MAX_REQUEST_SIZE], settings[BUFFER_MEMORY]) - HEADER_SIZE
        self._batch_size = min(settings[BATCH_SIZE], settings[MAX_REQUEST_SIZE])
        self._own_partitioner = partitioner if callable(partitioner) else None
        by_key = None if self._own_partitioner is not None else KEY_HASHES.get(settings[PARTITIONER])
        self._keys = None if by_key is None else KeyPartitioner(by_key.of)
        self._null_key, self._empty_key = (None, None) if by_key is None else by_key[1:]
        """Whose hash decides for those; None: they are spread."""
        self._at_random = self._own_partitioner is None and settings[PARTITIONER] == "random"
        self._chance = np.random.default_rng()
        # A serializer that was asked for also sees bytes; the default leaves them as they are.
        self._packs_key_bytes, self._packs_value_bytes = key_serializer is not None, value_serializer is not None
        self._columns = ColumnValues(
            self._serialize_key,
            self._serialize_value,
            packs_key_bytes=self._packs_key_bytes,
            packs_value_bytes=self._packs_value_bytes,
        )
        self._routes: dict[str, _Route] = {}
        self._lock = RLock()  # the interpreter's own, no Condition: no interrupt can leave it held
        self._accumulator: Accumulator[BatchOutcome] = Accumulator(
            batch_size=self._batch_size,
            linger_ms=settings[LINGER_MS],
            buffer_memory=settings[BUFFER_MEMORY],
            new_outcome=lambda tp: BatchOutcome(tp.topic, tp.partition),
        )
        max_idle_ms = max(settings[METADATA_MAX_IDLE_MS], settings[DELIVERY_TIMEOUT_MS])  # batches may wait for so long
        self._reporter = MetricsReporter("producer", settings, PRODUCER_METRICS, self.metrics, stats_cb)
        self._network = Network(settings, max_idle_ms=max_idle_ms, allow_auto_create=True)
        self._interceptors = ProducerChain(interceptors) if interceptors else None
        self._closed = False
        # In a forked child every topic has to be looked up again, and that tells what is wrong.
        self._fork = ForkGuard("producer", self._routes.clear)
        with self._network.owned():
            self._sender = Sender(settings, self._network, self._accumulator, self._lock, self._tell_news, continues)
            self._reporter.start()

    def metrics(self) -> dict[str, float]:
        """What this producer counted, by the names of Java's metrics: see :mod:`raylog.client.telemetry.metrics`."""
        accumulator = self._accumulator
        counted = self._sender.counts.read(accumulator.buffer_memory, accumulator.free_memory, monotonic_ms())
        return {**self._network.pool.metrics(), **counted}

    def _send(  # noqa: C901 (the checks of a record, in their order)
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
            if type(value) is not bytes:
                value = serialized(value, "value")
        if key is not None and (type(key) is not bytes or self._packs_key_bytes):
            key = self._serialize_key(key)
            if type(key) is not bytes:
                key = serialized(key, "key")
        size = RECORD_OVERHEAD
        if value is not None:
            size += len(value)
        if key is not None:
            size += len(key)
        if headers:
            headers, header_bytes = checked_headers(headers, topic)
            size += header_bytes
        if size > self._largest:
            raise MessageTooLarge(
                f"{topic}: a record of {size} bytes; max.request.size and buffer.memory allow {self._largest}"
            )
        timestamp = wall_ms() if timestamp is None else timestamp_ms(timestamp, topic)
        try:
            route = self._routes.get(topic)
        except TypeError:  # it can't be hashed, so it is no name
            route = None
        if route is None or route.version != self._network.metadata.view.version:
            route = self._route(topic)
        if partition is not None and (type(partition) is not int or not 0 <= partition < route.count):
            partition = partition_index(partition, topic)
            if partition >= route.count:
                route = self._route(topic, partition)
        record = Record(value, key, headers, timestamp)
        with self._lock:
            if partition is None:
                hashed = key or (self._null_key if key is None else self._empty_key)
                if hashed is not None and self._keys is not None:
                    partition = self._keys.partition(hashed, route.count)
                else:
                    partition = self._spread(topic, route, key, size)
            tp = route.tps[partition]
            batch = self._accumulator.open.get(tp)
            if batch is None or batch.size + size > batch.limit:
                batch = self._open_batch(tp, size, record)
            else:
                batch.size += size
                batch.records.append(record)
            index = len(batch.records) - 1
        return self._delivery(batch.outcome, index, timestamp)

    def _encoded(self, topic: str, rows: Rows, partitions: Integers | None) -> Iterator[EncodedRecords]:
        """The rows as batches; ``partitions`` None lets the partitioner choose. Raises as :meth:`_send`."""
        route = self._current_route(topic)
        check_rows(rows, self._largest, topic)
        if partitions is not None:
            if len(partitions) != len(rows.values):
                raise InvalidRecord(f"{topic}: {len(partitions)} partitions for {len(rows.values)} records")
            if len(partitions) and partitions.min() >= 0:
                route = self._current_route(topic, int(partitions.max()))
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
        if self._at_random:
            return self._chance.choice(route.led or route.count, len(sizes))
        if self._keys is None:
            return np.array(route.turns.partitions(len(sizes), route.led, route.count), np.int64)
        keys = hashed_keys(rows.keys, self._null_key, self._empty_key)
        if keys.null_count == len(sizes):
            return None
        nulls = int(sizes[keys.is_null().to_numpy(zero_copy_only=False)].sum())
        elsewhere = self._spread(topic, route, None, nulls) if nulls else 0
        return partitions_by_key(keys, self._keys, route.count, elsewhere)

    def _add_encoded(self, topic: str, encoded: EncodedRecords, delivery: BatchDelivery) -> None:
        """Queue one batch behind what its partition has, waiting for memory if need be."""
        tp = self._current_route(topic, encoded.partition).tps[encoded.partition]
        with self._lock:
            self._network.metadata.used(topic, monotonic_ms())
            batch = None if self._over else self._try_add(tp, encoded)
            if batch is None:
                batch = self._wait(lambda: self._try_add(tp, encoded), _NO_MEMORY.format(tp))
            delivery.add(batch.outcome, batch.count)

    def _try_add(self, tp: TopicPartition, encoded: EncodedRecords) -> Any:
        """None when memory is used up. The sender is woken before, as when a batch is opened."""
        self._network.pool.wakeup()
        return self._accumulator.add_encoded(tp, encoded, monotonic_ms())

    def hurry(self) -> list[Batch[BatchOutcome]]:
        """Let everything be sent now; the batches that are not settled."""
        self._fork.check()
        with self._lock:
            batches = [batch for batch in self._accumulator.incomplete if not batch.abandoned]
            for tp in list(self._accumulator.open):
                self._accumulator.close_batch(tp)
        self._network.pool.wakeup()
        return batches

    def _spread(self, topic: str, route: _Route, key: bytes | None, size: int) -> int:
        """The partition of a record whose key's hash doesn't decide."""
        if self._keys is not None:
            return route.sticky.partition(size, route.led, route.count)
        if self._own_partitioner is not None:
            chosen = self._own_partitioner(key, range(route.count), route.led)
            if not isinstance(chosen, int) or not 0 <= chosen < route.count:
                raise InvalidPartitions(
                    f"the partitioner chose {chosen!r} for {topic}, which has partitions 0 to {route.count - 1}"
                )
            return chosen
        if self._at_random:
            return random.choice(route.led or range(route.count))
        return route.turns.partition(route.led, route.count)

    def _open_batch(self, tp: TopicPartition, size: int, record: Record) -> Any:
        """A batch that has got ``record``, waiting for memory if need be. The sender is woken before, and waits for the
        lock: an interrupt behind it would leave a batch to which others add, and of which the sender does not know."""
        accumulator = self._accumulator
        now_ms = monotonic_ms()
        self._network.metadata.used(tp.topic, now_ms)
        if tp in accumulator.open or accumulator.linger_ms + now_ms < self._sender.wakes_at_ms:
            self._network.pool.wakeup()
        batch = None if self._over else accumulator.open_batch(tp, size, now_ms, record)
        if batch is None:
            batch = self._wait(lambda: self._try_open(tp, size, record), _NO_MEMORY.format(tp))
        return batch

    def _try_open(self, tp: TopicPartition, size: int, record: Record) -> Any:
        """Another thread may have opened a batch in the meantime: that has room, or the memory is used up
        again."""
        batch = self._accumulator.open.get(tp)
        if batch is None or batch.size + size > batch.limit:
            self._network.pool.wakeup()
            return self._accumulator.open_batch(tp, size, monotonic_ms(), record)
        batch.size += size
        batch.records.append(record)
        return batch

    def _current_route(self, topic: str, partition: int = 0) -> _Route:
        route = self._routes.get(topic) if isinstance(topic, str) else None
        if route is None or route.version != self._network.metadata.view.version or partition >= route.count:
            return self._route(topic, partition)
        return route

    def _route(self, topic: str, partition: int = 0) -> _Route:
        """Partitions of ``topic``, waiting for metadata while it, or this partition of it, isn't known yet."""
        check_topic_name(topic)
        self._fork.check()
        with self._lock:
            view = self._wait(lambda: self._view_with(topic, partition), self._unknown(topic, partition))
            before = self._routes.get(topic)
            count, led = len(view.topics[topic].partitions), view.led[topic]
            route = _Route(topic, count, led, self._batch_size, view.version)
            if before is not None:
                route.sticky, route.turns = before.sticky, before.turns
            self._routes[topic] = route
            if len(self._routes) > 2 * len(view.topics):
                for name in self._routes.keys() - view.topics.keys():  # they were forgotten since
                    del self._routes[name]
            return route

    def _view_with(self, topic: str, partition: int) -> ClusterView | None:
        """The metadata that has it; asks for it where none has."""
        metadata = self._network.metadata
        view = metadata.view
        error = view.errors.get(topic)
        if error is not None and not is_retriable(error):
            raise error
        known = view.topics.get(topic)
        if known is None:
            metadata.want((topic,), monotonic_ms())
        elif partition >= len(known.partitions):
            metadata.need_update()
        return view if known is not None and partition < len(known.partitions) else None

    def _unknown(self, topic: str, partition: int) -> str | RaylogError:
        """What is missing when the wait for a partition is over."""
        known = self._network.metadata.view.topics.get(topic)
        if known is None:
            return f"topic {topic!r}: no metadata"
        return InvalidPartitions(
            f"{topic} has partitions 0 to {len(known.partitions) - 1}, not {partition}, and none was added within "
            f"max.block.ms={self._max_block_s * 1_000:g}"
        )

    def _wait(self, condition: Callable[[], Any], what: str | RaylogError) -> Any:
        """The first true answer of ``condition``, asked under the lock, which is held; ``what``, or RequestTimedOut
        saying that it was missing, after ``max.block.ms``."""
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

    def _blocked(self, what: str | RaylogError) -> RaylogError:
        if isinstance(what, RaylogError):
            return what
        if not self._network.metadata.view.brokers:
            return self._network.unreachable()
        errors = "; ".join(str(error) for error in self._network.metadata.view.errors.values())
        return RequestTimedOut(f"{what} within max.block.ms={self._max_block_s * 1_000:g}{errors and f' ({errors})'}")
