"""Whom a consumer reads from (KIP-392): what leaders name, for as long as it serves, without a loop between the two."""

from __future__ import annotations

from raylog.client.fetch.read_replicas import ReadReplicas
from raylog.client.network.connection import Address
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition

TP, OTHER = (TopicPartition(TopicName("t"), PartitionIndex(index)) for index in (0, 1))
LEADER, NEAR = Address("leader", 1), Address("near", 2)
PAUSE_MS, AGE_MS, EPOCH = 100, 1_000, 7


class World:
    """Broker 2 is near, until it can't be reached."""

    def __init__(self) -> None:
        self.up = True
        self.replicas = ReadReplicas(self._reach, first_pause_ms=PAUSE_MS, max_age_ms=AGE_MS)

    def _reach(self, broker: int) -> Address | None:
        return NEAR if self.up and broker == 2 else None

    def address(self, now_ms: int, *, epoch: int = EPOCH, tp: TopicPartition = TP) -> Address:
        return self.replicas.address(tp, LEADER, epoch, now_ms)


def preferring(broker: int = 2) -> World:
    world = World()
    world.replicas.prefer(TP, broker, EPOCH, 0)
    return world


def test_the_leader_serves_until_it_names_another() -> None:
    assert World().address(0) == LEADER
    world = preferring()
    assert world.address(1) == NEAR
    assert world.address(1, tp=OTHER) == LEADER
    assert world.replicas.may_name_rack([TP, OTHER], 1)


def test_a_replica_is_trusted_for_as_long_as_metadata() -> None:
    world = preferring()
    assert world.address(AGE_MS - 1) == NEAR
    assert world.address(AGE_MS) == LEADER
    assert world.replicas.may_name_rack([TP], AGE_MS), "nothing failed: the leader may name it again"


def test_another_leader_is_asked_whom_to_read_from() -> None:
    world = preferring()
    assert world.address(1, epoch=EPOCH + 1) == LEADER
    assert world.address(1) == LEADER, "what the old one said is forgotten"


def test_the_leader_is_not_asked_again_for_a_replica_that_failed_before_a_pause_that_grows() -> None:
    world = preferring()
    now_ms = 0
    for pause_ms in (100, 200, 400, 800, AGE_MS, AGE_MS):
        world.replicas.prefer(TP, 2, EPOCH, now_ms)
        world.replicas.failed(TP, now_ms)
        assert world.address(now_ms) == LEADER
        now_ms += pause_ms
        assert not world.replicas.may_name_rack([OTHER, TP], now_ms - 1)
        assert world.replicas.may_name_rack([OTHER], now_ms - 1)
        assert world.replicas.may_name_rack([OTHER, TP], now_ms)


def test_a_replica_that_serves_is_trusted_as_before() -> None:
    world = preferring()
    for _ in range(5):
        world.replicas.failed(TP, 0)
    world.replicas.served(TP)
    assert world.replicas.may_name_rack([TP], 0)
    world.replicas.failed(TP, 0)
    assert world.replicas.may_name_rack([TP], PAUSE_MS)


def test_a_replica_that_cannot_be_reached_failed() -> None:
    world = preferring()
    world.up = False
    assert world.address(10) == LEADER
    assert not world.replicas.may_name_rack([TP], 10)
    world.up = True
    assert world.address(10) == LEADER, "until the leader names it again"


def test_a_replica_that_metadata_does_not_know_failed() -> None:
    world = preferring(broker=9)
    assert world.address(0) == LEADER
    assert not world.replicas.may_name_rack([TP], PAUSE_MS - 1)


def test_partitions_that_are_given_away_are_forgotten() -> None:
    world = preferring()
    world.replicas.failed(OTHER, 0)
    world.replicas.forget(TP)
    assert world.address(0) == LEADER
    assert not world.replicas.may_name_rack([OTHER], 0)
    world.replicas.forget(OTHER)
    assert world.replicas.may_name_rack([OTHER], 0)
