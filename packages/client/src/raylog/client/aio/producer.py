"""The producer for asyncio: it awaits where it must wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from raylog.client.aio.loop_guard import LoopGuard
from raylog.client.arguments.arguments import wait, wait_or_none
from raylog.client.arguments.interceptors import ProducerBatch, ProducerInterceptor, ProducerRecord
from raylog.client.arguments.record_values import Headers
from raylog.client.arguments.serde import Serializer
from raylog.client.batches.accumulator import Batch, EncodedRecords
from raylog.client.delivery import BatchDelivery, BatchOutcome, Delivery, Landed
from raylog.client.network.network import CONNECT_POLL_MS
from raylog.client.produce.exit_flush import KEPT, STOP_S, forget, remember
from raylog.client.producer_core import Partitioner, ProducerCore
from raylog.client.results import RecordMetadata
from raylog.client.telemetry.metrics_reporter import Statistics
from raylog.coordination.host.clocks import wall_ms
from raylog.coordination.host.loops import Loops
from raylog.protocol.errors import InvalidRequest, RaylogError, RequestTimedOut
from raylog.protocol.logs import Logger

log = Logger(__name__)

_FAILURE_PAUSE_MS = 500.0
"""The pause after a step of the sender that failed."""

T = TypeVar("T")


class _MustWait(Exception):
    """A call of the core can't go on now: it queued nothing, and is to be made again, with its serializers and its
    partitioner, when ``condition`` holds."""

    def __init__(self, condition: Callable[[], Any], what: str | RaylogError) -> None:
        self.condition = condition
        self.what = what


class AsyncDelivery(Delivery):
    """One record's delivery; ``await`` it for its RecordMetadata. Who stops awaiting doesn't stop the record."""

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        yield from _settled(self._outcome).__await__()
        return super().result(0)

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Where the record landed, once :meth:`done`; InvalidRequest before, since nothing may block the loop."""
        _must_be_done(self.done())
        return super().result(0)

    def exception(self, timeout_s: float | None = None) -> RaylogError | None:
        """Why the delivery failed, once :meth:`done`; InvalidRequest before."""
        _must_be_done(self.done())
        return super().exception(0)


class AsyncBatchDelivery(BatchDelivery):
    """The delivery of all rows of one ``send_batch``; ``await`` it for where they landed."""

    def __await__(self) -> Generator[Any, None, list[Landed]]:
        for outcome, _ in self._outcomes:
            yield from _settled(outcome).__await__()
        return super().result(0)

    def result(self, timeout_s: float | None = None) -> list[Landed]:
        """Where the rows landed, once :meth:`done`; InvalidRequest before, since nothing may block the loop."""
        _must_be_done(self.done())
        return super().result(0)

    def exception(self, timeout_s: float | None = None) -> RaylogError | None:
        """Why some rows were not delivered, once :meth:`done`; InvalidRequest before."""
        _must_be_done(self.done())
        return super().exception(0)


class AsyncProducer(ProducerCore):
    """Sends records in batches, from tasks of the event loop it was made in.

    Arguments and errors are those of :class:`~raylog.client.producer.Producer`. ``async with`` flushes and closes it;
    one that is not closed is flushed at the end of the process, for at most 30 s.
    """

    _delivery = AsyncDelivery

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        key_serializer: str | Serializer | None = None,
        value_serializer: str | Serializer | None = None,
        partitioner: str | Partitioner | None = None,
        stats_cb: Statistics | None = None,
        interceptors: Sequence[ProducerInterceptor] = (),
        **config: Any,
    ) -> None:
        self._here = LoopGuard("producer")
        self._loop = self._here.loop
        self._waiters: set[asyncio.Future[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._loops = Loops()
        super().__init__(
            bootstrap_servers,
            key_serializer,
            value_serializer,
            partitioner,
            config,
            stats_cb=stats_cb,
            interceptors=interceptors,
        )
        try:
            self._loop.add_reader(self._network.pool.fileno(), self._step)
            self._step()
        except BaseException as error:
            self._stop(RaylogError(f"the producer could not be made: {error}"))
            raise
        remember(self)

    async def aiosend(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> AsyncDelivery:
        """Queue one record and promise its delivery, which can be awaited in turn.

        Waits, without holding up the loop, while ``buffer.memory`` is used up or the topic's metadata is missing, at
        most ``max.block.ms``. Cancelled while it waits, it has queued nothing. Raises as ``Producer.send``.
        """
        self._here.check()
        chain = self._interceptors
        if chain is not None:
            topic, value, key, partition, headers, timestamp = record = chain.on_send(
                ProducerRecord(topic, value, key, partition, headers, timestamp)
            )

        def send() -> Delivery:
            return self._send(topic, value, key, partition=partition, headers=headers, timestamp=timestamp)

        try:
            try:
                delivery = send()
            except _MustWait as blocked:
                delivery = await self._retry(send, blocked)
        except Exception as error:
            if chain is not None:
                chain.refused(record, error)
            raise
        if chain is not None:
            chain.follow(delivery)
        assert isinstance(delivery, AsyncDelivery)
        return delivery

    async def send_batch(
        self,
        topic: str,
        values: Any = None,
        keys: Any = None,
        *,
        partition: Any = None,
        headers: Any = None,
        timestamps: Any = None,
    ) -> AsyncBatchDelivery:
        """Queue many records at once, given as columns, as ``Producer.send_batch`` does; await the delivery in turn.

        Other tasks have their turns meanwhile, and must not change the columns. Cancelled while it waits for memory,
        it has queued a part of the rows: the batches made so far.
        """
        self._here.check()
        chain = self._interceptors
        if chain is None:
            return await self._send_batch(topic, values, keys, partition, headers, timestamps)
        batch = chain.on_send_batch(ProducerBatch(topic, values, keys, partition, headers, timestamps))
        try:
            delivery = await self._send_batch(*batch)
        except Exception as error:
            chain.refused_batch(error)
            raise
        chain.follow_batch(delivery)
        return delivery

    async def _send_batch(
        self, topic: str, values: Any, keys: Any, partition: Any, headers: Any, timestamps: Any
    ) -> AsyncBatchDelivery:
        delivery = AsyncBatchDelivery()
        checked: list[Iterator[EncodedRecords]] = []
        for rows, partitions in self._columns.pieces(values, keys, partition, headers, timestamps, wall_ms()):
            checked.append(await self._call(lambda: self._encoded(topic, rows, partitions)))  # noqa: B023
            await asyncio.sleep(0)  # other tasks have their turns
        for piece in checked:
            for encoded in piece:
                await self._call(lambda: self._add_encoded(topic, encoded, delivery))  # noqa: B023
            await asyncio.sleep(0)
        return delivery

    async def flush(self, timeout_s: float | None = None) -> None:
        """Return when every record sent so far was delivered or has failed; its delivery tells which.

        Raises RequestTimedOut when that takes longer than ``timeout_s``.
        """
        wait_or_none("timeout_s", timeout_s)
        self._here.check()
        batches = self.hurry()
        try:
            async with asyncio.timeout(timeout_s):
                for batch in batches:
                    await _settled(batch.outcome.whole)
        except TimeoutError as error:
            raise RequestTimedOut(f"flush: not all records were settled within {timeout_s} s") from error

    async def partitions_for(self, topic: str) -> int:
        """How many partitions the topic has; waits for its metadata as :meth:`aiosend` does."""
        self._here.check()
        return (await self._call(lambda: self._current_route(topic))).count

    async def close(self, timeout_s: float | None = None) -> None:
        """Flush, then stop. What isn't settled within ``timeout_s``, or when this is cancelled, fails. Twice does no
        harm."""
        wait_or_none("timeout_s", timeout_s)
        if self._closed or self._fork.forked:
            return
        self._here.check()
        try:
            async with asyncio.timeout(timeout_s):
                await self.flush()
                async with asyncio.timeout(self._request_timeout_ms / 1_000):
                    while self._sender.unwritten():
                        await self._news(CONNECT_POLL_MS / 1_000)
        except (RaylogError, TimeoutError):
            pass  # the rest fails below: each record's delivery says so
        finally:
            self._stop(RaylogError("the producer was closed before the record was delivered"))

    def close_at_exit(self, timeout_s: float) -> None:
        """Called at the end of the process, when its loop is over, or runs in a thread that nobody waits for.

        Where it is over, callbacks and interceptors are called in a thread that is waited for so long only; where there
        are no threads any more (Python 3.12 and newer), in this one.
        """
        deadline_s = time.monotonic() + wait("timeout_s", timeout_s)
        batches = self.hurry()
        if self._loop.is_running():
            with suppress(TimeoutError):
                for batch in batches:
                    batch.outcome.whole.wait(max(0.0, deadline_s - time.monotonic()))
            return
        self._waiters.clear()
        try:
            thread = self._loops.once("raylog-producer", partial(self._flush_out, batches, deadline_s))
        except RuntimeError:
            self._flush_out(batches, deadline_s)
            return
        thread.join(max(deadline_s - time.monotonic(), STOP_S))
        if thread.is_alive:
            log.error(KEPT)

    def _flush_out(self, batches: Sequence[Batch[BatchOutcome]], deadline_s: float) -> None:
        """Send, without the loop, what is to be sent, and stop."""
        while self._sender.unwritten() or not all(batch.outcome.whole.done for batch in batches):
            left_ms = (deadline_s - time.monotonic()) * 1_000
            if left_ms <= 0:
                break
            self._sender.step(wait_ms=left_ms)
        self._stop(RaylogError("the process ended before the record was delivered"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _step(self) -> None:
        """Do what there is to do now; come again when the descriptor is readable or the time has come."""
        if self._closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        wait_ms = _FAILURE_PAUSE_MS

        def step() -> None:
            nonlocal wait_ms
            wait_ms = self._sender.step(wait_ms=0)

        done = False
        try:
            done = self._loops.guarded("raylog-producer", step)
        finally:  # also behind Ctrl-C, which comes here in a loop that asyncio.run did not begin
            if not done:
                self._loops.guarded("raylog-producer", self._sender.mend)
            if not self._closed:  # a delivery callback may have closed it
                self._timer = self._loop.call_later(wait_ms / 1_000, self._step)

    def _stop(self, error: RaylogError) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._network.pool.fileno())
        if self._timer is not None:
            self._timer.cancel()
        self._sender.finish(error)
        self._reporter.stop(wait=False)
        if self._interceptors is not None:
            self._interceptors.close()
        forget(self)

    async def _call(self, call: Callable[[], T]) -> T:
        """``call()``, made again for as long as it must wait."""
        try:
            return call()
        except _MustWait as blocked:
            return await self._retry(call, blocked)

    async def _retry(self, call: Callable[[], T], blocked: _MustWait) -> T:
        what = blocked.what
        self._accumulator.in_a_hurry += 1
        try:
            async with asyncio.timeout(self._max_block_s) as limit:
                while True:
                    await self._news(None)
                    try:
                        return call()
                    except _MustWait as again:
                        what = again.what
        except TimeoutError as error:
            if not limit.expired():
                raise  # a serializer's or a partitioner's own
            raise self._blocked(what) from error
        finally:
            self._accumulator.in_a_hurry -= 1

    def _news(self, timeout_s: float | None) -> Awaitable[Any]:
        """Wait until memory or metadata came, or everything failed, or the time is over."""
        waiter = self._loop.create_future()
        self._waiters.add(waiter)
        waiter.add_done_callback(self._waiters.discard)
        self._network.pool.wakeup()
        return asyncio.wait((waiter,), timeout=timeout_s) if timeout_s is not None else waiter

    def _wait(self, condition: Callable[[], Any], what: str | RaylogError) -> Any:
        answer = self._ask(condition)
        if answer:
            return answer
        raise _MustWait(condition, what)

    def _tell_news(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


async def _settled(outcome: BatchOutcome) -> None:
    """Return when the outcome is known, whatever it is."""
    if outcome.done:
        return
    loop = asyncio.get_running_loop()
    known: asyncio.Future[None] = loop.create_future()

    def tell() -> None:
        if not known.done():
            known.set_result(None)

    outcome.on_done(tell)
    await known


def _must_be_done(done: bool) -> None:
    if not done:
        raise InvalidRequest("the records are still under way; await the delivery, or ask done() first")
