from __future__ import annotations

from typing import cast

import pytest

from raylog.client.fetch.leaders import Leaders
from raylog.client.fetch.subscription import Subscription
from raylog.client.network.connection import Address
from raylog.client.network.metadata import ClusterView, Metadata
from raylog.client.network.network import Network
from raylog.client.results import PartitionDescription, TopicDescription
from raylog.protocol.errors import RaylogError, UnknownTopicOrPartition
from raylog.protocol.ids import EARLIEST, NO_TOPIC_ID, BrokerId, LeaderEpoch, PartitionIndex, TopicName, TopicPartition

A, B = (TopicPartition(TopicName(topic), PartitionIndex(0)) for topic in ("a", "b"))


class World:
    """A network whose brokers know no topic."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.told: list[RaylogError] = []
        self.metadata = Metadata()
        self.metadata.view = ClusterView(errors={t: UnknownTopicOrPartition(f"topic {t!r}") for t in "ab"})
        self.subscription = Subscription(EARLIEST)
        self.leaders = Leaders(
            cast(Network, self),
            self.subscription,
            lambda _, error: self.told.append(error),
            100,
            lambda: self.now_ms,
        )

    def leader_address(self, tp: TopicPartition) -> Address | None:
        return None

    def read(self, *partitions: TopicPartition) -> None:
        self.subscription.assign(partitions)
        self.leaders.keep()

    def tells(self, at_ms: int) -> bool:
        """Whether the user is told that A is gone when it is looked for at that time."""
        self.now_ms = at_ms
        self.told.clear()
        assert self.leaders.address(A, at_ms) is None
        return bool(self.told)


@pytest.fixture
def world() -> World:
    return World()


def test_a_topic_that_is_gone_is_told_again_and_again(world: World) -> None:
    world.read(A)
    assert [world.tells(at_ms) for at_ms in (0, 1_999, 2_000, 2_001, 3_999, 4_000)] == [
        False, False, True, False, False, True,
    ]  # fmt: skip


def test_a_topic_that_is_read_again_may_have_just_been_created(world: World) -> None:
    world.read(A)
    assert not world.tells(0)
    world.read(B)
    world.read(A)
    assert [world.tells(at_ms) for at_ms in (60_000, 61_999, 62_000)] == [False, False, True]


def test_a_partition_that_is_gone_is_told_as_a_topic_is(world: World) -> None:
    """The topic was made anew with fewer of them, or never had so many."""
    one = PartitionDescription(PartitionIndex(0), BrokerId(1), LeaderEpoch(0), (), ())
    world.metadata.view = ClusterView(topics={"a": TopicDescription(A.topic, NO_TOPIC_ID, (one,))})
    gone = TopicPartition(A.topic, PartitionIndex(1))
    world.read(A, gone)
    told: list[str] = []
    for now_ms in (0, 1_999, 2_000, 2_001, 4_000):
        for tp in (A, gone):
            world.leaders.address(tp, now_ms)
        told += [f"{now_ms} {error}" for error in world.told]
        world.told.clear()
    assert [line.split(":")[0] for line in told] == ["2000 a-1", "4000 a-1"]
    assert "1 partition" in told[0]


def test_what_is_assigned_anew_does_not_rest(world: World) -> None:
    world.read(A, B)
    world.leaders.rest(A)
    world.leaders.rest(B)
    world.read(B)
    world.read(A, B)
    assert not world.leaders.rests(A, 0)
    assert [world.leaders.rests(B, at_ms) for at_ms in (99, 100)] == [True, False]
