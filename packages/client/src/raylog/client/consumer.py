"""The consumer for threads: it waits in the thread that polls, and nothing is handed out between calls.

In a group, its membership has a thread of its own: see ``group_consumer``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from re import Pattern
from types import TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa

from raylog.client.admin import Admin
from raylog.client.arguments import arguments as given
from raylog.client.arguments.interceptors import ConsumerInterceptor
from raylog.client.arguments.serde import Deserializer
from raylog.client.batches.decode import schema_of
from raylog.client.consumer_core import offsets_of
from raylog.client.fetch.consumer_config import isolation_level
from raylog.client.groups.calls import made_here
from raylog.client.groups.consumer_in_group import LEAVE_S, ConsumerInGroup, NoListener, committed_offsets, named
from raylog.client.groups.group_consumer import RebalanceListener
from raylog.client.groups.group_consumer_join import subscribed
from raylog.client.network.discovery import only_cluster
from raylog.client.read_errors import WakeupError
from raylog.client.results import ConsumerRecord, OffsetAndTimestamp
from raylog.client.telemetry.metrics_reporter import Statistics
from raylog.coordination.metadata.group_model import CommittedOffset
from raylog.protocol.errors import InvalidRequest
from raylog.protocol.ids import EARLIEST, LATEST, TopicPartition
from raylog.protocol.records import Batches

T = TypeVar("T")

_WHOLE_BATCH = 1 << 30


class Consumer(ConsumerInGroup):
    """Reads partitions; for one thread at a time, not in a forked child (either is RaylogError).

    ``topics`` are read in all their partitions, and in those that are added, or with ``group_id`` shared with the
    group's other members: then they may also be one compiled pattern of whole names, and need not exist yet.
    ``listener``: see RebalanceListener.
    ``bootstrap_servers`` None: as :func:`raylog.client.connect` finds them. ``config`` takes Kafka's consumer settings
    with underscores. ``key_deserializer`` and ``value_deserializer`` are bytes (the default: nothing in a record tells
    how it was written), msgpack, str, json or a function of bytes; null stays None.
    ``stats_cb`` is called with :meth:`metrics` every ``statistics.interval.ms``, in a thread of its own.
    ``interceptors``: see ConsumerInterceptor.

    Making one raises, in a group, InvalidGroupId, InconsistentGroupProtocol when its members are Kafka's clients,
    BrokerNotAvailable and RequestTimedOut. Polling raises OffsetOutOfRange (PositionLost has both offsets) when there
    is nowhere to read from and auto.offset.reset is none, UnknownTopicOrPartition for a topic that is gone,
    RecordDeserializationError for a record that a deserializer raised for, and CorruptBatch for a batch that fails its
    checksum. What can be read before that is handed out first, and the position stays in front of it: the next poll
    raises again, by turns with what other partitions have, until a seek goes on behind it. docs/groups.md tells what is
    delivered how often, and when a member fails.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        topics: str | Pattern[str] | Iterable[str | Pattern[str]] | None = None,
        *,
        group_id: str | None = None,
        listener: RebalanceListener | None = None,
        key_deserializer: str | Deserializer | None = None,
        value_deserializer: str | Deserializer | None = None,
        stats_cb: Statistics | None = None,
        interceptors: Sequence[ConsumerInterceptor] = (),
        **config: Any,
    ) -> None:
        if group_id is not None:
            config["group_id"] = given.group_id(group_id)
        given.check_listener(listener)
        given.check_called_listener(listener)
        servers = only_cluster().bootstrap_servers if bootstrap_servers is None else bootstrap_servers
        super().__init__(servers, key_deserializer, value_deserializer, config, stats_cb, interceptors)
        self._admin: Admin | None = None
        self._woken = False
        """Somebody called :meth:`wakeup`, and nobody was told."""
        self._listener = listener or NoListener()
        try:
            if topics is not None:
                self.subscribe(topics)
        except BaseException:
            self.close()
            raise

    def subscribe(
        self, topics: str | Pattern[str] | Iterable[str | Pattern[str]], *, listener: RebalanceListener | None = None
    ) -> None:
        """Read these topics, as the constructor's, in place of what was read before.

        In a group, that is left first, as by :meth:`unsubscribe`, and joined again. ``listener`` None: the one before.
        """
        self._check()
        self._check_listener(listener or self._listener)
        given.check_called_listener(listener)
        if not self._has_group_id:
            names = list(named(topics))
            self._network.metadata.want(names)  # all at once: one at a time would ask for those before it, too
            self._follow([(topic, partition) for topic in names for partition in self.partitions_for(topic)])
            return
        wanted = subscribed(topics)
        self.unsubscribe()
        self._listener = listener or self._listener
        self._read_in(self._joined(wanted, self._listener))

    def unsubscribe(self) -> None:
        """Read nothing any more: leave the group, committing as :meth:`close` does, until subscribing again."""
        self._check()
        with self._user.alone():
            if self._group is not None:
                self._group.check_no_listener("unsubscribe")
            self._leave_group(commit=True)
        self._read_nothing()

    def partitions_for(self, topic: str) -> tuple[int, ...]:
        """The partition numbers of ``topic``; UnknownTopicOrPartition when there is none of that name."""
        self._check()
        begun = time.monotonic()
        with self._user.alone():
            while (found := self._find_partitions(topic, begun)) is None:
                self._fetcher.exchange(100)  # what comes meanwhile may answer a fetch
        return found

    def position(self, topic: str, partition: int) -> int:
        """The offset of the next record to be read, which may have to be asked of the leader first."""
        self._check()
        place = self._place(topic, partition)
        begun = time.monotonic()
        with self._user.alone():
            while (found := place.position) is None and (found := self._find_position(place, begun)) is None:
                self._fetcher.exchange(100)
        return found

    def beginning_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """The first offset that each partition keeps."""
        return offsets_of(self._offsets(dict.fromkeys(given.to_partitions(partitions), EARLIEST)))

    def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """The high watermark of each: one past the last offset that can be read."""
        return offsets_of(self._offsets(dict.fromkeys(given.to_partitions(partitions), LATEST)))

    def offsets_for_times(
        self, timestamps: Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first offset at or after each timestamp (ms); None when there is none."""
        given.offsets("timestamp", timestamps)
        found = self._offsets(timestamps)
        return {tp: answer if answer.offset >= 0 else None for tp, answer in found.items()}

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Records that are there, or that come within ``timeout_ms``; at most ``max_records``, by default
        ``max.poll.records``."""
        most = self._most(max_records)
        return self._handed_out(partial(self._wait_for, partial(self._take_up_to, most), timeout_ms))

    def poll_batches(self, timeout_ms: float = 0) -> dict[TopicPartition, Batches]:
        """Whole batches, still encoded, one answer per partition; their checksums are right, unless check.crcs is off.

        Positions move behind them.
        """
        return self._handed_out(partial(self._wait_for, self._take_raw, timeout_ms))

    def poll_columns(self, timeout_ms: float = 0, columns: Sequence[str] | None = None) -> pa.Table:
        """Records as an Arrow table, without a Python object for each: one answer per partition, in order there.

        ``columns``: some of ``raylog.client.batches.decode.SCHEMA`` (key, value, topic, partition, offset, timestamp,
        timestamp_type, headers), by default all. Keys and values are binary, no deserializer is applied. Positions
        move behind what is returned; no rows when none come within ``timeout_ms``. Raises as the class says.
        """
        schema = schema_of(columns)
        return self._handed_out(partial(self._wait_for, partial(self._take_columns, schema), timeout_ms))

    def iterate(self, *, timeout_ms: float | None = None, until_end: bool = False) -> Iterator[ConsumerRecord]:
        """Records one by one, in order per partition.

        Ends after ``timeout_ms`` without a record (None: never), or with ``until_end`` at the end offsets that the
        partitions have now; one that is paused is not waited for. Whoever stops earlier finds the rest where he left.
        A seek, a pause, an assignment or a poll inside the loop holds from the next record on.
        """
        given.wait_or_none("timeout_ms", timeout_ms)
        if given.flag("until_end", until_end) and self._group is not None:
            raise InvalidRequest("until_end: a group's partitions come and go while it reads; end by timeout_ms")
        ends = self.end_offsets(self.assignment()) if until_end else None
        wait_ms = 1_000 if timeout_ms is None else timeout_ms
        while ends is None or not self._reached(ends):
            with self._user.alone():
                self._ends = ends
                try:
                    found = self._wait_for(partial(self._peek, _WHOLE_BATCH), wait_ms)
                finally:
                    self._ends = None
            if found is None:
                if timeout_ms is not None:
                    return
                continue
            buffer, records = found
            if ends is not None and records[-1].offset >= (end := ends.get(buffer.place.tp, 0)):
                records = [record for record in records if record.offset < end]
                if not records:
                    buffer.place.move(buffer.generation, end)
                    continue
            yield from self._one_by_one(buffer, records)

    def wakeup(self) -> None:
        """Have the call that waits for records, or the next one, raise WakeupError: so another thread, or a signal
        handler, ends a loop that reads."""
        self._woken = True
        self._network.pool.wakeup()

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return self.iterate()

    # --- in a group ---

    def commit(self, offsets: Mapping[tuple[str, int], int | CommittedOffset] | None = None) -> None:
        """Commit these offsets, each one past the last record that was processed; by default the positions of all that
        is owned, behind what was handed out last. All of them or none.

        Raises UnknownMemberId when this consumer was put out of the group and IllegalGeneration when it does not own
        all of these any more (their new owners read on from what was committed before), OffsetMetadataTooLarge,
        InvalidRequest for a negative offset, RequestTimedOut when it is not known whether they were committed.
        """
        wanted = committed_offsets(offsets)
        self._in_group().commit(wanted)

    def commit_async(self, offsets: Mapping[tuple[str, int], int | CommittedOffset] | None = None) -> Future[None]:
        """As :meth:`commit`, which does not wait: the future has the error. Commits keep the order of the calls."""
        wanted = committed_offsets(offsets)
        return self._in_group().commit_async(wanted)

    def committed(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, CommittedOffset | None]:
        """What the group has committed, whoever of it; None where nothing is. Raises RequestTimedOut."""
        wanted = given.to_partitions(partitions)
        return self._in_group().committed(wanted)

    def close(self) -> None:
        """Leave the group, with enable.auto.commit committing what was handed out, and close all connections. Twice
        does no harm. Raises what the listener raises, when all is closed."""
        self._end(commit=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """As close; after an error nothing is committed, for the record that led to it is not processed."""
        self._end(commit=error is None)

    def _end(self, *, commit: bool) -> None:
        if self._fork.forked:
            return
        with self._user.alone():
            if self._group is not None:
                self._group.check_no_listener("close")
            try:
                self._leave_group(commit=commit)
            finally:
                self._close()
                if self._admin is not None:
                    self._admin.close()

    def _leave_group(self, *, commit: bool) -> None:
        if self._group is not None:
            try:
                made_here(self._group.leave(LEAVE_S, commit=commit), self._user)
            finally:
                self._read_in(None)

    def _wait_for(self, take: Callable[[], T], timeout_ms: float) -> T:
        """What ``take`` finds, as soon as that is something: nothing when nothing comes in time."""
        deadline = time.monotonic() + given.wait("timeout_ms", timeout_ms) / 1_000
        while True:
            self._exchange(deadline)
            self._raise_error()
            found = take()
            if found:
                return found
            self._raise_error()
            if time.monotonic() >= deadline:
                return found

    def _exchange(self, deadline: float) -> None:
        """Talk to brokers; wait for them until ``deadline``, monotonic, unless there is something to hand out.

        In a group, take up before what happened there.
        """
        self._check()
        if self._group is None and self._has_group_id:
            raise InvalidRequest("this consumer reads nothing: subscribe to topics first")
        self._check_wakeup()
        self._look_for_partitions()
        wait_ms = max(0.0, (deadline - time.monotonic()) * 1_000)
        if self._group is not None:
            wait_ms = min(wait_ms, made_here(self._group.attend(), self._user))
        if not self._busy():
            self._fetcher.exchange(0 if self._has_data() else wait_ms)
        self._check_wakeup()

    def _check_wakeup(self) -> None:
        if self._woken:
            self._woken = False
            raise WakeupError("this consumer was woken up: nothing is lost, and the next call reads on")

    def _offsets(self, at: Mapping[tuple[str, int], int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        self._check()
        if self._admin is None:
            self._admin = self._new_admin()
        return self._admin.list_offsets(at, isolation_level=isolation_level(self._settings))
