"""The coordinator of groups over a metadata store that is shared or gone: what members hear, and what is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

import pytest

from kit.group_brokers import GROUP, IDS, WAIT_S, Brokers, joined, member_of, wishes
from kit.machine import scaled
from kit.waiting import wait_until
from raylog.broker.groups.classic.claims import Claim, choose_coordinator, decode_group, encode_claim
from raylog.broker.groups.classic.messages import Identity, Join, Leaver, Protocol, Sync
from raylog.broker.groups.coordinator import GroupCoordinator
from raylog.broker.groups.holding.held import read_claim
from raylog.coordination.groups.kinds import GroupKind, mark_deleted, settle_kind
from raylog.coordination.groups.nodes import group_ids
from raylog.coordination.groups.offsets import CommittedOffset, RegistryOffsetStore
from raylog.coordination.metadata import group_paths, paths
from raylog.coordination.metadata.group_model import Registered
from raylog.coordination.store.node_json import CorruptMetadata
from raylog.coordination.store.unreadable import collecting
from raylog.protocol.errors import (
    CoordinatorNotAvailable,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidGroupId,
    NonEmptyGroup,
    NotCoordinator,
    RaylogError,
    UnknownMemberId,
)
from raylog.protocol.ids import (
    NO_GENERATION,
    NO_MEMBER,
    BrokerEpoch,
    BrokerId,
    Generation,
    GroupId,
    InstanceId,
    MemberId,
    Offset,
    PartitionIndex,
    TimestampMs,
    TopicName,
    TopicPartition,
)

NOBODY = Identity(NO_MEMBER, NO_GENERATION)
TP = TopicPartition(TopicName("t"), PartitionIndex(0))
READ = {TP: CommittedOffset(Offset(5))}


def commit(coordinator: GroupCoordinator, who: Identity) -> Mapping[TopicPartition, RaylogError | None]:
    return coordinator.commit_offsets(GROUP, who, READ, IDS).result(scaled(WAIT_S))


def test_an_assignment_is_stored_before_anyone_hears_of_it(brokers: Brokers, one: GroupCoordinator) -> None:
    first = member_of(one)
    second = one.join(GROUP, wishes())
    leader = joined(one.join(GROUP, wishes(first.member_id)))
    follower = joined(second)
    waiting = one.sync(GROUP, Sync(Identity(follower.member_id, follower.generation)))
    stored: list[dict[MemberId, bytes]] = []

    def look(_: object) -> None:
        found = brokers.stores[1].get(group_paths.state(GROUP))
        assert found is not None
        stored.append({member.id: member.assignment for member in decode_group("", found.data).members})

    waiting.add_done_callback(look)
    shares = {leader.member_id: b"1", follower.member_id: b"2"}
    one.sync(GROUP, Sync(Identity(leader.member_id, leader.generation), tuple(shares.items())))
    assert (waiting.result(scaled(WAIT_S)).assignment, stored) == (b"2", [shares])


def test_who_was_replaced_can_write_nothing_and_sends_its_members_on(brokers: Brokers, one: GroupCoordinator) -> None:
    who = member_of(one)
    two = brokers.start(2)
    two.heartbeat(GROUP, who)  # 1 is unknown to 2, which claims the group; its members notice nothing
    one.heartbeat(GROUP, who)  # 1 has its lease, and cannot know yet
    brokers.known[1] = {1, 2}
    with pytest.raises(NotCoordinator):
        commit(one, who)
    with pytest.raises(NotCoordinator, match="by broker 2"):
        one.heartbeat(GROUP, who)
    assert one.find_coordinator(GROUP).id == 2
    assert commit(two, who) == {TP: None}


def test_an_assignment_by_who_was_replaced_reaches_nobody(brokers: Brokers, one: GroupCoordinator) -> None:
    who = member_of(one)
    again = joined(one.join(GROUP, wishes(who.member_id)))
    two = brokers.start(2)
    two.heartbeat(GROUP, who)
    stale = one.sync(GROUP, Sync(Identity(again.member_id, again.generation), ((who.member_id, b"stale"),)))
    assert isinstance(stale.exception(scaled(WAIT_S)), NotCoordinator)
    assert two.sync(GROUP, Sync(who)).result(scaled(WAIT_S)).assignment == b"share"


def test_a_commit_waits_and_its_generation_passes_meanwhile(brokers: Brokers) -> None:
    coordinator = brokers.start(1, started=False)  # nothing is written yet
    who = member_of(coordinator)
    late = coordinator.commit_offsets(GROUP, who, READ, IDS)
    again = joined(coordinator.join(GROUP, wishes(who.member_id)))
    coordinator.start()
    assert isinstance(late.exception(scaled(WAIT_S)), IllegalGeneration)
    assert RegistryOffsetStore(brokers.stores[1]).fetch(GROUP) == {}
    new = Identity(again.member_id, again.generation)
    coordinator.sync(GROUP, Sync(new, ((new.member_id, b"share"),))).result(scaled(WAIT_S))
    assert commit(coordinator, new) == {TP: None}
    with pytest.raises(IllegalGeneration):
        coordinator.commit_offsets(GROUP, who, READ, IDS)


@pytest.mark.parametrize("is_done", [True, False], ids=["done", "not done"])
def test_a_write_in_doubt_sends_the_members_on_and_the_group_goes_on_from_what_is_stored(
    brokers: Brokers, one: GroupCoordinator, is_done: bool
) -> None:
    join = joined(one.join(GROUP, wishes()))
    who = Identity(join.member_id, join.generation)
    store = brokers.stores[1]
    if is_done:
        store.lose_next_answer()
    else:
        store.suspend()
    doubtful = one.sync(GROUP, Sync(who, ((who.member_id, b"share"),)))
    assert isinstance(doubtful.exception(scaled(WAIT_S)), NotCoordinator)
    if is_done:
        one.heartbeat(GROUP, who)
        assert one.sync(GROUP, Sync(who)).result(scaled(WAIT_S)).assignment == b"share"
    else:
        with pytest.raises(CoordinatorNotAvailable):
            one.heartbeat(GROUP, who)
        store.resume()
        with pytest.raises(UnknownMemberId):
            one.heartbeat(GROUP, who)


def test_a_write_that_the_store_refuses_for_good_is_no_reason_to_look_for_another_coordinator(
    brokers: Brokers, one: GroupCoordinator
) -> None:
    who = member_of(one)
    waiting = one.join(GROUP, wishes())
    brokers.stores[1].closed = group_paths.state(GROUP)
    again = one.join(GROUP, wishes(who.member_id))
    generations = {joined(answer).generation for answer in (waiting, again)}
    refused = one.sync(GROUP, Sync(Identity(who.member_id, generations.pop()), ((who.member_id, b"all"),)))
    assert isinstance(refused.exception(scaled(WAIT_S)), CorruptMetadata)
    brokers.stores[1].closed = None
    one.heartbeat(GROUP, who)  # the group goes on from what is stored


def test_find_coordinator_reads_the_claim_alone(brokers: Brokers, one: GroupCoordinator) -> None:
    member_of(one)
    brokers.stores[1].set(group_paths.state(GROUP), b"no JSON")
    assert one.find_coordinator(GROUP).id == 1


def test_a_lapsed_lease_sends_all_on_and_a_regained_one_finds_the_members_where_they_were(
    brokers: Brokers, one: GroupCoordinator
) -> None:
    who = member_of(one, session_timeout_ms=500)
    waiting = one.join(GROUP, wishes())  # for the first one to join again
    brokers.leases[1] = False
    assert isinstance(waiting.exception(scaled(WAIT_S)), NotCoordinator)
    for refused in (lambda: one.heartbeat(GROUP, who), lambda: commit(one, who), lambda: one.join(GROUP, wishes())):
        with pytest.raises(NotCoordinator):
            refused()
    brokers.leases[1] = True
    one.heartbeat(GROUP, who)  # its session began anew, for it could not be heard


def test_a_broker_that_registered_anew_claims_its_groups_anew(brokers: Brokers, one: GroupCoordinator) -> None:
    who = member_of(one)
    brokers.register_anew(1)
    one.heartbeat(GROUP, who)
    assert read_claim(brokers.stores[1], GROUP).claim == (1, 2)


def test_a_broker_whose_registration_was_ended_writes_nothing(brokers: Brokers, one: GroupCoordinator) -> None:
    """As when the controller takes it for dead, before it has heard of that."""
    who = member_of(one)
    brokers.stores[1].delete(paths.broker(BrokerId(1)))
    with pytest.raises(NotCoordinator):
        commit(one, who)
    assert RegistryOffsetStore(brokers.stores[1]).fetch(GROUP) == {}


def test_the_groups_that_are_held_are_counted(brokers: Brokers, one: GroupCoordinator) -> None:
    assert one.held_count == 0
    member_of(one)
    one.describe(GROUP)
    assert one.held_count == 1
    brokers.lose_lease(1)


def test_a_session_ends_in_time_without_any_request(one: GroupCoordinator) -> None:
    member_of(one, session_timeout_ms=100)
    wait_until(lambda: one.describe(GROUP).state == "Empty", WAIT_S, "the member is given up")


def test_who_waits_is_told_when_the_broker_stops(one: GroupCoordinator) -> None:
    member_of(one)
    waiting = one.join(GROUP, wishes())
    one.stop()
    assert isinstance(waiting.exception(scaled(WAIT_S)), NotCoordinator)
    with pytest.raises(NotCoordinator):
        one.join(GROUP, wishes())


def test_what_was_committed_before_a_stop_is_written(one: GroupCoordinator) -> None:
    answer = one.commit_offsets(GROUP, member_of(one), READ, IDS)
    one.stop()
    assert answer.result(0) == {TP: None}


class Unhashable(str):
    """A defect in the midst of the machine."""

    __slots__ = ()

    def __hash__(self) -> int:
        raise ZeroDivisionError


def test_a_defect_leaves_nobody_waiting_and_the_group_goes_on_from_what_is_stored(one: GroupCoordinator) -> None:
    who = member_of(one)
    waiting = one.join(GROUP, wishes())
    with pytest.raises(ZeroDivisionError):
        one.join(GROUP, wishes(protocols=(Protocol(Unhashable("range"), b""),)))
    assert "defect" in str(waiting.exception(0))
    one.heartbeat(GROUP, who)


def test_a_group_of_actors_is_none_of_clients(brokers: Brokers, one: GroupCoordinator) -> None:
    store = brokers.stores[1]
    settle_kind(store, GROUP, GroupKind.ACTORS)
    store.create(group_paths.member(GROUP, MemberId("a")), b"", ephemeral=True)
    with pytest.raises(InconsistentGroupProtocol, match="some are in it"):
        one.join(GROUP, wishes())
    with pytest.raises(UnknownMemberId):
        one.heartbeat(GROUP, NOBODY)
    with pytest.raises(UnknownMemberId):
        commit(one, NOBODY)
    store.delete(group_paths.member(GROUP, MemberId("a")))
    assert commit(one, NOBODY) == {TP: None}
    assert joined(one.join(GROUP, wishes())).generation == 1


def test_a_client_that_stays_keeps_actors_out(brokers: Brokers, one: GroupCoordinator) -> None:
    who = member_of(one)
    with pytest.raises(InconsistentGroupProtocol):
        settle_kind(brokers.stores[1], GROUP, GroupKind.ACTORS)
    one.leave(GROUP, [Leaver(who.member_id)])
    settle_kind(brokers.stores[1], GROUP, GroupKind.ACTORS)
    with pytest.raises(UnknownMemberId):
        one.heartbeat(GROUP, who)


def test_a_group_that_actors_took_is_none_of_clients_for_who_still_holds_it(
    brokers: Brokers, one: GroupCoordinator
) -> None:
    who = member_of(one)
    one.leave(GROUP, [Leaver(who.member_id)])
    settle_kind(brokers.stores[1], GROUP, GroupKind.ACTORS)
    registered = group_paths.encode_member(Registered(frozenset((TP.topic,)), None), TimestampMs(0))
    brokers.stores[1].create(group_paths.member(GROUP, MemberId("a")), registered, ephemeral=True)
    assert [member.member_id for member in one.describe(GROUP).members] == ["a"]
    with pytest.raises(InconsistentGroupProtocol):
        one.join(GROUP, wishes())


@pytest.mark.parametrize(
    "ask",
    [
        lambda one: one.heartbeat(GROUP, NOBODY),
        lambda one: one.sync(GROUP, Sync(NOBODY)),
        lambda one: one.leave(GROUP, [Leaver(MemberId("m"))]),
        lambda one: one.commit_offsets(GROUP, Identity(MemberId("m"), Generation(1)), READ, IDS),
        lambda one: one.fetch_offsets(GROUP, None),
        lambda one: one.describe(GROUP),
        lambda one: one.delete(GROUP),
        lambda one: one.delete_offsets(GROUP, [TP]),
        lambda one: one.find_coordinator(GROUP),
        lambda one: one.list_groups(),
    ],
)
def test_who_asks_about_a_group_that_there_is_not_makes_none(
    brokers: Brokers, one: GroupCoordinator, ask: Callable[[GroupCoordinator], object]
) -> None:
    try:
        ask(one)
    except (UnknownMemberId, GroupIdNotFound):
        pass
    assert brokers.stores[1].children(group_paths.GROUPS) == []
    assert brokers.stores[1].children(group_paths.CONSUMERS) == []


def test_an_empty_name_is_refused(one: GroupCoordinator) -> None:
    nameless = GroupId("")
    for ask in (
        lambda: one.find_coordinator(nameless),
        lambda: one.join(nameless, wishes()),
        lambda: one.commit_offsets(nameless, NOBODY, READ, IDS),
        lambda: one.fetch_offsets(nameless, None),
    ):
        with pytest.raises(InvalidGroupId):
            ask()


def test_another_broker_is_named_to_those_who_come_to_the_wrong_one(brokers: Brokers) -> None:
    coordinators = {number: brokers.start(number) for number in (1, 2, 3)}
    for known in brokers.known.values():
        known |= {1, 2, 3}
    chosen = choose_coordinator(GROUP, brokers.state(1).brokers.values())
    assert chosen is not None
    assert {each.find_coordinator(GROUP).id for each in coordinators.values()} == {chosen.id}
    for number, coordinator in coordinators.items():
        if number == chosen.id:
            member_of(coordinator)
        else:
            with pytest.raises(NotCoordinator, match=f"by broker {chosen.id}"):
                coordinator.join(GROUP, wishes())
    assert [len(coordinator.list_groups()) for coordinator in coordinators.values()].count(1) == 1


def test_a_group_in_use_keeps_its_offsets_and_an_empty_one_can_be_forgotten(
    brokers: Brokers, one: GroupCoordinator
) -> None:
    who = member_of(one)
    unread = TopicPartition(TopicName("u"), PartitionIndex(0))
    assert one.commit_offsets(GROUP, who, READ | {unread: CommittedOffset(Offset(1))}, IDS).result(scaled(WAIT_S))
    with pytest.raises(NonEmptyGroup):
        one.delete(GROUP)
    results = one.delete_offsets(GROUP, [TP, unread])
    assert isinstance(results[TP], GroupSubscribedToTopic)
    assert (results[unread], one.fetch_offsets(GROUP, None)) == (None, READ)
    one.leave(GROUP, [Leaver(who.member_id)])
    one.delete(GROUP)
    with pytest.raises(GroupIdNotFound):
        one.describe(GROUP)
    assert one.fetch_offsets(GROUP, None) == {}
    assert joined(one.join(GROUP, wishes())).generation == 1


def test_group_marked_as_deleted_is_none_and_is_removed(brokers: Brokers, one: GroupCoordinator) -> None:
    """The broker that deleted it died after the mark: nobody sees what it has left."""
    store = brokers.stores[1]
    for ends in (lambda: one.finish_deletions(), lambda: one.delete(GROUP), lambda: commit(one, NOBODY)):
        commit(one, NOBODY)
        mark_deleted(store, GROUP, [])
        brokers.register_anew(1)
        assert one.list_groups() == []
        assert one.fetch_offsets(GROUP, None) == {}
        for ask in (
            lambda: one.describe(GROUP),
            lambda: commit(one, Identity(MemberId("m"), Generation(1))),
            lambda: one.delete_offsets(GROUP, [TP]),
        ):
            with pytest.raises(GroupIdNotFound):
                ask()
        assert store.children(group_paths.offsets(GROUP)) == ["t"]
        with suppress(GroupIdNotFound):
            ends()
    assert one.fetch_offsets(GROUP, None) == READ
    member_of(one)
    with pytest.raises(NonEmptyGroup):
        one.delete(GROUP)


def test_deleted_group_that_cannot_be_read_holds_up_no_other(brokers: Brokers, one: GroupCoordinator) -> None:
    """Else it ends each check of what is not needed any more, on every broker."""
    store, odd = brokers.stores[1], GroupId("a")
    for group in (odd, GROUP):
        settle_kind(store, group, GroupKind.CLIENTS)
        mark_deleted(store, group, [])
    store.create(group_paths.claim(odd), b"no JSON")
    with collecting() as told:
        one.finish_deletions()
    assert list(told.known) == [group_paths.claim(odd)]
    assert group_ids(store) == [odd]


def test_a_group_is_described_alike_whether_or_not_it_is_in_memory(brokers: Brokers, one: GroupCoordinator) -> None:
    member_of(one)
    before = one.describe(GROUP)
    brokers.register_anew(1)
    assert one.describe(GROUP) == before
    assert (before.state, before.protocol, before.members[0].assignment) == ("Stable", "range", b"share")


def test_only_what_nobody_reads_is_forgotten(one: GroupCoordinator) -> None:
    who = member_of(one)
    unread = {TopicPartition(TopicName("u"), PartitionIndex(0)): CommittedOffset(Offset(1))}
    one.commit_offsets(GROUP, who, READ | unread, IDS).result(scaled(WAIT_S))
    assert one.unneeded(GROUP) == unread
    [(other, _)] = unread.items()
    one.forget(GROUP, {other: CommittedOffset(Offset(4))})
    assert one.fetch_offsets(GROUP, None) == READ | unread, "it was committed anew since"
    one.forget(GROUP, READ | unread)
    assert one.fetch_offsets(GROUP, None) == READ


def test_bare_group_is_forgotten_when_it_is_empty(one: GroupCoordinator) -> None:
    who = member_of(one)
    assert not one.forget_bare(GROUP)
    commit(one, who)
    one.leave(GROUP, [Leaver(who.member_id)])
    assert not one.forget_bare(GROUP), "it has an offset"
    one.forget(GROUP, READ)
    assert one.forget_bare(GROUP)
    assert one.list_groups() == []


@pytest.mark.parametrize(("instance", "begin"), [(None, "c-"), (InstanceId("i"), "i-"), (InstanceId(""), "-")])
def test_member_id_begins_with_whose_it_is(one: GroupCoordinator, instance: InstanceId | None, begin: str) -> None:
    assert joined(one.join(GROUP, wishes(instance_id=instance))).member_id[:-36] == begin


@pytest.mark.parametrize(
    "refused", [wishes(session_timeout_ms=0), wishes(protocols=()), wishes(MemberId("m")), wishes(protocol_type="")]
)
def test_refused_join_makes_no_group(brokers: Brokers, one: GroupCoordinator, refused: Join) -> None:
    with pytest.raises(RaylogError):
        one.join(GROUP, refused).result(scaled(WAIT_S))
    for above in (group_paths.GROUPS, group_paths.CONSUMERS):
        assert brokers.stores[1].children(above) == []


def test_group_has_no_protocol_while_it_rebalances(one: GroupCoordinator) -> None:
    member_of(one)
    one.join(GROUP, wishes())
    described = one.describe(GROUP)
    assert (described.state, described.protocol_type, described.protocol) == ("PreparingRebalance", "consumer", "")
    assert [(each.metadata, each.assignment) for each in described.members] == [(b"", b"share"), (b"", b"")]
    assert [each.client_host for each in described.members] == ["/h"] * 2


def test_offset_that_cannot_be_read_is_an_error_of_its_partition(brokers: Brokers, one: GroupCoordinator) -> None:
    other = TopicPartition(TP.topic, PartitionIndex(1))
    for tp, number in ((TP, b"5"), (other, b"five")):
        brokers.stores[1].create(group_paths.offset(GROUP, tp), number, parents=True)
    for asked in (None, [TP, other]):
        found = dict(one.fetch_offsets(GROUP, asked))
        assert isinstance(found.pop(other), CorruptMetadata)
        assert found == READ
    assert one.unneeded(GROUP) == READ


def test_offsets_of_an_old_tool_are_a_group_too(brokers: Brokers, one: GroupCoordinator) -> None:
    brokers.stores[1].create(group_paths.offset(GROUP, TP), b"5", parents=True)
    assert [(each.group, each.state) for each in one.list_groups()] == [(GROUP, "Empty")]
    assert one.fetch_offsets(GROUP, None) == READ
    one.delete(GROUP)
    assert one.list_groups() == []


def test_a_group_that_cannot_be_read_is_listed_with_the_others(brokers: Brokers, one: GroupCoordinator) -> None:
    member_of(one)
    settle_kind(brokers.stores[1], GroupId("odd"), GroupKind.CLIENTS)
    brokers.stores[1].create(group_paths.state(GroupId("odd")), b"no JSON")
    brokers.stores[1].create(group_paths.offset(GroupId("old"), TP), b"5", parents=True)
    assert {each.group: each.state for each in one.list_groups()} == {GROUP: "Stable", "odd": "Unknown", "old": "Empty"}
    with pytest.raises(CorruptMetadata, match="/raylog/groups/odd/state"):
        one.describe(GroupId("odd"))


def claimed_at_epoch_of_nobody(brokers: Brokers) -> None:
    """As a restored ZooKeeper has it: the broker that the claim names lives, and its epoch is lower."""
    settle_kind(brokers.stores[1], GROUP, GroupKind.CLIENTS)
    brokers.stores[1].create(group_paths.state(GROUP))
    brokers.stores[1].create(group_paths.claim(GROUP), encode_claim(Claim(BrokerId(1), BrokerEpoch(99))))


@pytest.mark.parametrize(
    "ask",
    [
        member_of,
        lambda one: one.fetch_offsets(GROUP, None),
        lambda one: one.describe(GROUP),
        lambda one: one.keeper.keep(),
    ],
)
def test_claim_at_an_epoch_of_nobody_is_replaced(brokers: Brokers, ask: Callable[[GroupCoordinator], object]) -> None:
    one = brokers.start(1)
    claimed_at_epoch_of_nobody(brokers)
    ask(one)
    assert read_claim(brokers.stores[1], GROUP).claim == (1, 1)
    assert one.find_coordinator(GROUP).id == 1


def test_claim_of_a_later_life_is_not_replaced(brokers: Brokers) -> None:
    """The broker has registered anew, and this process does not know it."""
    one = brokers.start(1)
    claimed_at_epoch_of_nobody(brokers)
    brokers.stores[1].set(paths.broker_epoch(BrokerId(1)), b"")
    for ask in (lambda: one.fetch_offsets(GROUP, None), lambda: one.join(GROUP, wishes())):
        with pytest.raises(NotCoordinator):
            ask()
    assert read_claim(brokers.stores[1], GROUP).claim == (1, 99)
