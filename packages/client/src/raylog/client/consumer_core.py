"""What both consumers do: assigned partitions, read in order from where the user says. Nothing here waits.

:class:`~raylog.client.consumer.Consumer` waits in the caller's thread, :class:`~raylog.client.aio.AsyncConsumer` in an
event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from raylog.client.admin import Admin
from raylog.client.config import (
    AUTO_OFFSET_RESET,
    BOOTSTRAP_SERVERS,
    CLIENT_ID,
    CONSUMER_SETTINGS,
    DEFAULT_API_TIMEOUT_MS,
    MAX_POLL_RECORDS,
    REQUEST_TIMEOUT_MS,
    client_settings,
)
from raylog.client.fetch_state import Gap, PartitionBuffer
from raylog.client.fetcher import Fetcher, log
from raylog.client.guards import ForkGuard, OneUser
from raylog.client.network import Network
from raylog.client.offset_queries import to_partitions
from raylog.client.results import ConsumerRecord, OffsetAndTimestamp
from raylog.client.serde import Deserializer, deserializer
from raylog.client.subscription import EARLIEST, LATEST, Place, Subscription
from raylog.protocol.errors import InvalidRequest, RaylogError, RequestTimedOut, is_retriable
from raylog.protocol.ids import NO_TOPIC_ID, TopicId, TopicPartition
from raylog.protocol.records import Batches

_NEW_TOPIC_GRACE_S = 2.0
"""How long a topic that no broker knows may be one that was just created."""


_EXCHANGE_S = 0.003


class Lent:
    """Records that an iteration took from a buffer and has not handed out yet."""

    __slots__ = ("buffer", "generation", "is_back", "next", "records")

    def __init__(self, buffer: PartitionBuffer, records: list[ConsumerRecord]) -> None:
        self.buffer = buffer
        self.records = records
        self.generation = buffer.place.generation
        self.next = 0
        self.is_back = False

    def give_back(self) -> None:
        """The iteration ends here, or another call reads meanwhile. Twice does no harm."""
        if not self.is_back and self.next < len(self.records) and self.buffer.place.generation == self.generation:
            self.buffer.give_back(self.records[self.next :])
        self.is_back = True


class ConsumerCore:
    """Positions, what was fetched, and how it is handed out."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        key_deserializer: str | Deserializer | None,
        value_deserializer: str | Deserializer | None,
        config: Mapping[str, Any],
    ) -> None:
        """See :class:`~raylog.client.consumer.Consumer`."""
        settings = client_settings(CONSUMER_SETTINGS, bootstrap_servers, config)
        reset = {"earliest": EARLIEST, "latest": LATEST, "none": None}[settings[AUTO_OFFSET_RESET]]
        key, value = deserializer(key_deserializer), deserializer(value_deserializer)
        self._settings = settings
        self._timeout_s = settings[DEFAULT_API_TIMEOUT_MS] / 1_000
        self._max_poll_records = settings[MAX_POLL_RECORDS]
        self._subscription = Subscription(reset)
        self._network = Network(settings)
        self._fetcher = Fetcher(settings, self._network, self._subscription, key, value)
        self._fork = ForkGuard("consumer")
        self._user = OneUser("consumer")
        self._ended = False
        self._serving: PartitionBuffer | None = None
        """Whose answer is being handed out."""
        self._may_deliver: Callable[[TopicPartition], bool] | None = None
        """In a group: what may be handed out of what is read."""
        self._exchanged = 0.0
        """When brokers were talked to last, monotonic."""

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read exactly these partitions from now on; those that stay keep their positions."""
        wanted = to_partitions(partitions)
        self._network.metadata.want(tp.topic for tp in wanted)
        self._subscription.assign(wanted)

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are being read."""
        return frozenset(place.tp for place in self._subscription)

    def topic_id(self, topic: str) -> TopicId:
        """The topic's id as the metadata told it last, by which a topic that was created again is told from the one
        before (KIP-516); NO_TOPIC_ID while it is not known."""
        described = self._network.metadata.view.topics.get(topic)
        return NO_TOPIC_ID if described is None else described.topic_id

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Hand out and fetch nothing of these partitions until :meth:`resume`; without arguments, of all."""
        for tp in to_partitions(partitions) or self.assignment():
            self._place(*tp).paused = True

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Read on where :meth:`pause` stopped; without arguments, on all assigned partitions."""
        for tp in to_partitions(partitions) or self.assignment():
            self._place(*tp).paused = False

    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return frozenset(place.tp for place in self._subscription if place.paused)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Read on from ``offset``. InvalidRequest when it is negative or the partition isn't assigned."""
        if offset < 0:
            raise InvalidRequest(f"{topic}-{partition}: offset {offset} is negative")
        self._place(topic, partition).seek(offset)

    def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Read on from the first offset kept; without arguments, on all assigned partitions."""
        for tp in to_partitions(partitions) or self.assignment():
            self._place(*tp).seek_to(EARLIEST)

    def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Read on from the end, which is looked up when reading; without arguments, on all assigned partitions."""
        for tp in to_partitions(partitions) or self.assignment():
            self._place(*tp).seek_to(LATEST)

    def seek_to_time(self, timestamp: int, *partitions: tuple[str, int]) -> None:
        """Read on from the first record at or after ``timestamp`` (ms since 1970), or the end where none is so
        young; without partitions, on all assigned ones. InvalidRequest when it is negative."""
        if timestamp < 0:
            raise InvalidRequest(f"timestamp {timestamp} is not in milliseconds since 1970")
        for tp in to_partitions(partitions) or self.assignment():
            self._place(*tp).seek_to(timestamp)

    def _close(self) -> None:
        if not self._ended:
            self._ended = True
            self._fetcher.close()
            self._network.close()

    def _find_partitions(self, topic: str, begun: float) -> tuple[int, ...] | None:
        """The partitions of ``topic``; None while they may come. ``begun``: since when they are waited for."""
        metadata = self._network.metadata
        metadata.want((topic,))
        view = metadata.view
        if topic in view.topics:
            return tuple(range(len(view.topics[topic].partitions)))
        error = view.errors.get(topic)
        waited = time.monotonic() - begun
        if error is not None and (waited > _NEW_TOPIC_GRACE_S or not is_retriable(error)):
            raise error
        if waited > self._timeout_s:
            raise RequestTimedOut(f"topic {topic!r}: no metadata") if view.brokers else self._network.unreachable()
        return None

    def _find_position(self, place: Place, begun: float) -> int | None:
        """The place's position; None while its offset is being asked for."""
        self._raise_error()
        if place.position is None and time.monotonic() - begun > self._timeout_s:
            raise RequestTimedOut(f"{place.tp}: no position within {self._timeout_s} s; does it have a leader?")
        return place.position

    def _take(self, max_records: int) -> tuple[PartitionBuffer, list[ConsumerRecord]] | None:
        """Decoded records, of one batch, of the partition whose turn it is: one answer long, then others come."""
        buffer = self._serving
        if buffer is None or not self._valid(buffer) or not buffer.has_data():
            buffer = self._serving = next((other for other in self._buffers() if other.has_data()), None)
        while buffer is not None:
            answer = buffer.chunks[0] if buffer.chunks else None
            gaps: list[Gap] = []
            records = buffer.take(max_records, gaps)
            _tell_gaps(gaps)
            if not buffer.chunks or buffer.chunks[0] is not answer:
                self._fetcher.turn(buffer)
                self._serving = None
            if records:
                return buffer, records
            buffer = self._serving = next((other for other in self._buffers() if other.has_data()), None)
        return None

    def _take_up_to(self, left: int) -> dict[TopicPartition, list[ConsumerRecord]]:
        """At most ``left`` records of what is here, as poll() returns them."""
        polled: dict[TopicPartition, list[ConsumerRecord]] = {}
        try:
            while left and (taken := self._take(left)) is not None:
                buffer, records = taken
                polled.setdefault(buffer.place.tp, []).extend(records)
                left -= len(records)
        except RaylogError:
            if not polled:
                raise  # else it comes again with the next poll, behind what could be read
        return polled

    def _take_raw(self) -> dict[TopicPartition, Batches]:
        return {buffer.place.tp: raw for buffer in self._buffers() if (raw := buffer.raw()) is not None}

    def _take_columns(self, schema: pa.Schema) -> pa.Table:
        """One answer of each partition; without rows when nothing is here."""
        found: list[pa.RecordBatch] = []
        for buffer in self._buffers():
            gaps: list[Gap] = []
            try:
                columns = buffer.columns(schema, gaps)
            except RaylogError:
                if not found:
                    raise
                continue  # it comes again with the next poll, behind what could be read
            _tell_gaps(gaps)
            if columns is not None:
                found.append(columns)
        return pa.Table.from_batches(found, schema)

    def _buffers(self) -> Iterator[PartitionBuffer]:
        """Those that something may be taken from, in turn."""
        return filter(self._valid, self._fetcher.buffers.values())

    def _valid(self, buffer: PartitionBuffer) -> bool:
        """True unless a seek, an assignment or a pause has happened since it was filled, or it may not be delivered."""
        place = buffer.place
        return (
            buffer.generation == place.generation
            and not place.paused
            and self._fetcher.buffers.get(place.tp) is buffer
            and self._subscription.get(place.tp) is place
            and (self._may_deliver is None or self._may_deliver(place.tp))
        )

    def _has_data(self) -> bool:
        buffer = self._serving
        if buffer is not None and buffer.has_data() and self._valid(buffer):
            return True
        return any(other.has_data() for other in self._buffers())

    def _busy(self) -> bool:
        """True when brokers need not be talked to now: there is something to hand out, and the last talk is fresh.

        An exchange looks at every partition. One a batch would be too many when there are a thousand, and more often
        than every few milliseconds wins nothing: the next answer is fetched while this one is read.
        """
        now = time.monotonic()
        if now - self._exchanged < _EXCHANGE_S and self._has_data():
            return True
        self._exchanged = now
        return False

    def _raise_error(self) -> None:
        if self._fetcher.errors:
            raise self._fetcher.errors.popleft()

    def _place(self, topic: str, partition: int) -> Place:
        (tp,) = to_partitions([(topic, partition)])
        place = self._subscription.get(tp)
        if place is None:
            raise InvalidRequest(f"{tp} is not assigned to this consumer")
        return place

    def _reached(self, ends: dict[TopicPartition, int]) -> bool:
        return all(
            place.position is not None and place.position >= ends.get(place.tp, 0) for place in self._subscription
        )

    def _new_admin(self) -> Admin:
        """For offset queries, on connections of their own: on the consumer's, a waiting fetch would hold them up."""
        return Admin(
            self._settings[BOOTSTRAP_SERVERS],
            client_id=self._settings[CLIENT_ID],
            request_timeout_ms=self._settings[REQUEST_TIMEOUT_MS],
            default_api_timeout_ms=self._settings[DEFAULT_API_TIMEOUT_MS],
        )


def offsets_of(answers: dict[TopicPartition, OffsetAndTimestamp]) -> dict[TopicPartition, int]:
    """The offsets alone."""
    return {tp: answer.offset for tp, answer in answers.items()}


def _tell_gaps(gaps: list[Gap]) -> None:
    for gap in gaps:
        log.warning("%s: offsets %d to %d are missing; reading on behind them", *gap[:2], gap.next - 1)
