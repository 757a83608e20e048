"""The consumer for asyncio: it awaits in place of waiting, and nothing is handed out between calls.

In a group, its membership has a thread of its own: see ``group_consumer``. What has to wait for ZooKeeper, joining and
leaving, does so in the event loop's executor.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from re import Pattern
from types import TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa

from raylog.client.admin import Admin
from raylog.client.aio.group_task import AsyncRebalanceListener, GroupTask, seen
from raylog.client.arguments.arguments import check_listener, offsets, several, to_partitions, wait
from raylog.client.arguments.arguments import group_id as checked_group_id
from raylog.client.arguments.interceptors import ConsumerInterceptor
from raylog.client.arguments.serde import Deserializer
from raylog.client.batches.decode import schema_of
from raylog.client.consumer_core import offsets_of
from raylog.client.fetch.consumer_config import isolation_level
from raylog.client.groups.consumer_in_group import named
from raylog.client.groups.group_consumer import RebalanceListener
from raylog.client.groups.group_consumer_join import subscribed
from raylog.client.results import ConsumerRecord, OffsetAndTimestamp
from raylog.client.telemetry.metrics_reporter import Statistics
from raylog.coordination.metadata.topic_names import check_topic_name
from raylog.protocol.errors import InvalidRequest, RaylogError
from raylog.protocol.ids import EARLIEST, LATEST, TopicPartition
from raylog.protocol.records import Batches

T = TypeVar("T")

_WHOLE_BATCH = 1 << 30


class AsyncConsumer(GroupTask):
    """Reads partitions, for one task at a time: ``async for record in consumer``, or :meth:`poll`.

    Arguments, settings and errors are those of :class:`~raylog.client.consumer.Consumer`. The topics' partitions are
    looked up, or with ``group_id`` the group is joined, by ``async with`` or by the first call that reads. A call that
    is cancelled has handed out nothing and lost nothing: the next one goes on where the last stopped.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        topics: str | Pattern[str] | Iterable[str | Pattern[str]] = (),
        *,
        group_id: str | None = None,
        listener: AsyncRebalanceListener | RebalanceListener | None = None,
        key_deserializer: str | Deserializer | None = None,
        value_deserializer: str | Deserializer | None = None,
        stats_cb: Statistics | None = None,
        interceptors: Sequence[ConsumerInterceptor] = (),
        **config: Any,
    ) -> None:
        if group_id is not None:
            config["group_id"] = checked_group_id(group_id)
        check_listener(listener)
        super().__init__(bootstrap_servers, key_deserializer, value_deserializer, config, stats_cb, interceptors)
        self._listener = listener or self._listener
        self._names: list[str] = []
        """Topics whose partitions are still to be assigned."""
        self._in_hand: Iterator[ConsumerRecord] = iter(())
        """What ``async for`` hands out next."""
        self._admin: Admin | None = None
        self._asking: asyncio.Future[Any] | None = None
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        try:
            given = _several(topics)
            if given:
                self._check_listener(self._listener)
                self._want(given)
        except BaseException:
            self._close()
            raise

    async def subscribe(
        self,
        topics: str | Pattern[str] | Iterable[str | Pattern[str]],
        *,
        listener: AsyncRebalanceListener | RebalanceListener | None = None,
    ) -> None:
        """Read these topics, as the constructor's, in place of what was read before; see ``Consumer.subscribe``."""
        self._here.check()
        given = _several(topics)
        self._check_listener(listener or self._listener)
        if self._has_group_id:
            subscribed(given)
        await self.unsubscribe()
        self._listener = listener or self._listener
        self._want(given)
        await self._begin()

    async def unsubscribe(self) -> None:
        """Read nothing any more: leave the group, committing as :meth:`close` does, until subscribing again."""
        self._check()
        self._refuse_in_listener("unsubscribe")
        with self._user.alone():
            await self._leave_group(commit=True)
        self._names, self._topics = [], None
        self._read_nothing()

    async def partitions_for(self, topic: str) -> tuple[int, ...]:
        """The partition numbers of ``topic``; UnknownTopicOrPartition when there is none of that name."""
        self._here.check()
        self._check()
        begun = time.monotonic()
        with self._user.alone():
            while (found := self._find_partitions(topic, begun)) is None:
                self._fetcher.exchange(0)  # what comes meanwhile may answer a fetch
                await self._readable(self._network.wait_ms(100))
        return found

    async def position(self, topic: str, partition: int) -> int:
        """The offset of the next record to be read, which may have to be asked of the leader first."""
        to_partitions([(topic, partition)])
        await self._begin()
        place = self._place(topic, partition)
        begun = time.monotonic()
        with self._user.alone():
            while (found := place.position) is None and (found := self._find_position(place, begun)) is None:
                await self._readable(min(100, self._fetcher.exchange(0)))
        return found

    async def beginning_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """The first offset that each partition keeps."""
        return offsets_of(await self._offsets(dict.fromkeys(to_partitions(partitions), EARLIEST)))

    async def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """The high watermark of each: one past the last offset that can be read."""
        return offsets_of(await self._offsets(dict.fromkeys(to_partitions(partitions), LATEST)))

    async def offsets_for_times(
        self, timestamps: Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first offset at or after each timestamp (ms); None when there is none."""
        offsets("timestamp", timestamps)
        found = await self._offsets(timestamps)
        return {tp: answer if answer.offset >= 0 else None for tp, answer in found.items()}

    async def poll(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Records that are there, or that come within ``timeout_ms``; at most ``max_records``, by default
        ``max.poll.records``."""
        most = self._most(max_records)
        return await self._find(partial(self._take_up_to, most), timeout_ms)

    async def poll_batches(self, timeout_ms: float = 0) -> dict[TopicPartition, Batches]:
        """As ``Consumer.poll_batches``."""
        return await self._find(self._take_raw, timeout_ms)

    async def poll_columns(self, timeout_ms: float = 0, columns: Sequence[str] | None = None) -> pa.Table:
        """Records as an Arrow table, as ``Consumer.poll_columns``."""
        return await self._find(partial(self._take_columns, schema_of(columns)), timeout_ms)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        """The next record, however long it takes. Who stops iterating finds the rest where he left."""
        while (record := next(self._in_hand, None)) is None:
            found = await self._find(partial(self._peek, _WHOLE_BATCH), 1_000)
            if found is not None:
                self._in_hand = self._one_by_one(*found)
        return record

    async def close(self) -> None:
        """Leave the group, with enable.auto.commit committing what was handed out, and close all connections. A call
        that waits in another task raises RaylogError. Twice does no harm. Raises what the listener raises, when all is
        closed. Cancelled, it goes on by itself."""
        await self._end(commit=True)

    async def __aenter__(self) -> Self:
        try:
            await self._begin()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """As close; after an error nothing is committed, for the record that led to it is not processed."""
        await self._end(commit=error is None)

    def _check(self) -> None:
        self._fork.check()
        if self._closed and not self._in_listener:
            raise RaylogError("the consumer is closed")

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """As ``Consumer.assign``: also in place of topics that were named and are not looked up yet."""
        super().assign(partitions)
        self._names = []

    def _want(self, topics: list[str | Pattern[str]]) -> None:
        """Begin with these the next time that something is read."""
        if self._has_group_id:
            self._topics = subscribed(topics)
        else:
            names = list(named(topics))
            for topic in names:
                check_topic_name(topic)
            self._names = names

    async def _end(self, *, commit: bool) -> None:
        if self._fork.forked or (self._closing is not None and self._closing.done()):
            return
        self._here.check()
        self._refuse_in_listener("close")
        if self._closing is None:
            self._closed = True
            self._network.pool.wakeup()
            self._closing = self._loop.create_task(self._finish(commit))
        await asyncio.shield(self._closing)

    async def _finish(self, commit: bool) -> None:
        """All is closed also where the loop ends, which cancels this."""
        try:
            await self._until_free()
            with self._user.alone():
                await self._leave_group(commit=commit)
            if self._asking is not None:
                await asyncio.wait((self._asking,))  # a thread is at it; it can't be stopped, but it ends
        finally:
            self._close()
            self._close_admin()

    def _close_admin(self) -> None:
        """Once no thread is at it any more."""
        if self._admin is not None and self._asking is None:
            self._admin.close()

    async def _begin(self) -> None:
        """Before anything is read: assign what was named, or join the group."""
        self._here.check()
        self._check()
        if self._names:
            names = self._names
            self._network.metadata.want(names)  # all at once: one at a time would ask for those before it, too
            found = [(topic, partition) for topic in names for partition in await self.partitions_for(topic)]
            if self._names is names:  # nothing else was assigned meanwhile
                self._names = []
                self._follow(found)
        if self._topics is not None and self._group is None:
            with self._user.alone():
                await self._join()
            self._check()

    async def _find(self, take: Callable[[], T], timeout_ms: float) -> T:
        """What ``take`` finds: nothing when nothing comes in time."""
        await self._wait_for_data(timeout_ms)
        return self._handed_out(partial(self._taken, take))

    def _taken(self, take: Callable[[], T]) -> T:
        self._raise_error()
        found = take()
        if not found:
            self._raise_error()
        return found

    async def _wait_for_data(self, timeout_ms: float) -> None:
        """Talk to brokers, and wait at most so long until there is something to hand out or to tell."""
        deadline = time.monotonic() + wait("timeout_ms", timeout_ms) / 1_000
        await self._begin()
        if self._has_group_id and self._group is None:
            raise InvalidRequest("this consumer reads nothing: subscribe to topics first")
        with self._user.alone():
            self._look_for_partitions()
            again_ms = await self._attend()
            if not self._busy() and self._has_data():
                self._fetcher.exchange(0)
                await self._readable(0)  # a backlog must not keep the loop from its other tasks
            while not self._has_data() and not self._fetcher.complaints:
                left_ms = (deadline - time.monotonic()) * 1_000
                await self._exchange(max(0.0, min(left_ms, again_ms)))
                if left_ms <= 0:
                    return
                again_ms = await self._attend()

    async def _exchange(self, timeout_ms: float) -> None:
        """One round: send and take in what there is, and wait for more unless something came. Others have a turn."""
        again_ms = self._fetcher.exchange(0)
        came = self._has_data() or self._fetcher.complaints
        await self._readable(0 if came else min(timeout_ms, again_ms))

    async def _readable(self, timeout_ms: float) -> None:
        """Wait until brokers have said something, or the time is over."""
        if timeout_ms <= 0:
            await asyncio.sleep(0)
            self._check()
            return
        descriptor = self._network.pool.fileno()
        readable = self._loop.create_future()
        self._loop.add_reader(descriptor, _resolve, readable)
        timer = self._loop.call_later(timeout_ms / 1_000, _resolve, readable)
        try:
            await readable
        finally:
            timer.cancel()
            self._loop.remove_reader(descriptor)
        self._check()

    async def _offsets(self, at: Mapping[tuple[str, int], int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Asked by the admin client, which blocks, in a thread; the answer of a call that was cancelled is dropped."""
        self._here.check()
        self._check()
        if self._admin is None:
            self._admin = self._new_admin()
        while self._asking is not None:
            await asyncio.wait((self._asking,))
        asking = self._asking = self._loop.run_in_executor(
            None, partial(self._admin.list_offsets, at, isolation_level=isolation_level(self._settings))
        )
        asking.add_done_callback(self._answered)
        return await asyncio.shield(asking)

    def _answered(self, asking: asyncio.Future[Any]) -> None:
        self._asking = None
        seen(asking)
        if self._ended:
            self._close_admin()


def _several(topics: str | Pattern[str] | Iterable[str | Pattern[str]]) -> list[str | Pattern[str]]:
    return [topics] if isinstance(topics, str | Pattern) else several("topics", topics)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
