"""Every way of reading × everything bad that may lie in a log or happen in the user's code.

Nothing is skipped, nothing comes twice, what comes before the bad is handed out first, and the error names the place.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Protocol

import pytest
from crc32c import crc32c

from kit.cluster import InProcessCluster
from kit.machine import scaled, scaled_ms
from kit.odd_logs import append_as_stored
from kit.waiting import wait_until
from kit.zookeeper import running_zookeeper
from raylog.client import Admin, Consumer
from raylog.client.aio import AsyncConsumer
from raylog.client.handlers.plan import GroupPlan
from raylog.client.handlers.runner import State
from raylog.client.ranges.offset_ranges import OffsetRange
from raylog.client.ranges.range_reader import RangeReading
from raylog.client.ray_data.source import read_blocks
from raylog.client.ray_data.stream import stream
from raylog.client.read_errors import CorruptBatch, RecordDeserializationError
from raylog.protocol.errors import CorruptMessage, InvalidRequest, OffsetOutOfRange
from raylog.protocol.ids import Offset, PartitionIndex, TopicName, TopicPartition
from raylog.protocol.records import HEADER_SIZE, Batches, Record, encode_batch

pytestmark = pytest.mark.system

COUNT = 12
IN_BATCH = 4
WAIT_S = 30.0
EARLIEST = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 50}
_numbers = count()


# --- what is bad ---


def batch_of(first: int) -> bytes:
    return encode_batch([Record(b"%d" % n, b"k", timestamp=1_000 + n) for n in range(first, first + IN_BATCH)])


def with_checksum(batch: bytes) -> bytes:
    data = bytearray(batch)
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return bytes(data)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "checksum": lambda batch: batch[:-1] + bytes([batch[-1] ^ 1]),
    "record": lambda batch: with_checksum(batch[: HEADER_SIZE + 1] + b"\xff" * 9 + batch[HEADER_SIZE + 10 :]),
    "truncated": lambda batch: with_checksum(batch[:-3]),
}


class UsersError(Exception):
    """Which no part of raylog knows."""


@dataclass
class Bad:
    """A log with something bad, and what a reader that seeks behind it has to see: offsets, and what is told."""

    sees: list[Any]
    damaged: int = -1
    """Which batch."""
    damage: str = ""
    poison: int = -1
    """The record for which the deserializer raises."""
    error: BaseException | None = None

    def batches(self) -> list[bytes]:
        whole = [batch_of(first) for first in range(0, COUNT, IN_BATCH)]
        return [DAMAGES[self.damage](batch) if n == self.damaged else batch for n, batch in enumerate(whole)]


def bad_things() -> dict[str, Bad]:
    found = {}
    everything = list(range(COUNT))
    for where, at in {"first": 0, "middle": 5, "last": COUNT - 1}.items():
        told = [*everything[:at], f"undecodable {at}", *everything[at + 1 :]]
        found[f"poison {where}"] = Bad(told, poison=at, error=UsersError(f"no {at}"))
        interrupted = [*everything[:at], "interrupt", *everything[at:]]
        found[f"interrupt {where}"] = Bad(interrupted, poison=at, error=KeyboardInterrupt())
    for where, batch in {"first": 0, "middle": 1, "last": 2}.items():
        for damage in DAMAGES:
            begin, end = batch * IN_BATCH, (batch + 1) * IN_BATCH
            next_offset = -1 if damage == "checksum" and end == COUNT else end
            told = [*everything[:begin], f"corrupt {begin}-{next_offset}", *everything[end:]]
            found[f"{damage} {where}"] = Bad(told, damaged=batch, damage=damage)
    return found


BAD = bad_things()


class Deserializer:
    """Integers, but for one, for which it raises: an interrupt once, an error each time."""

    def __init__(self, bad: Bad) -> None:
        self._bad = bad
        self._left = 1 if isinstance(bad.error, KeyboardInterrupt) else 1 << 30

    def __call__(self, data: bytes) -> int:
        if int(data) == self._bad.poison and self._left:
            self._left -= 1
            assert self._bad.error is not None
            raise self._bad.error
        return int(data)


# --- who reads ---


class World:
    """A broker and a ZooKeeper that all tests of this module share, with a topic for each bad thing."""

    def __init__(self, cluster: InProcessCluster) -> None:
        self.cluster = cluster
        self.servers = cluster.bootstrap_servers
        self._topics: dict[str, str] = {}

    def topic(self, name: str, bad: Bad) -> str:
        if name not in self._topics:
            self._topics[name] = self.new_topic()
            append_as_stored(self.cluster, self._topics[name], 0, *bad.batches())
        return self._topics[name]

    def new_topic(self, partitions: int = 1) -> str:
        topic = f"t{next(_numbers)}"
        self.cluster.create_topic(topic, partitions=partitions, config={"retention.ms": "-1"})
        return topic

    def consumer(self, topic: str, deserializer: Any, *, in_group: bool = False, **config: Any) -> Consumer:
        group = f"g{next(_numbers)}" if in_group else None
        config = {**EARLIEST, **config}
        return Consumer(self.servers, topic, group_id=group, value_deserializer=deserializer, **config)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("readers")
    with (
        running_zookeeper(root / "zookeeper") as server,
        InProcessCluster(root, zookeeper=server.address) as cluster,
    ):
        yield World(cluster)


def tp_of(topic: str) -> TopicPartition:
    return TopicPartition(TopicName(topic), PartitionIndex(0))


class Reader(Protocol):
    """One way of reading partition 0 of a topic."""

    def step(self) -> Sequence[int]:
        """Offsets that are handed out next; raises what the reader raises."""

    def seek(self, offset: int) -> None: ...

    def close(self) -> None: ...


@dataclass
class Sync:
    """A :class:`Consumer`, read by ``take``."""

    consumer: Consumer
    topic: str
    take: Callable[[Consumer], Sequence[int]]

    def step(self) -> Sequence[int]:
        return self.take(self.consumer)

    def seek(self, offset: int) -> None:
        self.consumer.seek(self.topic, 0, offset)

    def close(self) -> None:
        self.consumer.close()


@dataclass
class Loop:
    """One ``for`` loop, until something ends it."""

    consumer: Consumer
    topic: str
    records: Iterator[Any] = field(default_factory=lambda: iter(()))

    def step(self) -> Sequence[int]:
        record = next(self.records, None)
        if record is None:
            self.records = iter(self.consumer)
            record = next(self.records)
        assert record.value == record.offset
        return [record.offset]

    def seek(self, offset: int) -> None:
        self.consumer.seek(self.topic, 0, offset)

    def close(self) -> None:
        self.consumer.close()


class Aio:
    """An :class:`AsyncConsumer`, read by ``take``, in a loop of its own."""

    def __init__(self, world: World, topic: str, deserializer: Any, take: Callable[[AsyncConsumer], Any]) -> None:
        self._runner = asyncio.Runner()
        self._topic = topic
        self._take = take
        self._consumer = self._runner.run(self._open(world.servers, deserializer))

    async def _open(self, servers: str, deserializer: Any) -> AsyncConsumer:
        return AsyncConsumer(servers, [self._topic], value_deserializer=deserializer, **EARLIEST)

    def step(self) -> Sequence[int]:
        offsets: Sequence[int] = self._runner.run(self._take(self._consumer))
        return offsets

    def seek(self, offset: int) -> None:
        self._consumer.seek(self._topic, 0, offset)

    def close(self) -> None:
        self._runner.run(self._consumer.close())
        self._runner.close()


def polled(records: dict[TopicPartition, list[Any]]) -> list[int]:
    found = [record for one in records.values() for record in one]
    assert all(record.value == record.offset for record in found)
    return [record.offset for record in found]


def by_poll(consumer: Consumer, max_records: int | None = None) -> list[int]:
    return polled(consumer.poll(500, max_records=max_records))


def by_iterate(consumer: Consumer) -> list[int]:
    """A loop that is begun anew for each record."""
    for record in consumer.iterate(timeout_ms=500):
        return [record.offset]
    return []


def by_columns(consumer: Consumer) -> list[int]:
    return list(consumer.poll_columns(500, ["offset"])["offset"].to_pylist())


async def async_poll(consumer: AsyncConsumer) -> list[int]:
    return polled(await consumer.poll(500))


async def async_for(consumer: AsyncConsumer) -> list[int]:
    async for record in consumer:
        assert record.value == record.offset
        return [record.offset]
    return []


async def async_columns(consumer: AsyncConsumer) -> list[int]:
    return list((await consumer.poll_columns(500, ["offset"]))["offset"].to_pylist())


Open = Callable[[World, str, Any], Reader]


def sync(take: Callable[[Consumer], Sequence[int]], **how: Any) -> Open:
    return lambda world, topic, deserializer: Sync(world.consumer(topic, deserializer, **how), topic, take)


def loop(**how: Any) -> Open:
    return lambda world, topic, deserializer: Loop(world.consumer(topic, deserializer, **how), topic)


def aio(take: Callable[[AsyncConsumer], Any]) -> Open:
    return lambda world, topic, deserializer: Aio(world, topic, deserializer, take)


OF_ROWS: dict[str, Open] = {
    "poll": sync(by_poll),
    "poll one": sync(partial(by_poll, max_records=1)),
    "iterate": sync(by_iterate),
    "for": loop(),
    "async poll": aio(async_poll),
    "async for": aio(async_for),
    "group poll": sync(by_poll, in_group=True, auto_commit_interval_ms=1),
    "group for": loop(in_group=True),
}
OF_COLUMNS: dict[str, Open] = {
    "columns": sync(by_columns),
    "async columns": aio(async_columns),
    "group columns": sync(by_columns, in_group=True),
}


def told(error: RecordDeserializationError | CorruptBatch, topic: str) -> str:
    """What is told, if all of it is right."""
    if isinstance(error, CorruptBatch):
        wanted = [(error.tp, tp_of(topic)), (f"{topic}-0, batch at offset {error.offset}:" in str(error), True)]
        text = f"corrupt {error.offset}-{error.next_offset}"
    else:
        wanted = [
            (error.tp, tp_of(topic)),
            (f"{topic}-0 offset {error.offset}:" in str(error), True),
            ((error.key, error.value, error.timestamp), (b"k", b"%d" % error.offset, 1_000 + error.offset)),
            (type(error.__cause__), UsersError),
        ]
        text = f"undecodable {error.offset}"
    return text if all(one == other for one, other in wanted) else f"{text}, but {wanted}"


def seen_by(reader: Reader, topic: str, done: int) -> list[Any]:
    """What it hands out and tells until so many things came, going on behind what it cannot read."""
    seen: list[Any] = []

    def step() -> bool:
        try:
            seen.extend(reader.step())
        except RecordDeserializationError as error:
            seen.append(told(error, topic))
            reader.seek(error.offset + 1)
        except CorruptBatch as error:
            seen.append(told(error, topic))
            reader.seek(error.next_offset if error.next_offset >= 0 else COUNT)
        except KeyboardInterrupt:
            seen.append("interrupt")
        return len(seen) >= done

    wait_until(step, WAIT_S, f"{done} things were seen", instead=lambda: seen)
    return seen


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("reader", OF_ROWS)
def test_rows_before_and_behind_the_bad_come_once(world: World, reader: str, what: str) -> None:
    bad = BAD[what]
    topic = world.topic(what, bad)
    with closing(OF_ROWS[reader](world, topic, Deserializer(bad))) as opened:
        assert in_order(seen_by(opened, topic, len(bad.sees)), bad)


def in_order(seen: list[Any], bad: Bad) -> bool:
    """Exactly what is to be seen; where an interrupt strikes, what was not handed out comes after it."""
    if isinstance(bad.error, KeyboardInterrupt):
        return [one for one in seen if one != "interrupt"] == list(range(COUNT)) and seen.count("interrupt") == 1
    return seen == bad.sees


@pytest.mark.parametrize("what", [name for name, bad in BAD.items() if bad.damage])
@pytest.mark.parametrize("reader", OF_COLUMNS)
def test_columns_before_and_behind_the_bad_come_once(world: World, reader: str, what: str) -> None:
    bad = BAD[what]
    topic = world.topic(what, bad)
    with closing(OF_COLUMNS[reader](world, topic, None)) as opened:
        assert seen_by(opened, topic, len(bad.sees)) == bad.sees


@pytest.mark.parametrize("what", [name for name, bad in BAD.items() if bad.damage == "checksum"])
def test_raw_batches_end_before_a_wrong_checksum(world: World, what: str) -> None:
    bad, found = BAD[what], list[int]()
    with closing(world.consumer(world.topic(what, bad), None)) as consumer:

        def step() -> None:
            for batches in consumer.poll_batches(500).values():
                found.extend(record.offset for record in batches.records())

        with pytest.raises(CorruptBatch) as caught:
            wait_until(step, WAIT_S, "the error came")
        assert found == list(range(bad.damaged * IN_BATCH))
        assert caught.value.offset == len(found)


@pytest.mark.parametrize("what", [name for name, bad in BAD.items() if bad.damage in ("record", "truncated")])
def test_raw_batches_come_once_and_decode_up_to_the_bad(world: World, what: str) -> None:
    bad = BAD[what]
    begin = bad.damaged * IN_BATCH
    with closing(world.consumer(world.topic(what, bad), None)) as consumer:
        (batches,) = wait_until(lambda: consumer.poll_batches(500), WAIT_S, "batches came").values()
        with pytest.raises(CorruptMessage):
            batches.records()
        found = []
        for pos, header in batches.visible():
            if header.base_offset != begin:
                one = Batches(batches.data[pos : pos + header.size], 0)
                found += [record.offset for record in one.records()]
        assert found == [offset for offset in range(COUNT) if not begin <= offset < begin + IN_BATCH]
        assert consumer.poll_batches(100) == {}


@pytest.mark.parametrize("what", [name for name, bad in BAD.items() if bad.damage])
def test_a_task_of_ray_data_or_spark_ends_at_the_bad(world: World, what: str) -> None:
    bad = BAD[what]
    topic = world.topic(what, bad)
    found: list[int] = []
    piece = OffsetRange(tp_of(topic), Offset(0), Offset(COUNT))
    tables = read_blocks(RangeReading(world.servers, ["offset"]), piece)
    with pytest.raises(CorruptBatch) as caught:
        found.extend(offset for table in tables for offset in table["offset"].to_pylist())
    assert found == list(range(bad.damaged * IN_BATCH))
    assert (caught.value.tp, caught.value.offset) == (tp_of(topic), bad.damaged * IN_BATCH)


@pytest.mark.parametrize("what", [name for name, bad in BAD.items() if bad.damage])
def test_a_stream_of_tables_ends_at_the_bad_and_commits_before_it(world: World, what: str) -> None:
    bad = BAD[what]
    topic, group = world.topic(what, bad), f"g{next(_numbers)}"
    begin = bad.damaged * IN_BATCH
    found: list[int] = []
    tables = stream(topic, group=group, bootstrap_servers=world.servers, columns=["offset"], fetch_max_wait_ms=50)
    with pytest.raises(CorruptBatch) as caught, tables:
        found.extend(offset for table in tables for offset in table["offset"].to_pylist())
    assert (found, caught.value.offset) == (list(range(begin)), begin)
    assert committed(world, group, topic) == (begin or None)


@pytest.mark.parametrize("what", [name for name, bad in BAD.items() if not isinstance(bad.error, KeyboardInterrupt)])
@pytest.mark.parametrize("guarantee", ["at_least_once", "at_most_once"])
def test_a_handler_gets_all_before_the_bad_and_the_member_stops(world: World, what: str, guarantee: str) -> None:
    bad = BAD[what]
    topic, group = world.topic(what, bad), f"g{next(_numbers)}"
    handled: list[int] = []
    plan = GroupPlan.of(
        group,
        world.servers,
        topic,
        lambda records: handled.extend(record.offset for record in records),
        batch_format="rows",
        key_deserializer=None,
        value_deserializer=Deserializer(bad),
        config={**EARLIEST, "errors_retry_timeout": 0, "processing_guarantee": guarantee},
    )
    runner = plan.runner()
    member = threading.Thread(target=runner.run)
    member.start()
    try:
        wait_until(lambda: runner.status.state is State.FAILED, WAIT_S, "it has failed", instead=lambda: runner.status)
    finally:
        runner.stop()
        member.join(scaled(WAIT_S))
    begin = bad.poison if bad.damage == "" else bad.damaged * IN_BATCH
    assert handled == list(range(begin))
    assert f"{topic}-0" in runner.status.trouble
    assert f"offset {begin}" in runner.status.trouble
    if guarantee == "at_least_once" or bad.damage:
        assert committed(world, group, topic) == (begin or None)


def committed(world: World, group: str, topic: str) -> int | None:
    with Admin(world.servers) as admin:
        found = admin.list_group_offsets(group).get(tp_of(topic))
    return None if found is None else found.offset


# --- in a group ---


@pytest.mark.parametrize("what", ["poison middle", "checksum middle"])
def test_a_group_never_commits_past_the_bad(world: World, what: str) -> None:
    bad, group = BAD[what], f"g{next(_numbers)}"
    topic = world.topic(what, bad)
    begin = bad.poison if bad.damage == "" else IN_BATCH
    settings = {"group_id": group, "auto_commit_interval_ms": 1, **EARLIEST}
    for expected in (list(range(begin)), []):
        found: list[int] = []
        consumer = Consumer(world.servers, topic, value_deserializer=Deserializer(bad), **settings)
        with closing(consumer):
            for _ in range(3):
                with pytest.raises((RecordDeserializationError, CorruptBatch)):
                    wait_until(lambda: found.extend(polled(consumer.poll(200))), WAIT_S, "the error came")  # noqa: B023
        assert found == expected
        assert committed(world, group, topic) == begin


def test_only_stored_offsets_are_committed(world: World) -> None:
    topic, group = world.topic("good", Bad(list(range(COUNT)))), f"g{next(_numbers)}"
    settings = {"group_id": group, "auto_commit_interval_ms": 1, "enable_auto_offset_store": False, **EARLIEST}
    with closing(Consumer(world.servers, topic, **settings)) as consumer:
        found: list[int] = []
        for record in consumer:
            found.append(record.offset)
            if record.offset == 4:
                consumer.store_offsets({(topic, 0): 5})
            if record.offset == COUNT - 1:
                break
        assert consumer.poll(50) == {}
        assert consumer.poll(50) == {}
        assert found == list(range(COUNT))
    assert committed(world, group, topic) == 5


def test_subscribe_later_leaves_and_joins_the_group(world: World) -> None:
    topic, other = world.topic("good", Bad(list(range(COUNT)))), world.new_topic()
    append_as_stored(world.cluster, other, 0, *Bad([]).batches())
    group = f"g{next(_numbers)}"
    with closing(Consumer(world.servers, group_id=group, **EARLIEST)) as consumer:
        with pytest.raises(InvalidRequest, match="subscribe to topics first"):
            consumer.poll(0)
        consumer.subscribe(topic)
        first = next(iter(consumer))
        assert (first.topic, first.offset) == (topic, 0)
        consumer.subscribe(other)
        assert committed(world, group, topic) == 1
        assert next(iter(consumer)).topic == other
        assert consumer.assignment() == {tp_of(other)}
        consumer.unsubscribe()
        assert committed(world, group, other) == 1
        with Admin(world.servers) as admin:
            assert getattr(admin.describe_groups([group])[group], "members", ()) == ()
        consumer.subscribe([topic, other])
        found = [next(iter(consumer)) for _ in range(2 * (COUNT - 1))]
        assert sorted((record.topic, record.offset) for record in found) == sorted(
            (name, offset) for name in (topic, other) for offset in range(1, COUNT)
        )


# --- what the user does in a loop ---


LOOPS: dict[str, dict[str, Any]] = {"for": {}, "group for": {"in_group": True}}


@pytest.mark.parametrize(("to", "then"), [(8, [8, 9, 10, 11]), (0, list(range(COUNT))), (3, list(range(3, COUNT)))])
@pytest.mark.parametrize("how", LOOPS)
def test_seek_inside_a_loop_holds_from_the_next_record_on(world: World, how: str, to: int, then: list[int]) -> None:
    good = Bad(list(range(COUNT)))
    topic = world.topic("good", good)
    seen: list[int] = []
    with closing(world.consumer(topic, int, **LOOPS[how])) as consumer:
        for record in consumer:
            seen.append(record.offset)
            if seen == [0, 1, 2]:
                consumer.seek(topic, 0, to)
            if len(seen) == 3 + len(then):
                break
    assert seen == [0, 1, 2, *then]


@pytest.mark.parametrize("how", LOOPS)
def test_pause_inside_a_loop_holds_from_the_next_record_on(world: World, how: str) -> None:
    topic = world.topic("good", Bad(list(range(COUNT))))
    seen: list[int] = []
    with closing(world.consumer(topic, int, **LOOPS[how])) as consumer:
        for record in consumer:
            seen.append(record.offset)
            consumer.pause((topic, 0))
            break
        assert list(consumer.iterate(timeout_ms=100)) == []
        consumer.resume()
        for record in consumer.iterate(timeout_ms=scaled_ms(int(WAIT_S) * 1_000)):
            seen.append(record.offset)
            if record.offset == 4:
                consumer.pause((topic, 0))
                paused = iter(consumer.iterate(timeout_ms=100))
                assert list(paused) == []
                consumer.resume()
            if record.offset == COUNT - 1:
                break
    assert seen == list(range(COUNT))


@pytest.mark.parametrize("how", LOOPS)
def test_a_paused_partition_is_left_while_others_go_on(world: World, how: str) -> None:
    topic = world.new_topic(partitions=2)
    for partition in (0, 1):
        append_as_stored(world.cluster, topic, partition, *Bad([]).batches())
    seen: list[tuple[int, int]] = []
    with closing(world.consumer(topic, int, **LOOPS[how])) as consumer:
        first = -1
        for record in consumer:
            seen.append((record.partition, record.offset))
            if len(seen) == 3:
                first = record.partition
                consumer.pause((topic, first))
            if len(seen) == 3 + COUNT:
                break
        assert seen == [(first, 0), (first, 1), (first, 2), *((1 - first, n) for n in range(COUNT))]
        consumer.resume()
        for record in consumer:
            seen.append((record.partition, record.offset))
            if len(seen) == 2 * COUNT:
                break
    assert seen[3 + COUNT :] == [(first, n) for n in range(3, COUNT)]


def test_an_assignment_inside_a_loop_holds_from_the_next_record_on(world: World) -> None:
    topic, other = world.topic("good", Bad(list(range(COUNT)))), world.new_topic()
    append_as_stored(world.cluster, other, 0, *Bad([]).batches())
    seen: list[tuple[str, int]] = []
    with closing(world.consumer(topic, int)) as consumer:
        for record in consumer:
            seen.append((record.topic, record.offset))
            if len(seen) == 3:
                consumer.assign([(other, 0)])
            if len(seen) == 5:
                break
    assert seen == [(topic, 0), (topic, 1), (topic, 2), (other, 0), (other, 1)]


@pytest.mark.parametrize("how", LOOPS)
def test_an_error_inside_a_loop_leaves_the_rest(world: World, how: str) -> None:
    topic = world.topic("good", Bad(list(range(COUNT))))
    seen: list[int] = []
    with closing(world.consumer(topic, int, **LOOPS[how])) as consumer:

        def fail_at_the_third(error: type[BaseException]) -> None:
            for record in consumer:
                seen.append(record.offset)
                if len(seen) % 3 == 0:
                    raise error

        for error in (UsersError, KeyboardInterrupt):
            with pytest.raises(error):
                fail_at_the_third(error)
        assert len(seen) == 6
        for record in consumer:
            seen.append(record.offset)
            if record.offset == COUNT - 1:
                break
    assert seen == list(range(COUNT))


def test_seek_and_pause_inside_an_async_loop_hold(world: World) -> None:
    topic = world.topic("good", Bad(list(range(COUNT))))
    seen: list[int] = []

    async def read() -> None:
        async with AsyncConsumer(world.servers, [topic], value_deserializer=int, **EARLIEST) as consumer:
            async for record in consumer:
                seen.append(record.offset)
                if seen == [0, 1]:
                    consumer.seek(topic, 0, 6)
                if seen == [0, 1, 6, 7]:
                    consumer.pause()
                    assert await consumer.poll(100) == {}
                    consumer.resume()
                if record.offset == COUNT - 1:
                    break

    asyncio.run(asyncio.wait_for(read(), WAIT_S))
    assert seen == [0, 1, 6, 7, 8, 9, 10, 11]


def test_iterating_to_the_end_passes_what_comes_meanwhile(world: World) -> None:
    topic = world.new_topic(partitions=2)
    for partition in (0, 1):
        append_as_stored(world.cluster, topic, partition, *Bad([]).batches())
    with closing(world.consumer(topic, int)) as consumer:
        seen: list[tuple[int, int]] = []
        for record in consumer.iterate(until_end=True):
            if not seen:
                append_as_stored(world.cluster, topic, record.partition, *Bad([]).batches())
            seen.append((record.partition, record.offset))
        assert sorted(seen) == [(partition, offset) for partition in (0, 1) for offset in range(COUNT)]


# --- errors of one partition, data of others ---


@pytest.mark.parametrize("what", ["damage", "no position"])
def test_an_error_of_one_partition_comes_before_the_others_backlog(world: World, what: str) -> None:
    topic = world.new_topic(partitions=2)
    many = encode_batch([Record(b"%d" % n) for n in range(1_000)])
    for _ in range(20):
        append_as_stored(world.cluster, topic, 0, many)
    append_as_stored(world.cluster, topic, 1, DAMAGES["checksum"](batch_of(0)))
    settings = {"max_partition_fetch_bytes": 20_000, "fetch_max_wait_ms": 50, "auto_offset_reset": "none"}
    with closing(Consumer(world.servers, **settings)) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek(topic, 0, 0)
        assert consumer.poll(scaled_ms(10_000))
        consumer.assign([(topic, 0), (topic, 1)])
        if what == "damage":
            consumer.seek(topic, 1, 0)
        expected = CorruptBatch if what == "damage" else OffsetOutOfRange
        read_at: list[int] = []
        read = 0
        while len(read_at) < 3 or read < 5_000:
            try:
                read += sum(map(len, consumer.poll(scaled_ms(10_000)).values()))
            except expected:
                read_at.append(read)
        assert read_at[0] < 15_000, "the error does not wait until the others have nothing more"
