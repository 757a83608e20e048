"""Files of a sink are deleted, records are lost by retention, at every step: each row once, or a loud error.

Everything is the product's but the file system, which is a dictionary, and the way to the partition, which has neither
sockets nor producers: `test_sink_crash_points` has these.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext, suppress
from functools import partial

import pytest

from kit.partitions import TP, batch, open_shelf, values
from kit.sink_world import BatchFiles, Death, Disk, DiskFiles, Life, die, values_of
from raylog.broker.partition.partition import Partition
from raylog.client.produce.producer_state import Identity
from raylog.client.ranges.offset_ranges import DataLoss
from raylog.protocol.batches.header import batch_headers
from raylog.protocol.errors import OffsetOutOfRange
from raylog.protocol.ids import Offset
from raylog.spark.writing.sink_batch import Staged, Written, write_batch
from raylog.spark.writing.sink_plan import BatchPlan, Target
from raylog.spark.writing.sink_store import SinkStore
from raylog.spark.writing.sink_topics import ProducerNames

ROWS = 12
FILES = 2
AT_ONCE = 2
"""Rows of a batch of the producer's: more than the broker's five batches, over the files."""
LOUD = (DataLoss, FileNotFoundError, RuntimeError)

new_ids = itertools.count(1_000)


def new_names(count: int) -> list[Identity]:
    return [Identity(next(new_ids), 0) for _ in range(count)]


class Names:
    """The names of one process."""

    def __init__(self) -> None:
        self._names = ProducerNames()

    def of(self, world: World, batch_id: int, count: int) -> list[Identity]:
        return self._names.take(count, "cluster", new_names)


class Brokers:
    """The partition, asked by one who may die."""

    def __init__(self, world: World, batch_id: int, life: Life) -> None:
        self._world, self._batch_id, self._life = world, batch_id, life

    def targets(self, topics: Collection[str]) -> dict[str, Target]:
        return {topic: Target("id", [self._world.partition.log.offsets.end.offset]) for topic in topics}

    def new_producers(self, count: int) -> list[Identity]:
        return self._life.around(lambda: self._world.names.of(self._world, self._batch_id, count))

    def written(self, plan: BatchPlan) -> Written:
        partition, ours = self._world.partition, set(plan.files.values())
        at = plan.starts()[TP]
        found: dict[Identity, dict[object, int]] = {}
        while at < partition.log.offsets.end.offset:
            try:
                info = partition.read(Offset(at), 1 << 20)
            except OffsetOutOfRange as error:
                raise DataLoss(str(error)) from error
            assert info.data is not None
            try:
                for _, header in batch_headers(info.data.read()):
                    identity = Identity(header.producer_id, header.producer_epoch)
                    if identity in ours:
                        found[identity] = {TP: header.last_sequence + 1}
                    at = header.next_offset
            finally:
                info.data.release()
        return found  # type: ignore[return-value]


class Rows(BatchFiles):
    """Sends a batch's rows to the partition."""

    def __init__(self, world: World, batch_id: int, life: Life) -> None:
        super().__init__(TP.topic, batch_id, world.disk, life, world.chance, rows=ROWS, files=FILES)
        self._world, self._steps = world, life

    def send(self, plan: BatchPlan, written: Written) -> int:
        files = {name: self.staged(plan.rows, name) for name in plan.files}
        sent = 0
        for name, rows in files.items():
            identity = plan.files[name]
            for at in range(written.get(identity, {}).get(TP, 0), len(rows), AT_ONCE):
                self._steps.step()
                part = rows[at : at + AT_ONCE]
                info = self._world.partition.append(batch(*part, producer=(*identity, at)), now_ms=NOW_MS)
                self._world.appended += [] if info.duplicate else part
                sent += len(part)
        self._steps.step()
        return sent


NOW_MS = 1_700_000_000_000


class World:
    """A partition, what the sink wrote down, and what was ever appended, over many lives."""

    def __init__(self, partition: Partition, names: Callable[[], Names] = Names) -> None:
        self.partition = partition
        self.start = partition.log.offsets.end.offset
        self.disk = Disk()
        self.chance = random.Random(7)
        self.id = next(new_ids) * 1_000
        self.new_process = names
        self.names = names()
        self.appended: list[bytes] = []

    def live(self, batch_id: int, ends: int | None = None, happens: Callable[[], None] = die) -> bool:
        """Write the batch, or die; which of both. ``happens``: as of Life."""
        life = Life(ends, happens)
        store = SinkStore(DiskFiles(self.disk, life), TP.topic)
        with suppress(Death):
            rows, brokers = Rows(self, batch_id, life), Brokers(self, batch_id, life)
            write_batch(batch_id, rows, store, brokers, topic=TP.topic, batch_size=1_000)
            return True
        return False

    def lose(self, count: int) -> None:
        """Retention takes so many of the first records that were written."""
        self.partition.delete_records(Offset(self.start + count))

    def state(self) -> tuple[object, ...]:
        """What can be told of the world from outside."""
        names = sorted(name.rpartition("-")[0] or name for name in self.disk.names())
        return (*names, len(self.appended), sum(len(files) for files in self.disk.rows.values()))

    def accept(self, batch_id: int) -> None:
        """Do as the error says: have the batch written whole."""
        plan = self.disk.texts.pop(f"{batch_id}.plan", "")
        self.disk.texts.setdefault(f"{batch_id}.next", plan)


@pytest.fixture(scope="module")
def partition(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Partition]:
    shelf = open_shelf(tmp_path_factory.mktemp("log"))
    yield shelf.partition
    shelf.dirs.close()


def stopped(partition: Partition, batch_id: int, ends: int | None, names: Callable[[], Names] = Names) -> World:
    """All before the batch is written, and its process died at that step, or not."""
    world = World(partition, names)
    for before in range(batch_id):
        assert world.live(before)
    world.live(batch_id, ends)
    return world


def steps(partition: Partition, batch_id: int) -> Iterator[int | None]:
    """Those of the batch at which its process leaves something that it did not leave before; None: it does not die."""
    seen = set()
    for ends in itertools.count():
        world = World(partition)
        for before in range(batch_id):
            assert world.live(before)
        if world.live(batch_id, ends):
            yield None
            return
        if world.state() not in seen:
            seen.add(world.state())
            yield ends


def midway(partition: Partition) -> int:
    """The step at which half of a batch is sent."""
    return next(ends for ends in itertools.count() if len(stopped(partition, 1, ends).appended) >= ROWS * 3 // 2)


def things(disk: Disk) -> list[Callable[[], object]]:
    """What can be deleted, each by a call: plans, marks, all rows of a try, one of its files."""
    found: list[Callable[[], object]] = [partial(disk.delete, name) for name in disk.names()]
    found += [partial(files.pop, min(files)) for files in disk.rows.values() if files]
    return found


def check(world: World, batch_id: int, at: str) -> str:
    """Write the batch, and the next one: each row is there once, or an error says what to do, and that helps.

    An error stays: whoever starts the query again without having done so, hears it again.
    """
    try:
        assert world.live(batch_id)
    except LOUD:
        before = len(world.appended)
        world.names = world.new_process()
        with pytest.raises(LOUD):
            world.live(batch_id)
        assert world.appended[before:] == [], at
        world.accept(batch_id)
        world.names = world.new_process()
        assert world.live(batch_id)
        assert Counter(world.appended[before:]) == Counter(values_of(batch_id, ROWS)), at
        assert set(values_of(batch_id, ROWS)) <= set(values(world.partition)), at
        outcome = "loud"
    else:
        assert Counter(row for row in world.appended if row in values_of(batch_id, ROWS)) == Counter(
            values_of(batch_id, ROWS)
        ), at
        outcome = "once"
    before = len(world.appended)
    assert world.live(batch_id + 1)
    assert Counter(world.appended[before:]) == Counter(values_of(batch_id + 1, ROWS)), at
    return outcome


def subsets(count: int) -> Iterator[tuple[int, ...]]:
    return itertools.chain.from_iterable(itertools.combinations(range(count), n) for n in range(count + 1))


def prefixes(world: World, batch_id: int) -> list[int]:
    """What retention may take: nothing, what was there before the batch, and then all up to each batch of a producer's,
    and up to the middle of one."""
    begin = batch_id * ROWS
    return sorted({0, min(begin, len(world.appended)), *range(begin + 1, len(world.appended), 3), len(world.appended)})


def every_case(partition: Partition, batch_id: int, names: Callable[[], Names]) -> Counter[str]:
    """Each step, each set of deletions, each prefix lost by retention, by the same process or another."""
    outcomes: Counter[str] = Counter()
    for ends in steps(partition, batch_id):
        left = stopped(partition, batch_id, ends)
        for gone in subsets(len(things(left.disk))):
            for lost, new in itertools.product(prefixes(left, batch_id), (False, True)):
                world = stopped(partition, batch_id, ends, names)
                strike(world, gone, lost)
                if new:
                    world.names = world.new_process()
                at = f"batch {batch_id}, step {ends}, deleted {gone}, {lost} lost, {new=}"
                outcomes[check(world, batch_id, at)] += 1
    return outcomes


def strike(world: World, gone: Collection[int], lost: int) -> None:
    """These of the things are deleted, and so many records lost."""
    deletes = things(world.disk)
    for number in gone:
        deletes[number]()
    world.lose(lost)


@pytest.mark.parametrize("batch_id", [0, 1])
def test_each_row_is_written_once_or_an_error_is_loud(partition: Partition, batch_id: int) -> None:
    outcomes = every_case(partition, batch_id, Names)
    print(f"batch {batch_id}: {dict(outcomes)}")
    assert outcomes["once"] > 150
    assert outcomes["loud"] > 150


@pytest.mark.parametrize("batch_id", [0, 1])
def test_what_goes_while_a_process_writes_is_never_taken_for_done(partition: Partition, batch_id: int) -> None:
    """Each step, each set of deletions, with nothing or all lost by retention; the process goes on."""
    outcomes: Counter[str] = Counter()
    for ends in steps(partition, batch_id):
        left = stopped(partition, batch_id, ends).disk
        if ends is None:
            continue
        for gone in subsets(len(things(left))):
            for all_lost in (False, True):
                world = World(partition)
                for before in range(batch_id):
                    assert world.live(before)
                at = f"batch {batch_id}, step {ends}, deleted {gone}, {all_lost=}"
                try:
                    world.live(
                        batch_id, ends, lambda w=world, g=gone, a=all_lost: strike(w, g, len(w.appended) if a else 0)
                    )
                except LOUD:
                    outcomes["loud"] += 1
                else:
                    outcomes["written"] += 1
                    assert Counter(row for row in world.appended if row in values_of(batch_id, ROWS)) == Counter(
                        values_of(batch_id, ROWS)
                    ), at
                outcomes[f"then {check(world, batch_id, at)}"] += 1
    print(f"batch {batch_id}: {dict(outcomes)}")
    assert min(outcomes["written"], outcomes["loud"]) > 20


class NamesOfTheBatch(Names):
    """A planted mistake: names follow from what is done, and do not know of plans that are gone."""

    def of(self, world: World, batch_id: int, count: int) -> list[Identity]:
        return [Identity(world.id + number, batch_id) for number in range(count)]


def test_names_that_a_deleted_plan_used_are_found(partition: Partition) -> None:
    with pytest.raises(AssertionError, match="batch 1, step"):
        every_case(partition, 1, NamesOfTheBatch)


def test_all_lost_by_retention_and_written_again_is_written(partition: Partition) -> None:
    """What the error says is done: the names of the plan that is gone are not taken again."""
    world = stopped(partition, 1, midway(partition))
    assert ROWS < len(world.appended) < 2 * ROWS
    world.lose(len(world.appended))
    with pytest.raises(DataLoss, match=r"to write batch 1 whole, .* rename 1\.plan in sink to 1\.next"):
        world.live(1)
    world.accept(1)
    assert world.live(1)
    assert sorted(values(partition), key=str) == sorted(values_of(1, ROWS), key=str)


@pytest.mark.parametrize(
    ("batches", "comes", "says"),
    [
        ([0, 1, 2], 0, "batch 0 comes, and the sink is at batch 3: .*older copy"),
        ([0, 1], 0, "batch 0 comes, and the sink is at batch 2"),
    ],
)
def test_a_batch_of_long_ago_is_refused(partition: Partition, batches: list[int], comes: int, says: str) -> None:
    world = World(partition)
    for batch_id in batches:
        assert world.live(batch_id)
    with pytest.raises(RuntimeError, match=says):
        world.live(comes)


def test_a_batch_after_one_that_failed_is_refused(partition: Partition) -> None:
    world = stopped(partition, 1, midway(partition))
    with pytest.raises(RuntimeError, match="batch 2 comes, and batch 1 is planned and not known to be written"):
        world.live(2)
    assert world.live(1)
    assert world.live(2)


def test_batches_may_be_left_out(partition: Partition) -> None:
    world = World(partition)
    for batch_id in (3, 3, 7, 8, 8):
        assert world.live(batch_id)
    assert Counter(world.appended) == Counter(row for number in (3, 7, 8) for row in values_of(number, ROWS))


@pytest.mark.parametrize("again", [False, True])
def test_a_plan_that_goes_while_it_is_sent_is_not_marked_for_another(partition: Partition, again: bool) -> None:
    """Somebody deletes it, and then all is sent; or renames it, and then the batch is still to be written."""
    world = World(partition)

    class Beset(Rows):
        def send(self, plan: BatchPlan, written: Written) -> int:
            sent = super().send(plan, written)
            world.disk.delete("0.plan")
            if again:
                world.accept(0)
            return sent

    life = Life()
    store, beset = SinkStore(DiskFiles(world.disk, life), TP.topic), Beset(world, 0, life)
    with pytest.raises(RuntimeError, match="begun anew") if again else nullcontext():
        write_batch(0, beset, store, Brokers(world, 0, life), topic=TP.topic, batch_size=1_000)
    assert set(world.disk.texts) == {"0.next" if again else "1.next"}
    assert world.live(0)
    assert Counter(world.appended) == Counter(values_of(0, ROWS) * (1 + again))


def test_who_planned_too_late_writes_nothing(partition: Partition) -> None:
    """A process stands still before its plan; meanwhile others write that batch, and are in the next one."""
    world = World(partition)
    assert world.live(0)
    late = Rows(world, 1, Life())
    staged = late.stage()

    class Late(Rows):
        def stage(self) -> Staged:
            assert world.live(1)
            assert not world.live(2, midway(partition))
            return staged

    life = Life()
    store = SinkStore(DiskFiles(world.disk, life), TP.topic)
    with pytest.raises(RuntimeError, match="batch 1 comes, and the sink is at batch 2"):
        write_batch(1, Late(world, 1, life), store, Brokers(world, 1, life), topic=TP.topic, batch_size=1_000)
    assert world.live(2)
    assert Counter(world.appended) == Counter(row for number in range(3) for row in values_of(number, ROWS))
