"""The consumer: assigned partitions, read in order from where the user says."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

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
from raylog.client.fetcher import Fetcher, log, to_partitions
from raylog.client.network import Network
from raylog.client.results import ConsumerRecord, OffsetAndTimestamp
from raylog.client.serde import Deserializer, deserializer
from raylog.client.subscription import EARLIEST, LATEST, Place, Subscription
from raylog.protocol.errors import (
    InvalidRequest,
    RequestTimedOut,
    is_retriable,
)
from raylog.protocol.ids import TopicPartition
from raylog.protocol.records import Batches

_NEW_TOPIC_GRACE_S = 2.0
"""How long a topic that no broker knows may be one that was just created."""


class Consumer:
    """Reads assigned partitions; one thread at a time, and nothing happens between calls.

    ``topics`` assigns all partitions of those topics. ``config`` takes Kafka's consumer settings with underscores.
    ``key_deserializer`` and ``value_deserializer`` are bytes, msgpack, str, json or a function. Polling
    raises OffsetOutOfRange (PositionLost has both offsets) when there is nowhere to read from and
    auto.offset.reset is none, and CorruptMessage for a batch that fails its checksum; seek to go on behind it.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        topics: Iterable[str] = (),
        *,
        key_deserializer: str | Deserializer = "bytes",
        value_deserializer: str | Deserializer = "bytes",
        **config: Any,
    ) -> None:
        settings = client_settings(CONSUMER_SETTINGS, bootstrap_servers, config)
        reset = {"earliest": EARLIEST, "latest": LATEST, "none": None}[settings[AUTO_OFFSET_RESET]]
        key, value = deserializer(key_deserializer), deserializer(value_deserializer)
        self._settings = settings
        self._timeout_s = settings[DEFAULT_API_TIMEOUT_MS] / 1_000
        self._max_poll_records = settings[MAX_POLL_RECORDS]
        self._subscription = Subscription(reset)
        self._network = Network(settings)
        self._fetcher = Fetcher(settings, self._network, self._subscription, key, value)
        self._admin: Admin | None = None
        try:
            self.assign((topic, partition) for topic in topics for partition in self.partitions_for(topic))
        except BaseException:
            self.close()
            raise

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read exactly these partitions from now on; those that stay keep their positions."""
        wanted = to_partitions(partitions)
        self._network.metadata.want(tp.topic for tp in wanted)
        self._subscription.assign(wanted)

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are being read."""
        return frozenset(place.tp for place in self._subscription)

    def partitions_for(self, topic: str) -> tuple[int, ...]:
        """The partition numbers of ``topic``; UnknownTopicOrPartition when there is none of that name."""
        metadata = self._network.metadata
        metadata.want((topic,))
        begun = time.monotonic()
        while True:
            view = metadata.view
            if topic in view.topics:
                return tuple(range(len(view.topics[topic].partitions)))
            error = view.errors.get(topic)
            waited = time.monotonic() - begun
            if error is not None and (waited > _NEW_TOPIC_GRACE_S or not is_retriable(error)):
                raise error
            if waited > self._timeout_s:
                raise RequestTimedOut(f"topic {topic!r}: no metadata") if view.brokers else self._network.unreachable()
            self._network.poll(100)

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
        """Read on from the end, which is looked up now; without arguments, on all assigned partitions."""
        for tp in to_partitions(partitions) or self.assignment():
            self._place(*tp).seek_to(LATEST)

    def position(self, topic: str, partition: int) -> int:
        """The offset of the next record to be read, which may have to be asked of the leader first."""
        place = self._place(topic, partition)
        deadline = time.monotonic() + self._timeout_s
        while place.position is None:
            self._fetcher.exchange(100)
            self._raise_error()
            if time.monotonic() > deadline:
                raise RequestTimedOut(f"{place.tp}: no position within {self._timeout_s} s; does it have a leader?")
        return place.position

    def beginning_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """The first offset that each partition keeps."""
        found = self._offsets(dict.fromkeys(to_partitions(partitions), EARLIEST))
        return {tp: answer.offset for tp, answer in found.items()}

    def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """The high watermark of each: one past the last offset that can be read."""
        found = self._offsets(dict.fromkeys(to_partitions(partitions), LATEST))
        return {tp: answer.offset for tp, answer in found.items()}

    def offsets_for_times(
        self, timestamps: Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first offset at or after each timestamp (ms); None when there is none."""
        found = self._offsets(timestamps)
        return {tp: answer if answer.offset >= 0 else None for tp, answer in found.items()}

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Records that are there, or that come within ``timeout_ms``; at most ``max.poll.records``."""
        left = min(max_records or self._max_poll_records, self._max_poll_records)
        polled: dict[TopicPartition, list[ConsumerRecord]] = {}
        taken = self._wait_for(timeout_ms, left)
        while taken is not None:
            buffer, records = taken
            polled.setdefault(buffer.place.tp, []).extend(records)
            left -= len(records)
            taken = self._take(left) if left else None
        return polled

    def poll_batches(self, timeout_ms: float = 0) -> dict[TopicPartition, Batches]:
        """Whole batches, still encoded, one answer per partition; their checksums are checked when decoded.

        Positions move behind them. Not to be mixed with record-wise polling in the middle of a batch.
        """
        deadline = time.monotonic() + timeout_ms / 1_000
        while True:
            self._fetcher.exchange(0 if self._has_data() else max(0.0, (deadline - time.monotonic()) * 1_000))
            found = {tp: raw for tp, buffer in self._buffers() if (raw := buffer.raw()) is not None}
            if not found:
                self._raise_error()
            if found or time.monotonic() >= deadline:
                return found

    def iterate(self, *, timeout_ms: float | None = None, until_end: bool = False) -> Iterator[ConsumerRecord]:
        """Records one by one, in order per partition.

        Ends after ``timeout_ms`` without a record (None: never), or with ``until_end`` at the end offsets
        that the partitions have now. Whoever stops earlier finds the rest where he left.
        """
        ends = self._ends() if until_end else None
        wait_ms = 1_000 if timeout_ms is None else timeout_ms
        while ends is None or not self._reached(ends):
            taken = self._wait_for(wait_ms, 1 << 30)
            if taken is None:
                if timeout_ms is not None:
                    return
                continue
            buffer, records = taken
            place = buffer.place
            generation, seen, count = place.generation, 0, len(records)
            if ends is not None and records[-1].offset >= ends.get(place.tp, 0):
                count = sum(record.offset < ends.get(place.tp, 0) for record in records)
            try:
                for seen, record in enumerate(records[:count], 1):  # noqa: B007
                    place.position = record.offset + 1
                    yield record
            finally:
                if seen < len(records) and place.generation == generation:
                    buffer.give_back(records[seen:])

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return self.iterate()

    def close(self) -> None:
        """Close all connections."""
        self._network.close()
        if self._admin is not None:
            self._admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wait_for(self, timeout_ms: float, max_records: int) -> tuple[PartitionBuffer, list[ConsumerRecord]] | None:
        """Some records, of one batch; None when none come in time."""
        deadline = time.monotonic() + timeout_ms / 1_000
        while True:
            self._fetcher.exchange(0 if self._has_data() else max(0.0, (deadline - time.monotonic()) * 1_000))
            taken = self._take(max_records)
            if taken is not None:
                return taken
            self._raise_error()
            if time.monotonic() >= deadline:
                return None

    def _take(self, max_records: int) -> tuple[PartitionBuffer, list[ConsumerRecord]] | None:
        """Decoded records of the partition whose turn it is."""
        for _, buffer in self._buffers():
            if buffer.has_data():
                gaps: list[Gap] = []
                records = buffer.take(max_records, gaps)
                for gap in gaps:
                    log.warning("%s: offsets %d to %d are missing; reading on behind them", *gap[:2], gap.next - 1)
                if records:
                    self._fetcher.turn(buffer)
                    return buffer, records
        return None

    def _buffers(self) -> list[tuple[TopicPartition, PartitionBuffer]]:
        """Buffers that are still valid: no seek or assignment has happened since they were filled."""
        return [
            (tp, buffer)
            for tp, buffer in self._fetcher.buffers.items()
            if buffer.generation == buffer.place.generation and self._subscription.get(tp) is buffer.place
        ]

    def _has_data(self) -> bool:
        return any(buffer.has_data() for _, buffer in self._buffers())

    def _raise_error(self) -> None:
        if self._fetcher.errors:
            raise self._fetcher.errors.popleft()

    def _place(self, topic: str, partition: int) -> Place:
        (tp,) = to_partitions([(topic, partition)])
        place = self._subscription.get(tp)
        if place is None:
            raise InvalidRequest(f"{tp} is not assigned to this consumer")
        return place

    def _ends(self) -> dict[TopicPartition, int]:
        return self.end_offsets(self.assignment())

    def _reached(self, ends: dict[TopicPartition, int]) -> bool:
        return all(
            place.position is not None and place.position >= ends.get(place.tp, 0) for place in self._subscription
        )

    def _offsets(self, at: Mapping[tuple[str, int], int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        if self._admin is None:
            self._admin = Admin(
                self._settings[BOOTSTRAP_SERVERS],
                client_id=self._settings[CLIENT_ID],
                request_timeout_ms=self._settings[REQUEST_TIMEOUT_MS],
                default_api_timeout_ms=self._settings[DEFAULT_API_TIMEOUT_MS],
            )
        return self._admin.list_offsets(at)
