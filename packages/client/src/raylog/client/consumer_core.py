"""What both consumers do: assigned partitions, read in order from where the user says. Nothing here waits.

:class:`~raylog.client.consumer.Consumer` waits in the caller's thread, :class:`~raylog.client.aio.AsyncConsumer` in an
event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from raylog.client.admin import Admin
from raylog.client.arguments.arguments import interceptors_with, to_partitions
from raylog.client.arguments.arguments import offset as checked_offset
from raylog.client.arguments.interceptors import ConsumerChain, ConsumerInterceptor
from raylog.client.arguments.serde import Deserializer, deserializer
from raylog.client.config.client import (
    BOOTSTRAP_SERVERS,
    CLIENT_ID,
    DEFAULT_API_TIMEOUT_MS,
    REQUEST_TIMEOUT_MS,
)
from raylog.client.fetch.consumer_config import (
    ALLOW_AUTO_CREATE_TOPICS,
    MAX_POLL_RECORDS,
    consumer_settings,
    offset_reset,
)
from raylog.client.fetch.fetch_state import Gap, PartitionBuffer
from raylog.client.fetch.fetcher import Fetcher, log
from raylog.client.fetch.subscription import Place, Subscription
from raylog.client.network.guards import ForkGuard, OneUser
from raylog.client.network.network import Network
from raylog.client.results import ConsumerRecord, OffsetAndTimestamp
from raylog.client.telemetry.metrics import CONSUMER_METRICS
from raylog.client.telemetry.metrics_reporter import MetricsReporter, Statistics
from raylog.coordination.host.clocks import wall_ms
from raylog.coordination.metadata.topic_names import check_topic_name
from raylog.protocol.errors import InvalidRequest, RaylogError, RequestTimedOut, is_retriable
from raylog.protocol.ids import EARLIEST, LATEST, NO_TOPIC_ID, PartitionIndex, TopicId, TopicName, TopicPartition
from raylog.protocol.records import Batches

T = TypeVar("T")

_NEW_TOPIC_GRACE_S = 2.0
"""How long a topic that no broker knows may be one that was just created."""


_EXCHANGE_S = 0.003


class ConsumerCore:
    """Positions, what was fetched, and how it is handed out."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        key_deserializer: str | Deserializer | None,
        value_deserializer: str | Deserializer | None,
        config: Mapping[str, Any],
        stats_cb: Statistics | None,
        interceptors: Sequence[ConsumerInterceptor],
    ) -> None:
        """See :class:`~raylog.client.consumer.Consumer`."""
        interceptors = interceptors_with("on_consume", interceptors)
        settings = consumer_settings(bootstrap_servers, config)
        key = deserializer(key_deserializer, "key_deserializer")
        value = deserializer(value_deserializer, "value_deserializer")
        self._settings = settings
        self._timeout_s = settings[DEFAULT_API_TIMEOUT_MS] / 1_000
        self._max_poll_records = settings[MAX_POLL_RECORDS]
        self._subscription = Subscription(offset_reset(settings, wall_ms))
        self._reporter = MetricsReporter("consumer", settings, CONSUMER_METRICS, self.metrics, stats_cb)
        self._network = Network(
            settings, self._subscription.topics, allow_auto_create=settings[ALLOW_AUTO_CREATE_TOPICS]
        )
        with self._network.owned():
            self._fetcher = Fetcher(settings, self._network, self._subscription, key, value, self._valid)
            self._reporter.start()
        self._fork = ForkGuard("consumer")
        self._user = OneUser("consumer")
        self._interceptors = ConsumerChain(interceptors) if interceptors else None
        self._ended = False
        self._serving: PartitionBuffer | None = None
        """Whose answer is being handed out."""
        self._may_deliver: Callable[[TopicPartition], bool] | None = None
        """In a group: what may be handed out of what is read."""
        self._ends: Mapping[TopicPartition, int] | None = None
        """While an iteration up to ends looks for records: of what is behind them, nothing is handed out."""
        self._exchanged = 0.0
        """When brokers were talked to last, monotonic."""
        self._followed: dict[TopicName, int] = {}
        """Topics that are read in all their partitions, and how many those were."""
        self._seen_version = -1
        """Of the metadata, when partitions were looked for that were added."""
        self._told = False
        """Whether the last look for errors found one: then what can be read comes first."""
        self._moved: dict[PartitionBuffer, tuple[int, int]] = {}
        """Positions, and their epochs, before the call that hands out moved them."""

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read exactly these partitions from now on; those that stay keep their positions. Partitions that are added to
        their topics are not read."""
        self._check()
        wanted = to_partitions(partitions)
        self._followed = {}
        self._network.metadata.want(tp.topic for tp in wanted)
        self._subscription.assign(wanted)
        self._network.pool.wakeup()  # a poll of another thread, which waits, goes on with these

    def current_lag(self, topic: str, partition: int) -> int | None:
        """How many offsets the position is behind the end of what can be read, as the last answer told it; None while
        either is not known. Asks nobody."""
        return self._place(topic, partition).lag

    def metrics(self) -> dict[str, float]:
        """What this consumer counted, by the names of Java's metrics: see :mod:`raylog.client.telemetry.metrics`."""
        return self._fetcher.metrics()

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are being read."""
        return frozenset(place.tp for place in self._subscription)

    def topic_id(self, topic: str) -> TopicId:
        """The topic's id as the metadata told it last, by which a topic that was created again is told from the one
        before (KIP-516); NO_TOPIC_ID while it is not known."""
        check_topic_name(topic)
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
        self._network.pool.wakeup()

    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return frozenset(place.tp for place in self._subscription if place.paused)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Read on from ``offset``. InvalidRequest when it is negative or the partition isn't assigned."""
        self._place(topic, partition).seek(checked_offset(f"{topic}-{partition}: offset", offset))
        self._network.pool.wakeup()

    def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Read on from the first offset kept; without arguments, on all assigned partitions."""
        self._seek_to(EARLIEST, partitions)

    def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Read on from the end, which is looked up when reading; without arguments, on all assigned partitions."""
        self._seek_to(LATEST, partitions)

    def seek_to_time(self, timestamp: int, *partitions: tuple[str, int]) -> None:
        """Read on from the first record at or after ``timestamp`` (ms since 1970), or the end where none is so
        young; without partitions, on all assigned ones. InvalidRequest when it is negative."""
        self._seek_to(checked_offset("timestamp", timestamp), partitions)

    def _seek_to(self, target: int, partitions: Iterable[tuple[str, int]]) -> None:
        for tp in to_partitions(partitions) or self.assignment():
            self._place(*tp).seek_to(target)
        self._network.pool.wakeup()

    def _check(self) -> None:
        """Raises RaylogError in a forked child, and once it is closed."""
        self._fork.check()
        if self._ended:
            raise RaylogError("the consumer is closed")

    def _close(self) -> None:
        if not self._ended:
            self._ended = True
            try:
                self._fetcher.close()
            finally:
                self._network.close()
                self._reporter.stop(wait=False)
                if self._interceptors is not None:
                    self._interceptors.close()

    def _follow(self, found: Iterable[tuple[str, int]]) -> None:
        """Read these, which are all partitions of their topics, and those that are added to them."""
        self.assign(found)
        for place in self._subscription:
            topic = place.tp.topic
            self._followed[topic] = max(self._followed.get(topic, 0), place.tp.partition + 1)

    def _look_for_partitions(self) -> None:
        """Read those that were added, from their first record on: nothing that is written to them is missed."""
        view = self._network.metadata.view
        if view.version == self._seen_version:
            return
        self._seen_version = view.version
        for topic, count in self._followed.items():
            described = view.topics.get(topic)
            now = count if described is None else len(described.partitions)
            for partition in range(count, now):
                place = self._subscription.add(TopicPartition(topic, PartitionIndex(partition)))
                place.seek_to(EARLIEST)
                log.info("%s was added to its topic; reading it from its start", place.tp)
            self._followed[topic] = max(count, now)

    def _find_partitions(self, topic: str, begun: float) -> tuple[int, ...] | None:
        """The partitions of ``topic``; None while they may come. ``begun``: since when they are waited for."""
        check_topic_name(topic)
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

    def _handed_out(self, take: Callable[[], T]) -> T:
        """What ``take`` takes, for the user: positions go back where something, such as an interrupt, keeps it from
        him."""
        with self._user.alone():
            self._moved.clear()
            try:
                return take()
            except BaseException:
                for buffer, (position, epoch) in self._moved.items():
                    if not buffer.is_void:
                        buffer.place.seek(position, epoch)
                raise

    def _will_move(self, buffer: PartitionBuffer) -> None:
        place = buffer.place
        if place.position is not None:
            self._moved.setdefault(buffer, (place.position, place.epoch))

    def _peek(self, max_records: int) -> tuple[PartitionBuffer, list[ConsumerRecord]] | None:
        """The next records, of one batch, of the partition whose turn it is: one answer long, then others come. The
        position stays. None when nothing is here, and when the next record can't be read, which is then to be told."""
        buffer = self._serving
        if buffer is None or not self._valid(buffer) or not buffer.has_data():
            buffer = self._next_buffer()
        while buffer is not None:
            answer = buffer.chunks[0] if buffer.chunks else None
            gaps: list[Gap] = []
            records = self._try(buffer, gaps, partial(buffer.peek, max_records, gaps))
            if records is None or not buffer.chunks or buffer.chunks[0] is not answer:
                self._fetcher.turn(buffer)
                self._serving = None
            else:
                self._serving = buffer
            if records is None:
                return None
            if records:
                return buffer, records
            buffer = self._next_buffer()
        return None

    def _take_up_to(self, left: int) -> dict[TopicPartition, list[ConsumerRecord]]:
        """At most ``left`` records of what is here, as poll() returns them."""
        polled: dict[TopicPartition, list[ConsumerRecord]] = {}
        while left and (found := self._peek(left)) is not None:
            buffer, records = found
            self._will_move(buffer)
            if buffer.place.move(buffer.generation, records[-1].offset + 1):
                polled.setdefault(buffer.place.tp, []).extend(records)
                left -= len(records)
        if polled and self._interceptors is not None:
            polled = self._interceptors.on_consume(polled)
        return polled

    def _take_raw(self) -> dict[TopicPartition, Batches]:
        found: dict[TopicPartition, Batches] = {}
        for buffer in list(self._buffers()):
            self._will_move(buffer)
            raw = self._try(buffer, [], buffer.raw)
            if raw is not None:
                found[buffer.place.tp] = raw
        return found

    def _take_columns(self, schema: pa.Schema) -> pa.Table:
        """One answer of each partition; without rows when nothing is here."""
        found: list[pa.RecordBatch] = []
        for buffer in list(self._buffers()):
            self._will_move(buffer)
            gaps: list[Gap] = []
            columns = self._try(buffer, gaps, partial(buffer.columns, schema, gaps))
            if columns is not None:
                found.append(columns)
        table = pa.Table.from_batches(found, schema)
        if found and self._interceptors is not None:
            table = self._interceptors.on_consume_columns(table)
        return table

    def _try(self, buffer: PartitionBuffer, gaps: list[Gap], take: Callable[[], T]) -> T | None:
        """What ``take`` takes from the buffer. The gaps that it notes are warned of; an error is told by the next look
        for errors, behind what is handed out now."""
        try:
            return take()
        except RaylogError as error:
            if not buffer.is_void:
                self._fetcher.complaints.add(buffer.place.tp, error)
            return None
        finally:
            for gap in gaps:
                log.warning("%s: offsets %d to %d are missing; reading on behind them", *gap[:2], gap.next - 1)

    def _next_buffer(self) -> PartitionBuffer | None:
        return next((buffer for buffer in self._buffers() if buffer.has_data()), None)

    def _buffers(self) -> Iterator[PartitionBuffer]:
        """Those that something may be taken from, in turn."""
        return filter(self._valid, self._fetcher.filled.values())

    def _valid(self, buffer: PartitionBuffer) -> bool:
        """True unless a seek, an assignment or a pause has happened since it was filled, or it may not be delivered."""
        place = buffer.place
        return (
            buffer.generation == place.generation
            and not place.paused
            and self._fetcher.buffers.get(place.tp) is buffer
            and self._subscription.get(place.tp) is place
            and (self._ends is None or (place.position or 0) < self._ends.get(place.tp, 0))
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
        """Tell the oldest error; where the last look told one, what can be read comes before."""
        told, self._told = self._told, False
        if told and self._has_data():
            return
        error = self._fetcher.complaints.next()
        if error is not None:
            self._told = True
            raise error

    def _place(self, topic: str, partition: int) -> Place:
        self._check()
        (tp,) = to_partitions([(topic, partition)])
        place = self._subscription.get(tp)
        if place is None:
            raise InvalidRequest(f"{tp} is not assigned to this consumer")
        return place

    def _reached(self, ends: dict[TopicPartition, int]) -> bool:
        return all(
            place.paused or place.tp not in ends or (place.position is not None and place.position >= ends[place.tp])
            for place in self._subscription
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
