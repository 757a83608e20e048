"""Brokers that do not answer the controller while their sessions live, and a controller that reaches nobody."""

from __future__ import annotations

from uuid import UUID

import pytest

from kit.controlled import ControlledCluster, assert_agreement, created, outcome, partition, topic
from raylog.coordination.control.leadership import ElectionRules
from raylog.coordination.control.proposals import Verdict
from raylog.coordination.controller.events import CreatedTopic, Deposed, Loaded, NewTopic, Resign, TopicDefaults, Write
from raylog.coordination.metadata import paths, snapshot
from raylog.protocol.errors import InvalidReplicaAssignment, PreferredLeaderNotAvailable
from raylog.protocol.ids import BrokerId, PartitionIndex, TopicId, TopicName, TopicPartition

FLIGHTS, OLD = TopicName("flights"), TopicName("old")
TP = TopicPartition(FLIGHTS, PartitionIndex(0))
SILENCE_MS = 2_000


def cluster_of(brokers: int, rules: ElectionRules | None = None) -> ControlledCluster:
    """The last one is the controller; the first leads a partition that all keep."""
    defaults = TopicDefaults(1, brokers)
    cluster = ControlledCluster(brokers, defaults=lambda state: defaults, rules=rules, silence_ms=SILENCE_MS)
    cluster.tick()
    cluster.elect(brokers)
    created(cluster, topic("flights", replication_factor=brokers))
    return cluster


@pytest.fixture
def cluster() -> ControlledCluster:
    return cluster_of(3)


def pass_time(cluster: ControlledCluster, ms: int, *, cut_off: tuple[int, ...] = ()) -> None:
    """Messages arrive at all brokers but these."""
    for _ in range(ms // 100):
        cluster.tick(100)
        while cluster.wire:
            if cluster.wire[0].to in cut_off:
                cluster.lose_one()
            else:
                cluster.deliver_one()


def is_registered(cluster: ControlledCluster, broker_id: int) -> bool:
    return cluster.store.exists(paths.broker(BrokerId(broker_id))) is not None


def test_who_does_not_answer_leads_no_longer_and_is_in_sync_nowhere(cluster: ControlledCluster) -> None:
    pass_time(cluster, SILENCE_MS - 200, cut_off=(1,))
    assert partition(cluster).leader == 1
    pass_time(cluster, 1_000, cut_off=(1,))
    assert (partition(cluster).leader, partition(cluster).isr) == (2, (2, 3))
    assert not is_registered(cluster, 1)
    assert "does not answer" in cluster.notices[0].text
    assert_agreement(cluster)


def test_a_silent_follower_is_fenced_as_well(cluster: ControlledCluster) -> None:
    """A controller that took office does not know what it was told, and must not let its leader do without it."""
    cluster.feed(Deposed())
    cluster.store.delete(paths.CONTROLLER)
    cluster.elect(3)
    pass_time(cluster, SILENCE_MS - 200, cut_off=(2,))
    assert outcome(cluster, cluster.propose_isr(TP, 1, 3)).verdict is Verdict.REFUSED
    pass_time(cluster, 1_000, cut_off=(2,))
    assert (partition(cluster).leader, partition(cluster).isr) == (1, (1, 3))


def test_it_is_fenced_once_and_comes_back_when_it_is_heard(cluster: ControlledCluster) -> None:
    pass_time(cluster, SILENCE_MS + 500, cut_off=(1,))
    cluster.bring_back(1)
    epoch = cluster.brokers[BrokerId(1)].info.epoch
    pass_time(cluster, 5 * SILENCE_MS, cut_off=(1,))
    assert is_registered(cluster, 1)
    assert cluster.controller.state.brokers[BrokerId(1)].epoch == epoch
    pass_time(cluster, 500)
    assert outcome(cluster, cluster.propose_isr(TP, 1, 2, 3)).verdict is Verdict.OK
    pass_time(cluster, 3 * SILENCE_MS)
    assert partition(cluster).isr == (2, 3, 1)
    assert_agreement(cluster)


def test_who_keeps_what_nobody_else_has_is_let_be(cluster: ControlledCluster) -> None:
    """Its partition would only be offline."""
    created(cluster, NewTopic(TopicName("alone"), assignments={0: (BrokerId(1),)}))
    cluster.propose_isr(TP, 1)
    pass_time(cluster, 3 * SILENCE_MS, cut_off=(1,))
    assert is_registered(cluster, 1)
    assert partition(cluster).leader == 1


def test_silent_leader_alone_in_sync_makes_way_for_eligible_ones() -> None:
    """Who left an ISR below min.insync.replicas has all that was acknowledged: nothing waits for the silent one."""
    cluster = cluster_of(3, rules=ElectionRules(min_isr=lambda topic, state: 2))
    cluster.propose_isr(TP, 1)
    assert (partition(cluster).isr, partition(cluster).elr) == ((1,), (2, 3))
    pass_time(cluster, SILENCE_MS + 500, cut_off=(1,))
    assert (partition(cluster).leader, partition(cluster).isr) == (2, (2,))
    assert_agreement(cluster)


def test_silent_leader_is_let_be_while_eligible_ones_are_silent() -> None:
    cluster = cluster_of(5, rules=ElectionRules(min_isr=lambda topic, state: 2))
    created(cluster, NewTopic(OLD, assignments={0: (BrokerId(2), BrokerId(3))}))
    cluster.propose_isr(TP, 1, 4, 5)
    cluster.propose_isr(TopicPartition(OLD, PartitionIndex(0)), 2)
    pass_time(cluster, SILENCE_MS + 500, cut_off=(2, 3))
    kept = partition(cluster, OLD)
    assert (kept.leader, kept.isr, kept.elr) == (2, (2,), (3,))
    assert is_registered(cluster, 2)


def test_fenced_replica_does_not_keep_others_out_of_the_isr() -> None:
    """It fetches from the leader, which does not know that the controller cannot reach it, and proposes both."""
    cluster = cluster_of(4)
    cluster.lose(2, 3)
    pass_time(cluster, 100)
    cluster.bring_back(2, 3)
    pass_time(cluster, 300, cut_off=(2,))
    assert (partition(cluster).isr, cluster.controller.state.fenced) == ((1, 4), {2})
    answer = outcome(cluster, cluster.propose_isr(TP, 1, 2, 3, 4))
    assert answer.verdict is Verdict.OK
    assert partition(cluster).isr == (1, 4, 3)
    alone = outcome(cluster, cluster.propose_isr(TP, 1, 2, 3, 4))
    assert (alone.verdict, "fenced" in alone.reason) == (Verdict.REFUSED, True)


def test_all_is_quiet_and_all_answer(cluster: ControlledCluster) -> None:
    """Brokers are asked several times in the time after which they are silent, and nothing is written or applied."""
    pass_time(cluster, 500)
    states = {b: broker.receiver.state for b, broker in cluster.brokers.items()}
    writes = sum(isinstance(effect, Write) for effect in cluster.seen)
    pass_time(cluster, 10 * SILENCE_MS)
    assert sum(isinstance(effect, Write) for effect in cluster.seen) == writes
    assert all(broker.receiver.state is states[b] for b, broker in cluster.brokers.items())
    assert not cluster.notices


def test_one_lost_message_is_not_silence(cluster: ControlledCluster) -> None:
    for _ in range(5):
        pass_time(cluster, SILENCE_MS // 2, cut_off=(1,))
        pass_time(cluster, SILENCE_MS // 2)
    assert is_registered(cluster, 1)
    assert_agreement(cluster)


@pytest.mark.parametrize(("brokers", "cut_off"), [(3, (1, 2)), (4, (1, 2, 3)), (5, (1, 2, 3))])
def test_a_controller_that_reaches_too_few_resigns_and_fences_nobody(brokers: int, cut_off: tuple[int, ...]) -> None:
    cluster = cluster_of(brokers)
    pass_time(cluster, SILENCE_MS + 500, cut_off=cut_off)
    assert not cluster.controller.is_active
    assert [effect.reason for effect in cluster.seen if isinstance(effect, Resign)] == ["it reaches too few brokers"]
    assert cluster.store.exists(paths.CONTROLLER) is None
    assert all(is_registered(cluster, b) for b in range(1, brokers + 1))


@pytest.mark.parametrize(("brokers", "also"), [(2, ()), (3, ()), (3, (1,)), (5, (1,))])
def test_controller_whose_own_broker_is_silent_resigns(brokers: int, also: tuple[int, ...]) -> None:
    """It hangs: another controller replaces it as any other broker."""
    cluster = cluster_of(brokers)
    pass_time(cluster, SILENCE_MS + 500, cut_off=(brokers, *also))
    assert not cluster.controller.is_active
    assert [effect.reason for effect in cluster.seen if isinstance(effect, Resign)] == [
        "its own broker does not answer"
    ]
    assert is_registered(cluster, brokers)
    cluster.elect(brokers - 1)
    pass_time(cluster, SILENCE_MS + 500, cut_off=(brokers,))
    assert cluster.controller.is_active
    if brokers > 2:  # of two nobody can tell which one is cut off
        assert not is_registered(cluster, brokers)
        assert brokers not in partition(cluster).isr


@pytest.mark.parametrize("brokers", [1, 3])
def test_controller_that_nobody_could_replace_stays(brokers: int) -> None:
    """Where all hang, an election mends nothing."""
    cluster = cluster_of(brokers)
    for broker in range(1, brokers):
        cluster.lose(broker)
    pass_time(cluster, 5 * SILENCE_MS, cut_off=(brokers,))
    assert cluster.controller.is_active


@pytest.mark.parametrize(("brokers", "cut_off"), [(2, (1,)), (4, (1, 2))])
def test_of_two_halves_neither_does_anything(brokers: int, cut_off: tuple[int, ...]) -> None:
    cluster = cluster_of(brokers)
    pass_time(cluster, 5 * SILENCE_MS, cut_off=cut_off)
    assert cluster.controller.is_active
    assert all(is_registered(cluster, b) for b in range(1, brokers + 1))


def test_a_controller_that_was_away_itself_asks_before_it_judges(cluster: ControlledCluster) -> None:
    """Stopped, or waiting for the store: what was answered meanwhile lies in its queue."""
    pass_time(cluster, 500)
    cluster.tick(10 * SILENCE_MS)
    assert cluster.controller.is_active
    assert all(is_registered(cluster, b) for b in (1, 2, 3))
    pass_time(cluster, SILENCE_MS)
    assert partition(cluster).isr == (1, 2, 3)


def test_a_broker_that_registers_anew_has_its_time(cluster: ControlledCluster) -> None:
    pass_time(cluster, SILENCE_MS - 300, cut_off=(2,))
    cluster.lose(2)
    cluster.bring_back(2)
    cluster.propose_isr(TP, 1, 2, 3)
    pass_time(cluster, SILENCE_MS - 300, cut_off=(2,))
    assert is_registered(cluster, 2)


def test_broker_is_fenced_until_it_answers_in_its_incarnation(cluster: ControlledCluster) -> None:
    cluster.lose(2)
    cluster.bring_back(2)
    assert cluster.controller.state.fenced == {2}
    assert outcome(cluster, cluster.propose_isr(TP, 1, 2, 3)).verdict is Verdict.REFUSED
    cluster.deliver()
    assert cluster.controller.state.fenced == frozenset()
    assert outcome(cluster, cluster.propose_isr(TP, 1, 2, 3)).verdict is Verdict.OK
    cluster.deliver()
    assert_agreement(cluster)


def test_brokers_found_at_an_election_are_not_fenced(cluster: ControlledCluster) -> None:
    """What they answered the last controller is not known; they lead, and clients must find them."""
    cluster.feed(Deposed())
    cluster.store.delete(paths.CONTROLLER)
    cluster.elect(3)
    assert cluster.controller.state.fenced == frozenset()


def test_requests_do_not_wait_for_a_fenced_broker(cluster: ControlledCluster) -> None:
    pass_time(cluster, SILENCE_MS + 500, cut_off=(1,))
    cluster.bring_back(1)
    pass_time(cluster, 300, cut_off=(1,))
    token = cluster.create(topic("new", 4, replication_factor=2))
    pass_time(cluster, 300, cut_off=(1,))
    assert token in cluster.replies
    new = cluster.controller.state.topics[TopicName("new")].partitions
    assert {p.leader for p in new} == {2, 3}
    assert all(set(p.replicas) == {2, 3} for p in new)


def test_requests_do_not_wait_for_a_broker_whose_last_message_failed(cluster: ControlledCluster) -> None:
    token = cluster.create(topic("new", 4, replication_factor=2))
    pass_time(cluster, 300, cut_off=(1,))
    assert token in cluster.replies


def test_too_few_unfenced_brokers_leave_fenced_replicas_out_of_the_isr(cluster: ControlledCluster) -> None:
    """As KRaft does: they come last, and join once they have caught up."""
    cluster.lose(1)
    cluster.bring_back(1)
    cluster.create(topic("new", 4, replication_factor=3))
    for new in cluster.controller.state.topics[TopicName("new")].partitions:
        assert (new.replicas[2], sorted(new.isr), sorted(new.incarnations)) == (1, [2, 3], [2, 3])
        assert new.leader in (2, 3)


def test_a_partition_on_fenced_brokers_alone_is_refused(cluster: ControlledCluster) -> None:
    cluster.lose(1)
    cluster.bring_back(1)
    token = cluster.create(NewTopic(TopicName("new"), assignments={0: (BrokerId(1),)}))
    cluster.deliver()
    [refused] = cluster.replies[token]
    assert isinstance(refused, InvalidReplicaAssignment)
    [taken] = created(cluster, NewTopic(TopicName("new"), assignments={0: (BrokerId(1),)}))
    assert isinstance(taken, CreatedTopic)


def test_a_silent_broker_that_leads_nothing_makes_way(cluster: ControlledCluster) -> None:
    """Groups may wait for it: what it claimed is free only once its incarnation has ended."""
    cluster.propose_isr(TP, 1, 3)
    pass_time(cluster, SILENCE_MS + 500, cut_off=(2,))
    assert not is_registered(cluster, 2)
    cluster.bring_back(2)
    pass_time(cluster, 3 * SILENCE_MS, cut_off=(2,))
    assert is_registered(cluster, 2), "its incarnation is ended once"
    assert cluster.controller.state.fenced == {2}


def test_of_two_brokers_the_silent_one_is_fenced_and_keeps_its_incarnation() -> None:
    cluster = cluster_of(2)
    pass_time(cluster, SILENCE_MS + 500, cut_off=(1,))
    assert cluster.controller.state.fenced == {1}
    assert is_registered(cluster, 1)
    token = cluster.create(topic("new", 2, replication_factor=1))
    pass_time(cluster, 100, cut_off=(1,))
    assert token in cluster.replies
    assert {p.leader for p in cluster.controller.state.topics[TopicName("new")].partitions} == {2}
    assert partition(cluster).leader == 1
    assert BrokerId(1) in cluster.controller.state.reachable, "clients may reach it"
    pass_time(cluster, 500)
    assert cluster.controller.state.fenced == frozenset()


def test_a_controller_that_is_cut_off_replaces_nobody_however_the_others_fall_silent(
    cluster: ControlledCluster,
) -> None:
    """It misses one of them a moment before the other."""
    pass_time(cluster, 400, cut_off=(1,))
    pass_time(cluster, SILENCE_MS + 500, cut_off=(1, 2))
    assert not cluster.controller.is_active
    assert all(is_registered(cluster, b) for b in (1, 2, 3))


def test_fenced_broker_does_not_lead_a_partition_without_state(cluster: ControlledCluster) -> None:
    pass_time(cluster, 500)
    cluster.lose(1)
    cluster.bring_back(1)
    pass_time(cluster, 300, cut_off=(1,))
    assert cluster.controller.state.fenced == {1}
    replicas = BrokerId(1), BrokerId(2), BrokerId(3)
    cluster.store.create(paths.topic(OLD), paths.encode_topic(paths.TopicAssignment(TopicId(UUID(int=5)), (replicas,))))
    cluster.feed(Loaded(*snapshot.load(cluster.store)))
    assert (partition(cluster, OLD).leader, partition(cluster, OLD).isr) == (2, (2, 3))


def test_fenced_preferred_replica_is_not_elected() -> None:
    cluster = cluster_of(4)
    pass_time(cluster, 500)
    cluster.lose(1)
    cluster.bring_back(1)
    pass_time(cluster, 500)
    cluster.propose_isr(TP, 1, 2, 3, 4)
    pass_time(cluster, 2 * SILENCE_MS, cut_off=(1, 2))
    assert cluster.controller.state.fenced == {1, 2}
    assert (partition(cluster).leader, 1 in partition(cluster).isr) == (2, True)
    token = cluster.elect_leaders(TP)
    pass_time(cluster, 100, cut_off=(1, 2))
    assert isinstance(cluster.replies[token][0], PreferredLeaderNotAvailable)


def test_new_controller_lets_a_cut_off_broker_lead_no_longer_than_its_silence() -> None:
    """It cannot know yet that the broker is cut off, and elects it; nobody serves the partition until it is fenced."""
    cluster = cluster_of(4)
    cluster.feed(Deposed())
    cluster.store.delete(paths.CONTROLLER)
    cluster.elect(4)
    pass_time(cluster, 200, cut_off=(2,))
    cluster.lose(1)
    assert partition(cluster).leader == 2
    pass_time(cluster, SILENCE_MS, cut_off=(2,))
    assert (partition(cluster).leader, partition(cluster).isr) == (3, (3, 4))
    cluster.bring_back(2)
    assert partition(cluster).leader == 3
    cluster.lose(3)
    pass_time(cluster, 100, cut_off=(2,))
    assert partition(cluster).leader == 4, "it leads nothing again while another can"
