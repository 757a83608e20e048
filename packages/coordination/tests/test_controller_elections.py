"""Elections that somebody asks for (KIP-460), and leaders that come back to where they belong."""

from __future__ import annotations

from collections import Counter

import pytest

from kit.controlled import ControlledCluster, assert_agreement, created, partition, topic
from kit.stores import Closed
from raylog.coordination.control.proposals import Drain
from raylog.coordination.controller.events import (
    ConfigChanged,
    Deposed,
    NewReplicas,
    NewTopic,
    Rebalance,
    Result,
    TopicDefaults,
    Write,
)
from raylog.coordination.metadata import paths
from raylog.coordination.metadata.model import ClusterState
from raylog.protocol.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    NotController,
    PreferredLeaderNotAvailable,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from raylog.protocol.ids import BrokerId, ControllerEpoch, PartitionIndex, TopicName, TopicPartition

FLIGHTS = TopicName("flights")
TP = TopicPartition(FLIGHTS, PartitionIndex(0))


@pytest.fixture
def cluster() -> ControlledCluster:
    """Three brokers, and a partition on all of them that the second leads, though the first should."""
    cluster = ControlledCluster(defaults=lambda state: TopicDefaults(1, 3))
    cluster.elect()
    created(cluster, NewTopic(FLIGHTS))
    cluster.lose(1)
    cluster.bring_back(1)
    cluster.propose_isr(TP, 2, 3, 1)
    cluster.deliver()
    assert (partition(cluster).leader, partition(cluster).isr) == (2, (2, 3, 1))
    return cluster


def elect(cluster: ControlledCluster, tp: TopicPartition = TP, *, unclean: bool = False) -> Result:
    token = cluster.elect_leaders(tp, unclean=unclean)
    cluster.deliver()
    [result] = cluster.replies[token]
    return result


def test_the_preferred_replica_leads_again(cluster: ControlledCluster) -> None:
    epoch = partition(cluster).leader_epoch
    assert elect(cluster) == TP
    assert (partition(cluster).leader, partition(cluster).leader_epoch) == (1, epoch + 1)
    assert partition(cluster).isr == (2, 3, 1)
    assert isinstance(elect(cluster), ElectionNotNeeded)
    assert_agreement(cluster)


def test_a_preferred_replica_that_is_not_in_sync_does_not_lead(cluster: ControlledCluster) -> None:
    cluster.propose_isr(TP, 2, 3)
    assert isinstance(elect(cluster), PreferredLeaderNotAvailable)
    cluster.propose_isr(TP, 1, 2, 3)
    cluster.lose(1)
    assert isinstance(elect(cluster), PreferredLeaderNotAvailable)
    assert partition(cluster).leader == 2


def test_a_preferred_replica_that_is_only_eligible_does_not_lead(cluster: ControlledCluster) -> None:
    """It holds what was acknowledged, but is behind the leader, or it would be in the ISR."""
    cluster.configure(FLIGHTS, {"min.insync.replicas": "3"})
    cluster.propose_isr(TP, 2, 3)
    assert partition(cluster).elr == (1,)
    assert isinstance(elect(cluster), PreferredLeaderNotAvailable)


def test_a_preferred_replica_that_is_drained_does_not_lead(cluster: ControlledCluster) -> None:
    cluster.propose(Drain(BrokerId(1), cluster.brokers[BrokerId(1)].info.epoch, ControllerEpoch(1)))
    assert isinstance(elect(cluster), PreferredLeaderNotAvailable)


def test_the_first_of_the_wanted_replicas_is_preferred_in_a_reassignment(cluster: ControlledCluster) -> None:
    cluster.reassign(NewReplicas(TP, (BrokerId(3), BrokerId(2))))
    assert partition(cluster).replicas == (3, 2)
    assert elect(cluster) == TP
    assert partition(cluster).leader == 3


def test_strangers_are_told_apart(cluster: ControlledCluster) -> None:
    nowhere = TopicPartition(TopicName("nope"), PartitionIndex(0))
    token = cluster.elect_leaders(nowhere, TP)
    cluster.deliver()
    unknown, done = cluster.replies[token]
    assert isinstance(unknown, UnknownTopicOrPartition)
    assert done == TP


def test_an_unclean_election_takes_a_live_replica_where_nobody_leads(cluster: ControlledCluster) -> None:
    assert isinstance(elect(cluster, unclean=True), ElectionNotNeeded)
    cluster.propose_isr(TP, 2)
    cluster.lose(2)
    assert not partition(cluster).is_online
    assert elect(cluster, unclean=True) == TP
    assert (partition(cluster).leader, partition(cluster).isr) == (1, (1,))
    assert len(cluster.notices) == 1
    assert_agreement(cluster)


def test_nobody_can_be_elected_where_nobody_lives(cluster: ControlledCluster) -> None:
    created(cluster, NewTopic(TopicName("alone"), assignments={0: (BrokerId(2),)}))
    cluster.lose(2)
    alone = TopicPartition(TopicName("alone"), PartitionIndex(0))
    assert isinstance(elect(cluster, alone, unclean=True), EligibleLeadersNotAvailable)


def test_many_elections_are_one_write(cluster: ControlledCluster) -> None:
    created(cluster, topic("wide", 90, replication_factor=3))
    cluster.lose(1)
    cluster.bring_back(1)
    wide = [tp for tp, p in cluster.controller.state.partitions() if p.leader != p.replicas[0]]
    for tp in wide:
        cluster.propose_isr(tp, *cluster.controller.state.topics[tp.topic].partitions[tp.partition].replicas)
    writes = sum(isinstance(effect, Write) for effect in cluster.seen)
    token = cluster.elect_leaders(*wide)
    cluster.deliver()
    assert cluster.replies[token] == tuple(wide)
    assert sum(isinstance(effect, Write) for effect in cluster.seen) == writes + 1
    assert_agreement(cluster)


def test_elsewhere_than_at_the_controller_it_is_refused(cluster: ControlledCluster) -> None:
    cluster.feed(Deposed())
    assert isinstance(elect(cluster), NotController)


def test_an_election_in_doubt_says_so(cluster: ControlledCluster) -> None:
    cluster.before_write(cluster.store.lose_next_answer)
    assert isinstance(elect(cluster), RequestTimedOut)


def test_partition_whose_node_is_closed_holds_up_no_other_election() -> None:
    cluster = shaken(Rebalance(is_enabled=False))
    odd, *others = [tp for tp, p in cluster.controller.state.partitions() if p.replicas[0] == 1]
    cluster.store = Closed(cluster.tree, paths.partition_state(odd))
    token = cluster.elect_leaders(odd, *others)
    cluster.deliver()
    refused, *done = cluster.replies[token]
    assert isinstance(refused, EligibleLeadersNotAvailable)
    assert done == others
    assert leaders(cluster)[BrokerId(1)] == 9
    assert_agreement(cluster)


# --- by itself


def shaken(wanted: Rebalance) -> ControlledCluster:
    """A cluster whose first broker was away, so that it leads nothing now."""
    cluster = ControlledCluster(4, rebalance=lambda state: wanted)
    cluster.elect()
    round_robin = {n: tuple(BrokerId((n + m) % 3 + 1) for m in range(3)) for n in range(30)}
    created(cluster, NewTopic(FLIGHTS, assignments=round_robin))
    cluster.lose(1)
    cluster.bring_back(1)
    for tp, p in cluster.controller.state.partitions():
        cluster.propose_isr(tp, *p.replicas)
    cluster.deliver()
    assert leaders(cluster)[BrokerId(1)] == 0
    return cluster


def leaders(cluster: ControlledCluster) -> Counter[BrokerId]:
    return Counter(p.leader for _, p in cluster.controller.state.partitions())


def test_leaders_come_back_at_the_next_check() -> None:
    cluster = shaken(Rebalance(interval_ms=1_000))
    cluster.tick()
    cluster.tick(999)
    assert leaders(cluster)[BrokerId(1)] == 0
    cluster.tick(1)
    assert leaders(cluster) == {1: 10, 2: 10, 3: 10}
    cluster.deliver()
    assert_agreement(cluster)


@pytest.mark.parametrize(("percentage", "expected"), [(9, 10), (10, 9)])
def test_a_small_imbalance_is_let_be(percentage: int, expected: int) -> None:
    cluster = shaken(Rebalance(percentage=percentage, interval_ms=1_000))
    mine = [tp for tp, p in cluster.controller.state.partitions() if p.replicas[0] == 1]
    cluster.elect_leaders(*mine[:9])
    assert leaders(cluster)[BrokerId(1)] == 9
    cluster.tick()
    cluster.tick(1_000)
    assert leaders(cluster)[BrokerId(1)] == expected


def test_partition_whose_node_is_closed_holds_up_no_leader_that_comes_back() -> None:
    cluster = shaken(Rebalance(interval_ms=1_000))
    odd = next(tp for tp, p in cluster.controller.state.partitions() if p.replicas[0] == 1)
    cluster.store = Closed(cluster.tree, paths.partition_state(odd))
    cluster.tick()
    for _ in range(3):
        cluster.tick(1_000)
    assert leaders(cluster)[BrokerId(1)] == 9
    assert len(cluster.notices) == 1, "it is told once, until all is read again"


def test_it_can_be_switched_off() -> None:
    cluster = shaken(Rebalance(is_enabled=False, interval_ms=1_000))
    for _ in range(5):
        cluster.tick(1_000)
    assert leaders(cluster)[BrokerId(1)] == 0


def test_the_settings_may_change_and_are_read_when_they_do() -> None:
    asked = []

    def rebalance(state: ClusterState) -> Rebalance:
        asked.append(state)
        return Rebalance(is_enabled="<default>" in state.broker_configs, interval_ms=100)

    cluster = ControlledCluster(rebalance=rebalance)
    cluster.elect()
    created(cluster, NewTopic(FLIGHTS, assignments={0: (BrokerId(1), BrokerId(2))}))
    cluster.lose(1)
    cluster.bring_back(1)
    cluster.propose_isr(TP, 1, 2)
    for _ in range(5):
        cluster.tick()
    assert (partition(cluster).leader, len(asked)) == (2, 1)
    cluster.feed(ConfigChanged({"auto.leader.rebalance.enable": "true"}, broker="<default>"))
    cluster.tick()
    assert (partition(cluster).leader, len(asked)) == (1, 2)


def test_who_is_not_in_sync_does_not_come_back_yet() -> None:
    cluster = shaken(Rebalance(interval_ms=1_000))
    mine = [tp for tp, p in cluster.controller.state.partitions() if p.replicas[0] == 1]
    cluster.propose_isr(mine[0], 2, 3)
    cluster.tick()
    cluster.tick(1_000)
    assert leaders(cluster)[BrokerId(1)] == 9


def test_what_is_being_reassigned_is_let_be() -> None:
    cluster = shaken(Rebalance(interval_ms=1_000))
    mine = [tp for tp, p in cluster.controller.state.partitions() if p.replicas[0] == 1]
    cluster.reassign(NewReplicas(mine[0], (BrokerId(1), BrokerId(2), BrokerId(4))))
    cluster.tick()
    cluster.tick(1_000)
    assert leaders(cluster)[BrokerId(1)] == 9
