"""A consumer's side of a group in an event loop: what waits for ZooKeeper does so in the loop's executor."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from math import inf
from typing import Any, Protocol, TypeVar

from raylog.client.aio.loop_guard import LoopGuard
from raylog.client.arguments.arguments import to_partitions
from raylog.client.groups.calls import Call, Calls, Steps
from raylog.client.groups.consumer_in_group import LEAVE_S, ConsumerInGroup, NoListener, committed_offsets
from raylog.client.groups.group_consumer import AnyListener, GroupReader
from raylog.client.groups.group_consumer_join import Topics
from raylog.coordination.metadata.group_model import CommittedOffset
from raylog.protocol.errors import InvalidRequest, RaylogError
from raylog.protocol.ids import TopicPartition

T = TypeVar("T")

_PAUSE_S = 0.002
"""Before looking again whether another task is done with the consumer."""


class AsyncRebalanceListener(Protocol):
    """As :class:`~raylog.client.RebalanceListener`; methods may be coroutines, which the poll, or close, awaits."""

    def on_assigned(self, partitions: Sequence[TopicPartition], /) -> Awaitable[object] | None:
        """They are this consumer's from now on, and nothing was read of them yet."""
        return None

    def on_revoked(self, partitions: Sequence[TopicPartition], /) -> Awaitable[object] | None:
        """Another is to have them, or the consumer closes: the last chance to commit."""
        return None

    def on_lost(self, partitions: Sequence[TopicPartition], /) -> Awaitable[object] | None:
        """They are gone: nothing of them can be committed any more."""
        return None


class GroupTask(ConsumerInGroup):
    """What an AsyncConsumer does because it may be in a group."""

    def __init__(self, *arguments: Any) -> None:
        self._here = LoopGuard("consumer")
        self._loop = self._here.loop
        super().__init__(*arguments)
        self._listener: AnyListener = NoListener()
        self._topics: Topics | None = None
        """What to join the group for."""
        self._joining: asyncio.Future[GroupReader] | None = None
        self._awaited: set[asyncio.Future[Any]] = set()
        """Under way for the task that uses the consumer: calls of the listener, and of what blocks."""

    async def commit(self, offsets: Mapping[tuple[str, int], int | CommittedOffset] | None = None) -> None:
        """Commit, as ``Consumer.commit`` does. Cancelled, it may have committed."""
        wanted = committed_offsets(offsets)
        self._here.check()
        await asyncio.wrap_future(self._in_group().commit_async(wanted))

    async def committed(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, CommittedOffset | None]:
        """What the group has committed, whoever of it; None where nothing is. Raises RequestTimedOut."""
        wanted = to_partitions(partitions)
        self._here.check()
        ask = partial(self._in_group().committed, wanted)
        return await self._loop.run_in_executor(None, ask)

    @property
    def _in_listener(self) -> bool:
        return asyncio.current_task(self._loop) in self._awaited

    def _refuse_in_listener(self, what: str) -> None:
        if self._in_listener:
            raise InvalidRequest(f"a rebalance listener cannot {what}: a poll or close waits for it to return")

    async def _join(self) -> None:
        """Cancelled, it goes on by itself, and the next call takes up what came of it."""
        if self._joining is None:
            assert self._topics is not None
            self._joining = self._loop.run_in_executor(None, self._joined, self._topics, self._listener)
            self._joining.add_done_callback(seen)
        joining = self._joining
        try:
            await self._until_done(joining)
        finally:
            if joining.done() and self._joining is joining:
                self._joining = None
                if joining.exception() is None:
                    self._read_in(joining.result())

    async def _leave_group(self, *, commit: bool) -> None:
        if self._joining is not None:  # whoever began it was cancelled
            with suppress(RaylogError):
                await self._join()
        if self._group is not None:
            try:
                await self._made(self._group.leave(LEAVE_S, commit=commit))
            finally:
                self._read_in(None)

    async def _attend(self) -> float:
        """Take up what happened in the group; after how many ms to come again."""
        return inf if self._group is None else await self._made(self._group.attend())

    async def _until_free(self) -> None:
        """Return when no task uses the consumer, which is closed: each sees that as soon as it has its turn."""
        while self._awaited or self._user.is_in:
            if self._awaited:
                await asyncio.wait(self._awaited)
            await asyncio.sleep(_PAUSE_S)

    async def _made(self, calls: Calls[T]) -> T:
        """Make the calls of a group's sequence; see ``groups.calls``."""
        steps = Steps(calls)
        while (call := steps.next()) is not None:
            try:
                await self._make(call)
            except BaseException as error:  # noqa: BLE001 (the sequence gets it)
                steps.raised(error)
        return steps.answer

    async def _make(self, call: Call) -> None:
        if call.waits:
            under_way = self._loop.run_in_executor(None, call.make)
            try:
                await self._until_done(under_way)
            finally:
                await asyncio.wait((under_way,))  # also when it is cancelled: what comes behind it relies on that
            return
        self._user.give_up()
        try:
            answer = call.make()
            if isawaitable(answer):
                await self._until_done(asyncio.ensure_future(answer))
        finally:
            await self._take_again()

    async def _take_again(self) -> None:
        """Wait for who uses the consumer meanwhile, also when cancelled: whoever called holds it by ``with``."""
        cancelled: asyncio.CancelledError | None = None
        while not self._user.take_again():
            try:
                await asyncio.sleep(_PAUSE_S)
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    async def _until_done(self, future: asyncio.Future[Any]) -> None:
        """Await it; a coroutine of the user's is cancelled with who waits, what a thread does is not."""
        self._awaited.add(future)
        try:
            await (future if isinstance(future, asyncio.Task) else asyncio.shield(future))
        finally:
            self._awaited.discard(future)


def seen(future: asyncio.Future[Any]) -> None:
    """Nobody may be waiting any more for what came of it."""
    if not future.cancelled():
        future.exception()
