"""Topics that get more partitions: what is refused, where they go, what a crash leaves."""

from __future__ import annotations

from collections import Counter

import pytest

from kit.controlled import ControlledCluster, assert_agreement, created, topic
from raylog.coordination.controller.events import (
    Deposed,
    NewPartitions,
    Write,
)
from raylog.coordination.metadata import paths
from raylog.coordination.metadata.configs import MAX_OVERRIDES_BYTES
from raylog.protocol.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    NotController,
    RaylogError,
    UnknownTopicOrPartition,
)
from raylog.protocol.ids import BrokerId, TopicName

FLIGHTS = TopicName("flights")


@pytest.fixture
def cluster() -> ControlledCluster:
    cluster = ControlledCluster()
    cluster.elect()
    cluster.deliver()
    return cluster


def grow(cluster: ControlledCluster, *wanted: NewPartitions, **more: bool) -> tuple[object, ...]:
    token = cluster.grow(*wanted, **more)
    cluster.deliver()
    return cluster.replies[token]


def test_a_topic_grows_and_keeps_what_it_has(cluster: ControlledCluster) -> None:
    created(cluster, topic("flights", 2, configs={"retention.ms": "1"}), topic("other", 1))
    before = cluster.controller.state.topics[FLIGHTS]
    token = cluster.grow(NewPartitions(FLIGHTS, 7))
    assert token not in cluster.replies, "the brokers do not know of it yet"
    cluster.deliver()
    assert cluster.replies[token] == ("flights",)
    after = cluster.controller.state.topics[FLIGHTS]
    assert after.id == before.id
    assert after.configs == before.configs
    assert after.partitions[:2] == before.partitions
    leaders = Counter(p.leader for p in after.partitions[2:])
    assert len(after.partitions) == 7
    assert max(leaders.values()) - min(leaders.values()) <= 1
    assert all(p.is_online for p in after.partitions)
    assert_agreement(cluster)


def test_a_topic_grows_by_many_partitions_in_several_writes(cluster: ControlledCluster) -> None:
    created(cluster, topic("flights", 2))
    grow(cluster, NewPartitions(FLIGHTS, 600))
    [write] = [effect for effect in cluster.seen if isinstance(effect, Write)][-1:]
    assert len(write.multis) == 3
    assert_agreement(cluster)


def test_new_partitions_on_brokers_chosen_by_hand(cluster: ControlledCluster) -> None:
    created(cluster, topic("flights", 1))
    grow(cluster, NewPartitions(FLIGHTS, 3, ((BrokerId(3),), (BrokerId(2),))))
    assert [p.leader for p in cluster.controller.state.topics[FLIGHTS].partitions[1:]] == [3, 2]
    assert_agreement(cluster)


@pytest.mark.parametrize(
    ("wanted", "error", "phrase"),
    [
        (NewPartitions(TopicName("nope"), 3), UnknownTopicOrPartition, "no topic nope"),
        (NewPartitions(FLIGHTS, 2), InvalidPartitions, "only get more"),
        (NewPartitions(FLIGHTS, 1), InvalidPartitions, "only get more"),
        (NewPartitions(FLIGHTS, -1), InvalidPartitions, "only get more"),
        (NewPartitions(FLIGHTS, 10_001), InvalidPartitions, "10000"),
        (NewPartitions(FLIGHTS, 3, ()), InvalidReplicaAssignment, "given for 0"),
        (NewPartitions(FLIGHTS, 3, ((BrokerId(1),),) * 2), InvalidReplicaAssignment, "given for 2"),
        (NewPartitions(FLIGHTS, 3, ((),)), InvalidReplicaAssignment, "empty"),
        (NewPartitions(FLIGHTS, 3, ((BrokerId(9),),)), InvalidReplicaAssignment, "no broker 9"),
        (NewPartitions(FLIGHTS, 3, ((BrokerId(1), BrokerId(2)),)), InvalidReplicaAssignment, "2 replicas"),
    ],
    ids=lambda value: f"{value.count}" if isinstance(value, NewPartitions) else None,
)
def test_a_growth_that_cannot_be_is_refused_and_the_others_go_on(
    cluster: ControlledCluster, wanted: NewPartitions, error: type[RaylogError], phrase: str
) -> None:
    created(cluster, topic("flights", 2), topic("good", 1))
    refused, grown = grow(cluster, wanted, NewPartitions(TopicName("good"), 2))
    assert type(refused) is error
    assert phrase in str(refused)
    assert grown == "good"
    assert_agreement(cluster)


def test_a_topic_named_twice_does_not_grow_and_validation_alone_changes_nothing(cluster: ControlledCluster) -> None:
    created(cluster, topic("flights", 2))
    twice = grow(cluster, NewPartitions(FLIGHTS, 3), NewPartitions(FLIGHTS, 4))
    assert [type(result) for result in twice] == [InvalidRequest, InvalidRequest]
    assert grow(cluster, NewPartitions(FLIGHTS, 3), validate_only=True) == ("flights",)
    assert len(cluster.controller.state.topics[FLIGHTS].partitions) == 2
    assert_agreement(cluster)


def test_without_a_broker_no_topic_can_grow(cluster: ControlledCluster) -> None:
    created(cluster, topic("flights", 2))
    for broker in cluster.brokers.values():
        broker.down()
    cluster.brokers_changed()
    [refused] = grow(cluster, NewPartitions(FLIGHTS, 3))
    assert isinstance(refused, InvalidReplicationFactor)


@pytest.mark.parametrize("write", [1, 2])
def test_the_next_controller_completes_a_growth(cluster: ControlledCluster, write: int) -> None:
    """Deposed before its first or between its two writes: all new partitions are there, or none."""
    created(cluster, topic("flights", 1))

    def raise_epoch() -> None:
        cluster.store.delete(paths.CONTROLLER)
        cluster.store.set(paths.CONTROLLER_EPOCH, paths.encode_number(50))

    cluster.before_write(raise_epoch, write)
    token = cluster.grow(NewPartitions(FLIGHTS, 400))
    assert isinstance(cluster.replies[token][0], NotController)
    cluster.elect(2)
    cluster.deliver()
    partitions = cluster.controller.state.topics[FLIGHTS].partitions
    assert len(partitions) == (1 if write == 1 else 400)
    assert all(p.is_online for p in partitions)
    assert_agreement(cluster)


def test_a_broker_that_is_not_the_controller_does_not_grow_topics(cluster: ControlledCluster) -> None:
    cluster.feed(Deposed())
    token = cluster.grow(NewPartitions(FLIGHTS, 3))
    assert isinstance(cluster.replies[token][0], NotController)


def test_a_topic_grows_with_the_replicas_that_it_has(cluster: ControlledCluster) -> None:
    created(cluster, topic("flights", 2, replication_factor=2))
    grow(cluster, NewPartitions(FLIGHTS, 5))
    assert {len(p.isr) for p in cluster.controller.state.topics[FLIGHTS].partitions} == {2}
    cluster.brokers[BrokerId(2)].down()
    cluster.brokers[BrokerId(3)].down()
    cluster.brokers_changed()
    [refused] = grow(cluster, NewPartitions(FLIGHTS, 6))
    assert isinstance(refused, InvalidReplicationFactor)
    assert "2 replicas need as many brokers, and 1 is registered" in str(refused)


def test_topic_grows_whatever_its_overrides_take(cluster: ControlledCluster) -> None:
    """An older tool may have written more than a topic can be made with: its growth does not write them."""
    created(cluster, topic("flights", 1))
    cluster.configure(FLIGHTS, {"x": "y" * (MAX_OVERRIDES_BYTES + 1)})
    assert grow(cluster, NewPartitions(FLIGHTS, 2)) == ("flights",)
