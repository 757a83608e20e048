"""Code of the user's that sees records on their way, in chains, as Java's interceptors (KIP-42)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from raylog.client.arguments.record_values import Headers
from raylog.client.delivery import BatchDelivery, Delivery, Landed
from raylog.client.results import ConsumerRecord, RecordMetadata
from raylog.client.telemetry.seldom import Seldom
from raylog.coordination.host.clocks import monotonic_ms
from raylog.coordination.metadata.group_model import CommittedOffset
from raylog.protocol.ids import TopicPartition
from raylog.protocol.logs import Logger

__all__ = [
    "ConsumerChain",
    "ConsumerInterceptor",
    "ProducerBatch",
    "ProducerChain",
    "ProducerInterceptor",
    "ProducerRecord",
]

log = Logger(__name__)

I = TypeVar("I", "ProducerInterceptor", "ConsumerInterceptor")  # noqa: E741
V = TypeVar("V")
Polled = dict[TopicPartition, list[ConsumerRecord]]


class ProducerRecord(NamedTuple):
    """What was given to ``send``."""

    topic: str
    value: Any = None
    key: Any = None
    partition: int | None = None
    headers: Headers = ()
    timestamp: int | None = None


class ProducerBatch(NamedTuple):
    """What was given to ``send_batch``."""

    topic: str
    values: Any = None
    keys: Any = None
    partition: Any = None
    headers: Any = None
    timestamps: Any = None


class ProducerInterceptor(Protocol):
    """A base class that changes nothing. What a method raises is logged, and the record goes on as it was before.

    It must be quick: ``on_send…`` are called by who sends, the others by the producer's thread.
    """

    def on_send(self, record: ProducerRecord, /) -> ProducerRecord:
        """What to send in place of ``record``, which is not serialized yet and has no partition if none was given."""
        return record

    def on_send_batch(self, batch: ProducerBatch, /) -> ProducerBatch:
        """As :meth:`on_send`, once for all rows of a ``send_batch``."""
        return batch

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None, /) -> None:
        """The record was delivered; with ``error`` it was not: offset and, where none was chosen, partition are -1."""
        return

    def on_acknowledgement_batch(self, landed: Sequence[Landed], error: Exception | None, /) -> None:
        """All rows of a ``send_batch`` were delivered; with ``error``, some were not, and ``landed`` is empty."""
        return

    def close(self) -> None:
        """The producer was closed."""
        return


class ConsumerInterceptor(Protocol):
    """A base class that changes nothing. What a method raises is logged, and records go on as they were before.

    They are called by who polls. What ``poll_batches`` returns is encoded, and not shown.
    """

    def on_consume(self, records: Polled, /) -> Polled:
        """What a poll is to return in place of ``records``: fewer, others. Iterating shows them one by one."""
        return records

    def on_consume_columns(self, table: pa.Table, /) -> pa.Table:
        """The same for ``poll_columns``."""
        return table

    def on_commit(self, offsets: Mapping[TopicPartition, CommittedOffset], /) -> None:
        """They were committed; what is committed as partitions are given up is not told."""
        return

    def close(self) -> None:
        """The consumer was closed."""
        return


class _Chain(Generic[I]):
    """Calls one after the other; an error of one is told, once a minute, and is no business of the next."""

    def __init__(self, interceptors: Iterable[I]) -> None:
        self._interceptors: tuple[I, ...] = tuple(interceptors)
        self._seldom = Seldom()

    def close(self) -> None:
        self._tell(lambda interceptor: interceptor.close())

    def _pass(self, step: Callable[[I, V], V], value: V) -> V:
        for interceptor in self._interceptors:
            try:
                value = step(interceptor, value)
            except Exception:  # noqa: BLE001 (it is told)
                self._complain(interceptor)
        return value

    def _tell(self, step: Callable[[I], None]) -> None:
        for interceptor in self._interceptors:
            try:
                step(interceptor)
            except Exception:  # noqa: BLE001 (it is told)
                self._complain(interceptor)

    def _complain(self, interceptor: I) -> None:
        if self._seldom.due(id(interceptor), monotonic_ms()) is not None:
            log.exception("interceptor %s raised; records go on without it", type(interceptor).__name__)


class ProducerChain(_Chain[ProducerInterceptor]):
    """A producer's."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return self._pass(lambda interceptor, it: interceptor.on_send(it), record)

    def on_send_batch(self, batch: ProducerBatch) -> ProducerBatch:
        return self._pass(lambda interceptor, it: interceptor.on_send_batch(it), batch)

    def follow(self, delivery: Delivery) -> None:
        """Tell what becomes of the record."""
        delivery.add_done_callback(self._settled)

    def refused(self, record: ProducerRecord, error: Exception) -> None:
        """The record was not taken."""
        partition = -1 if record.partition is None else record.partition
        at = RecordMetadata(record.topic, partition, -1, -1 if record.timestamp is None else record.timestamp)
        self._tell(lambda interceptor: interceptor.on_acknowledgement(at, error))

    def follow_batch(self, delivery: BatchDelivery) -> None:
        """Tell what becomes of the rows."""

        def settled(error: Exception | None) -> None:
            landed = delivery.landed() if error is None else []
            self._tell(lambda interceptor: interceptor.on_acknowledgement_batch(landed, error))

        delivery.on_done(settled)

    def refused_batch(self, error: Exception) -> None:
        """Rows were not taken."""
        self._tell(lambda interceptor: interceptor.on_acknowledgement_batch([], error))

    def _settled(self, delivery: Delivery) -> None:
        error, at = delivery.settled()
        self._tell(lambda interceptor: interceptor.on_acknowledgement(at, error))


class ConsumerChain(_Chain[ConsumerInterceptor]):
    """A consumer's."""

    def on_consume(self, records: Polled) -> Polled:
        return self._pass(lambda interceptor, it: interceptor.on_consume(it), records)

    def on_consume_columns(self, table: pa.Table) -> pa.Table:
        return self._pass(lambda interceptor, it: interceptor.on_consume_columns(it), table)

    def one_by_one(self, tp: TopicPartition, records: Iterable[ConsumerRecord]) -> Iterator[ConsumerRecord]:
        for record in records:
            for shown in self.on_consume({tp: [record]}).values():
                yield from shown

    def on_commit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        self._tell(lambda interceptor: interceptor.on_commit(offsets))
