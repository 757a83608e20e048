"""Replicas that turn out to be damaged: nobody counts on them, and a new leader epoch begins before they are mended."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from kit.controlled import ControlledCluster, assert_agreement, created, outcome, partition, topic
from kit.stores import Closed
from raylog.coordination.control.proposals import DamagedReplica, Outcome, ReplicasDamaged, Verdict
from raylog.coordination.controller.events import TopicDefaults
from raylog.coordination.metadata import paths
from raylog.protocol.ids import (
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    PartitionIndex,
    TopicId,
    TopicName,
    TopicPartition,
)

FLIGHTS = TopicName("flights")
TP = TopicPartition(FLIGHTS, PartitionIndex(0))


@pytest.fixture
def cluster() -> ControlledCluster:
    """Three brokers, and a partition on all of them that the first leads; two must have a record."""
    cluster = ControlledCluster(defaults=lambda state: TopicDefaults(1, 3))
    cluster.elect()
    created(cluster, topic("flights", replication_factor=3, configs={"min.insync.replicas": "2"}))
    cluster.deliver()
    assert partition(cluster).isr == (1, 2, 3)
    return cluster


def damaged(
    cluster: ControlledCluster, broker: int, *, leader_epoch: int | None = None, topic_id: TopicId | None = None
) -> Outcome:
    """What the controller makes of a broker's word, by default about the partition as it is now."""
    state = cluster.controller.state
    replica = DamagedReplica(
        TP,
        state.topics[FLIGHTS].id if topic_id is None else topic_id,
        partition(cluster).leader_epoch if leader_epoch is None else LeaderEpoch(leader_epoch),
    )
    epoch = cluster.brokers[BrokerId(broker)].info.epoch
    return outcome(cluster, cluster.propose(ReplicasDamaged(BrokerId(broker), epoch, ControllerEpoch(1), (replica,))))


def shown(cluster: ControlledCluster) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
    """Leader, leader epoch, ISR, ELR."""
    found = partition(cluster)
    return found.leader, found.leader_epoch, found.isr, found.elr


def test_a_damaged_follower_leaves_in_a_new_leader_epoch(cluster: ControlledCluster) -> None:
    answered = damaged(cluster, 3)
    assert (answered.verdict, answered.state) == (Verdict.OK, partition(cluster))
    assert shown(cluster) == (1, 1, (1, 2), ())
    assert cluster.notices[-1].fields == {"broker": 3, "partitions": "flights-0"}
    cluster.deliver()
    assert_agreement(cluster)
    assert outcome(cluster, cluster.propose_isr(TP, 1, 2, 3)).verdict is Verdict.OK, "it comes back like any other"


def test_a_damaged_follower_below_the_minimum_is_not_eligible(cluster: ControlledCluster) -> None:
    cluster.propose_isr(TP, 1, 2)
    damaged(cluster, 2)
    assert shown(cluster) == (1, 1, (1,), ())


def test_an_eligible_replica_that_is_damaged_is_eligible_no_more(cluster: ControlledCluster) -> None:
    cluster.propose_isr(TP, 1)
    assert shown(cluster)[3] == (2, 3)
    damaged(cluster, 2)
    assert shown(cluster) == (1, 1, (1,), (3,))


def test_partition_whose_node_is_closed_keeps_damaged_replica(cluster: ControlledCluster) -> None:
    before = shown(cluster)
    cluster.store = Closed(cluster.tree, paths.partition_state(TP))
    refused = damaged(cluster, 3)
    assert refused.verdict is Verdict.REFUSED
    assert "flights-0" in refused.reason
    assert shown(cluster) == before


def test_one_that_nobody_counts_on_gets_a_new_leader_epoch_too(cluster: ControlledCluster) -> None:
    """Its leader knows how far its log reached in this one."""
    cluster.propose_isr(TP, 1, 2)
    damaged(cluster, 3)
    assert shown(cluster) == (1, 1, (1, 2), ())


def test_a_damaged_leader_gives_way_and_then_leaves_like_a_follower(cluster: ControlledCluster) -> None:
    assert damaged(cluster, 1).verdict is Verdict.OK
    cluster.deliver()
    assert shown(cluster)[:2] == (2, 1)
    assert damaged(cluster, 1).verdict is Verdict.OK
    cluster.deliver()
    assert shown(cluster) == (2, 2, (2, 3), ())
    assert_agreement(cluster)


def test_the_last_in_sync_stays_as_damaged_as_it_is(cluster: ControlledCluster) -> None:
    cluster.propose_isr(TP, 1)
    before = shown(cluster)
    refused = damaged(cluster, 1)
    assert refused.verdict is Verdict.REFUSED
    assert "no intact replica of flights-0" in refused.reason
    assert shown(cluster) == before


def test_a_partition_without_a_leader_waits_for_one(cluster: ControlledCluster) -> None:
    cluster.propose_isr(TP, 1)
    cluster.lose(1)
    damaged(cluster, 2)  # eligible, but nothing to mend it from
    assert 2 in shown(cluster)[3] or shown(cluster)[0] == 2


def test_what_is_about_another_leader_epoch_is_not_done_twice(cluster: ControlledCluster) -> None:
    damaged(cluster, 3)
    before = shown(cluster)
    stale = damaged(cluster, 3, leader_epoch=0)
    assert (stale.verdict, stale.state) == (Verdict.STALE, partition(cluster))
    assert shown(cluster) == before


def test_a_former_life_and_a_topic_of_that_name_do_not_count(cluster: ControlledCluster) -> None:
    before = shown(cluster)
    assert damaged(cluster, 3, topic_id=TopicId(UUID(int=7))).verdict is Verdict.REFUSED
    cluster.brokers[BrokerId(3)].info = replace(cluster.brokers[BrokerId(3)].info, epoch=BrokerEpoch(0))
    assert damaged(cluster, 3).verdict is Verdict.STALE
    assert shown(cluster) == before
