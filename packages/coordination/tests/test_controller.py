"""The controller's core against the store in memory, with brokers that only receive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from uuid import UUID

import pytest

from kit.controlled import ControlledCluster, Result
from raylog.coordination import paths, snapshot
from raylog.coordination.controller_events import (
    ConfigChanged,
    CreatedTopic,
    Deposed,
    NewTopic,
    Reload,
    StepDown,
    Write,
)
from raylog.coordination.model import PartitionState
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


def topic(name: str, partitions: int = 1, **more: object) -> NewTopic:
    return NewTopic(TopicName(name), partitions, **more)  # type: ignore[arg-type]


def created(cluster: ControlledCluster, *topics: NewTopic) -> tuple[Result, ...]:
    """The answer to a CreateTopics once everything is delivered."""
    token = cluster.create(*topics)
    cluster.deliver()
    return cluster.replies[token]


def partition(cluster: ControlledCluster, name: str = "flights", index: int = 0) -> PartitionState:
    found = cluster.controller.state.partition(TopicPartition(TopicName(name), PartitionIndex(index)))
    assert found is not None
    return found


def assert_agreement(cluster: ControlledCluster) -> None:
    """The core, the store and every live broker hold the same state."""
    state = cluster.controller.state
    loaded = snapshot.load(cluster.store).state
    assert loaded.topics == state.topics
    assert loaded.brokers == state.brokers
    for broker_id in state.brokers:
        assert cluster.brokers[broker_id].receiver.state == state


# --- creating topics


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


def test_neighbouring_partitions_are_in_different_racks() -> None:
    cluster = ControlledCluster(4, racks={1: "x", 2: "x", 3: "y", 4: "y"})
    cluster.elect()
    created(cluster, topic("flights", 8))
    racks = {1: "x", 2: "x", 3: "y", 4: "y"}
    order = [racks[p.leader] for p in cluster.controller.state.topics[FLIGHTS].partitions]
    assert all(a != b for a, b in pairwise(order))


def test_the_default_number_of_partitions_and_of_replicas() -> None:
    cluster = ControlledCluster(default_partitions=5)
    cluster.elect()
    [result] = created(cluster, NewTopic(FLIGHTS))
    assert isinstance(result, CreatedTopic)
    assert (result.partitions, result.replication_factor) == (5, 1)


def test_replicas_chosen_by_hand(cluster: ControlledCluster) -> None:
    created(cluster, NewTopic(FLIGHTS, assignments={0: (BrokerId(3),), 1: (BrokerId(1),)}))
    assert [p.leader for p in cluster.controller.state.topics[FLIGHTS].partitions] == [3, 1]


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
        (topic("flights", replication_factor=2), InvalidReplicationFactor, "replication is not built yet"),
        (topic("flights", replication_factor=0), InvalidReplicationFactor, "0"),
        (topic("flights", configs={"no.such": "1"}), InvalidConfig, "no.such"),
        (topic("flights", assignments={0: (BrokerId(1),)}), InvalidRequest, "either"),
        (NewTopic(FLIGHTS, assignments={}), InvalidReplicaAssignment, "numbered"),
        (NewTopic(FLIGHTS, assignments={1: (BrokerId(1),)}), InvalidReplicaAssignment, "numbered"),
        (NewTopic(FLIGHTS, assignments={0: ()}), InvalidReplicaAssignment, "empty"),
        (NewTopic(FLIGHTS, assignments={0: (BrokerId(9),)}), InvalidReplicaAssignment, "no broker 9"),
        (NewTopic(FLIGHTS, assignments={0: (BrokerId(1), BrokerId(1))}), InvalidReplicaAssignment, "repeat"),
        (NewTopic(FLIGHTS, assignments={0: (BrokerId(1), BrokerId(2))}), InvalidReplicationFactor, "not built"),
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
    cluster.before_write = lambda: None
    cluster.store.create(paths.delete_topic(FLIGHTS))
    cluster.store.delete(paths.partition_state(TopicPartition(FLIGHTS, PartitionIndex(1))))
    cluster.store.delete(paths.partition(TopicPartition(FLIGHTS, PartitionIndex(1))))
    cluster.feed(Deposed())
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


# --- brokers come and go


def test_a_broker_goes_and_its_partitions_are_offline_until_it_is_back(cluster: ControlledCluster) -> None:
    created(cluster, topic("flights", 3))
    index = next(i for i in range(3) if partition(cluster, index=i).leader == 2)
    cluster.brokers[BrokerId(2)].down()
    cluster.brokers_changed()
    cluster.deliver()
    gone = partition(cluster, index=index)
    assert (gone.leader, gone.leader_epoch, gone.isr) == (-1, 0, (2,))
    assert_agreement(cluster)
    cluster.brokers[BrokerId(2)].up()
    cluster.brokers_changed()
    cluster.deliver()
    back = partition(cluster, index=index)
    assert (back.leader, back.leader_epoch, back.isr) == (2, 1, (2,))
    assert_agreement(cluster)


def test_a_restart_that_nobody_saw_raises_the_leader_epoch(cluster: ControlledCluster) -> None:
    created(cluster, topic("flights", 3))
    cluster.brokers[BrokerId(2)].down()
    cluster.brokers[BrokerId(2)].up()
    cluster.brokers_changed()
    cluster.deliver()
    epochs = {p.leader: p.leader_epoch for _, p in cluster.controller.state.partitions()}
    assert epochs == {1: 0, 2: 1, 3: 0}
    assert_agreement(cluster)


def test_a_broker_that_restarts_while_it_is_made_a_leader_is_read_again(cluster: ControlledCluster) -> None:
    created(cluster, topic("flights", 3))

    def restart() -> None:
        cluster.brokers[BrokerId(2)].down()
        cluster.brokers[BrokerId(2)].up()

    restart()
    cluster.before_write = restart
    cluster.brokers_changed()
    cluster.deliver()
    assert any(isinstance(effect, Reload) for effect in cluster.seen)
    epochs = {p.leader: p.leader_epoch for _, p in cluster.controller.state.partitions()}
    assert epochs == {1: 0, 2: 1, 3: 0}
    assert_agreement(cluster)


def test_a_new_broker_gets_everything_and_takes_new_partitions(cluster: ControlledCluster) -> None:
    created(cluster, topic("flights", 3))
    joined = type(cluster.brokers[BrokerId(1)])(cluster.tree, 4)
    cluster.brokers[BrokerId(4)] = joined
    cluster.brokers_changed()
    cluster.deliver()
    assert joined.receiver.state == cluster.controller.state
    created(cluster, topic("more", 4))
    assert Counter(p.leader for _, p in cluster.controller.state.partitions())[BrokerId(4)] == 1
    assert_agreement(cluster)


# --- controllers come and go


def test_a_deposed_controller_cannot_write(cluster: ControlledCluster) -> None:
    cluster.depose()
    token = cluster.create(topic("flights"))
    [result] = cluster.replies[token]
    assert isinstance(result, NotController)
    assert any(isinstance(effect, StepDown) for effect in cluster.seen)
    assert not cluster.controller.is_active
    assert cluster.store.children(paths.BROKER_TOPICS) == []


def test_a_broker_that_knows_a_newer_controller_deposes_the_old_one(cluster: ControlledCluster) -> None:
    newer = ControlledCluster(0, tree=cluster.tree)
    newer.brokers = cluster.brokers
    cluster.store.delete(paths.CONTROLLER)
    newer.elect(2)
    newer.deliver()
    cluster.feed(ConfigChanged({"a": "b"}, broker="1"))
    cluster.deliver()
    assert not cluster.controller.is_active
    assert cluster.brokers[BrokerId(1)].receiver.state == newer.controller.state


def test_requests_elsewhere_than_at_the_controller_are_refused() -> None:
    cluster = ControlledCluster()
    create, delete = cluster.create(topic("a"), topic("b")), cluster.delete(FLIGHTS)
    assert [type(result) for result in cluster.replies[create]] == [NotController, NotController]
    assert [type(result) for result in cluster.replies[delete]] == [NotController]


def test_a_new_mandate_raises_the_controller_epoch(cluster: ControlledCluster) -> None:
    created(cluster, topic("flights"))
    first = cluster.controller.state.controller_epoch
    cluster.feed(Deposed())
    cluster.store.delete(paths.CONTROLLER)
    cluster.elect(2)
    cluster.deliver()
    assert cluster.controller.state.controller_epoch == first + 1
    assert {broker.receiver.state.controller_id for broker in cluster.brokers.values()} == {2}
    assert_agreement(cluster)


def test_a_write_in_doubt_is_read_again_at_the_next_tick(cluster: ControlledCluster) -> None:
    cluster.before_write = cluster.store.lose_next_answer
    token = cluster.create(topic("flights", 3))
    cluster.deliver()
    [result] = cluster.replies[token]
    assert isinstance(result, RequestTimedOut)
    assert cluster.controller.state.topics == {}
    cluster.tick()
    cluster.deliver()
    assert len(cluster.controller.state.topics[FLIGHTS].partitions) == 3
    assert_agreement(cluster)


def test_a_topic_that_another_program_made_exists_already(cluster: ControlledCluster) -> None:
    assignment = paths.TopicAssignment(TopicId(UUID(int=1)), ((BrokerId(1),), (BrokerId(2),)))
    cluster.store.create(paths.topic(FLIGHTS), paths.encode_topic(assignment))
    refused, made = created(cluster, topic("flights"), topic("other"))
    assert isinstance(refused, TopicAlreadyExists)
    assert isinstance(made, CreatedTopic)
    cluster.tick()
    cluster.deliver()
    assert [p.leader for p in cluster.controller.state.topics[FLIGHTS].partitions] == [1, 2]
    assert_agreement(cluster)


# --- messages get lost, come twice, come late


def test_lost_messages_are_made_up_for(cluster: ControlledCluster) -> None:
    token = cluster.create(topic("flights", 3))
    while cluster.wire:
        cluster.lose_one()
    created_later = cluster.create(topic("more", 3))
    cluster.tick()
    cluster.deliver()
    assert isinstance(cluster.replies[token][0], CreatedTopic)
    assert isinstance(cluster.replies[created_later][0], CreatedTopic)
    assert_agreement(cluster)


def test_lost_answers_are_made_up_for(cluster: ControlledCluster) -> None:
    cluster.create(topic("flights", 3))
    while cluster.wire:
        cluster.lose_one(answer_only=True)
    cluster.delete(FLIGHTS)
    cluster.tick()
    cluster.deliver()
    assert_agreement(cluster)


def test_messages_that_come_twice_change_nothing(cluster: ControlledCluster) -> None:
    cluster.create(topic("flights", 3))
    while cluster.wire:
        cluster.deliver_one(twice=True)
    cluster.delete(FLIGHTS)
    while cluster.wire:
        cluster.deliver_one(twice=True)
    assert_agreement(cluster)


def test_a_message_for_an_earlier_incarnation_is_refused_and_sent_anew(cluster: ControlledCluster) -> None:
    cluster.create(topic("flights", 3))
    cluster.brokers[BrokerId(2)].down()
    cluster.brokers[BrokerId(2)].up()
    cluster.deliver()
    assert cluster.brokers[BrokerId(2)].receiver.state.topics == {}
    cluster.brokers_changed()
    cluster.deliver()
    assert_agreement(cluster)


def test_a_broker_that_hangs_does_not_hold_up_the_others(cluster: ControlledCluster) -> None:
    cluster.create(topic("flights", 3))
    hanging = cluster.wire.popleft()
    cluster.deliver()
    cluster.create(topic("more", 3))
    assert hanging.to not in {message.to for message in cluster.wire}
    cluster.deliver()
    others = [broker for n, broker in cluster.brokers.items() if n != hanging.to]
    assert all(broker.receiver.state == cluster.controller.state for broker in others)
    cluster.wire.append(hanging)
    cluster.deliver()
    assert_agreement(cluster)


def test_a_config_change_reaches_the_brokers(cluster: ControlledCluster) -> None:
    created(cluster, topic("flights"))
    cluster.feed(ConfigChanged({"retention.ms": "5"}, topic=FLIGHTS))
    cluster.feed(ConfigChanged({"num.partitions": "3"}, broker="<default>"))
    cluster.deliver()
    for broker in cluster.brokers.values():
        assert broker.receiver.state.topics[FLIGHTS].configs == {"retention.ms": "5"}
        assert broker.receiver.state.broker_configs == {"<default>": {"num.partitions": "3"}}


def test_a_mandate_that_is_taken_up_again_is_heard(cluster: ControlledCluster) -> None:
    """After a short cut from the store the same session may still hold /controller: same epoch, new start."""
    created(cluster, topic("flights"))
    epoch = cluster.controller.state.controller_epoch
    cluster.feed(Deposed())
    cluster.store.set(paths.topic_config(FLIGHTS), paths.encode_config({"retention.ms": "7"}))
    cluster.elect()
    cluster.deliver()
    assert cluster.controller.state.controller_epoch == epoch
    assert cluster.brokers[BrokerId(1)].receiver.state.topics[FLIGHTS].configs == {"retention.ms": "7"}
    assert_agreement(cluster)
