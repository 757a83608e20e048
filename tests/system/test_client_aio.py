"""The asyncio producer and consumer against real brokers in this process."""

from __future__ import annotations

import asyncio
import os
import select
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kit.cluster import InProcessCluster
from kit.machine import scaled_ms
from kit.proxied import proxied as behind_proxy
from kit.proxy import Fate, FrameProxy
from kit.reading import all_records
from kit.waiting import wait_until
from raylog.client.aio import AsyncConsumer, AsyncDelivery, AsyncProducer
from raylog.client.consumer_core import _EXCHANGE_S
from raylog.client.read_errors import PositionLost
from raylog.protocol.errors import (
    InvalidRecord,
    InvalidRequest,
    MessageTooLarge,
    RaylogError,
    RequestTimedOut,
    UnknownTopicOrPartition,
)

PRODUCE = 0
LIST_OFFSETS = 2
EARLIEST = {"auto_offset_reset": "earliest"}
LIMIT_S = 30


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test in a loop of its own, with a deadline; a task or callback that fails unseen fails the test."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        complaints: list[dict[str, Any]] = []

        async def main() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
            async with asyncio.timeout(LIMIT_S):
                await test(*args, **kwargs)
            others = asyncio.all_tasks() - {asyncio.current_task()}
            assert not others, f"left running: {others}"

        asyncio.run(main(), debug=True)
        assert complaints == []

    return run


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    with InProcessCluster(tmp_path, brokers=2, config={"auto.create.topics.enable": "false"}) as running:
        running.create_topic("t", partitions=4)
        yield running


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[tuple[FrameProxy, str]]:
    """One broker behind a proxy, with a topic ``t`` of two partitions; the proxy and its address."""
    with behind_proxy(tmp_path) as (_, proxy, servers):
        yield proxy, servers


async def _first(consumer: AsyncConsumer) -> object:
    return await anext(consumer)


async def soon(condition: Callable[[], Any], what: str) -> None:
    """Let the loop turn until ``condition`` holds."""
    async with asyncio.timeout(LIMIT_S / 2):
        while not condition():
            await asyncio.wait([asyncio.ensure_future(asyncio.to_thread(bool))])


@in_loop
async def test_records_arrive_where_their_deliveries_say(cluster: InProcessCluster) -> None:
    servers = cluster.bootstrap_servers
    async with AsyncProducer(servers, batch_size=1_000) as producer:
        assert await producer.partitions_for("t") == 4
        sent = [await producer.aiosend("t", {"n": n}, f"k{n % 7}", headers=[("h", b"1")]) for n in range(500)]
        landed = {(await delivery)[:3]: n for n, delivery in enumerate(sent)}
    config = {"value_deserializer": "msgpack", "key_deserializer": "msgpack", **EARLIEST}
    read = {}
    async with AsyncConsumer(servers, ["t"], **config) as consumer:
        async for record in consumer:
            assert (record.key, list(record.headers)) == (f"k{record.value['n'] % 7}", [("h", b"1")])
            read[record[:3]] = record.value["n"]
            if len(read) == 500:
                break
    assert read == landed


@in_loop
async def test_an_answer_that_comes_while_partitions_are_asked_for_is_taken(cluster: InProcessCluster) -> None:
    cluster.create_topic("u")
    async with AsyncProducer(cluster.bootstrap_servers) as producer:
        for n in range(100):
            await producer.aiosend("t", n, partition=n % 4)
        await producer.flush()
    async with AsyncConsumer(cluster.bootstrap_servers, ["t"], **EARLIEST) as consumer:
        await consumer.position("t", 0)
        await soon(lambda: consumer._fetcher.exchange(0) == -1 or consumer._fetcher._fetching, "a fetch is sent")
        pool = consumer._network.pool
        await soon(lambda: select.select([pool.fileno()], [], [], 0)[0], "its answer lies in the socket")
        assert await consumer.partitions_for("u") == (0,)
        found = 0
        async with asyncio.timeout(LIMIT_S / 2):
            async for _ in consumer:
                found += 1
                if found == 100:
                    break


@in_loop
async def test_every_way_of_reading_goes_on_where_the_last_stopped(cluster: InProcessCluster) -> None:
    async with AsyncProducer(cluster.bootstrap_servers) as producer:
        delivery = await producer.send_batch("t", [b"%d" % n for n in range(900)], partition=1)
        await producer.flush()
        landed = delivery.result(0)
        assert (landed[0][1:3], sum(run.record_count for run in landed)) == ((1, 0), 900)
    offsets: list[int] = []
    async with AsyncConsumer(cluster.bootstrap_servers, **EARLIEST, max_poll_records=50) as consumer:
        consumer.assign([("t", 1)])
        async for record in consumer:
            offsets.append(record.offset)
            if len(offsets) == 10:
                break
        assert await consumer.position("t", 1) == 10
        (records,) = (await consumer.poll(scaled_ms(5_000))).values()
        offsets += [record.offset for record in records]
        async for record in consumer:
            offsets.append(record.offset)
            if len(offsets) == 100:
                break
        offsets += (await consumer.poll_columns(scaled_ms(5_000), ["offset"]))["offset"].to_pylist()
        assert offsets == list(range(900))
        consumer.seek("t", 1, 5)
        (batches,) = (await consumer.poll_batches(scaled_ms(5_000))).values()
        assert [record.offset for record in batches.records()] == list(range(5, 900))
        assert await consumer.poll(20) == {}
        assert await consumer.end_offsets([("t", 1)]) == {("t", 1): 900}
        assert await consumer.beginning_offsets([("t", 1), ("t", 0)]) == {("t", 1): 0, ("t", 0): 0}
        assert (await consumer.offsets_for_times({("t", 0): 5}))["t", 0] is None


@in_loop
async def test_the_delivery_of_columns_is_awaited(proxied: tuple[FrameProxy, str]) -> None:
    proxy, servers = proxied
    async with AsyncProducer(servers, linger_ms=0) as producer:
        assert (await (await producer.send_batch("t", [b"first"], partition=0)))[0][1:3] == (0, 0)
        proxy.on_answer = lambda key: Fate.DROP if key == PRODUCE else Fate.PASS
        delivery = await producer.send_batch("t", [b"a", b"b"], partition=1)
        for ask in (delivery.result, delivery.exception):
            with pytest.raises(InvalidRequest, match="still under way"):
                ask()
        proxy.on_answer = lambda _: Fate.PASS
        proxy.cut()
        landed = await delivery
        assert ([run[1::2] for run in landed], landed, delivery.exception()) == ([(1, 2)], delivery.result(), None)


@in_loop
async def test_a_million_rows_leave_others_their_turns(cluster: InProcessCluster) -> None:
    """Turns are counted, not timed: one per some ten thousand rows that are checked, and one when they are queued."""
    count, turns = 300_000, 0
    config = {"buffer_memory": 1 << 28, "batch_size": 1 << 20}
    loop = asyncio.get_running_loop()

    def take_turn() -> None:
        nonlocal turns
        turns += 1
        if not ended:
            loop.call_soon(take_turn)

    async with AsyncProducer(cluster.bootstrap_servers, **config) as producer:
        await producer.partitions_for("t")
        ended = False
        take_turn()
        delivery = await producer.send_batch("t", [b"%d" % n for n in range(count)], partition=np.arange(count) % 4)
        ended = True
        assert turns >= 2 * (count // 65_536)
        assert sum(run.record_count for run in await delivery) == count


@in_loop
async def test_columns_of_other_lengths_are_refused_whole(cluster: InProcessCluster) -> None:
    """However many pieces they are sent in."""
    async with AsyncProducer(cluster.bootstrap_servers) as producer:
        for rows in (2, 65_537):
            values = [b"v"] * rows
            for wrong in (rows - 1, rows + 1):
                for more in ({"keys": [b"k"] * wrong}, {"timestamps": [1] * wrong}, {"partition": [1] * wrong}):
                    with pytest.raises(InvalidRecord):
                        await producer.send_batch("t", values, **more)
    async with AsyncConsumer(cluster.bootstrap_servers, ["t"], **EARLIEST) as consumer:
        assert await consumer.end_offsets([("t", n) for n in range(4)]) == {("t", n): 0 for n in range(4)}


@in_loop
async def test_a_waiting_consumer_leaves_the_loop_free_and_is_woken(cluster: InProcessCluster) -> None:
    servers = cluster.bootstrap_servers
    async with (
        AsyncConsumer(servers, ["t"], fetch_max_wait_ms=20_000) as consumer,
        AsyncProducer(servers, linger_ms=0) as producer,
    ):
        assert [await consumer.position("t", partition) for partition in range(4)] == [0] * 4
        reading = asyncio.create_task(anext(consumer))
        await producer.aiosend("t", b"wakes", partition=2)
        assert (await asyncio.wait_for(reading, 10)).value == b"wakes"


@in_loop
@pytest.mark.parametrize("topics", [("t",), ("not-there",)])
async def test_closing_under_a_task_that_reads_closes_everything(
    cluster: InProcessCluster, topics: tuple[str, ...]
) -> None:
    """Whatever the task waits for: records, or what there is to read."""

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    consumer = AsyncConsumer(cluster.bootstrap_servers, topics, **EARLIEST, fetch_max_wait_ms=20_000)
    reading = asyncio.create_task(_first(consumer))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(reading), 0.2)
    assert descriptors() > before
    await consumer.close()
    with pytest.raises(RaylogError, match="is closed"):
        await reading
    await soon(lambda: descriptors() <= before, "nothing stays open")


@in_loop
async def test_a_backlog_leaves_others_their_turns(cluster: InProcessCluster) -> None:
    """One whenever the last exchange is some milliseconds old, once the batch is handed out that is in hand."""
    async with AsyncProducer(cluster.bootstrap_servers) as producer:
        runs = await (await producer.send_batch("t", [b"x" * 100] * 30_000, partition=1))
    largest = max(run.record_count for run in runs)
    turns, loop = 0, asyncio.get_running_loop()

    def take_turn() -> None:
        nonlocal turns
        turns += 1
        if not ended:
            loop.call_soon(take_turn)

    ended = False
    async with AsyncConsumer(cluster.bootstrap_servers, ["t"], **EARLIEST) as consumer:
        await anext(consumer)
        take_turn()
        times = [time.monotonic()]
        for _ in range(10_000):
            await anext(consumer)
            times.append(time.monotonic())
        ended = True
    slowest = max(end - begin for begin, end in zip(times, times[largest:], strict=False))
    assert turns >= (times[-1] - times[0]) / (_EXCHANGE_S + slowest)


@in_loop
async def test_cancelling_loses_nothing(cluster: InProcessCluster) -> None:
    servers = cluster.bootstrap_servers
    async with AsyncConsumer(servers, ["t"], **EARLIEST) as consumer, AsyncProducer(servers, linger_ms=0) as producer:
        for _ in range(5):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(consumer), 0.02)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consumer.poll(scaled_ms(10_000)), 0.02)
        delivery = await producer.aiosend("t", b"one", partition=0)
        awaiting = asyncio.ensure_future(_value(delivery))
        awaiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await awaiting
        assert (await delivery).offset == 0
        assert (await anext(consumer)).value == b"one"
        asking = asyncio.create_task(consumer.end_offsets([("t", 0)]))
        await asyncio.wait((asking,), timeout=0)
        asking.cancel()
        assert await consumer.end_offsets([("t", 0)]) == {("t", 0): 1}


async def _value(delivery: Awaitable[Any]) -> Any:
    return await delivery


@in_loop
async def test_senders_wait_for_memory_and_leave_the_loop_free(proxied: tuple[FrameProxy, str]) -> None:
    proxy, servers = proxied
    config = {"buffer_memory": 40_000, "batch_size": 4_000, "linger_ms": 0}
    async with AsyncProducer(servers, **config) as producer:
        await (await producer.aiosend("t", b"first"))
        proxy.on_request = lambda key: Fate.DROP if key == PRODUCE else Fate.PASS
        done: list[AsyncDelivery] = []

        async def fill() -> None:
            for _ in range(40):
                done.append(await producer.aiosend("t", b"x" * 3_000, partition=0))

        filling = [asyncio.create_task(fill()) for _ in range(3)]
        await soon(lambda: producer._accumulator.free_memory < 4_000, "memory is used up")
        stuck = len(done)
        cancelled = asyncio.create_task(producer.aiosend("t", b"y" * 3_000))
        await asyncio.wait((cancelled,), timeout=0.05)
        cancelled.cancel()
        assert not any(task.done() for task in filling)
        assert stuck < 15
        proxy.on_request = lambda _: Fate.PASS
        proxy.cut()
        await asyncio.gather(*filling)
        await producer.flush()
        assert len({(await delivery)[:3] for delivery in done}) == 120
    async with AsyncConsumer(servers, ["t"], **EARLIEST) as consumer:
        ends = await consumer.end_offsets(consumer.assignment())
    assert sum(ends.values()) == 121


@in_loop
async def test_who_waits_for_memory_hurries_what_lingers(cluster: InProcessCluster) -> None:
    config = {"buffer_memory": 8_000, "batch_size": 4_000, "linger_ms": 1_000 * LIMIT_S}
    async with AsyncProducer(cluster.bootstrap_servers, **config) as producer:
        for partition in (0, 1):  # connections are made, and nothing else is to happen by itself
            await producer.aiosend("t", b"first", partition=partition)
        await producer.flush()
        lingers = [await producer.aiosend("t", b"small", partition=partition) for partition in (0, 1)]
        await asyncio.wait((asyncio.ensure_future(asyncio.to_thread(bool)),))
        await asyncio.wait_for(producer.aiosend("t", b"x" * 3_900, partition=0), LIMIT_S / 3)
        assert any(delivery.done() for delivery in lingers)


async def delivered(producer: AsyncProducer, value: bytes) -> bool:
    """Whether it was within max.block.ms and delivery.timeout.ms."""
    try:
        await (await producer.aiosend("t", value))
    except RequestTimedOut:
        return False
    return True


@in_loop
async def test_what_goes_wrong_is_raised_where_it_is_awaited(proxied: tuple[FrameProxy, str]) -> None:
    proxy, servers = proxied
    config = {"buffer_memory": 10_000, "batch_size": 4_000, "linger_ms": 0, "max_block_ms": 200}
    async with AsyncProducer(servers, delivery_timeout_ms=4_000, **config) as producer:
        while not await delivered(producer, b"first"):
            pass  # a slow machine needs more than one of these short times
        with pytest.raises(MessageTooLarge):
            await producer.aiosend("t", b"x" * 1_100_000)
        proxy.on_request = lambda key: Fate.DROP if key == PRODUCE else Fate.PASS
        lost = await producer.aiosend("t", b"lost")
        with pytest.raises(InvalidRequest, match="still under way"):
            lost.result()
        with pytest.raises(RequestTimedOut, match="not all records were settled"):
            await producer.flush(0.05)
        with pytest.raises(RequestTimedOut, match=r"max\.block\.ms=200"):
            await asyncio.gather(*(producer.aiosend("t", b"x" * 3_900, partition=0) for _ in range(9)))
        with pytest.raises(RequestTimedOut, match="not delivered within 4000 ms"):
            await lost
        proxy.on_request = lambda _: Fate.PASS
    with pytest.raises(UnknownTopicOrPartition, match="nosuch"):
        async with AsyncConsumer(servers, ["nosuch"]):
            pass
    async with AsyncConsumer(servers, auto_offset_reset="none") as consumer:
        consumer.assign([("t", 0)])
        consumer.seek("t", 0, 77)
        with pytest.raises(PositionLost, match="offset 77 is out of range"):
            await anext(consumer)


@in_loop
async def test_closing_settles_everything_and_later_calls_are_refused(proxied: tuple[FrameProxy, str]) -> None:
    proxy, servers = proxied
    producer = AsyncProducer(servers, linger_ms=10_000)
    waits = await producer.aiosend("t", b"waits for company")
    await producer.close()
    assert waits.result().offset == 0
    with pytest.raises(RaylogError, match="is closed"):
        await producer.aiosend("t", b"late")
    await producer.close()

    producer = AsyncProducer(servers, linger_ms=0)
    await (await producer.aiosend("t", b"first"))
    proxy.on_request = lambda key: Fate.DROP if key == PRODUCE else Fate.PASS
    stuck = await producer.aiosend("t", b"stuck")
    closing = asyncio.create_task(producer.close())
    await asyncio.wait((closing,), timeout=0.05)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    with pytest.raises(RaylogError, match="closed before"):
        await stuck

    consumer = AsyncConsumer(servers, ["t"])
    assert await consumer.poll(10) == {}
    await consumer.close()
    await consumer.close()
    with pytest.raises(RaylogError, match="is closed"):
        await consumer.poll(0)


@in_loop
async def test_a_consumer_is_for_one_task_at_a_time(cluster: InProcessCluster) -> None:
    async with AsyncConsumer(cluster.bootstrap_servers, ["t"]) as consumer:
        polling = asyncio.create_task(consumer.poll(500))
        await asyncio.wait((polling,), timeout=0)
        with pytest.raises(RaylogError, match="for one at a time"):
            await consumer.poll(0)
        assert await polling == {}


@in_loop
async def test_both_outlive_a_restart_of_the_brokers(cluster: InProcessCluster) -> None:
    servers = cluster.bootstrap_servers
    values = []
    async with (
        AsyncProducer(servers, linger_ms=0, retry_backoff_ms=10) as producer,
        AsyncConsumer(servers, ["t"], **EARLIEST, retry_backoff_ms=10) as consumer,
    ):
        for broker_id in (0, 1):
            sent = [await producer.aiosend("t", b"%d-%d" % (broker_id, n), partition=n % 4) for n in range(200)]
            restarting = asyncio.create_task(asyncio.to_thread(cluster.restart, broker_id))
            sent += [await producer.aiosend("t", b"%d-%d" % (broker_id, n), partition=n % 4) for n in range(200, 400)]
            await restarting
            for delivery in sent:
                await delivery
        async for record in consumer:
            values.append(record.value)
            if len(values) == 800:
                break
        assert await consumer.poll(50) == {}
    assert sorted(values) == sorted(b"%d-%d" % (broker_id, n) for broker_id in (0, 1) for n in range(400))


@in_loop
async def test_columns_may_be_deques_and_values_of_a_dict(cluster: InProcessCluster) -> None:
    """As with ``Producer.send_batch``: what has a length and items."""
    async with AsyncProducer(cluster.bootstrap_servers) as producer:
        for values in (deque([b"a", b"b"]), {1: b"a", 2: b"b"}.values()):
            landed = await (await producer.send_batch("t", values, partition=deque([1, 1])))
            assert [(run.partition, run.record_count) for run in landed] == [(1, 2)]


@in_loop
async def test_a_serializers_own_timeout_is_raised_as_it_is(cluster: InProcessCluster) -> None:
    calls = 0

    def serialize(value: Any) -> bytes:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise TimeoutError("no schema")
        return bytes(value)

    async with AsyncProducer(cluster.bootstrap_servers, value_serializer=serialize) as producer:
        with pytest.raises(TimeoutError, match="no schema"):
            await producer.aiosend("t", b"waits for metadata first")
    assert calls == 2


@in_loop
async def test_waiting_for_a_position_leaves_the_loop_free(cluster: InProcessCluster) -> None:
    """Also while another partition has records in hand."""
    async with AsyncProducer(cluster.bootstrap_servers) as producer:
        await (await producer.send_batch("t", [b"v"] * 100, partition=0))
    async with AsyncConsumer(cluster.bootstrap_servers, **EARLIEST, default_api_timeout_ms=3_000) as consumer:
        consumer.assign([("t", 0), ("t", 7)])
        while not await consumer.poll(500, 1):
            pass
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.position("t", 7), 0.2)


@in_loop
async def test_assigning_takes_the_place_of_topics_that_were_named(cluster: InProcessCluster) -> None:
    cluster.create_topic("other", partitions=3)
    async with AsyncConsumer(cluster.bootstrap_servers, ["t"]) as consumer:
        assert consumer.assignment() == {("t", n) for n in range(4)}
    consumer = AsyncConsumer(cluster.bootstrap_servers, ["t"])
    consumer.assign([("other", 1)])
    async with consumer:
        assert await consumer.position("other", 1) == 0
        assert consumer.assignment() == {("other", 1)}


def test_a_loop_that_ends_while_a_consumer_closes_leaves_nothing_open(proxied: tuple[FrameProxy, str]) -> None:
    proxy, servers = proxied
    proxy.on_answer = lambda key: Fate.DROP if key == LIST_OFFSETS else Fate.PASS

    async def main() -> None:
        consumer = AsyncConsumer(servers, ["t"], request_timeout_ms=1_000, default_api_timeout_ms=2_000)
        await consumer.partitions_for("t")
        asking = asyncio.create_task(consumer.end_offsets([("t", 0)]))
        await soon(lambda: proxy.requests[LIST_OFFSETS], "a thread asks")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.close(), 0.1)
        asking.cancel()

    asyncio.run(main())
    wait_until(lambda: proxy.open_connections == 0, 10, "all connections are closed")


def test_producer_in_another_loop_is_refused(cluster: InProcessCluster) -> None:
    async def made() -> AsyncProducer:
        producer = AsyncProducer(cluster.bootstrap_servers)
        await producer.aiosend("t", b"here")
        return producer

    producer = asyncio.run(made())
    calls: list[Callable[[], Coroutine[Any, Any, object]]] = [
        lambda: producer.aiosend("t", b"there"),
        lambda: producer.send_batch("t", [b"there"]),
        lambda: producer.partitions_for("t"),
        producer.flush,
        producer.close,
    ]
    for call in calls:
        with pytest.raises(RaylogError, match="another event loop"):
            asyncio.run(asyncio.wait_for(call(), LIMIT_S))
    producer.close_at_exit(LIMIT_S)
    assert [record.value for record in all_records(cluster.bootstrap_servers, "t")] == [b"here"]


def test_consumer_in_another_loop_is_refused(cluster: InProcessCluster) -> None:
    async def made() -> AsyncConsumer:
        consumer = AsyncConsumer(cluster.bootstrap_servers, ["t"], **EARLIEST)
        await consumer.poll(0)
        return consumer

    consumer = asyncio.run(made())
    calls: list[Callable[[], Coroutine[Any, Any, object]]] = [
        lambda: consumer.poll(1_000),
        lambda: consumer.position("t", 0),
        lambda: consumer.partitions_for("t"),
        lambda: consumer.end_offsets([("t", 0)]),
        lambda: consumer.subscribe(["t"]),
        consumer.close,
    ]
    try:
        for call in calls:
            with pytest.raises(RaylogError, match="another event loop"):
                asyncio.run(asyncio.wait_for(call(), LIMIT_S))
    finally:
        consumer._close()
