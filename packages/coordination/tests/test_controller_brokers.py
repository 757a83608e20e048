"""Brokers whose disks fail, and brokers that are fenced or drained."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kit.controlled import ControlledCluster, assert_agreement, created, outcome, partition, topic
from raylog.coordination.control.proposals import (
    Drain,
    DrainAnswer,
    OfflineReplica,
    Outcome,
    ReplicasOffline,
    Verdict,
)
from raylog.coordination.controller.events import (
    BrokersChanged,
    CreatedTopic,
    StepDown,
    TopicDefaults,
    Write,
)
from raylog.coordination.metadata import paths
from raylog.coordination.store.port import Check
from raylog.protocol.ids import (
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    PartitionIndex,
    TopicName,
    TopicPartition,
)

FLIGHTS = TopicName("flights")
TP = TopicPartition(FLIGHTS, PartitionIndex(0))


@pytest.fixture
def cluster() -> ControlledCluster:
    """Three brokers, and a partition on all of them that the first leads."""
    cluster = ControlledCluster(defaults=lambda state: TopicDefaults(1, 3))
    cluster.elect()
    created(cluster, topic("flights", replication_factor=3))
    assert partition(cluster).isr == (1, 2, 3)
    return cluster


# --- disks


def offline(cluster: ControlledCluster, broker: int) -> Outcome:
    state = cluster.controller.state
    lost = (OfflineReplica(TP, state.topics[FLIGHTS].id),)
    epoch = cluster.brokers[BrokerId(broker)].info.epoch
    return outcome(cluster, cluster.propose(ReplicasOffline(BrokerId(broker), epoch, ControllerEpoch(1), lost, "EIO")))


def test_a_failed_disk_moves_the_leader(cluster: ControlledCluster) -> None:
    answered = offline(cluster, 1)
    assert (answered.verdict, answered.state) == (Verdict.OK, partition(cluster))
    assert (partition(cluster).leader, partition(cluster).leader_epoch, partition(cluster).isr) == (2, 1, (2, 3))
    assert cluster.notices[0].fields == {"broker": 1, "replicas": 1, "reason": "EIO"}
    offline(cluster, 1)
    assert len(cluster.notices) == 1, "told once, though the broker says it again"
    cluster.deliver()
    assert_agreement(cluster)


def test_a_failed_disk_keeps_the_replica_out_until_its_broker_starts_anew(cluster: ControlledCluster) -> None:
    offline(cluster, 3)
    refused = outcome(cluster, cluster.propose_isr(TP, 1, 2, 3))
    assert (refused.verdict, partition(cluster).isr) == (Verdict.REFUSED, (1, 2))
    assert "disk of broker 3" in refused.reason
    cluster.lose(3)
    cluster.bring_back(3)
    cluster.deliver()
    assert outcome(cluster, cluster.propose_isr(TP, 1, 2, 3)).verdict is Verdict.OK


def test_the_last_members_failed_disk_makes_the_partition_offline_until_it_is_back(cluster: ControlledCluster) -> None:
    cluster.propose_isr(TP, 1)
    offline(cluster, 1)
    assert (partition(cluster).leader, partition(cluster).isr) == (-1, (1,))
    cluster.lose(1)
    cluster.bring_back(1)
    assert partition(cluster).leader == 1


def test_an_older_incarnations_disks_are_its_own(cluster: ControlledCluster) -> None:
    cluster.brokers[BrokerId(1)].info = replace(cluster.brokers[BrokerId(1)].info, epoch=BrokerEpoch(0))
    assert offline(cluster, 1).verdict is Verdict.STALE
    assert partition(cluster).leader == 1


def test_a_failed_disk_says_nothing_of_the_next_topic_of_that_name(cluster: ControlledCluster) -> None:
    offline(cluster, 1)
    cluster.delete(FLIGHTS)
    cluster.deliver()
    created(cluster, topic("flights", replication_factor=3))
    cluster.propose_isr(TP, *partition(cluster).isr)
    assert set(partition(cluster).isr) == {1, 2, 3}


# --- fencing


def test_a_fenced_broker_is_gone_at_once_and_its_word_counts_no_more(cluster: ControlledCluster) -> None:
    cluster.fence(1)
    assert BrokerId(1) not in cluster.controller.state.brokers
    assert (partition(cluster).leader, partition(cluster).isr) == (2, (2, 3))
    assert cluster.store.exists(paths.broker(BrokerId(1))) is None
    epoch = cluster.store.exists(paths.broker_epoch(BrokerId(1)))
    assert epoch is not None
    assert epoch.version == 2
    multi = [effect for effect in cluster.seen if isinstance(effect, Write)][-2].multis[0]
    assert any(isinstance(op, Check) and op.path == paths.CONTROLLER_EPOCH for op in multi)


def test_a_wrong_hint_costs_a_registration(cluster: ControlledCluster) -> None:
    cluster.fence(1)
    cluster.bring_back(1)
    assert cluster.controller.state.brokers[BrokerId(1)].epoch == 3
    assert outcome(cluster, cluster.propose_isr(TP, 1, 2, 3)).verdict is Verdict.OK
    cluster.deliver()
    assert_agreement(cluster)


def test_who_registered_anew_is_not_fenced(cluster: ControlledCluster) -> None:
    cluster.brokers[BrokerId(1)].down()
    cluster.brokers[BrokerId(1)].up()
    cluster.fence(1)
    assert cluster.store.exists(paths.broker(BrokerId(1))) is not None
    cluster.brokers_changed()
    cluster.deliver()
    assert_agreement(cluster)


def test_whose_session_lapsed_meanwhile_is_gone_as_well(cluster: ControlledCluster) -> None:
    cluster.brokers[BrokerId(1)].down()
    cluster.fence(1)
    assert partition(cluster).leader == 2
    cluster.brokers_changed()
    cluster.deliver()
    assert_agreement(cluster)


def test_a_deposed_controller_fences_nobody(cluster: ControlledCluster) -> None:
    cluster.depose()
    cluster.fence(1)
    assert cluster.store.exists(paths.broker(BrokerId(1))) is not None
    assert any(isinstance(effect, StepDown) for effect in cluster.seen)


def test_a_hint_about_an_earlier_incarnation_is_nothing(cluster: ControlledCluster) -> None:
    old = dict(cluster.controller.state.brokers)
    cluster.lose(1)
    cluster.bring_back(1)
    before = cluster.controller.state.brokers
    cluster.feed(BrokersChanged(old))
    cluster.fence(1)  # the old epoch, as an old reading has it
    cluster.brokers_changed()
    assert cluster.controller.state.brokers == before


# --- draining


def drain(cluster: ControlledCluster, broker: int, *, cancel: bool = False) -> object:
    info = cluster.brokers[BrokerId(broker)].info
    return cluster.propose(Drain(info.id, info.epoch, ControllerEpoch(1), cancel))


def test_a_drained_broker_leads_nothing_and_is_in_no_isr(cluster: ControlledCluster) -> None:
    [result] = created(cluster, topic("wide", 30, replication_factor=2))
    assert isinstance(result, CreatedTopic)
    token = drain(cluster, 1)
    assert token not in cluster.answers, "the others do not lead yet"
    while token not in cluster.answers:
        cluster.deliver_one()
    assert not any(1 in p.isr for _, p in cluster.controller.state.partitions())
    cluster.deliver()
    assert cluster.answers[token] == DrainAnswer(Verdict.OK, cluster.controller.state.controller_epoch)
    for _, p in cluster.controller.state.partitions():
        assert p.is_online
        assert 1 not in p.isr
    refused = outcome(cluster, cluster.propose_isr(TP, 2, 3, 1))
    assert "drained" in refused.reason
    assert_agreement(cluster)


def test_what_nobody_else_can_lead_is_told(cluster: ControlledCluster) -> None:
    created(cluster, topic("alone", 3, replication_factor=1))
    token = drain(cluster, 1)
    cluster.deliver()
    answer = cluster.answers[token]
    assert isinstance(answer, DrainAnswer)
    alone = {tp for tp, p in cluster.controller.state.partitions() if p.replicas == (1,)}
    assert set(answer.remaining) == alone
    assert alone
    assert_agreement(cluster)


def test_a_drained_broker_is_answered_though_another_hangs(cluster: ControlledCluster) -> None:
    cluster.deliver()
    token = drain(cluster, 1)
    assert cluster.wire
    cluster.tick(1_900)
    assert token not in cluster.answers
    cluster.tick(200)
    assert token in cluster.answers


def test_a_drain_ends_with_the_incarnation_or_when_it_is_taken_back(cluster: ControlledCluster) -> None:
    drain(cluster, 1)
    assert partition(cluster).leader == 2
    drain(cluster, 1, cancel=True)
    assert outcome(cluster, cluster.propose_isr(TP, 1, 2, 3)).verdict is Verdict.OK
    drain(cluster, 2)
    cluster.lose(2)
    cluster.bring_back(2)
    cluster.deliver()
    assert outcome(cluster, cluster.propose_isr(TP, 1, 2, 3)).verdict is Verdict.OK


def test_a_stranger_cannot_be_drained(cluster: ControlledCluster) -> None:
    token = cluster.propose(Drain(BrokerId(1), BrokerEpoch(0), ControllerEpoch(1)))
    answer = cluster.answers[token]
    assert isinstance(answer, DrainAnswer)
    assert answer.verdict is Verdict.STALE
    assert partition(cluster).leader == 1


def test_a_topic_that_grows_while_a_broker_is_drained_is_led_by_the_others(cluster: ControlledCluster) -> None:
    drain(cluster, 1)
    created(cluster, topic("more", 6, replication_factor=3))
    token = drain(cluster, 1)
    cluster.deliver()
    answer = cluster.answers[token]
    assert isinstance(answer, DrainAnswer)
    assert answer.remaining == ()
