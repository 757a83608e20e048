"""ISRs as leaders propose them, and elections that risk something."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kit.controlled import ControlledCluster, assert_agreement, created, outcome, partition, topic
from kit.stores import Closed
from raylog.coordination.control.proposals import (
    IsrAnswer,
    IsrChange,
    ProposeIsr,
    Verdict,
)
from raylog.coordination.controller.events import (
    Deposed,
    Reload,
    StepDown,
    TopicDefaults,
    Write,
)
from raylog.coordination.metadata import paths
from raylog.coordination.store.port import Check, Set
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
    """Three brokers, and a partition on all of them that the first leads."""
    cluster = ControlledCluster(defaults=lambda state: TopicDefaults(1, 3))
    cluster.elect()
    created(cluster, topic("flights", replication_factor=3))
    assert partition(cluster).isr == (1, 2, 3)
    return cluster


def proposal(
    cluster: ControlledCluster,
    *isr: tuple[int, int],
    broker: tuple[int, int] = (1, 1),
    topic_id: TopicId | None = None,
    leader_epoch: int = 0,
    version: int = 0,
    tp: TopicPartition = TP,
) -> ProposeIsr:
    members = tuple((BrokerId(b), BrokerEpoch(epoch)) for b, epoch in isr)
    wanted_id = topic_id or cluster.controller.state.topics[FLIGHTS].id
    change = IsrChange(tp, wanted_id, LeaderEpoch(leader_epoch), version, members)
    return ProposeIsr(BrokerId(broker[0]), BrokerEpoch(broker[1]), ControllerEpoch(1), (change,))


# --- proposals


def test_a_leader_shrinks_and_expands_its_isr(cluster: ControlledCluster) -> None:
    done = outcome(cluster, cluster.propose_isr(TP, 1, 3))
    assert (done.verdict, done.state) == (Verdict.OK, partition(cluster))
    assert (partition(cluster).isr, partition(cluster).version) == ((1, 3), 1)
    assert partition(cluster).leader_epoch == 0
    done = outcome(cluster, cluster.propose_isr(TP, 1, 2, 3))
    assert done.verdict is Verdict.OK
    assert partition(cluster).isr == (1, 3, 2)
    cluster.deliver()
    assert_agreement(cluster)


def test_the_answer_does_not_wait_for_the_brokers(cluster: ControlledCluster) -> None:
    token = cluster.propose_isr(TP, 1, 3)
    assert token in cluster.answers
    assert cluster.wire


def test_a_member_is_recorded_in_the_incarnation_that_is_in_sync(cluster: ControlledCluster) -> None:
    cluster.lose(2)
    cluster.bring_back(2)
    cluster.deliver()
    assert partition(cluster).incarnations == {1: 1, 3: 1}
    cluster.propose_isr(TP, 1, 2, 3)
    assert partition(cluster).incarnations == {1: 1, 2: 2, 3: 1}


def test_below_the_minimum_who_leaves_stays_eligible_until_it_is_reached(cluster: ControlledCluster) -> None:
    cluster.configure(FLIGHTS, {"min.insync.replicas": "2"})
    cluster.propose_isr(TP, 1, 3)
    assert (partition(cluster).isr, partition(cluster).elr) == ((1, 3), ())
    cluster.propose_isr(TP, 1)
    assert (partition(cluster).isr, partition(cluster).elr) == ((1,), (3,))
    assert partition(cluster).incarnations == {1: 1, 3: 1}
    cluster.propose_isr(TP, 1, 2)
    assert (partition(cluster).isr, partition(cluster).elr) == ((1, 2), ())


def test_a_lower_minimum_empties_the_elr(cluster: ControlledCluster) -> None:
    cluster.configure(FLIGHTS, {"min.insync.replicas": "2"})
    cluster.propose_isr(TP, 1)
    assert partition(cluster).elr == (2, 3)
    cluster.configure(FLIGHTS, {"min.insync.replicas": "1"})
    assert partition(cluster).elr == ()


def test_an_isr_that_is_so_already_voids_what_was_proposed_before(cluster: ControlledCluster) -> None:
    """The leader did not hear what became of its proposal: after this one it can come to nothing any more."""
    state = cluster.controller.state
    late = ProposeIsr(
        BrokerId(1),
        BrokerEpoch(1),
        ControllerEpoch(1),
        (IsrChange(TP, state.topics[FLIGHTS].id, LeaderEpoch(0), 0, ((BrokerId(1), BrokerEpoch(1)),)),),
    )
    assert outcome(cluster, cluster.propose_isr(TP, 3, 1, 2)).verdict is Verdict.OK
    assert (partition(cluster).isr, partition(cluster).version) == ((1, 2, 3), 1)
    assert outcome(cluster, cluster.propose(late)).verdict is Verdict.STALE
    assert partition(cluster).isr == (1, 2, 3)


Ask = Callable[[ControlledCluster], ProposeIsr]

STALE: dict[str, Ask] = {
    "of another leader": lambda c: proposal(c, (1, 1), (2, 1), broker=(2, 1)),
    "of another incarnation of the leader": lambda c: proposal(c, (1, 1), broker=(1, 0)),
    "of an older leader epoch": lambda c: proposal(c, (1, 1), leader_epoch=-1),
    "of a newer leader epoch": lambda c: proposal(c, (1, 1), leader_epoch=1),
    "of another version": lambda c: proposal(c, (1, 1), version=1),
    "of nobody": lambda c: proposal(c, (1, 1), broker=(9, 1)),
}
REFUSED: dict[str, tuple[Ask, str]] = {
    "a broker twice": (lambda c: proposal(c, (1, 1), (2, 1), (2, 1)), "more than once"),
    "no leader": (lambda c: proposal(c, (2, 1), (3, 1)), "leader 1 is not in"),
    "nobody": (lambda c: proposal(c), "leader 1 is not in"),
    "no replica": (lambda c: proposal(c, (1, 1), (9, 1)), "no replica"),
    "an old incarnation": (lambda c: proposal(c, (1, 1), (2, 0)), "in epoch 1, not 0"),
    "an incarnation to come": (lambda c: proposal(c, (1, 1), (2, 2)), "in epoch 1, not 2"),
    "another topic": (lambda c: proposal(c, (1, 1), topic_id=TopicId(paths.decode_topic_id("A" * 22))), "with this id"),
    "no such partition": (lambda c: proposal(c, (1, 1), tp=TP._replace(partition=PartitionIndex(1))), "no flights-1"),
}


@pytest.mark.parametrize("ask", STALE.values(), ids=STALE.keys())
def test_what_was_decided_on_what_is_no_longer_so_is_stale(cluster: ControlledCluster, ask: Ask) -> None:
    before = partition(cluster)
    answered = outcome(cluster, cluster.propose(ask(cluster)))
    assert (answered.verdict, answered.state) == (Verdict.STALE, before)
    assert answered.reason
    assert partition(cluster) == before


@pytest.mark.parametrize(("ask", "phrase"), REFUSED.values(), ids=REFUSED.keys())
def test_what_must_not_be_is_refused(cluster: ControlledCluster, ask: Ask, phrase: str) -> None:
    before = partition(cluster)
    answered = outcome(cluster, cluster.propose(ask(cluster)))
    assert answered.verdict is Verdict.REFUSED
    assert phrase in answered.reason
    assert partition(cluster) == before


def test_a_dead_broker_cannot_join(cluster: ControlledCluster) -> None:
    cluster.lose(2)
    answered = outcome(cluster, cluster.propose_isr(TP, 1, 2, 3))
    assert (answered.verdict, answered.reason) == (Verdict.REFUSED, "broker 2 is not registered")


def test_partition_whose_node_is_closed_holds_up_no_other_isr(cluster: ControlledCluster) -> None:
    """Its leader asks again and again, with all others that it leads."""
    created(cluster, topic("other", replication_factor=3))
    other = TopicPartition(TopicName("other"), PartitionIndex(0))
    while partition(cluster, "other").leader != 1:
        cluster.lose(partition(cluster, "other").leader)
    cluster.store = Closed(cluster.tree, paths.partition_state(TP))
    state, isr = cluster.controller.state, ((BrokerId(1), BrokerEpoch(1)),)
    changes = []
    for tp in (TP, other):
        found = state.partition(tp)
        assert found is not None
        changes.append(IsrChange(tp, state.topics[tp.topic].id, found.leader_epoch, found.version, isr))
    for verdict in (Verdict.OK, Verdict.STALE):
        token = cluster.propose(ProposeIsr(BrokerId(1), BrokerEpoch(1), ControllerEpoch(1), tuple(changes)))
        answer = cluster.answers[token]
        assert isinstance(answer, IsrAnswer)
        assert [each.verdict for each in answer.outcomes] == [Verdict.REFUSED, verdict]
    assert partition(cluster, "other").isr == (1,)
    assert len(cluster.notices) == 1


def test_many_changes_are_one_write_and_each_is_judged_by_itself(cluster: ControlledCluster) -> None:
    created(cluster, topic("wide", 600, replication_factor=3))
    state = cluster.controller.state
    wide = state.topics[TopicName("wide")]
    changes: list[IsrChange] = []
    for tp, p in wide.topic_partitions():
        if p.leader == 1:
            version = p.version + (not changes)
            changes.append(IsrChange(tp, wide.id, p.leader_epoch, version, ((BrokerId(1), BrokerEpoch(1)),)))
    token = cluster.propose(ProposeIsr(BrokerId(1), BrokerEpoch(1), ControllerEpoch(1), tuple(changes)))
    answer = cluster.answers[token]
    assert isinstance(answer, IsrAnswer)
    assert [o.verdict for o in answer.outcomes] == [Verdict.STALE] + [Verdict.OK] * 199
    assert [o.tp for o in answer.outcomes] == [change.tp for change in changes]
    [write] = [effect for effect in cluster.seen if isinstance(effect, Write)][-1:]
    assert len(write.multis) == 1
    cluster.deliver()
    assert_agreement(cluster)


def test_every_write_checks_the_controller_and_all_incarnations_that_it_names(cluster: ControlledCluster) -> None:
    cluster.propose_isr(TP, 1, 3)
    [write] = [effect for effect in cluster.seen if isinstance(effect, Write)][-1:]
    [multi] = write.multis
    checks = {(op.path, op.version) for op in multi if isinstance(op, Check)}
    epoch = cluster.store.exists(paths.CONTROLLER_EPOCH)
    assert epoch is not None
    assert checks == {
        (paths.CONTROLLER_EPOCH, epoch.version),
        (paths.broker_epoch(BrokerId(1)), 1),
        (paths.broker_epoch(BrokerId(3)), 1),
    }
    assert [op.version for op in multi if isinstance(op, Set)] == [0]


def test_a_member_that_restarts_meanwhile_does_not_join(cluster: ControlledCluster) -> None:
    """Its new life may have less than the leader saw: the write itself finds that out."""
    cluster.propose_isr(TP, 1, 3)

    def restart() -> None:
        cluster.brokers[BrokerId(2)].down()
        cluster.brokers[BrokerId(2)].up()

    cluster.before_write(restart)
    answered = outcome(cluster, cluster.propose_isr(TP, 1, 2, 3))
    assert answered.verdict is Verdict.UNAVAILABLE
    assert any(isinstance(effect, Reload) for effect in cluster.seen)
    assert partition(cluster).isr == (1, 3)
    cluster.deliver()
    assert_agreement(cluster)


def test_a_deposed_controller_changes_no_isr(cluster: ControlledCluster) -> None:
    cluster.depose()
    answered = outcome(cluster, cluster.propose_isr(TP, 1, 3))
    assert answered.verdict is Verdict.NOT_CONTROLLER
    assert any(isinstance(effect, StepDown) for effect in cluster.seen)
    assert outcome(cluster, cluster.propose_isr(TP, 1, 3)).verdict is Verdict.NOT_CONTROLLER, "nor afterwards"


def test_an_answer_that_the_store_lost_is_asked_for_again(cluster: ControlledCluster) -> None:
    cluster.before_write(cluster.store.lose_next_answer)
    assert outcome(cluster, cluster.propose_isr(TP, 1, 3)).verdict is Verdict.UNAVAILABLE
    waits = cluster.propose_isr(TP, 1, 3)
    assert waits not in cluster.answers, "nothing is decided while the state is in doubt"
    cluster.tick()
    again = outcome(cluster, waits)
    assert again.verdict is Verdict.STALE
    assert again.state is not None
    assert again.state.isr == (1, 3)


def test_what_waits_when_the_mandate_ends_is_for_the_next_controller(cluster: ControlledCluster) -> None:
    cluster.before_write(cluster.store.lose_next_answer)
    cluster.propose_isr(TP, 1, 3)
    token = cluster.propose_isr(TP, 1, 3)
    cluster.feed(Deposed())
    assert outcome(cluster, token).verdict is Verdict.NOT_CONTROLLER
    assert not cluster.controller._proposals


# --- risks are told


def test_the_last_resort_is_told(cluster: ControlledCluster) -> None:
    cluster.lose(1, 2, 3)
    cluster.bring_back(2, 3, lost_data=True)
    assert not partition(cluster).is_online
    assert cluster.notices == []
    cluster.bring_back(1, lost_data=True)
    assert partition(cluster).leader == 1
    [notice] = cluster.notices
    assert (notice.fields["partition"], notice.fields["leader"]) == (TP, 1)
    assert notice.fields["reason"] == "all that were in sync have lost data"


def test_an_unclean_election_follows_the_topics_setting_and_is_told(cluster: ControlledCluster) -> None:
    cluster.propose_isr(TP, 1)
    cluster.lose(1)
    assert not partition(cluster).is_online
    cluster.configure(FLIGHTS, {"unclean.leader.election.enable": "true"})
    assert (partition(cluster).leader, partition(cluster).isr) == (2, (2,))
    assert [notice.fields["isr_before"] for notice in cluster.notices] == [(1,)]
    cluster.deliver()
    assert_agreement(cluster)


def test_an_empty_disk_does_not_lead_though_it_is_back_first(cluster: ControlledCluster) -> None:
    cluster.lose(2, 3)
    cluster.lose(1)
    cluster.bring_back(1, lost_data=True)
    cluster.bring_back(2, 3)
    cluster.deliver()
    assert partition(cluster).leader == 1, "none but 1 was in the ISR, so nobody better can come"
    cluster.propose_isr(TP, 1, 2, 3)
    cluster.lose(1, 2)
    cluster.lose(3)
    cluster.bring_back(1, 2)
    assert not partition(cluster).is_online, "3 was the last"
    cluster.bring_back(3)
    assert partition(cluster).leader == 3


def test_a_blackout_and_one_empty_disk(cluster: ControlledCluster) -> None:
    cluster.lose(1, 2, 3)
    cluster.bring_back(1, lost_data=True)
    assert not partition(cluster).is_online
    cluster.bring_back(2)
    assert (partition(cluster).leader, partition(cluster).isr) == (2, (2,))
    assert cluster.notices == []
