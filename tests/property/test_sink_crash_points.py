"""A sink dies at every step, and in the middle of sending, once and again: each record is there once."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.cluster import InProcessCluster
from kit.reading import all_records
from kit.sink_world import BatchFiles, Death, Disk, DiskFiles, Life, values_of
from raylog.client import Admin
from raylog.client.produce.producer_state import Identity
from raylog.protocol.errors import UnknownTopicOrPartition
from raylog.spark.writing.sink_batch import SentMeanwhile, Written, write_batch
from raylog.spark.writing.sink_plan import BatchPlan, Target
from raylog.spark.writing.sink_store import SinkStore
from raylog.spark.writing.sink_task import FILE, REFUSED, SinkTask, records_sent, send_files
from raylog.spark.writing.sink_topics import BrokerTopics, ProducerNames

ROWS = 240
FILES = 3
AT_ONCE = 20
"""Rows of a file that come in one piece."""
BATCH_SIZE = 300
"""Some ten rows."""
PARTITIONS = 2

topics = (f"t{number}" for number in itertools.count())


class Brokers(BrokerTopics):
    """The real ones, asked by one who may die."""

    def __init__(self, servers: str, names: ProducerNames, life: Life) -> None:
        super().__init__(servers, names)
        self._life = life

    def targets(self, topics: Collection[str]) -> dict[str, Target]:
        return self._life.around(lambda: super(Brokers, self).targets(topics))

    def new_producers(self, count: int) -> list[Identity]:
        return self._life.around(lambda: super(Brokers, self).new_producers(count))


class Rows(BatchFiles):
    """Sends the rows of one batch as Spark's tasks do."""

    def __init__(
        self,
        servers: str,
        topic: str,
        batch_id: int,
        disk: Disk,
        life: Life,
        chance: random.Random,
        at_once: int = AT_ONCE,
    ) -> None:
        super().__init__(topic, batch_id, disk, life, chance, rows=ROWS, files=FILES)
        self._servers, self._steps, self._at_once = servers, life, at_once

    def send(self, plan: BatchPlan, written: Written) -> int:
        task = SinkTask(self._servers, self.topic, {}, plan, written)
        answers = [answer for name in plan.files for answer in send_files(task, self._batches(plan.rows, name))]
        return records_sent((row["records"], row[REFUSED]) for answer in answers for row in answer.to_pylist())

    def _batches(self, directory: str, name: str) -> Iterator[pa.RecordBatch]:
        values = self.staged(directory, name)
        for start in range(0, len(values), self._at_once):
            part = values[start : start + self._at_once]
            self._steps.step()
            keys = [value[-1:] if int(value.split(b"-")[1]) % 3 else None for value in part]
            yield pa.RecordBatch.from_pydict(
                {"value": pa.array(part), "key": pa.array(keys, pa.binary()), FILE: [name] * len(part)}
            )
        self._steps.step()


class Overtaken(Rows):
    """Sends when another try, whose records are cut otherwise, has sent up to its step number ``ends`` meanwhile."""

    def __init__(self, world: World, ends: int) -> None:
        make = partial(Rows, world.servers, world.topic, 0, world.disk, chance=world.chance)
        self._another = make(life=Life(ends), at_once=3)
        super().__init__(world.servers, world.topic, 0, world.disk, Life(), world.chance)
        self.refused = 0

    def send(self, plan: BatchPlan, written: Written) -> int:
        with suppress(Death, SentMeanwhile):
            self._another.send(plan, written)
        try:
            return super().send(plan, written)
        except SentMeanwhile:
            self.refused += 1
            raise


class Refused(Rows):
    """Is always told that its records are out of order."""

    def send(self, plan: BatchPlan, written: Written) -> int:
        raise SentMeanwhile("sequence 7, expected 5")


class World:
    """One topic and what the sink wrote down, over many lives."""

    def __init__(self, cluster: InProcessCluster) -> None:
        self.topic = next(topics)
        cluster.create_topic(self.topic, partitions=PARTITIONS)
        self.servers = cluster.bootstrap_servers
        self.disk = Disk()
        self.chance = random.Random(7)
        self.names = ProducerNames()

    def live(self, batch_id: int, ends: int | None = None) -> bool:
        """Write the batch, or die; which of both. After a death another process goes on."""
        life = Life(ends)
        rows = Rows(self.servers, self.topic, batch_id, self.disk, life, self.chance)
        store = SinkStore(DiskFiles(self.disk, life), self.topic)
        brokers = Brokers(self.servers, self.names, life)
        try:
            write_batch(batch_id, rows, store, brokers, topic=self.topic, batch_size=BATCH_SIZE)
        except Death:
            self.names = ProducerNames()
            return False
        return True

    def check(self, batches: int) -> None:
        """Each record of the batches is there once, and nothing but the newest mark and plan is left."""
        found = Counter(record.value for record in all_records(self.servers, self.topic))
        assert found == Counter(itertools.chain.from_iterable(values_of(batch, ROWS) for batch in range(batches)))
        assert set(self.disk.names()) == {f"{batches - 1}.plan", f"{batches}.next"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessCluster]:
    with InProcessCluster(tmp_path_factory.mktemp("brokers")) as running:
        yield running


def test_who_dies_at_any_step_writes_each_record_once(cluster: InProcessCluster) -> None:
    for ends in range(100):
        world = World(cluster)
        assert world.live(0)
        finished = world.live(1, ends)
        assert world.live(1)
        assert world.live(2)
        world.check(3)
        if finished:
            break
    assert 25 < ends < 100


@settings(max_examples=max(20, settings().max_examples // 10), deadline=None)
@given(deaths=st.lists(st.integers(0, 32), max_size=6))
def test_who_dies_again_and_again_writes_each_record_once(cluster: InProcessCluster, deaths: list[int]) -> None:
    world = World(cluster)
    batch_id = 0
    for ends in deaths:
        batch_id += world.live(batch_id, ends)
    assert world.live(batch_id)
    world.check(batch_id + 1)


def test_a_batch_that_is_done_is_not_written_again(cluster: InProcessCluster) -> None:
    world = World(cluster)
    for batch_id in (0, 0, 1, 1, 2, 2):
        assert world.live(batch_id)
    world.check(3)


def test_who_is_late_and_sends_all_the_same_adds_nothing(cluster: InProcessCluster) -> None:
    world = World(cluster)
    assert not world.live(0, 14)  # dead to the others, it goes on
    [(directory, files)] = world.disk.rows.items()
    text = world.disk.texts["0.plan"]
    assert world.live(0)
    world.disk.rows[directory] = files
    late = Rows(world.servers, world.topic, 0, world.disk, Life(), world.chance)
    assert late.send(BatchPlan.from_json(text), {}) == ROWS
    world.disk.delete(directory)
    world.check(1)


def test_two_at_once_write_each_record_once(cluster: InProcessCluster) -> None:
    world = World(cluster)
    assert not world.live(0, 14)
    plan = BatchPlan.from_json(world.disk.texts["0.plan"])
    written = BrokerTopics(world.servers, world.names).written(plan)
    life = Life()
    ours, others = (Rows(world.servers, world.topic, 0, world.disk, life, world.chance) for _ in range(2))
    with ThreadPoolExecutor(2) as both:
        list(both.map(lambda each: each[0].send(plan, each[1]), [(ours, written), (others, {})]))
    assert world.live(0)
    world.check(1)


def test_a_try_that_another_one_overtakes_goes_on_behind_it(cluster: InProcessCluster) -> None:
    refused = 0
    for ends in range(0, 80, 6):
        world = World(cluster)
        assert not world.live(0, 14)  # all that comes before sending
        rows, life = Overtaken(world, ends), Life()
        store, brokers = SinkStore(DiskFiles(world.disk, life), world.topic), Brokers(world.servers, world.names, life)
        write_batch(0, rows, store, brokers, topic=world.topic, batch_size=BATCH_SIZE)
        world.check(1)
        refused += rows.refused
    assert refused > 0


def test_records_refused_without_further_ones_in_the_log_end_the_try(cluster: InProcessCluster) -> None:
    world = World(cluster)
    assert not world.live(0, 14)
    rows, life = Refused(world.servers, world.topic, 0, world.disk, Life(), world.chance), Life()
    store, brokers = SinkStore(DiskFiles(world.disk, life), world.topic), Brokers(world.servers, world.names, life)
    with pytest.raises(SentMeanwhile, match="expected 5"):
        write_batch(0, rows, store, brokers, topic=world.topic, batch_size=BATCH_SIZE)


def test_a_topic_is_created_where_brokers_create_topics(tmp_path: Path) -> None:
    config = {"num.partitions": "2"}
    with InProcessCluster(tmp_path, config=config) as cluster:
        topics = BrokerTopics(cluster.bootstrap_servers, ProducerNames())
        assert topics.targets(["first-seen"])["first-seen"].ends == [0, 0]
        with Admin(cluster.bootstrap_servers) as admin:
            admin.alter_broker_configs(None, {"auto.create.topics.enable": "false"})
        with pytest.raises(UnknownTopicOrPartition, match=r"'nosuch' is not there.*`raylog topics create nosuch`"):
            topics.targets(["nosuch"])
