"""A leader that is replaced while it lives stays in the ISR until it knows, whoever is the controller then."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kit.controlled import ControlledCluster, assert_agreement, created, outcome, partition, topic
from raylog.coordination.control.proposals import Drain, Verdict
from raylog.coordination.controller.events import Deposed, NewReplicas, TopicDefaults, Write
from raylog.coordination.metadata import paths
from raylog.protocol.ids import BrokerId, PartitionIndex, TopicName, TopicPartition

FLIGHTS = TopicName("flights")
TP = TopicPartition(FLIGHTS, PartitionIndex(0))


@pytest.fixture
def cluster() -> ControlledCluster:
    """Three brokers, and a partition on all of them that the first leads; the second should."""
    cluster = ControlledCluster(defaults=lambda state: TopicDefaults(1, 3))
    cluster.elect(3)
    created(cluster, topic("flights", replication_factor=3))
    cluster.reassign(NewReplicas(TP, (BrokerId(2), BrokerId(1), BrokerId(3))))
    cluster.deliver()
    assert (partition(cluster).leader, partition(cluster).isr) == (1, (1, 2, 3))
    return cluster


def drain(cluster: ControlledCluster) -> None:
    info = cluster.brokers[BrokerId(1)].info
    cluster.propose(Drain(info.id, info.epoch, cluster.controller.state.controller_epoch))


def elect(cluster: ControlledCluster) -> None:
    cluster.elect_leaders(TP)


def reassign(cluster: ControlledCluster) -> None:
    cluster.reassign(NewReplicas(TP, (BrokerId(2), BrokerId(3))))


MOVES = {"drained": drain, "not preferred": elect, "reassigned away": reassign}
moves = pytest.mark.parametrize("move", MOVES.values(), ids=MOVES.keys())


def new_controller(cluster: ControlledCluster) -> None:
    """It knows what the store holds; what the one before sent is lost, or arrived, but the answers are lost."""
    cluster.feed(Deposed())
    cluster.store.delete(paths.CONTROLLER)
    cluster.elect(3)


def deliver_all_but(cluster: ControlledCluster, cut_off: int) -> None:
    """Messages to one broker get lost, all others arrive, and those that follow from the answers."""
    while any(message.to != cut_off for message in cluster.wire):
        if cluster.wire[0].to == cut_off:
            cluster.lose_one()
        else:
            cluster.deliver_one()


@moves
def test_it_is_in_the_isr_while_it_does_not_know(
    cluster: ControlledCluster, move: Callable[[ControlledCluster], None]
) -> None:
    move(cluster)
    deliver_all_but(cluster, 1)
    assert partition(cluster).leader == 2
    assert 1 in partition(cluster).isr
    refused = outcome(cluster, cluster.propose_isr(TP, 2, 3))
    assert refused.verdict is Verdict.REFUSED
    assert "may not know yet" in refused.reason
    for _ in range(3):
        cluster.tick()
        deliver_all_but(cluster, 1)
    assert 1 in partition(cluster).isr


@moves
def test_it_goes_once_it_knows(cluster: ControlledCluster, move: Callable[[ControlledCluster], None]) -> None:
    move(cluster)
    cluster.deliver()
    if move is elect:
        assert partition(cluster).isr == (1, 2, 3), "it is in sync, and stays"
        assert outcome(cluster, cluster.propose_isr(TP, 2, 3)).verdict is Verdict.OK
    assert (partition(cluster).leader, partition(cluster).isr) == (2, (2, 3))
    assert (1 in partition(cluster).replicas) == (move is not reassign)
    cluster.deliver()
    assert_agreement(cluster)


@moves
def test_it_goes_with_its_incarnation(cluster: ControlledCluster, move: Callable[[ControlledCluster], None]) -> None:
    move(cluster)
    deliver_all_but(cluster, 1)
    cluster.fence(1)
    assert (partition(cluster).leader, partition(cluster).isr) == (2, (2, 3))


@moves
def test_the_next_controller_waits_for_it_as_well(
    cluster: ControlledCluster, move: Callable[[ControlledCluster], None]
) -> None:
    move(cluster)
    deliver_all_but(cluster, 1)
    new_controller(cluster)
    deliver_all_but(cluster, 1)
    assert 1 in partition(cluster).isr
    assert outcome(cluster, cluster.propose_isr(TP, 2, 3)).verdict is Verdict.REFUSED
    cluster.tick()
    cluster.deliver()
    assert outcome(cluster, cluster.propose_isr(TP, 2, 3)).verdict is Verdict.OK
    assert partition(cluster).isr == (2, 3)


def test_an_answer_to_what_was_sent_before_does_not_count(cluster: ControlledCluster) -> None:
    """The message was under way when the leadership was moved."""
    created(cluster, topic("other", replication_factor=3))
    cluster.configure(FLIGHTS, {"retention.ms": "1000"})
    assert {message.to for message in cluster.wire} == {1, 2, 3}
    elect(cluster)
    for _ in range(3):
        cluster.deliver_one()
    assert outcome(cluster, cluster.propose_isr(TP, 2, 3)).verdict is Verdict.REFUSED
    cluster.deliver()
    assert outcome(cluster, cluster.propose_isr(TP, 2, 3)).verdict is Verdict.OK


def test_a_follower_that_never_led_is_not_waited_for(cluster: ControlledCluster) -> None:
    elect(cluster)
    assert outcome(cluster, cluster.propose_isr(TP, 1, 2)).verdict is Verdict.OK


def test_what_was_written_in_doubt_counts(cluster: ControlledCluster) -> None:
    """The election was written, and its answer lost: the state is read again, and says who leads, not who knows."""
    cluster.before_write(cluster.store.lose_next_answer)
    elect(cluster)
    cluster.tick()
    assert partition(cluster).leader == 2
    assert outcome(cluster, cluster.propose_isr(TP, 2, 3)).verdict is Verdict.REFUSED
    cluster.deliver()
    assert outcome(cluster, cluster.propose_isr(TP, 2, 3)).verdict is Verdict.OK


def test_the_new_leader_does_not_wait(cluster: ControlledCluster) -> None:
    """Nothing is held back: all messages go out at once, with one write."""
    writes = sum(isinstance(effect, Write) for effect in cluster.seen)
    elect(cluster)
    assert sum(isinstance(effect, Write) for effect in cluster.seen) == writes + 1
    assert {message.to for message in cluster.wire} == {1, 2, 3}
