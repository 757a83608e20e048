"""Streams of tables with a group's progress: real brokers, a real ZooKeeper."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from kit.cluster import InProcessCluster
from kit.machine import scaled_ms
from kit.odd_logs import append_as_stored, compacted, control_batch
from kit.waiting import wait_until
from kit.zookeeper import running_zookeeper
from raylog.client import Admin, Producer
from raylog.client.ranges.offset_ranges import DataLoss
from raylog.client.ray_data.stream import TableStream, stream
from raylog.protocol.errors import InvalidRequest
from raylog.protocol.records import Record

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

WAIT_S = 60.0
SESSION_MS = scaled_ms(3_000)
IDLE_MS = scaled_ms(2_000)


class World:
    """A cluster that all tests of this module share: each has topics and groups of its own names."""

    def __init__(self, cluster: InProcessCluster) -> None:
        self.cluster = cluster
        self.servers = cluster.bootstrap_servers
        self._numbers = count()

    def topic(self, partitions: int = 2, records: int = 0) -> str:
        name = f"t{next(self._numbers)}"
        self.cluster.create_topic(name, partitions=partitions)
        self.fill(name, range(records), partitions)
        return name

    def fill(self, topic: str, values: Iterable[int], partitions: int = 2) -> None:
        with Producer(self.servers) as producer:
            for value in values:
                producer.send(topic, b"%d" % value, partition=value % partitions)

    def stream(self, topic: Any, group: str, **config: Any) -> TableStream:
        """It ends when nothing comes for a while."""
        settings = {"timeout_ms": IDLE_MS, "session_timeout_ms": SESSION_MS, "fetch_max_wait_ms": 50, **config}
        return stream(topic, group=group, bootstrap_servers=self.servers, **settings)

    def committed(self, group: str, topic: str, partitions: int = 2) -> list[int]:
        """The group's offsets, as everybody can see them."""
        with Admin(self.servers) as admin:
            found = admin.list_group_offsets(group)
        offsets = {tp.partition: committed.offset for tp, committed in found.items() if tp.topic == topic}
        return [offsets.get(partition, -1) for partition in range(partitions)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("streams")
    config = {"auto.create.topics.enable": "false"}
    with (
        running_zookeeper(root / "zookeeper") as zookeeper,
        InProcessCluster(root / "brokers", brokers=2, config=config, zookeeper=zookeeper.address) as cluster,
    ):
        yield World(cluster)


def values(tables: Iterable[pa.Table]) -> list[int]:
    return [int(value) for table in tables for value in table["value"].to_pylist()]


def test_all_records_come_in_order_and_are_committed(world: World) -> None:
    topic = world.topic(records=100)
    with world.stream(topic, "all") as tables:
        read = [row for table in tables for row in table.to_pylist()]
    assert sorted(int(row["value"]) for row in read) == list(range(100))
    for partition in range(2):
        own = [row["offset"] for row in read if row["partition"] == partition]
        assert own == list(range(50))
    assert world.committed("all", topic) == [50, 50]


def test_the_next_stream_goes_on_exactly_there(world: World) -> None:
    topic = world.topic(1, records=10)
    with world.stream(topic, "next", columns=["value"]) as tables:
        assert values(tables) == list(range(10))
    world.fill(topic, range(10, 15), 1)
    with world.stream(topic, "next", columns=["value"]) as tables:
        first = next(tables)
        assert first.column_names == ["value"]
        assert values([first, *tables]) == list(range(10, 15))


def test_a_table_is_committed_when_the_next_one_is_asked_for(world: World) -> None:
    topic = world.topic(1, records=5)
    tables = world.stream(topic, "asked")
    try:
        assert values([next(tables)]) == list(range(5))
        assert world.committed("asked", topic, 1) == [-1]
        world.fill(topic, range(5, 8), 1)
        again = values([next(tables)])
        assert again[0] == 5
        assert world.committed("asked", topic, 1) == [5]
        tables.commit()
        assert world.committed("asked", topic, 1) == [5 + len(again)]
    finally:
        tables.close()
    with pytest.raises(StopIteration):
        next(tables)


def test_an_exception_leaves_the_last_table_to_the_next_one(world: World) -> None:
    topic = world.topic(1, records=5)
    with suppress(ZeroDivisionError), world.stream(topic, "fails") as tables:
        assert values([next(tables)]) == list(range(5))
        raise ZeroDivisionError
    assert world.committed("fails", topic, 1) == [-1]
    with world.stream(topic, "fails") as tables:
        assert values([next(tables)]) == list(range(5))  # and leaving in good order commits it
    assert world.committed("fails", topic, 1) == [5]


READER = """
import sys
from raylog.client.ray_data.stream import stream
servers, topic, group = sys.argv[1:]
for table in stream(topic, group=group, bootstrap_servers=servers, session_timeout_ms=3000, fetch_max_bytes=2000,
                    max_partition_fetch_bytes=1000):
    for value in table["value"].to_pylist():
        print(value.decode(), flush=True)
"""


def test_a_reader_that_is_killed_has_only_its_last_table_repeated(world: World) -> None:
    topic = world.topic(1)
    with Producer(world.servers, batch_size=1_000) as producer:
        for value in range(500):
            producer.send(topic, b"%06d" % value)
    command = [sys.executable, "-c", READER, world.servers, topic, "killed"]
    reader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert reader.stdout is not None
        seen = [int(reader.stdout.readline()) for _ in range(200)]
        os.kill(reader.pid, signal.SIGKILL)
        seen += [int(line) for line in reader.stdout.read().split()]
    finally:
        reader.kill()
        reader.wait()
        assert reader.stdout is not None
        reader.stdout.close()
    [committed] = world.committed("killed", topic, 1)
    assert seen == list(range(len(seen)))
    assert 0 < committed <= len(seen)
    with world.stream(topic, "killed") as tables:
        rest = values(tables)
    assert rest == list(range(committed, 500))


def test_members_share_the_partitions(world: World) -> None:
    topic = world.topic(2)
    with world.stream(topic, "shared", timeout_ms=200) as one, world.stream(topic, "shared", timeout_ms=200) as two:
        read: Counter[int] = Counter()
        by_stream = {"one": 0, "two": 0}
        numbers = count()

        def both_have_read() -> bool:
            world.fill(topic, (next(numbers) for _ in range(2)))
            for name, tables in (("one", one), ("two", two)):
                found = values(tables)
                read.update(found)
                by_stream[name] += len(found)
            return min(by_stream.values()) >= 3

        wait_until(both_have_read, WAIT_S, "both members have read")
        total = next(numbers)
        wait_until(lambda: read.update(values([*one, *two])) or len(read) == total, WAIT_S, "all is read")
    assert read == dict.fromkeys(range(total), 1)


def test_control_records_and_what_was_compacted_away_are_no_end(world: World) -> None:
    topic = world.topic(1)
    records = [Record(value=b"%d" % number) for number in range(5)]
    append_as_stored(world.cluster, topic, 0, compacted(records, {0, 2}), control_batch())
    with world.stream(topic, "odd") as tables:
        assert values(tables) == [0, 2]
        world.fill(topic, [7], 1)
        assert values(tables) == [7]
    assert world.committed("odd", topic, 1) == [7]


def test_latest_begins_at_the_end_and_stays_there(world: World) -> None:
    topic = world.topic(1, records=5)
    with world.stream(topic, "late", auto_offset_reset="latest") as tables:
        assert values(tables) == []
        assert world.committed("late", topic, 1) == [5]
    world.fill(topic, range(5, 8), 1)
    with world.stream(topic, "late", auto_offset_reset="latest") as tables:
        assert values(tables) == [5, 6, 7]
    with pytest.raises(ValueError, match="auto_offset_reset='none' must be earliest or latest"):
        world.stream(topic, "late", auto_offset_reset="none")


def test_new_partitions_are_read_from_their_beginning(world: World) -> None:
    topic = world.topic(1, records=3)
    with world.stream(topic, "grown") as tables:
        assert values(tables) == [0, 1, 2]
        with Admin(world.servers) as admin:
            admin.create_partitions(topic, 2)
        world.fill(topic, range(3, 9))
        read: list[int] = []
        wait_until(lambda: read.extend(values(tables)) or len(read) == 6, WAIT_S, "all is read")
    assert sorted(read) == list(range(3, 9))


def test_what_was_deleted_unread_is_a_loud_loss(world: World) -> None:
    topic = world.topic(1, records=10)
    with world.stream(topic, "loss") as tables:
        assert values(tables) == list(range(10))
    world.fill(topic, range(10, 20), 1)
    with Admin(world.servers) as admin:
        admin.delete_records({(topic, 0): 15})
    with (
        pytest.raises(DataLoss, match=rf"{topic}-0: .*offset 10 .*reset-offsets"),
        world.stream(topic, "loss") as tables,
    ):
        next(tables)
    assert world.committed("loss", topic, 1) == [10]
    with world.stream(topic, "loss", fail_on_data_loss=False) as tables:
        assert values(tables) == list(range(15, 20))


def test_a_topic_that_is_deleted_is_a_loud_loss(world: World) -> None:
    topic = world.topic(1, records=5)
    loud = world.stream(topic, "loud", timeout_ms=scaled_ms(int(WAIT_S) * 1_000))
    quiet = world.stream(topic, "quiet", fail_on_data_loss=False)
    with loud, quiet:
        assert values([next(loud)]) == values([next(quiet)]) == list(range(5))
        with Admin(world.servers) as admin:
            admin.delete_topics([topic])
        with pytest.raises(DataLoss, match=f"{topic}.*deleted.*fail_on_data_loss=False"):
            next(loud)
        assert values(quiet) == []


def test_a_topic_that_is_created_anew_is_another_one(world: World) -> None:
    topic = world.topic(1, records=5)
    loud = world.stream(topic, "anew-loud", timeout_ms=scaled_ms(int(WAIT_S) * 1_000))
    quiet = world.stream(topic, "anew-quiet", fail_on_data_loss=False)
    with loud, quiet:
        assert values([next(loud)]) == values([next(quiet)]) == list(range(5))
        with Admin(world.servers) as admin:
            admin.delete_topics([topic])
        world.cluster.create_topic(topic)
        world.fill(topic, range(10, 20), 1)
        with pytest.raises(DataLoss, match=f"{topic}.* deleted while it was read"):
            values(loud)
        read: list[int] = []
        wait_until(lambda: read.extend(values(quiet)) or len(read) >= 10, WAIT_S, "all is read")
        assert read == list(range(10, 20))


def test_a_stream_without_a_group_is_refused(world: World) -> None:
    with pytest.raises(ValueError, match="group=None must be a name"):
        world.stream("any", None)  # type: ignore[arg-type]


def test_columns_are_checked_before_the_group_is_joined(world: World) -> None:
    with pytest.raises(InvalidRequest, match="columns"):
        world.stream(world.topic(), "unfit", columns=["nosuch"])
