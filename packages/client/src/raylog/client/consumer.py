"""The consumer for threads: it waits in the thread that polls, and nothing happens between calls."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from raylog.client.admin import Admin
from raylog.client.columns import schema_of
from raylog.client.consumer_core import ConsumerCore, offsets_of
from raylog.client.fetch_state import PartitionBuffer
from raylog.client.offset_queries import to_partitions
from raylog.client.results import ConsumerRecord, OffsetAndTimestamp
from raylog.client.serde import Deserializer
from raylog.client.subscription import EARLIEST, LATEST
from raylog.protocol.ids import TopicPartition
from raylog.protocol.records import Batches


class Consumer(ConsumerCore):
    """Reads assigned partitions; for one thread at a time, not in a forked child (either is RaylogError).

    ``topics`` assigns all partitions of those topics. ``config`` takes Kafka's consumer settings with underscores.
    ``key_deserializer`` and ``value_deserializer`` are bytes (the default: nothing in a record tells how it was
    written), msgpack, str, json or a function of bytes; null stays None. Polling raises OffsetOutOfRange
    (PositionLost has both offsets) when there is nowhere to read from and auto.offset.reset is none,
    UnknownTopicOrPartition for a topic that is gone, and CorruptMessage for a batch that fails its checksum; seek to
    go on behind it. What can be read before that is handed out first.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        topics: Iterable[str] = (),
        *,
        key_deserializer: str | Deserializer | None = None,
        value_deserializer: str | Deserializer | None = None,
        **config: Any,
    ) -> None:
        super().__init__(bootstrap_servers, key_deserializer, value_deserializer, config)
        self._admin: Admin | None = None
        try:
            self.assign((topic, partition) for topic in topics for partition in self.partitions_for(topic))
        except BaseException:
            self.close()
            raise

    def partitions_for(self, topic: str) -> tuple[int, ...]:
        """The partition numbers of ``topic``; UnknownTopicOrPartition when there is none of that name."""
        self._fork.check()
        begun = time.monotonic()
        with self._user:
            while (found := self._find_partitions(topic, begun)) is None:
                self._network.poll(100)
        return found

    def position(self, topic: str, partition: int) -> int:
        """The offset of the next record to be read, which may have to be asked of the leader first."""
        self._fork.check()
        place = self._place(topic, partition)
        begun = time.monotonic()
        with self._user:
            while (found := place.position) is None and (found := self._find_position(place, begun)) is None:
                self._fetcher.exchange(100)
        return found

    def beginning_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """The first offset that each partition keeps."""
        return offsets_of(self._offsets(dict.fromkeys(to_partitions(partitions), EARLIEST)))

    def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """The high watermark of each: one past the last offset that can be read."""
        return offsets_of(self._offsets(dict.fromkeys(to_partitions(partitions), LATEST)))

    def offsets_for_times(
        self, timestamps: Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first offset at or after each timestamp (ms); None when there is none."""
        found = self._offsets(timestamps)
        return {tp: answer if answer.offset >= 0 else None for tp, answer in found.items()}

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Records that are there, or that come within ``timeout_ms``; at most ``max.poll.records``."""
        left = min(max_records or self._max_poll_records, self._max_poll_records)
        with self._user:
            taken = self._wait_for(timeout_ms, left)
            if taken is None:
                return {}
            buffer, records = taken
            polled = {buffer.place.tp: records}
            for tp, more in self._take_up_to(left - len(records)).items():
                polled.setdefault(tp, []).extend(more)
            return polled

    def poll_batches(self, timeout_ms: float = 0) -> dict[TopicPartition, Batches]:
        """Whole batches, still encoded, one answer per partition; their checksums are checked when decoded.

        Positions move behind them.
        """
        deadline = time.monotonic() + timeout_ms / 1_000
        with self._user:
            while True:
                self._exchange(deadline)
                found = self._take_raw()
                if not found:
                    self._raise_error()
                if found or time.monotonic() >= deadline:
                    return found

    def poll_columns(self, timeout_ms: float = 0, columns: Sequence[str] | None = None) -> pa.Table:
        """Records as an Arrow table, without a Python object for each: one answer per partition, in order there.

        ``columns``: some of ``raylog.client.columns.SCHEMA`` (key, value, topic, partition, offset, timestamp,
        timestamp_type, headers), by default all. Keys and values are binary, no deserializer is applied. Positions
        move behind what is returned; no rows when none come within ``timeout_ms``. Raises as the class says.
        """
        schema = schema_of(columns)
        deadline = time.monotonic() + timeout_ms / 1_000
        with self._user:
            while True:
                self._exchange(deadline)
                table = self._take_columns(schema)
                if not len(table):
                    self._raise_error()
                if len(table) or time.monotonic() >= deadline:
                    return table

    def iterate(self, *, timeout_ms: float | None = None, until_end: bool = False) -> Iterator[ConsumerRecord]:
        """Records one by one, in order per partition.

        Ends after ``timeout_ms`` without a record (None: never), or with ``until_end`` at the end offsets
        that the partitions have now. Whoever stops earlier finds the rest where he left.
        """
        ends = self.end_offsets(self.assignment()) if until_end else None
        wait_ms = 1_000 if timeout_ms is None else timeout_ms
        while ends is None or not self._reached(ends):
            with self._user:
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
        """Close all connections. Twice does no harm."""
        if self._fork.forked:
            return
        with self._user:
            self._close()
            if self._admin is not None:
                self._admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _exchange(self, deadline: float) -> None:
        """Talk to brokers; wait for them until ``deadline``, monotonic, unless there is something to hand out."""
        self._fork.check()
        if not self._busy():
            self._fetcher.exchange(0 if self._has_data() else max(0.0, (deadline - time.monotonic()) * 1_000))

    def _wait_for(self, timeout_ms: float, max_records: int) -> tuple[PartitionBuffer, list[ConsumerRecord]] | None:
        """Some records, of one batch; None when none come in time."""
        deadline = time.monotonic() + timeout_ms / 1_000
        while True:
            self._exchange(deadline)
            taken = self._take(max_records)
            if taken is not None:
                return taken
            self._raise_error()
            if time.monotonic() >= deadline:
                return None

    def _offsets(self, at: Mapping[tuple[str, int], int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        self._fork.check()
        if self._admin is None:
            self._admin = self._new_admin()
        return self._admin.list_offsets(at)
