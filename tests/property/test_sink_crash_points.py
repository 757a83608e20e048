"""A sink dies at every step, and in the middle of sending, once and again: each record is there once."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.cluster import InProcessCluster
from raylog.client import Admin, Consumer
from raylog.client.producer_state import Identity
from raylog.protocol.errors import UnknownTopicOrPartition
from raylog.spark.sink_batch import Staged, Written, write_batch
from raylog.spark.sink_plan import BatchPlan, Done, Target
from raylog.spark.sink_task import FILE, SinkTask, send_files
from raylog.spark.sink_topics import BrokerTopics

T = TypeVar("T")

ROWS = 240
FILES = 3
AT_ONCE = 20
"""Rows of a file that come in one piece."""
BATCH_SIZE = 300
"""Some ten rows."""
PARTITIONS = 2

topics = (f"t{number}" for number in itertools.count())


class Death(BaseException):
    """The process is gone."""


class Life:
    """A process that dies at its step number ``ends``; None: it doesn't."""

    def __init__(self, ends: int | None) -> None:
        self._left = ends
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise Death

    def around(self, act: Callable[[], T]) -> T:
        """``act``, with a step before and one behind."""
        self.step()
        answer = act()
        self.step()
        return answer


class Disk:
    """What stays when a process dies."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, list[bytes]]] = {}
        """Values of rows, by directory and file."""
        self.plans: dict[int, str] = {}
        self.done: dict[int, str] = {}


class Store:
    """A BatchStore on the disk."""

    def __init__(self, disk: Disk, life: Life) -> None:
        self._disk = disk
        self._life = life

    def last_done(self) -> Done | None:
        return Done.from_json(self._disk.done[max(self._disk.done)]) if self._disk.done else None

    def plan(self, batch_id: int) -> BatchPlan | None:
        text = self._disk.plans.get(batch_id)
        return None if text is None else BatchPlan.from_json(text)

    def create_plan(self, plan: BatchPlan) -> bool:
        def create() -> bool:
            return self._disk.plans.setdefault(plan.batch_id, plan.to_json()) == plan.to_json()

        return self._life.around(create)

    def mark_done(self, done: Done) -> None:
        self._life.around(lambda: self._disk.done.setdefault(done.batch_id, done.to_json()))

    def sweep(self, done: Done) -> None:
        for batch_id in [batch_id for batch_id in self._disk.plans if batch_id < done.batch_id]:
            self._life.around(lambda batch_id=batch_id: self._disk.plans.pop(batch_id))
        for directory in [name for name in self._disk.files if int(name.split("-")[1]) <= done.batch_id]:
            self._life.around(lambda directory=directory: self._disk.files.pop(directory))


class Brokers(BrokerTopics):
    """The real ones, asked by one who may die."""

    def __init__(self, servers: str, life: Life) -> None:
        super().__init__(servers)
        self._life = life

    def targets(self, topics: Collection[str]) -> dict[str, Target]:
        return self._life.around(lambda: super(Brokers, self).targets(topics))

    def new_producers(self, count: int) -> list[Identity]:
        return self._life.around(lambda: super(Brokers, self).new_producers(count))


class Rows:
    """The rows of one batch, in files that differ each time they are computed anew."""

    def __init__(self, servers: str, topic: str, batch_id: int, disk: Disk, life: Life, chance: random.Random) -> None:
        self._servers, self._topic, self._batch_id = servers, topic, batch_id
        self._disk, self._life, self._chance = disk, life, chance

    def stage(self) -> Staged:
        values = [b"%d-%d" % (self._batch_id, number) for number in range(ROWS)]
        self._chance.shuffle(values)
        cuts = sorted(self._chance.sample(range(1, ROWS), FILES - 1))
        directory = f"rows-{self._batch_id}-{len(self._disk.files)}"
        files = self._disk.files[directory] = {}
        for number, (start, end) in enumerate(itertools.pairwise([0, *cuts, ROWS])):
            self._life.around(lambda name=f"part-{number}", part=values[start:end]: files.update({name: part}))
        return Staged(directory, sorted(files), [self._topic])

    def send(self, plan: BatchPlan, written: Written) -> int:
        task = SinkTask(self._servers, self._topic, {}, plan, written)
        sent = 0
        for name in plan.files:
            for answer in send_files(task, self._batches(plan.rows, name)):
                sent += answer.column("records")[0].as_py()
        return sent

    def _batches(self, directory: str, name: str) -> Iterator[pa.RecordBatch]:
        values = self._disk.files[directory][name]
        for start in range(0, len(values), AT_ONCE):
            part = values[start : start + AT_ONCE]
            self._life.step()
            keys = [value[-1:] if int(value.split(b"-")[1]) % 3 else None for value in part]
            yield pa.RecordBatch.from_pydict(
                {"value": pa.array(part), "key": pa.array(keys, pa.binary()), FILE: [name] * len(part)}
            )
        self._life.step()


class World:
    """One topic and what the sink wrote down, over many lives."""

    def __init__(self, cluster: InProcessCluster) -> None:
        self.topic = next(topics)
        cluster.create_topic(self.topic, partitions=PARTITIONS)
        self.servers = cluster.bootstrap_servers
        self.disk = Disk()
        self.chance = random.Random(7)

    def live(self, batch_id: int, ends: int | None = None) -> bool:
        """Write the batch, or die; which of both."""
        life = Life(ends)
        rows = Rows(self.servers, self.topic, batch_id, self.disk, life, self.chance)
        store, brokers = Store(self.disk, life), Brokers(self.servers, life)
        try:
            write_batch(batch_id, rows, store, brokers, topic=self.topic, batch_size=BATCH_SIZE)
        except Death:
            return False
        return True

    def check(self, batches: int) -> None:
        """Each record of the batches is there once, and nothing but the newest mark and plan is left."""
        with Consumer(self.servers, [self.topic], auto_offset_reset="earliest") as consumer:
            found = Counter(record.value for record in consumer.iterate(until_end=True))
        assert found == Counter(b"%d-%d" % (batch, number) for batch in range(batches) for number in range(ROWS))
        assert set(self.disk.plans) == {batches - 1}
        assert not self.disk.files


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
    for batch_id in (0, 1, 1, 0, 2, 1):
        assert world.live(batch_id)
    world.check(3)


def test_who_is_late_and_sends_all_the_same_adds_nothing(cluster: InProcessCluster) -> None:
    world = World(cluster)
    assert not world.live(0, 14)  # dead to the others, it goes on
    [(directory, files)] = world.disk.files.items()
    text = world.disk.plans[0]
    assert world.live(0)
    world.disk.files[directory] = files
    late = Rows(world.servers, world.topic, 0, world.disk, Life(None), world.chance)
    assert late.send(BatchPlan.from_json(text), {}) == ROWS
    del world.disk.files[directory]
    world.check(1)


def test_two_at_once_write_each_record_once(cluster: InProcessCluster) -> None:
    world = World(cluster)
    assert not world.live(0, 14)
    plan = BatchPlan.from_json(world.disk.plans[0])
    written = BrokerTopics(world.servers).written(plan)
    life = Life(None)
    ours, others = (Rows(world.servers, world.topic, 0, world.disk, life, world.chance) for _ in range(2))
    with ThreadPoolExecutor(2) as both:
        list(both.map(lambda each: each[0].send(plan, each[1]), [(ours, written), (others, {})]))
    assert world.live(0)
    world.check(1)


def test_a_topic_is_created_where_brokers_create_topics(tmp_path: Path) -> None:
    config = {"num.partitions": "2"}
    with InProcessCluster(tmp_path, config=config) as cluster:
        topics = BrokerTopics(cluster.bootstrap_servers)
        assert topics.targets(["first-seen"])["first-seen"].ends == [0, 0]
        with Admin(cluster.bootstrap_servers) as admin:
            admin.alter_broker_configs(None, {"auto.create.topics.enable": "false"})
        with pytest.raises(UnknownTopicOrPartition, match=r"'nosuch' is not there.*`raylog topics create nosuch`"):
            topics.targets(["nosuch"])
