"""Moving partitions to other replicas (KIP-455): begun, completed, replaced, cancelled, and taken up by the next
controller.
"""

from __future__ import annotations

import json

import pytest

from kit.controlled import ControlledCluster, assert_agreement, created, outcome, partition, topic
from kit.stores import Closed
from raylog.coordination.control.proposals import Verdict
from raylog.coordination.controller.events import Deposed, Loaded, NewPartitions, NewReplicas, NewTopic, Result, Write
from raylog.coordination.metadata import paths, snapshot
from raylog.coordination.store.memory import MemoryStore
from raylog.protocol.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    NoReassignmentInProgress,
    NotController,
    RaylogError,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from raylog.protocol.ids import BrokerId, PartitionIndex, TopicName, TopicPartition

FLIGHTS = TopicName("flights")
TP = TopicPartition(FLIGHTS, PartitionIndex(0))


@pytest.fixture
def cluster() -> ControlledCluster:
    """Five brokers; a partition on 1, 2 and 3, led by 1, with another beside it."""
    cluster = ControlledCluster(5)
    cluster.elect()
    created(cluster, NewTopic(FLIGHTS, assignments={0: _ids(1, 2, 3), 1: _ids(2, 3, 1)}))
    return cluster


def _ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


def move(cluster: ControlledCluster, *to: int, index: int = 0, **more: bool) -> Result:
    token = cluster.reassign(NewReplicas(TP._replace(partition=PartitionIndex(index)), _ids(*to)), **more)
    cluster.deliver()
    [result] = cluster.replies[token]
    return result


def cancel(cluster: ControlledCluster) -> Result:
    token = cluster.reassign(NewReplicas(TP, None))
    cluster.deliver()
    [result] = cluster.replies[token]
    return result


def shown(cluster: ControlledCluster) -> tuple[tuple[int, ...], ...]:
    """Replicas, adding, removing, ISR."""
    p = partition(cluster)
    return p.replicas, p.adding, p.removing, p.isr


def test_a_partition_moves_when_its_new_replicas_are_in_sync(cluster: ControlledCluster) -> None:
    assert move(cluster, 4, 5, 3) == TP
    assert shown(cluster) == ((4, 5, 3, 1, 2), (4, 5), (1, 2), (1, 2, 3))
    assert partition(cluster).version == 1, "the leader hears of its new replicas as of any change"
    assert (partition(cluster).leader, partition(cluster).leader_epoch) == (1, 0)
    assert_agreement(cluster)
    cluster.propose_isr(TP, 1, 2, 3, 4)
    assert partition(cluster).adding == (4, 5), "5 is not there yet"
    cluster.propose_isr(TP, 1, 2, 3, 4, 5)
    assert shown(cluster) == ((4, 5, 3, 1), (), (1,), (3, 4, 5, 1)), "1 does not know yet that 4 leads"
    assert (partition(cluster).leader, partition(cluster).leader_epoch) == (4, 1)
    cluster.deliver()
    assert shown(cluster) == ((4, 5, 3), (), (), (3, 4, 5))
    assert (partition(cluster).leader, partition(cluster).leader_epoch) == (4, 1)
    assert set(partition(cluster).incarnations) == {3, 4, 5}
    cluster.deliver()
    assert_agreement(cluster)
    other = partition(cluster, index=1)
    assert (other.replicas, other.version) == ((2, 3, 1), 0)


def test_the_leader_stays_when_it_is_among_the_new_replicas(cluster: ControlledCluster) -> None:
    move(cluster, 4, 1)
    cluster.propose_isr(TP, 1, 2, 3, 4)
    assert shown(cluster) == ((4, 1), (), (), (1, 4))
    assert (partition(cluster).leader, partition(cluster).leader_epoch) == (1, 0)


def test_the_nodes_are_kafkas(cluster: ControlledCluster) -> None:
    move(cluster, 4, 2, 3)
    found = cluster.store.get(paths.topic(FLIGHTS))
    assert found is not None
    value = json.loads(found.data)
    assert value["partitions"] == {"0": [4, 2, 3, 1], "1": [2, 3, 1]}
    assert (value["adding_replicas"], value["removing_replicas"]) == ({"0": [4]}, {"0": [1]})
    cluster.propose_isr(TP, 1, 2, 3, 4)
    cluster.deliver()
    found = cluster.store.get(paths.topic(FLIGHTS))
    assert found is not None
    value = json.loads(found.data)
    assert value["partitions"]["0"] == [4, 2, 3]
    assert value["adding_replicas"] == value["removing_replicas"] == {}


@pytest.mark.parametrize("to", [(3, 1, 2), (1, 2), (2, 3), (3,)])
def test_what_needs_no_copying_is_complete_at_once(cluster: ControlledCluster, to: tuple[int, ...]) -> None:
    move(cluster, *to)
    p = partition(cluster)
    assert (p.replicas, p.adding, p.removing) == (to, (), ())
    assert sorted(p.isr) == sorted(to)
    assert p.leader == (1 if 1 in to else to[0])
    assert_agreement(cluster)


def test_the_same_replicas_are_nothing_to_do(cluster: ControlledCluster) -> None:
    writes = sum(isinstance(effect, Write) for effect in cluster.seen)
    assert move(cluster, 1, 2, 3) == TP
    assert sum(isinstance(effect, Write) for effect in cluster.seen) == writes


def test_more_replicas_than_before(cluster: ControlledCluster) -> None:
    move(cluster, 1, 2, 3, 4)
    assert shown(cluster) == ((1, 2, 3, 4), (4,), (), (1, 2, 3))
    cluster.propose_isr(TP, 1, 2, 3, 4)
    assert shown(cluster) == ((1, 2, 3, 4), (), (), (1, 2, 3, 4))
    assert isinstance(move(cluster, 1, 2, allow_factor_change=False), InvalidReplicationFactor)
    assert move(cluster, 1, 2, 3, 5, allow_factor_change=False) == TP


# --- changed one's mind


def test_a_reassignment_is_cancelled(cluster: ControlledCluster) -> None:
    move(cluster, 4, 5, 3)
    cluster.propose_isr(TP, 1, 2, 3, 4)
    assert cancel(cluster) == TP
    assert shown(cluster) == ((3, 1, 2), (), (), (1, 2, 3))
    assert (partition(cluster).leader, partition(cluster).leader_epoch) == (1, 0)
    assert isinstance(cancel(cluster), NoReassignmentInProgress)
    assert_agreement(cluster)


def test_a_leader_among_the_new_replicas_gives_way_when_it_is_cancelled(cluster: ControlledCluster) -> None:
    move(cluster, 4, 5)
    cluster.propose_isr(TP, 1, 3, 4)
    cluster.lose(1)
    assert partition(cluster).leader == 4
    cancel(cluster)
    assert (partition(cluster).leader, partition(cluster).leader_epoch) == (3, 2)
    assert shown(cluster) == ((1, 2, 3, 4), (), (4,), (3, 4)), "4 goes when the others are in sync"
    cluster.bring_back(1)
    cluster.propose_isr(TP, 1, 2, 3, 4)
    assert shown(cluster) == ((1, 2, 3), (), (), (3, 1, 2))


def test_what_would_lose_records_is_not_cancelled(cluster: ControlledCluster) -> None:
    move(cluster, 4, 5)
    cluster.propose_isr(TP, 1, 4)
    cluster.lose(1)
    assert (partition(cluster).leader, partition(cluster).isr) == (4, (4,))
    refused = cancel(cluster)
    assert isinstance(refused, InvalidReplicaAssignment)
    assert "records would be lost" in str(refused)
    assert partition(cluster).leader == 4


def test_only_those_that_hold_the_records_are_gone_back_to(cluster: ControlledCluster) -> None:
    """The last member of the ISR is dead, and among those that a cancelling would take away."""
    move(cluster, 4, 5)
    cluster.propose_isr(TP, 1, 4)
    cluster.lose(1)
    cluster.lose(4)
    before = shown(cluster)
    assert before[3] == (4,)
    assert isinstance(cancel(cluster), InvalidReplicaAssignment)
    assert shown(cluster) == before


def test_who_leads_is_not_given_up_for_one_that_may_come_back(cluster: ControlledCluster) -> None:
    cluster.configure(FLIGHTS, {"min.insync.replicas": "2"})
    move(cluster, 4, 5)
    cluster.propose_isr(TP, 1, 4)
    cluster.lose(1)
    assert (partition(cluster).isr, partition(cluster).elr) == ((4,), (1,))
    assert isinstance(cancel(cluster), InvalidReplicaAssignment)
    assert partition(cluster).leader == 4
    cluster.bring_back(1)
    assert cancel(cluster) == TP
    assert (partition(cluster).leader, partition(cluster).isr) == (1, (1, 4))


def test_a_reassignment_is_replaced_by_another(cluster: ControlledCluster) -> None:
    move(cluster, 4, 2, 3)
    cluster.propose_isr(TP, 1, 2, 3, 4)
    cluster.deliver()
    move(cluster, 4, 5, 3)
    cluster.propose_isr(TP, *partition(cluster).isr)
    before = shown(cluster)
    move(cluster, 5, 2, 4)
    assert before == ((4, 5, 3, 2), (5,), (2,), (2, 3, 4))
    assert shown(cluster) == ((5, 2, 4, 3), (5,), (3,), (2, 3, 4))
    cancel(cluster)
    assert set(partition(cluster).replicas) == {4, 2, 3}
    assert_agreement(cluster)


def test_new_replicas_that_are_not_wanted_any_more_leave_the_isr(cluster: ControlledCluster) -> None:
    move(cluster, 4, 5)
    cluster.propose_isr(TP, 1, 2, 3, 4)
    move(cluster, 5)
    assert shown(cluster) == ((5, 1, 2, 3), (5,), (1, 2, 3), (1, 2, 3))
    cancel(cluster)
    assert shown(cluster) == ((1, 2, 3), (), (), (1, 2, 3))


# --- bad input


@pytest.mark.parametrize(
    ("wanted", "error", "phrase"),
    [
        (NewReplicas(TP, ()), InvalidReplicaAssignment, "empty"),
        (NewReplicas(TP, _ids(1, 1)), InvalidReplicaAssignment, "repeat"),
        (NewReplicas(TP, _ids(1, 9)), InvalidReplicaAssignment, "no broker 9"),
        (NewReplicas(TP, _ids(-1)), InvalidReplicaAssignment, "no broker -1"),
        (NewReplicas(TP, None), NoReassignmentInProgress, "not being reassigned"),
        (NewReplicas(TP._replace(partition=PartitionIndex(7)), _ids(1)), UnknownTopicOrPartition, "flights-7"),
        (NewReplicas(TP._replace(topic=TopicName("nope")), _ids(1)), UnknownTopicOrPartition, "nope-0"),
    ],
    ids=["empty", "repeated", "unknown", "negative", "no reassignment", "no partition", "no topic"],
)
def test_what_cannot_be_is_refused_and_the_others_go_on(
    cluster: ControlledCluster, wanted: NewReplicas, error: type[RaylogError], phrase: str
) -> None:
    other = TP._replace(partition=PartitionIndex(1))
    token = cluster.reassign(wanted, NewReplicas(other, _ids(4, 3)))
    cluster.deliver()
    refused, done = cluster.replies[token]
    assert type(refused) is error
    assert phrase in str(refused)
    assert done == other
    assert partition(cluster, index=1).adding == (4,)
    assert_agreement(cluster)


def test_a_partition_named_twice_stays(cluster: ControlledCluster) -> None:
    token = cluster.reassign(NewReplicas(TP, _ids(4)), NewReplicas(TP, _ids(5)))
    assert [type(result) for result in cluster.replies[token]] == [InvalidRequest, InvalidRequest]
    assert partition(cluster).adding == ()


def test_a_dead_broker_may_stay_but_not_come(cluster: ControlledCluster) -> None:
    cluster.lose(3, 5)
    assert move(cluster, 4, 2, 3) == TP
    assert isinstance(move(cluster, 5, 2, 3), InvalidReplicaAssignment)


def test_elsewhere_than_at_the_controller_it_is_refused(cluster: ControlledCluster) -> None:
    cluster.feed(Deposed())
    assert isinstance(move(cluster, 4, 5), NotController)


# --- and everything else goes on meanwhile


def test_a_topic_is_deleted_in_the_middle(cluster: ControlledCluster) -> None:
    move(cluster, 4, 5)
    token = cluster.delete(FLIGHTS)
    cluster.deliver()
    assert cluster.replies[token] == ("flights",)
    assert cluster.store.exists(paths.topic(FLIGHTS)) is None
    assert cluster.brokers[BrokerId(4)].receiver.state.topics == {}
    created(cluster, topic("flights"))
    assert partition(cluster).adding == ()
    assert_agreement(cluster)


def test_a_topic_grows_in_the_middle(cluster: ControlledCluster) -> None:
    move(cluster, 4, 5)
    token = cluster.grow(NewPartitions(FLIGHTS, 4))
    cluster.deliver()
    assert cluster.replies[token] == ("flights",)
    assert partition(cluster).adding == (4, 5)
    assert {len(partition(cluster, index=n).replicas) for n in (2, 3)} == {3}, "as many as the others will have"
    assert_agreement(cluster)


def test_leaders_and_followers_die_in_the_middle(cluster: ControlledCluster) -> None:
    move(cluster, 4, 5)
    cluster.propose_isr(TP, 1, 2, 3, 4, 5)
    cluster.deliver()
    assert partition(cluster).replicas == (4, 5)
    move(cluster, 1, 2)
    cluster.lose(4)
    assert (partition(cluster).leader, partition(cluster).isr) == (5, (5,))
    cluster.propose_isr(TP, 5, 1)
    cluster.lose(5)
    assert (partition(cluster).leader, partition(cluster).isr) == (1, (1,))
    cluster.propose_isr(TP, 1, 2)
    assert shown(cluster) == ((1, 2), (), (), (1, 2))
    cluster.deliver()
    assert_agreement(cluster)


def test_one_that_is_drained_does_not_hold_it_up_for_ever(cluster: ControlledCluster) -> None:
    """It completes once the drained broker is back."""
    move(cluster, 4, 5)
    cluster.lose(5)
    cluster.propose_isr(TP, 1, 2, 3, 4)
    assert partition(cluster).adding == (4, 5)
    cluster.bring_back(5)
    cluster.deliver()
    assert outcome(cluster, cluster.propose_isr(TP, 1, 2, 3, 4, 5)).verdict is Verdict.OK
    cluster.deliver()
    assert partition(cluster).replicas == (4, 5)


@pytest.mark.parametrize("is_between", [False, True], ids=["before the ISR is complete", "after it"])
def test_the_next_controller_goes_on(cluster: ControlledCluster, is_between: bool) -> None:
    move(cluster, 4, 5)
    if is_between:
        cluster.before_write(cluster.depose, 2)
        done = cluster.propose_isr(TP, 1, 2, 3, 4, 5)
        assert outcome(cluster, done).verdict is Verdict.OK
        assert partition(cluster).adding == (4, 5)
        cluster.store.delete(paths.CONTROLLER)
    else:
        cluster.feed(Deposed())
        cluster.store.delete(paths.CONTROLLER)
    cluster.elect(2)
    cluster.deliver()
    if not is_between:
        assert shown(cluster) == ((4, 5, 1, 2, 3), (4, 5), (1, 2, 3), (1, 2, 3))
        cluster.propose_isr(TP, 1, 2, 3, 4, 5)
        cluster.deliver()
    assert shown(cluster) == ((4, 5), (), (), (4, 5))
    assert_agreement(cluster)


def test_a_beginning_in_doubt_is_looked_up(cluster: ControlledCluster) -> None:
    cluster.before_write(cluster.store.lose_next_answer)
    assert isinstance(move(cluster, 4, 5), RequestTimedOut)
    cluster.tick()
    assert partition(cluster).adding == (4, 5)
    cluster.deliver()
    assert_agreement(cluster)


@pytest.mark.parametrize("write", [1, 2, 3])
def test_a_thousand_partitions_move_in_a_few_writes_that_always_agree(cluster: ControlledCluster, write: int) -> None:
    """The topic's node and the partitions' states tell the same at every moment: a crash in between is no harm."""
    wide = TopicName("wide")
    created(cluster, NewTopic(wide, assignments={n: _ids(1, 2) for n in range(700)}))
    tps = [TopicPartition(wide, PartitionIndex(n)) for n in range(700)]
    cluster.before_write(cluster.depose, write)
    token = cluster.reassign(*(NewReplicas(tp, _ids(3, 4)) for tp in tps))
    assert {type(result) for result in cluster.replies[token]} == {NotController}
    found = snapshot.load(cluster.store).state.topics[wide].partitions
    moving = (write - 1) * 250
    assert [p.version for p in found] == [1] * moving + [0] * (700 - moving)
    assert [p.adding for p in found] == [_ids(3, 4)] * moving + [()] * (700 - moving)
    cluster.store.delete(paths.CONTROLLER)
    cluster.elect(2)
    cluster.deliver()
    assert_agreement(cluster)


def test_completion_that_is_refused_holds_up_no_other_topic(cluster: ControlledCluster) -> None:
    """Another program took the topic's node for itself meanwhile."""
    assert move(cluster, 4, 5, 3) == TP
    cluster.store = Closed(cluster.tree, paths.topic(FLIGHTS), alone=True)
    cluster.propose_isr(TP, 1, 2, 3, 4, 5)
    cluster.deliver()
    assert partition(cluster).adding == (4, 5)
    for _ in range(3):
        cluster.tick()
    created(cluster, topic("new"))
    assert TopicName("new") in cluster.controller.state.topics
    cluster.store = MemoryStore(cluster.tree)
    cluster.store.start()
    cluster.feed(Loaded(*snapshot.load(cluster.store)))
    cluster.deliver()
    assert partition(cluster).adding == (), "each reading tries again"
