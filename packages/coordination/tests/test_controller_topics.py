"""Topics as the controller makes and deletes them: what is refused, where partitions go, what a crash leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from uuid import UUID

import pytest

from kit.controlled import ControlledCluster, assert_agreement, created, topic
from raylog.coordination.controller.events import (
    ConfigChanged,
    CreatedTopic,
    Deposed,
    NewTopic,
    TopicDefaults,
    Write,
)
from raylog.coordination.metadata import paths
from raylog.coordination.metadata.model import ClusterState
from raylog.protocol.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    NotController,
    RaylogError,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from raylog.protocol.ids import BrokerId, PartitionIndex, TopicId, TopicName, TopicPartition

FLIGHTS = TopicName("flights")


@pytest.fixture
def cluster() -> ControlledCluster:
    cluster = ControlledCluster()
    cluster.elect()
    cluster.deliver()
    return cluster


def test_a_topic_is_answered_once_every_broker_has_it(cluster: ControlledCluster) -> None:
    token = cluster.create(topic("flights", 6, configs={"retention.ms": "1000"}))
    assert token not in cluster.replies
    cluster.deliver_one()
    cluster.deliver_one()
    assert token not in cluster.replies
    cluster.deliver()
    [result] = cluster.replies[token]
    assert isinstance(result, CreatedTopic)
    assert (result.name, result.partitions, result.replication_factor) == ("flights", 6, 1)
    assert cluster.controller.state.topics[FLIGHTS].configs == {"retention.ms": "1000"}
    assert_agreement(cluster)


def test_partitions_spread_evenly_over_brokers_and_topics(cluster: ControlledCluster) -> None:
    created(cluster, topic("a", 4), topic("b", 4), topic("c", 4))
    for name in "abc":
        leaders = Counter(p.leader for p in cluster.controller.state.topics[TopicName(name)].partitions)
        assert max(leaders.values()) - min(leaders.values()) <= 1
    total = Counter(p.leader for _, p in cluster.controller.state.partitions())
    assert total == {1: 4, 2: 4, 3: 4}


def test_the_leaders_of_many_small_topics_spread_as_well(cluster: ControlledCluster) -> None:
    created(cluster, *(topic(f"t{n}", 1, replication_factor=3) for n in range(9)))
    assert Counter(p.leader for _, p in cluster.controller.state.partitions()) == {1: 3, 2: 3, 3: 3}


def test_neighbouring_partitions_are_in_different_racks() -> None:
    cluster = ControlledCluster(4, racks={1: "x", 2: "x", 3: "y", 4: "y"})
    cluster.elect()
    created(cluster, topic("flights", 8))
    racks = {1: "x", 2: "x", 3: "y", 4: "y"}
    order = [racks[p.leader] for p in cluster.controller.state.topics[FLIGHTS].partitions]
    assert all(a != b for a, b in pairwise(order))


def test_the_default_numbers_follow_the_dynamic_settings() -> None:
    def defaults(state: ClusterState) -> TopicDefaults:
        return TopicDefaults(int(state.broker_configs.get("<default>", {}).get("num.partitions", "2")), 1)

    cluster = ControlledCluster(defaults=defaults)
    cluster.elect()
    [result] = created(cluster, NewTopic(TopicName("before")))
    assert isinstance(result, CreatedTopic)
    assert result.partitions == 2
    cluster.feed(ConfigChanged({"num.partitions": "5"}, broker="<default>"))
    [result] = created(cluster, NewTopic(FLIGHTS))
    assert isinstance(result, CreatedTopic)
    assert (result.partitions, result.replication_factor) == (5, 1)


def test_a_default_replication_factor_is_kept_to() -> None:
    cluster = ControlledCluster(defaults=lambda state: TopicDefaults(1, 3))
    cluster.elect()
    by_default, asked = created(cluster, NewTopic(FLIGHTS), topic("asked", replication_factor=1))
    assert isinstance(by_default, CreatedTopic)
    assert isinstance(asked, CreatedTopic)
    assert (by_default.replication_factor, asked.replication_factor) == (3, 1)


def test_replicas_chosen_by_hand(cluster: ControlledCluster) -> None:
    created(cluster, NewTopic(FLIGHTS, assignments={0: (BrokerId(3), BrokerId(1)), 1: (BrokerId(1), BrokerId(2))}))
    partitions = cluster.controller.state.topics[FLIGHTS].partitions
    assert [p.leader for p in partitions] == [3, 1]
    assert [p.isr for p in partitions] == [(3, 1), (1, 2)]
    assert_agreement(cluster)


def test_all_replicas_of_a_new_partition_are_in_sync_in_their_incarnations(cluster: ControlledCluster) -> None:
    cluster.brokers[BrokerId(2)].down()
    cluster.brokers[BrokerId(2)].up()
    cluster.brokers_changed()
    cluster.deliver()
    created(cluster, topic("flights", 3, replication_factor=3))
    epochs = {broker.id: broker.epoch for broker in cluster.controller.state.brokers.values()}
    for p in cluster.controller.state.topics[FLIGHTS].partitions:
        assert (p.leader, sorted(p.isr), p.elr) == (p.replicas[0], [1, 2, 3], ())
        assert p.incarnations == epochs
    assert_agreement(cluster)


@pytest.mark.parametrize(
    ("wanted", "error", "phrase"),
    [
        (topic(""), InvalidTopic, "empty"),
        (topic("."), InvalidTopic, "'.'"),
        (topic(".."), InvalidTopic, "'..'"),
        (topic("a/b"), InvalidTopic, "a/b"),
        (topic("ü"), InvalidTopic, "letters"),
        (topic("x" * 250), InvalidTopic, "249"),
        (topic("has.dot"), InvalidTopic, "has_dot"),
        (topic("taken"), TopicAlreadyExists, "taken"),
        (topic("flights", 0), InvalidPartitions, "0 partitions"),
        (topic("flights", -2), InvalidPartitions, "-2"),
        (topic("flights", 10_001), InvalidPartitions, "10000"),
        (
            topic("flights", replication_factor=4),
            InvalidReplicationFactor,
            "4 replicas need as many brokers, and 3 are",
        ),
        (topic("flights", replication_factor=0), InvalidReplicationFactor, "0"),
        (topic("flights", configs={"no.such": "1"}), InvalidConfig, "no.such"),
        (topic("flights", assignments={0: (BrokerId(1),)}), InvalidRequest, "either"),
        (NewTopic(FLIGHTS, assignments={}), InvalidReplicaAssignment, "numbered"),
        (NewTopic(FLIGHTS, assignments={1: (BrokerId(1),)}), InvalidReplicaAssignment, "numbered"),
        (NewTopic(FLIGHTS, assignments={0: ()}), InvalidReplicaAssignment, "empty"),
        (NewTopic(FLIGHTS, assignments={0: (BrokerId(9),)}), InvalidReplicaAssignment, "no broker 9"),
        (NewTopic(FLIGHTS, assignments={0: (BrokerId(1), BrokerId(1))}), InvalidReplicaAssignment, "repeat"),
        (
            NewTopic(FLIGHTS, assignments={0: (BrokerId(1), BrokerId(2)), 1: (BrokerId(1),)}),
            InvalidReplicaAssignment,
            "1 replicas, but partition 0 has 2",
        ),
    ],
    ids=lambda value: value.name[:12] or "empty" if isinstance(value, NewTopic) else None,
)
def test_what_cannot_be_is_refused_and_the_others_are_made(
    wanted: NewTopic, error: type[RaylogError], phrase: str
) -> None:
    def check(configs: Mapping[str, str]) -> None:
        if configs:
            raise InvalidConfig(f"unknown setting {next(iter(configs))}")

    cluster = ControlledCluster(check_configs=check)
    cluster.elect()
    created(cluster, topic("taken"), topic("has_dot"))
    refused, made = created(cluster, wanted, topic("good"))
    assert type(refused) is error
    assert phrase in str(refused)
    assert isinstance(made, CreatedTopic)
    assert_agreement(cluster)


def test_a_topic_named_twice_in_a_request_is_not_made(cluster: ControlledCluster) -> None:
    first, second, third = created(cluster, topic("twice"), topic("twice"), topic("once"))
    assert isinstance(first, InvalidRequest)
    assert isinstance(second, InvalidRequest)
    assert isinstance(third, CreatedTopic)
    assert set(cluster.controller.state.topics) == {"once"}


def test_validation_alone_makes_nothing(cluster: ControlledCluster) -> None:
    token = cluster.create(topic("flights", 6), topic("a/b"), validate_only=True)
    good, bad = cluster.replies[token]
    assert isinstance(good, CreatedTopic)
    assert isinstance(bad, InvalidTopic)
    assert cluster.store.children(paths.BROKER_TOPICS) == []


def test_without_a_broker_no_topic_can_be_made() -> None:
    cluster = ControlledCluster(0)
    cluster.elect()
    [result] = created(cluster, topic("flights"))
    assert isinstance(result, InvalidReplicationFactor)
    assert "no broker" in str(result)


def test_a_topic_of_many_partitions_takes_several_writes(cluster: ControlledCluster) -> None:
    [result] = created(cluster, topic("wide", 1_000))
    assert isinstance(result, CreatedTopic)
    [write] = [effect for effect in cluster.seen if isinstance(effect, Write)][-1:]
    assert len(write.multis) == 4
    assert_agreement(cluster)


def test_a_request_that_brokers_do_not_hear_of_in_time_is_timed_out(cluster: ControlledCluster) -> None:
    token = cluster.create(topic("flights"), topic("a/b"), timeout_ms=150)
    cluster.tick(100)
    assert token not in cluster.replies
    cluster.tick(100)
    late, bad = cluster.replies[token]
    assert isinstance(late, RequestTimedOut)
    assert isinstance(bad, InvalidTopic)
    cluster.deliver()
    assert_agreement(cluster)


# --- deleting topics


def test_a_deleted_topic_leaves_nothing_in_the_store(cluster: ControlledCluster) -> None:
    created(cluster, topic("flights", 6), topic("stays"))
    flights = cluster.controller.state.topics[FLIGHTS]
    token = cluster.delete(flights.id)
    cluster.deliver()
    assert cluster.replies[token] == ("flights",)
    for path in (paths.topic(FLIGHTS), paths.topic_config(FLIGHTS), paths.delete_topic(FLIGHTS)):
        assert cluster.store.exists(path) is None
    assert set(cluster.brokers[BrokerId(2)].receiver.state.topics) == {"stays"}
    assert_agreement(cluster)


def test_unknown_topics_cannot_be_deleted(cluster: ControlledCluster) -> None:
    token = cluster.delete(TopicName("nope"), TopicId(UUID(int=7)))
    by_name, by_id = cluster.replies[token]
    assert isinstance(by_name, UnknownTopicOrPartition)
    assert isinstance(by_id, UnknownTopicId)


def test_a_topic_made_again_has_another_id_and_starts_afresh(cluster: ControlledCluster) -> None:
    created(cluster, topic("flights", 2))
    before = cluster.controller.state.topics[FLIGHTS]
    cluster.delete(FLIGHTS)
    created(cluster, topic("flights", 1))
    after = cluster.controller.state.topics[FLIGHTS]
    assert after.id != before.id
    assert len(after.partitions) == 1
    assert_agreement(cluster)


def test_the_next_controller_completes_a_deletion(cluster: ControlledCluster) -> None:
    created(cluster, topic("flights", 3))
    cluster.store.create(paths.delete_topic(FLIGHTS))
    cluster.store.delete(paths.partition_state(TopicPartition(FLIGHTS, PartitionIndex(1))))
    cluster.store.delete(paths.partition(TopicPartition(FLIGHTS, PartitionIndex(1))))
    cluster.feed(Deposed())
    cluster.elect(2)
    cluster.deliver()
    assert cluster.controller.state.topics == {}
    assert cluster.store.children(paths.DELETE_TOPICS) == []
    assert_agreement(cluster)


@pytest.mark.parametrize("write", [2, 3, 4])
def test_a_controller_that_is_deposed_while_it_deletes_leaves_that_to_the_next(
    cluster: ControlledCluster, write: int
) -> None:
    created(cluster, topic("flights", 3))

    def raise_epoch() -> None:
        cluster.store.delete(paths.CONTROLLER)
        cluster.store.set(paths.CONTROLLER_EPOCH, paths.encode_number(50))

    cluster.before_write(raise_epoch, write)
    token = cluster.delete(FLIGHTS)
    assert isinstance(cluster.replies[token][0], NotController)
    cluster.elect(2)
    cluster.deliver()
    assert cluster.controller.state.topics == {}
    assert cluster.store.children(paths.DELETE_TOPICS) == []
    assert_agreement(cluster)


def test_the_next_controller_completes_a_creation(cluster: ControlledCluster) -> None:
    created(cluster, topic("flights", 3))
    for index in (1, 2):
        cluster.store.delete(paths.partition_state(TopicPartition(FLIGHTS, PartitionIndex(index))))
        cluster.store.delete(paths.partition(TopicPartition(FLIGHTS, PartitionIndex(index))))
    cluster.feed(Deposed())
    cluster.elect(2)
    cluster.deliver()
    assert all(p.is_online for p in cluster.controller.state.topics[FLIGHTS].partitions)
    assert_agreement(cluster)
