"""AsyncConsumers in groups, against brokers in this process and a real ZooKeeper."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import wraps
from itertools import count
from threading import Event, Thread
from typing import Any

import pytest

from kit.cluster import InProcessCluster
from kit.machine import scaled_ms
from kit.zookeeper import running_zookeeper
from raylog.client import CommittedOffset, Producer
from raylog.client.aio import AsyncConsumer, AsyncRebalanceListener
from raylog.coordination.zookeeper.embedded import EmbeddedZooKeeper
from raylog.protocol.errors import (
    BrokerNotAvailable,
    InvalidConfig,
    InvalidRequest,
    RaylogError,
    UnknownTopicOrPartition,
)
from raylog.protocol.ids import Offset, PartitionIndex, TopicName, TopicPartition

LIMIT_S = 60
CONFIG = {"auto.create.topics.enable": "false"}
SESSION_MS = scaled_ms(30_000)
FROZEN_S = 1.0
LAG_S = 0.1
"""Longest that the event loop may be held up, beside what the machine holds up everybody."""


class World:
    """A cluster that all tests of this module share: each has topics and groups of its own names."""

    def __init__(self, cluster: InProcessCluster, zookeeper: EmbeddedZooKeeper) -> None:
        self.cluster = cluster
        self.zookeeper = zookeeper
        self.servers = cluster.bootstrap_servers
        self._numbers = count()

    def topic(self, records: int = 0, partitions: int = 2) -> str:
        name = f"t{next(self._numbers)}"
        self.cluster.create_topic(name, partitions=partitions)
        self.fill(name, range(records), partitions)
        return name

    def fill(self, topic: str, values: Iterable[int], partitions: int = 2) -> None:
        with Producer(self.servers, linger_ms=50) as producer:
            for value in values:
                producer.send(topic, b"%d" % value, partition=value % partitions)

    def consumer(self, topics: Any, group: str, **config: Any) -> AsyncConsumer:
        config = {"auto_offset_reset": "earliest", "session_timeout_ms": SESSION_MS, "fetch_max_wait_ms": 50, **config}
        return AsyncConsumer(self.servers, topics, group_id=group, value_deserializer=int, **config)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("aiogroups")
    with (
        running_zookeeper(root / "zookeeper") as zookeeper,
        InProcessCluster(root / "brokers", brokers=2, config=CONFIG, zookeeper=zookeeper.address) as cluster,
    ):
        yield World(cluster, zookeeper)


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

        asyncio.run(main())
        assert complaints == []

    return run


async def turn() -> None:
    """Let other tasks have theirs."""
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    loop.call_soon(lambda: over.done() or over.set_result(None))
    await over


def values_in(polled: dict[TopicPartition, Any]) -> list[int]:
    return [record.value for records in polled.values() for record in records]


async def values_of(consumer: AsyncConsumer, timeout_ms: float = 50, **poll: Any) -> list[int]:
    return values_in(await consumer.poll(timeout_ms, **poll))


async def settle(*consumers: AsyncConsumer, each: int) -> Counter[int]:
    """Poll until every one has so many partitions; what they read meanwhile."""
    read: Counter[int] = Counter()
    while any(len(consumer.assignment()) != each for consumer in consumers):
        for consumer in consumers:
            read.update(await values_of(consumer, 20))
    return read


async def read_all(expected: int, read: Counter[int], *consumers: AsyncConsumer) -> Counter[int]:
    while read.total() < expected:
        for consumer in consumers:
            read.update(await values_of(consumer, 20))
    return read


class Heard(AsyncRebalanceListener):
    """What a listener of coroutines was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[int]]] = []
        self.do: Callable[[str], Awaitable[object]] = lambda _: turn()

    async def on_assigned(self, partitions: Sequence[TopicPartition], /) -> None:
        await self._hear("assigned", partitions)

    async def on_revoked(self, partitions: Sequence[TopicPartition], /) -> None:
        await self._hear("revoked", partitions)

    async def on_lost(self, partitions: Sequence[TopicPartition], /) -> None:
        await self._hear("lost", partitions)

    async def _hear(self, what: str, partitions: Sequence[TopicPartition]) -> None:
        self.told.append((what, [tp.partition for tp in partitions]))
        await self.do(what)


class Lag:
    """The longest that a loop's callbacks were late, and that a thread was which does nothing but wake up."""

    def __init__(self) -> None:
        self.loop_s = self.machine_s = 0.0
        self._stop = Event()

    @asynccontextmanager
    async def measured(self) -> AsyncIterator[None]:
        thread = Thread(target=self._machine)
        thread.start()
        self._tick(asyncio.get_running_loop(), time.monotonic())
        try:
            yield
        finally:
            self._stop.set()
            thread.join()
        assert self.loop_s < LAG_S + 3 * self.machine_s, f"held up {self.loop_s:.3f} s, a thread {self.machine_s:.3f} s"

    def _tick(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        now = time.monotonic()
        self.loop_s = max(self.loop_s, now - due)
        if not self._stop.is_set():
            loop.call_later(0.005, self._tick, loop, now + 0.005)

    def _machine(self) -> None:
        begun = time.monotonic()
        while not self._stop.wait(0.005):
            now = time.monotonic()
            self.machine_s = max(self.machine_s, now - begun - 0.005)
            begun = now


@asynccontextmanager
async def frozen(zookeeper: EmbeddedZooKeeper) -> AsyncIterator[None]:
    """ZooKeeper answers nobody for FROZEN_S from here."""
    jvm = zookeeper.jvm
    assert jvm is not None
    os.kill(jvm.pid, signal.SIGSTOP)
    thaw = asyncio.get_running_loop().call_later(FROZEN_S, os.kill, jvm.pid, signal.SIGCONT)
    try:
        yield
    finally:
        thaw.cancel()
        os.kill(jvm.pid, signal.SIGCONT)


@in_loop
async def test_two_share_the_partitions_and_whoever_leaves_is_followed_where_he_stopped(world: World) -> None:
    topic = world.topic(100)
    async with world.consumer(topic, "share") as one:
        two = world.consumer(topic, "share")
        read = await settle(one, two, each=1)
        world.fill(topic, range(100, 200))
        await read_all(150, read, one, two)
        await two.close()
        begun = time.monotonic()
        await read_all(200, read, one)
        while len(one.assignment()) < 2:
            read.update(await values_of(one, 20))
        assert time.monotonic() - begun < SESSION_MS / 2_000, "it left at once, and not by the end of its session"
        world.fill(topic, range(200, 220))
        await read_all(220, read, one)
        assert await values_of(one, 300) == []
        assert read == Counter(range(220))


@in_loop
async def test_iterating_reads_what_the_member_owns_and_commits_behind_it(world: World) -> None:
    topic, read = world.topic(60), []
    async with world.consumer(topic, "iterate") as consumer:
        async for record in consumer:
            read.append(record.value)
            if len(read) == 25:
                break
    async with world.consumer(topic, "iterate") as consumer:
        async for record in consumer:
            read.append(record.value)
            if len(read) == 60:
                break
        await consumer.commit()
        ends = await consumer.committed([(topic, 0), (topic, 1)])
        assert [committed.offset for committed in ends.values() if committed is not None] == [30, 30]
    assert sorted(read) == list(range(60))


@in_loop
async def test_coroutines_hear_of_partitions_and_may_commit_what_is_given_up(world: World) -> None:
    topic, heard = world.topic(10), Heard()
    async with world.consumer(topic, "heard", listener=heard, enable_auto_commit=False) as consumer:

        async def commit(what: str) -> None:
            if what == "revoked":
                await consumer.commit({(topic, 0): 3, (topic, 1): CommittedOffset(Offset(4))})
                with pytest.raises(InvalidRequest, match="cannot close"):
                    await consumer.close()
                with pytest.raises(InvalidRequest, match="cannot poll"):
                    await consumer.poll()

        heard.do = commit
        await read_all(10, Counter(), consumer)
    assert heard.told[-1] == ("revoked", [0, 1])
    assert sorted(number for what, numbers in heard.told if what == "assigned" for number in numbers) == [0, 1]
    async with world.consumer(topic, "heard") as next_one:
        assert await read_all(3, Counter(), next_one) == Counter([6, 8, 9])


@in_loop
async def test_stored_offsets_alone_are_committed(world: World) -> None:
    topic = world.topic(10)
    async with world.consumer(topic, "store", enable_auto_offset_store=False) as consumer:
        await read_all(10, Counter(), consumer)
        consumer.store_offsets({(topic, 0): 2})
    async with world.consumer(topic, "store") as consumer:
        committed = await consumer.committed([(topic, 0), (topic, 1)])
        assert committed[TopicPartition(TopicName(topic), PartitionIndex(1))] is None
        assert await read_all(8, Counter(), consumer) == Counter([*range(4, 10, 2), *range(1, 10, 2)])


@in_loop
async def test_after_an_error_in_the_block_nothing_is_committed(world: World) -> None:
    topic = world.topic(10)

    async def fail() -> None:
        async with world.consumer(topic, "failed") as consumer:
            await read_all(10, Counter(), consumer)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with world.consumer(topic, "failed") as consumer:
        assert await read_all(10, Counter(), consumer) == Counter(range(10))


@in_loop
async def test_cancelling_a_poll_anywhere_loses_no_record(world: World) -> None:
    """Joining, in a listener's coroutine, while waiting for brokers: the next call goes on there."""
    topic, heard, read = world.topic(200), Heard(), Counter[int]()
    consumer = world.consumer(topic, "cancelled", listener=heard, max_poll_records=7)
    waits = 0
    while read.total() < 200:
        polling = asyncio.ensure_future(values_of(consumer, 100))
        waits = (waits + 1) % 40
        for _ in range(waits):
            await turn()
            if polling.done():
                break
        polling.cancel()
        try:
            read.update(await polling)
        except asyncio.CancelledError:
            continue
    await consumer.close()
    assert read == Counter(range(200))
    async with world.consumer(topic, "cancelled") as next_one:
        await settle(next_one, each=2)
        assert await values_of(next_one, 200) == []


@in_loop
async def test_a_poll_cancelled_behind_its_listener_leaves_the_consumer_whole(world: World) -> None:
    """Another task uses the consumer, which the listener's call had given free."""
    topic, heard, asking = world.topic(10), Heard(), []
    async with world.consumer(topic, "behind", listener=heard) as consumer:

        async def ask(_: str) -> None:
            if not asking:
                asking.append(asyncio.ensure_future(consumer.partitions_for("not-there")))
                await turn()

        heard.do = ask
        polling = asyncio.ensure_future(consumer.poll(30_000))
        while not asking:
            await turn()
        for _ in range(10):
            await turn()
        polling.cancel()
        with pytest.raises(UnknownTopicOrPartition):
            await asking[0]
        with pytest.raises(asyncio.CancelledError):
            await polling
        assert await read_all(10, Counter(), consumer) == Counter(range(10))


@in_loop
async def test_joining_and_closing_leave_the_loop_free_while_zookeeper_is_silent(world: World) -> None:
    topic, lag = world.topic(10), Lag()
    consumer = world.consumer(topic, "free")
    async with lag.measured():
        async with frozen(world.zookeeper):
            read = await values_of(consumer)
        await read_all(10, Counter(read), consumer)
        async with frozen(world.zookeeper):
            await consumer.close()


@in_loop
async def test_a_stopped_broker_leaves_the_loop_free(world: World) -> None:
    topic, lag = world.topic(10), Lag()
    async with world.consumer(topic, "down") as consumer:
        await read_all(10, Counter(), consumer)
        leader = next(n for n, broker in world.cluster.brokers.items() if broker is world.cluster.leader(topic, 0))
        loop = asyncio.get_running_loop()
        async with lag.measured():
            restarting = loop.run_in_executor(None, world.cluster.restart, leader)
            while not restarting.done():
                await consumer.poll(20)
            await restarting
        await loop.run_in_executor(None, world.fill, topic, range(10, 20))
        await read_all(10, Counter(), consumer)


@in_loop
async def test_closing_while_another_task_reads_ends_that_and_leaves(world: World) -> None:
    topic = world.topic()
    consumer = world.consumer(topic, "under")
    await settle(consumer, each=2)
    reading = asyncio.ensure_future(consumer.poll(30_000))
    await turn()
    await consumer.close()
    with pytest.raises(RaylogError, match="closed"):
        await reading
    async with world.consumer(topic, "under") as next_one:
        begun = time.monotonic()
        await settle(next_one, each=2)
        assert time.monotonic() - begun < SESSION_MS / 2_000


@in_loop
async def test_closing_while_it_joins_leaves_nobody_behind(world: World) -> None:
    topic = world.topic()
    consumer = world.consumer(topic, "hasty")
    joining = asyncio.ensure_future(consumer.poll(30_000))
    await turn()
    joining.cancel()
    await consumer.close()
    with pytest.raises(asyncio.CancelledError):
        await joining
    async with world.consumer(topic, "hasty") as next_one:
        begun = time.monotonic()
        await settle(next_one, each=2)
        assert time.monotonic() - begun < SESSION_MS / 2_000


@in_loop
async def test_subscribing_again_changes_the_group_s_topics(world: World) -> None:
    first, second = world.topic(4), world.topic(6)
    async with world.consumer((), "again") as consumer:
        with pytest.raises(InvalidRequest, match="subscribe"):
            await consumer.poll()
        await consumer.subscribe(first)
        assert (await read_all(4, Counter(), consumer)).total() == 4
        await consumer.subscribe([second])
        assert await read_all(6, Counter(), consumer) == Counter(range(6))
        assert {tp.topic for tp in consumer.assignment()} == {second}
        await consumer.unsubscribe()
        assert not consumer.assignment()
        with pytest.raises(InvalidRequest, match="in a group"):
            consumer.assign([(first, 0)])


@in_loop
async def test_what_makes_no_member_is_raised_and_leaves_nothing(world: World) -> None:
    with pytest.raises(InvalidConfig):
        world.consumer([], "g", partition_assignment_strategy="roundrobin")
    consumer = world.consumer(["t"], "g", zookeeper_connect="127.0.0.1:1", default_api_timeout_ms=2_000)
    for _ in range(2):
        with pytest.raises(BrokerNotAvailable, match="no ZooKeeper answers"):
            await consumer.poll()
    await consumer.close()
