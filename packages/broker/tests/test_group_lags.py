"""How far groups are behind: read in small steps, by the leaders, while somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from kit.stores import Counting, close_node
from kit.topics import drop_topic, put_topic
from raylog.broker.groups.offsets.lag import ASKED_FOR_MS, LISTED_AT_ONCE, PASS_INTERVAL_MS, READ_AT_ONCE, GroupLags
from raylog.coordination.groups.kinds import GroupKind, settle_kind
from raylog.coordination.groups.offsets import RegistryOffsetStore
from raylog.coordination.metadata import group_paths
from raylog.coordination.metadata.group_model import CommittedOffset
from raylog.coordination.metadata.model import ClusterState, TopicState
from raylog.coordination.store.memory_tree import MemoryTree
from raylog.coordination.store.port import StoreUnavailable
from raylog.coordination.store.unreadable import collecting
from raylog.protocol.ids import GroupId, MonotonicMs, Offset, PartitionIndex, TopicName, TopicPartition

GROUP = GroupId("readers")


def tp(index: int, topic: str = "flights") -> TopicPartition:
    return TopicPartition(TopicName(topic), PartitionIndex(index))


@dataclass
class Led:
    high_watermark: Offset


@dataclass
class World:
    """One broker's lags, the partitions that it leads, and the time."""

    store: Counting
    led: dict[TopicPartition, Led] = field(default_factory=dict)
    now_ms: int = 0

    def __post_init__(self) -> None:
        self.lags = GroupLags(self.store, lambda: self.led, lambda: self.state, lambda: MonotonicMs(self.now_ms))
        self.make_topics()

    def make_topics(self) -> None:
        """That did not exist; the broker knows all that there are."""
        names = ("flights", "old", "other")
        topics = [TopicState(TopicName(name), put_topic(self.store, name, 20), ()) for name in names]
        self.state = ClusterState().with_topics(*topics)

    def commit(self, group: GroupId, *partitions: TopicPartition, offset: int = 5) -> None:
        commits = {each: CommittedOffset(Offset(offset)) for each in partitions}
        known = {name: topic.id for name, topic in self.state.topics.items()}
        settle_kind(self.store, group, GroupKind.CLIENTS)
        assert not RegistryOffsetStore(self.store).write(group, commits, [], known)

    def step(self) -> int:
        """How many requests it takes."""
        before = self.store.asked
        self.lags.step()
        return self.store.asked - before

    def pass_over_all(self) -> None:
        """Everything is read anew."""
        self.lags.lags()
        self.now_ms += PASS_INTERVAL_MS
        while self.step():
            pass


@pytest.fixture
def world() -> Iterator[World]:
    with Counting(MemoryTree()) as store:
        yield World(store)


def test_lag_is_from_commit_to_high_watermark(world: World) -> None:
    world.led = {tp(0): Led(Offset(12)), tp(0, "old"): Led(Offset(3))}
    world.commit(GROUP, tp(0))
    world.commit(GROUP, tp(1), tp(0, "other"), offset=1)
    world.commit(GROUP, tp(0, "old"), offset=4)
    world.store.create(group_paths.offset(GroupId("odd"), tp(0)), b"no number", parents=True)
    world.store.create(group_paths.offset(GroupId("claimed"), tp(0)), b"-1", parents=True)
    assert world.lags.lags() == {}
    world.pass_over_all()
    assert world.lags.lags() == {(GROUP, tp(0)): 7, (GROUP, tp(0, "old")): 0}
    world.led[tp(0)].high_watermark = Offset(20)
    del world.led[tp(0, "old")]
    assert world.lags.lags() == {(GROUP, tp(0)): 15}


@pytest.mark.parametrize("of", [group_paths.offsets, lambda group: group_paths.offset(group, tp(0))])
def test_closed_node_of_one_group_holds_up_no_other(world: World, of: Callable[[GroupId], str]) -> None:
    world.led = {tp(0): Led(Offset(12))}
    for group in (closed := GroupId("closed"), GROUP):
        world.commit(group, tp(0))
    close_node(world.store, of(closed))
    with collecting() as told:
        world.pass_over_all()
        world.pass_over_all()
    assert world.lags.lags() == {(GROUP, tp(0)): 7}
    assert list(told.known) == [of(closed)]


def test_replaced_topic_has_no_lag(world: World) -> None:
    world.led = {tp(0): Led(Offset(12)), tp(0, "old"): Led(Offset(3))}
    world.commit(GROUP, *world.led, offset=2)
    world.pass_over_all()
    assert world.lags.lags() == {(GROUP, tp(0)): 10, (GROUP, tp(0, "old")): 1}
    drop_topic(world.store, "flights")
    world.make_topics()
    world.pass_over_all()
    assert world.lags.lags() == {(GROUP, tp(0, "old")): 1}


def test_nothing_is_read_unless_somebody_asks(world: World) -> None:
    world.led = {tp(0): Led(Offset(12))}
    world.commit(GROUP, tp(0))
    assert world.step() == 0
    world.pass_over_all()
    assert world.lags.lags() == {(GROUP, tp(0)): 7}
    world.now_ms += ASKED_FOR_MS + 1
    assert world.step() == 0
    assert world.lags.lags() == {}, "what was read long ago is told no more"
    world.pass_over_all()
    assert world.lags.lags() == {(GROUP, tp(0)): 7}


def test_next_pass_waits_for_its_time(world: World) -> None:
    world.led = {tp(0): Led(Offset(12))}
    world.commit(GROUP, tp(0))
    world.pass_over_all()
    world.commit(GROUP, tp(0), offset=6)
    world.lags.lags()
    world.now_ms += PASS_INTERVAL_MS - 1
    assert world.step() == 0
    world.now_ms += 1
    assert world.step() > 0
    assert world.lags.lags() == {(GROUP, tp(0)): 6}


@pytest.mark.parametrize("groups", [30, 1_000])
def test_step_costs_the_same_however_many_groups(world: World, groups: int) -> None:
    """The sum is that of one list for each group, two reads for each offset."""
    partitions = 20
    world.led = {tp(index): Led(Offset(12)) for index in range(partitions)}
    for number in range(groups):
        world.commit(GroupId(f"g{number}"), *world.led)
    world.lags.lags()
    costs = []
    while cost := world.step():
        costs.append(cost)
    assert max(costs) <= LISTED_AT_ONCE + READ_AT_ONCE + 2
    assert sum(costs) <= groups * (2 * partitions + 1) + 2
    assert len(world.lags.lags()) == groups * partitions


@pytest.mark.parametrize("lost", [1, 2, 3, 4])
def test_step_that_fails_is_tried_again(world: World, lost: int) -> None:
    """Its requests: the groups in two places, their topics, their offsets."""
    world.led = {tp(0): Led(Offset(12))}
    world.commit(GROUP, tp(0))
    world.lags.lags()
    left = iter(range(lost - 1, 0, -1))
    world.store.before_answer = lambda: world.store.lose_next_answer() if next(left, 0) == 1 else None
    if lost == 1:
        world.store.lose_next_answer()
    with pytest.raises(StoreUnavailable):
        world.lags.step()
    world.lags.step()
    assert world.lags.lags() == {(GROUP, tp(0)): 7}
