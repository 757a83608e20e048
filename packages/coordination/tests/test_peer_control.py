"""Control messages: what fences them, what puts them in order, and that their bytes are read by other releases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from uuid import UUID

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.coordination.control.peer_control import Ack, AckStatus, Receiver, UpdateState, local_changes
from raylog.coordination.metadata.model import BrokerInfo, ClusterState, Endpoint, PartitionState, TopicState
from raylog.protocol.errors import InvalidRequest
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

ME = BrokerId(1)


def broker(broker_id: int, epoch: int = 1) -> BrokerInfo:
    return BrokerInfo(
        BrokerId(broker_id),
        BrokerEpoch(epoch),
        (Endpoint("PLAINTEXT", "::1", 9092), Endpoint("INSIDE", "h", 9093, "SSL")),
        rack="r",
        node="n",
        actor="a",
        directory_ids=(UUID(int=5),),
        clean_stop=True,
    )


def topic(
    name: str, *leaders: int, topic_id: int = 1, epoch: int = 0, configs: Mapping[str, str] = MappingProxyType({})
) -> TopicState:
    partitions = tuple(
        PartitionState((BrokerId(abs(n)),), BrokerId(n), LeaderEpoch(epoch), (BrokerId(abs(n)),), ControllerEpoch(1), 3)
        for n in leaders
    )
    return TopicState(TopicName(name), TopicId(UUID(int=topic_id)), partitions, dict(configs))


def update(sequence: int, *topics: TopicState, full: bool = False, controller: int = 1, **more: object) -> UpdateState:
    fields: dict[str, object] = {
        "controller_id": BrokerId(2),
        "controller_epoch": ControllerEpoch(controller),
        "broker_epoch": BrokerEpoch(1),
        "sequence": sequence,
        "full": full,
        "cluster_id": "c",
        "brokers": (broker(1),),
        "topics": topics,
        **more,
    }
    return UpdateState(**fields)  # type: ignore[arg-type]


@pytest.fixture
def receiver() -> Receiver:
    receiver = Receiver(ME)
    receiver.registered(BrokerEpoch(1))
    return receiver


class Acting:
    """A broker that acts on messages, and fails as long as it is told to."""

    def __init__(self, receiver: Receiver) -> None:
        self.fails = False
        self.seen: list[tuple[ClusterState, ClusterState]] = []
        self._receiver = receiver

    def __call__(self, before: ClusterState, after: ClusterState) -> None:
        assert self._receiver.state is before, "the new state is shown once it was acted on"
        self.seen.append((before, after))
        if self.fails:
            raise RuntimeError("can't start new thread")


def send(receiver: Receiver, message: UpdateState, act: Acting | None = None) -> AckStatus:
    ack = receiver.receive(message.encode(), act or Acting(receiver))
    assert (ack.broker_id, ack.sequence) == (ME, message.sequence)
    return ack.status


# --- the rules


def test_deltas_follow_a_full_state(receiver: Receiver) -> None:
    assert send(receiver, update(7, topic("a", 1), topic("b", 1), full=True)) is AckStatus.OK
    assert send(receiver, update(8, topic("c", 1), deleted=(TopicName("a"),))) is AckStatus.OK
    assert set(receiver.state.topics) == {"b", "c"}
    assert receiver.state.controller_id == 2


def test_a_full_state_replaces_what_was_there(receiver: Receiver) -> None:
    send(receiver, update(1, topic("a", 1), full=True))
    send(receiver, update(5, topic("b", 1), full=True))
    assert set(receiver.state.topics) == {"b"}


def test_a_delta_before_any_full_state_or_after_a_gap_asks_for_everything(receiver: Receiver) -> None:
    assert send(receiver, update(1, topic("a", 1))) is AckStatus.NEEDS_FULL
    send(receiver, update(2, full=True))
    assert send(receiver, update(4, topic("a", 1))) is AckStatus.NEEDS_FULL
    assert receiver.state.topics == {}
    assert send(receiver, update(3, topic("a", 1))) is AckStatus.OK


def test_a_repeated_or_late_message_is_acknowledged_without_effect(receiver: Receiver) -> None:
    send(receiver, update(1, full=True))
    late = update(2, topic("a", 1))
    send(receiver, late)
    send(receiver, update(3, deleted=(TopicName("a"),)))
    state = receiver.state
    assert send(receiver, late) is AckStatus.OK
    assert send(receiver, update(1, topic("z", 1), full=True)) is AckStatus.OK
    assert receiver.state is state


def test_a_deposed_controller_is_refused_and_told_of_the_newer_one(receiver: Receiver) -> None:
    send(receiver, update(1, full=True, controller=5))
    act = Acting(receiver)
    ack = receiver.receive(update(2, topic("a", 1), full=True, controller=4).encode(), act)
    assert ack.status is AckStatus.STALE_CONTROLLER_EPOCH
    assert ack.controller_epoch == 5
    assert not act.seen


def test_a_new_controller_begins_with_a_full_state(receiver: Receiver) -> None:
    send(receiver, update(9, full=True, controller=1))
    assert send(receiver, update(10, topic("a", 1), controller=2)) is AckStatus.NEEDS_FULL
    assert send(receiver, update(11, full=True, controller=1)) is AckStatus.STALE_CONTROLLER_EPOCH
    assert send(receiver, update(1, topic("a", 1), full=True, controller=2)) is AckStatus.OK


def test_a_message_for_another_incarnation_is_refused(receiver: Receiver) -> None:
    send(receiver, update(1, full=True))
    receiver.registered(BrokerEpoch(2))
    assert send(receiver, update(2, topic("a", 1), full=True)) is AckStatus.STALE_BROKER_EPOCH
    new = BrokerEpoch(2)
    assert send(receiver, update(3, topic("a", 1), broker_epoch=new)) is AckStatus.NEEDS_FULL
    assert send(receiver, update(3, topic("a", 1), full=True, broker_epoch=new)) is AckStatus.OK


def test_before_it_is_registered_a_broker_takes_nothing() -> None:
    assert send(Receiver(ME), update(1, full=True)) is AckStatus.STALE_BROKER_EPOCH


@pytest.mark.parametrize("full", [False, True])
def test_failed_message_has_effect_when_repeated(receiver: Receiver, full: bool) -> None:
    send(receiver, update(1, full=True))
    act, before, message = Acting(receiver), receiver.state, update(2, topic("a", 1), full=full)
    act.fails = True
    for _ in range(2):
        with pytest.raises(RuntimeError, match="can't start new thread"):
            send(receiver, message, act)
        assert receiver.state is before
    act.fails = False
    assert send(receiver, message, act) is AckStatus.OK
    assert set(receiver.state.topics) == {"a"}
    assert [(b.topics.keys(), a.topics.keys()) for b, a in act.seen] == [(set(), {"a"})] * 3


def test_delta_after_failed_message_asks_for_everything(receiver: Receiver) -> None:
    send(receiver, update(1, full=True))
    act = Acting(receiver)
    act.fails = True
    with pytest.raises(RuntimeError):
        send(receiver, update(2, topic("a", 1)), act)
    act.fails = False
    assert send(receiver, update(3, topic("b", 1)), act) is AckStatus.NEEDS_FULL
    assert send(receiver, update(4, topic("a", 1), topic("b", 1), full=True), act) is AckStatus.OK
    assert set(receiver.state.topics) == {"a", "b"}


def test_repetition_is_acted_on_without_a_change(receiver: Receiver) -> None:
    """So that the broker can do what it failed to do."""
    send(receiver, update(1, topic("a", 1), full=True))
    act, state = Acting(receiver), receiver.state
    assert send(receiver, update(1), act) is AckStatus.OK
    assert act.seen == [(state, state)]
    assert act.seen[0][0] is act.seen[0][1] is receiver.state is state


def test_delta_before_any_full_state_is_no_repetition(receiver: Receiver) -> None:
    assert send(receiver, update(0, topic("a", 1))) is AckStatus.NEEDS_FULL
    assert send(receiver, update(-5, topic("a", 1))) is AckStatus.NEEDS_FULL
    assert send(receiver, update(0, topic("a", 1), full=True)) is AckStatus.OK
    assert set(receiver.state.topics) == {"a"}


def test_receiver_knows_the_fenced_brokers_of_the_last_message(receiver: Receiver) -> None:
    send(receiver, update(1, full=True, brokers=(broker(1), broker(2)), fenced=frozenset({BrokerId(2)})))
    assert (receiver.state.fenced, [*receiver.state.unfenced]) == ({2}, [1])
    send(receiver, update(2, brokers=(broker(1), broker(2))))
    assert [*receiver.state.unfenced] == [1, 2]


def test_clients_are_told_of_a_fenced_broker_only_while_it_leads(receiver: Receiver) -> None:
    both = {"brokers": (broker(1), broker(2)), "fenced": frozenset({BrokerId(2)})}
    send(receiver, update(1, topic("a", 2), full=True, **both))
    assert [*receiver.state.reachable] == [1, 2]
    send(receiver, update(2, topic("a", 1), **both))
    assert [*receiver.state.reachable] == [1]


# --- the bytes


def test_messages_survive_their_encoding() -> None:
    message = update(
        3,
        topic("a", 1, -1, configs={"retention.ms": "5"}),
        brokers=(broker(1), replace(broker(2), rack=None)),
        deleted=(TopicName("b"),),
        broker_configs={"<default>": {"x": "y"}},
        fenced=frozenset({BrokerId(2)}),
    )
    assert UpdateState.decode(message.encode()) == message
    ack = Ack(AckStatus.NEEDS_FULL, ME, BrokerEpoch(4), ControllerEpoch(5), 6)
    assert Ack.decode(ack.encode()) == ack


def test_fields_that_a_newer_release_added_are_ignored() -> None:
    message = update(3, topic("a", 1), full=True)
    fields = msgpack.unpackb(message.encode())
    fields["shiny"] = 1
    fields["brokers"][0]["shiny"] = 1
    fields["topics"][0]["shiny"] = 1
    fields["topics"][0]["partitions"][0].append("shiny")
    fields["brokers"][0]["endpoints"][0].append("shiny")
    assert UpdateState.decode(msgpack.packb(fields)) == message


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x00",
        msgpack.packb({"kind": "update", "v": 99}),
        msgpack.packb({"kind": "update", "v": 1}),
        msgpack.packb({"kind": "update"}),
        Ack(AckStatus.OK, ME, BrokerEpoch(1), ControllerEpoch(1), 1).encode(),
    ],
)
def test_what_is_no_such_message_is_refused(payload: bytes) -> None:
    with pytest.raises(InvalidRequest):
        UpdateState.decode(payload)


@given(st.binary(max_size=64))
def test_any_bytes_are_a_message_or_refused(payload: bytes) -> None:
    for kind in (UpdateState, Ack):
        with pytest.raises(InvalidRequest):
            kind.decode(payload)


# --- what a broker does about a change


def cluster(*topics: TopicState) -> ClusterState:
    return ClusterState(topics={topic.name: topic for topic in topics})


def tp(name: str, index: int) -> TopicPartition:
    return TopicPartition(TopicName(name), PartitionIndex(index))


def test_new_partitions_are_led_and_configured() -> None:
    changes = local_changes(ME, cluster(), cluster(topic("a", 1, 2, 1), topic("b", 2)))
    assert [lead.tp for lead in changes.lead] == [tp("a", 0), tp("a", 2)]
    assert [t.name for t in changes.configs] == ["a"]
    assert not changes.deleted
    assert not changes.resigned


def test_no_difference_is_nothing_to_do() -> None:
    state = cluster(topic("a", 1, 2))
    assert not any(local_changes(ME, state, state))


def test_a_first_replica_of_a_known_topic_brings_its_configs() -> None:
    """A topic that grows onto this broker was known before, but nothing here has its settings."""
    grown = topic("a", 2, 1, configs={"x": "y"})
    changes = local_changes(ME, cluster(topic("a", 2, configs={"x": "y"})), cluster(grown))
    assert [lead.tp for lead in changes.lead] == [tp("a", 1)]
    assert changes.configs == (grown,)


def test_a_new_leader_epoch_is_a_new_leadership() -> None:
    changes = local_changes(ME, cluster(topic("a", 1)), cluster(topic("a", 1, epoch=1)))
    assert [(lead.tp, lead.partition.leader_epoch) for lead in changes.lead] == [(tp("a", 0), 1)]
    assert changes.configs == ()


def test_an_offline_partition_is_resigned_not_deleted() -> None:
    before, after = topic("a", 1), topic("a", 1)
    after = after.with_partition(0, replace(after.partitions[0], leader=BrokerId(-1)))
    changes = local_changes(ME, cluster(before), cluster(after))
    assert changes.resigned == (tp("a", 0),)
    assert not changes.deleted
    assert not changes.lead


def test_a_topic_that_is_gone_is_deleted_by_its_id() -> None:
    changes = local_changes(ME, cluster(topic("a", 1, 2)), cluster())
    assert changes.deleted == ((tp("a", 0), UUID(int=1)),)
    assert changes.resigned == ()


def test_a_topic_made_again_is_deleted_and_led_anew() -> None:
    changes = local_changes(ME, cluster(topic("a", 1)), cluster(topic("a", 1, topic_id=2)))
    assert changes.deleted == ((tp("a", 0), UUID(int=1)),)
    assert [lead.topic_id for lead in changes.lead] == [UUID(int=2)]
    assert [t.id for t in changes.configs] == [UUID(int=2)]


# --- replicas


def replicated(leader: int, *replicas: int, epoch: int = 0, version: int = 1) -> TopicState:
    brokers = tuple(map(BrokerId, replicas))
    isr = {b: BrokerEpoch(1) for b in brokers}
    partition = PartitionState(
        brokers, BrokerId(leader), LeaderEpoch(epoch), brokers, ControllerEpoch(1), version, incarnations=isr
    )
    return TopicState(TopicName("r"), TopicId(UUID(int=9)), (partition,), {})


def test_what_another_leads_is_followed() -> None:
    changes = local_changes(ME, cluster(), cluster(replicated(2, 2, 1)))
    assert [follow.tp for follow in changes.follow] == [tp("r", 0)]
    assert changes.lead == ()
    assert [t.name for t in changes.configs] == ["r"]


@pytest.mark.parametrize("after", [replicated(3, 2, 1, 3), replicated(2, 2, 1, 3, epoch=1), replicated(-1, 2, 1, 3)])
def test_a_follower_hears_of_another_leader_of_a_new_epoch_and_of_none(after: TopicState) -> None:
    changes = local_changes(ME, cluster(replicated(2, 2, 1, 3)), cluster(after))
    assert [follow.partition for follow in changes.follow] == list(after.partitions)


def test_a_follower_connects_anew_when_its_leader_has_a_new_life() -> None:
    before, after = (replace(cluster(replicated(2, 2, 1)), brokers={BrokerId(2): broker(2, epoch)}) for epoch in (1, 2))
    assert [follow.tp for follow in local_changes(ME, before, after).follow] == [tp("r", 0)]
    assert not any(local_changes(ME, before, replace(before, brokers={**before.brokers, BrokerId(3): broker(3)})))


def test_a_leader_becomes_a_follower_and_the_other_way_round() -> None:
    mine, others = cluster(replicated(1, 1, 2)), cluster(replicated(2, 1, 2, epoch=1))
    changes = local_changes(ME, mine, others)
    assert (changes.resigned, [f.tp for f in changes.follow]) == ((tp("r", 0),), [tp("r", 0)])
    changes = local_changes(ME, others, cluster(replicated(1, 1, 2, epoch=2)))
    assert ([lead.tp for lead in changes.lead], changes.follow) == ([tp("r", 0)], ())


def test_a_new_life_does_not_lead_in_the_leader_epoch_of_the_last_one() -> None:
    """The controller may tell of a broker's return before it has decided what that leads."""
    first, second = ({ME: broker(1, epoch), BrokerId(2): broker(2)} for epoch in (1, 2))
    undecided = replace(cluster(replicated(1, 1, 2)), brokers=second)
    after_restart = local_changes(ME, ClusterState(), undecided)
    assert (after_restart.lead, after_restart.follow) == ((), ())
    led = replace(cluster(replicated(1, 1, 2)), brokers=first)
    after_lost_session = local_changes(ME, led, undecided)
    assert after_lost_session.resigned == (tp("r", 0),)
    assert not after_lost_session.updated
    topic_after = replicated(1, 1, 2, epoch=1)
    [state] = topic_after.partitions
    again = replace(state, incarnations={**state.incarnations, ME: BrokerEpoch(2)})
    decided = replace(cluster(topic_after.with_partition(0, again)), brokers=second)
    assert [lead.tp for lead in local_changes(ME, undecided, decided).lead] == [tp("r", 0)]


def test_a_newer_state_in_one_leader_epoch_updates_the_leader_alone() -> None:
    before, after = cluster(replicated(1, 1, 2)), cluster(replicated(1, 1, 2, 3, version=2))
    changes = local_changes(ME, before, after)
    assert [updated.partition.version for updated in changes.updated] == [2]
    assert changes.lead == ()
    assert not any(local_changes(BrokerId(2), before, after))


def test_a_replica_that_moved_away_is_deleted() -> None:
    changes = local_changes(ME, cluster(replicated(1, 1, 2)), cluster(replicated(2, 2, 3, epoch=1)))
    assert changes.no_replica == ((tp("r", 0), UUID(int=9)),)
    assert not changes.resigned
    assert not changes.deleted


def test_changed_overrides_are_told() -> None:
    changes = local_changes(ME, cluster(topic("a", 1)), cluster(topic("a", 1, configs={"x": "y"})))
    assert [t.configs for t in changes.configs] == [{"x": "y"}]
    assert changes.lead == ()


# --- what was left undone


def undone(*names: str, topic_id: int = 1) -> dict[TopicPartition, TopicId]:
    return {tp(name, 0): TopicId(UUID(int=topic_id)) for name in names}


def test_undone_partitions_are_decided_without_a_change() -> None:
    """Led, followed and configured as the state says, and nothing of the others."""
    state = cluster(topic("a", 1), topic("b", 1), replicated(2, 2, 1))
    changes = local_changes(ME, state, state, undone("a") | undone("r", topic_id=9))
    assert [lead.tp for lead in changes.lead] == [tp("a", 0)]
    assert [follow.tp for follow in changes.follow] == [tp("r", 0)]
    assert [t.name for t in changes.configs] == ["a", "r"]
    assert not changes.deleted
    assert not changes.updated


def test_undone_update_is_a_leadership_taken_anew() -> None:
    before, after = cluster(replicated(1, 1, 2)), cluster(replicated(1, 1, 2, 3, version=2))
    changes = local_changes(ME, before, after, undone("r", topic_id=9))
    assert [lead.partition.version for lead in changes.lead] == [2]
    assert not changes.updated


def test_undone_deletion_is_still_due_when_the_topic_is_forgotten() -> None:
    gone = (tp("a", 0), TopicId(UUID(int=1)))
    assert local_changes(ME, cluster(), cluster(), undone("a")).deleted == (gone,)
    assert local_changes(ME, cluster(), cluster(topic("a", 2)), undone("a")).no_replica == (gone,)
    again = local_changes(ME, cluster(), cluster(topic("a", 1, topic_id=2)), undone("a"))
    assert again.deleted == (gone,)
    assert [lead.topic_id for lead in again.lead] == [UUID(int=2)]


def test_undone_resignation_is_still_due() -> None:
    """Whoever leads in its former life may not lead, though no state that is compared shows that it did."""
    state = replace(cluster(replicated(1, 1, 2)), brokers={ME: broker(1, 2), BrokerId(2): broker(2)})
    changes = local_changes(ME, state, state, undone("r", topic_id=9))
    assert changes.resigned == (tp("r", 0),)
    assert not changes.lead
