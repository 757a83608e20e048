"""The controller's core when brokers, controllers and messages come and go."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest

from kit.controlled import ControlledCluster, Nowhere, assert_agreement, created, partition, topic
from kit.topics import put_topic
from raylog.coordination.controller.events import (
    ConfigChanged,
    CreatedTopic,
    Deposed,
    Loaded,
    Reload,
    StepDown,
    TopicCreateRequested,
    Write,
    Written,
)
from raylog.coordination.metadata import configs, paths, snapshot
from raylog.coordination.store.trees import delete_tree
from raylog.protocol.errors import (
    NotController,
    RequestTimedOut,
    TopicAlreadyExists,
)
from raylog.protocol.ids import BrokerId, MonotonicMs, TopicId, TopicName

FLIGHTS, MADE, REMOVED = TopicName("flights"), TopicName("made"), TopicName("removed")


@pytest.fixture
def cluster() -> ControlledCluster:
    cluster = ControlledCluster()
    cluster.elect()
    cluster.deliver()
    return cluster


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
    cluster.before_write(restart)
    cluster.brokers_changed()
    cluster.deliver()
    assert any(isinstance(effect, Reload) for effect in cluster.seen)
    epochs = {p.leader: p.leader_epoch for _, p in cluster.controller.state.partitions()}
    assert epochs == {1: 0, 2: 1, 3: 0}
    assert_agreement(cluster)


def test_one_brokers_second_restart_does_not_hide_the_others_first(cluster: ControlledCluster) -> None:
    """One write is about both; it fails, and only one of them looks new when everything was read again."""
    created(cluster, topic("flights", 3))

    def restart(broker_id: int) -> None:
        cluster.brokers[BrokerId(broker_id)].down()
        cluster.brokers[BrokerId(broker_id)].up()

    restart(2)
    restart(3)
    cluster.before_write(lambda: restart(3))
    cluster.brokers_changed()
    cluster.deliver()
    epochs = {p.leader: p.leader_epoch for _, p in cluster.controller.state.partitions()}
    assert epochs == {1: 0, 2: 1, 3: 1}
    assert_agreement(cluster)


def test_old_news_is_forgotten_when_everything_is_read_again(cluster: ControlledCluster) -> None:
    created(cluster, topic("flights", 3))
    cluster.before_write(cluster.store.lose_next_answer)
    cluster.create(topic("in-doubt"))
    cluster.brokers[BrokerId(2)].down()
    cluster.brokers_changed()  # waits, for the state is in doubt
    cluster.brokers[BrokerId(2)].up()
    cluster.tick()
    cluster.deliver()
    assert all(p.is_online for _, p in cluster.controller.state.partitions())
    assert_agreement(cluster)


def test_a_reading_from_before_a_write_is_not_believed(cluster: ControlledCluster) -> None:
    """Else the brokers would be told that the topic is gone, and delete it."""
    old = Loaded(*snapshot.load(cluster.store))
    core = cluster.controller
    ids, deadline = (TopicId(UUID(int=1)),), MonotonicMs(10_000)
    [write] = core.handle(TopicCreateRequested("t", (topic("flights"),), ids, deadline))
    assert isinstance(write, Write)
    cluster.store.multi(write.multis[0])
    assert core.handle(old) == []
    effects = core.handle(Written(write.token))
    assert FLIGHTS in core.state.topics
    assert any(isinstance(effect, Reload) for effect in effects)
    cluster.feed(Loaded(*snapshot.load(cluster.store)))
    assert FLIGHTS in core.state.topics


def test_topics_that_another_program_made_or_deletes_are_strange(cluster: ControlledCluster) -> None:
    """What it did is told of each."""
    created(cluster, topic("flights"), topic("removed"))
    state = cluster.controller.state
    assert not snapshot.strange_topics(cluster.store, state, Nowhere())
    cluster.store.create(paths.delete_topic(FLIGHTS))
    assert snapshot.strange_topics(cluster.store, state, Nowhere()) == ((), (), (FLIGHTS,))
    delete_tree(cluster.store, paths.topic(REMOVED))
    put_topic(cluster.store, MADE)
    strange = snapshot.strange_topics(cluster.store, state, Nowhere())
    assert strange == ((MADE,), (REMOVED,), (FLIGHTS,))
    told = dict(strange.told())
    assert [*told.values()] == [(MADE,), (REMOVED,), (FLIGHTS,)]
    assert all("another program" in text for text in told)
    cluster.feed(Loaded(*snapshot.load(cluster.store)))
    assert {*cluster.controller.state.topics} == {MADE}
    assert not snapshot.strange_topics(cluster.store, cluster.controller.state, Nowhere())


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
    cluster.before_write(cluster.store.lose_next_answer)
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


def alter(cluster: ControlledCluster, retention_ms: int) -> None:
    configs.alter_topic_configs(cluster.store, FLIGHTS, lambda old: {**old, "retention.ms": str(retention_ms)})


def test_config_notices_are_removed_once_they_are_taken_in(cluster: ControlledCluster) -> None:
    created(cluster, topic("flights"))
    alter(cluster, 1)
    alter(cluster, 2)
    cluster.take_notices()
    assert cluster.store.children(paths.CONFIG_CHANGES) == []
    cluster.deliver()
    assert cluster.controller.state.topics[FLIGHTS].configs == {"retention.ms": "2"}
    assert_agreement(cluster)


def test_replaced_controller_leaves_config_notices_to_the_next_one(cluster: ControlledCluster) -> None:
    """Else the next one would never hear of a change that was made after it had read everything."""
    created(cluster, topic("flights"))
    cluster.depose()
    alter(cluster, 1)
    cluster.take_notices()
    assert not cluster.controller.is_active
    assert len(cluster.store.children(paths.CONFIG_CHANGES)) == 1


def test_config_notices_found_at_an_election_are_removed(cluster: ControlledCluster) -> None:
    created(cluster, topic("flights"))
    cluster.feed(Deposed())
    alter(cluster, 1)
    cluster.store.delete(paths.CONTROLLER)
    cluster.elect()
    assert cluster.store.children(paths.CONFIG_CHANGES) == []
    assert cluster.controller.state.topics[FLIGHTS].configs == {"retention.ms": "1"}


def test_config_notices_that_another_removed_are_forgotten(cluster: ControlledCluster) -> None:
    created(cluster, topic("flights"))
    alter(cluster, 1)
    [notice] = configs.read_changes(cluster.store).notices
    cluster.before_write(lambda: cluster.store.delete(notice))
    cluster.take_notices()
    cluster.deliver()
    assert cluster.controller.is_active
    assert_agreement(cluster)


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
