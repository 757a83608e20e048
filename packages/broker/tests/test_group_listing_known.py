"""ListGroups tells from memory of the groups that a broker has claimed, and never what was so once."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from kit.group_brokers import GROUP, WAIT_S, Brokers, joined, member_of, wishes
from kit.machine import scaled
from raylog.broker.groups.classic.claims import Claim, choose_coordinator, encode_claim
from raylog.broker.groups.classic.described import ListedGroup
from raylog.broker.groups.classic.messages import Identity, Leaver
from raylog.broker.groups.coordinator import GroupCoordinator
from raylog.broker.groups.holding import keeper
from raylog.broker.groups.holding.held import read_claim
from raylog.broker.groups.listing import list_stored
from raylog.coordination.groups import nodes as group_nodes
from raylog.coordination.groups.kinds import GroupKind, mark_deleted, settle_kind
from raylog.coordination.metadata import group_paths
from raylog.coordination.metadata.group_model import Registered
from raylog.coordination.metadata.model import BrokerInfo
from raylog.coordination.store.memory import MemoryStore
from raylog.protocol.errors import CoordinatorNotAvailable, NotCoordinator
from raylog.protocol.ids import NO_GENERATION, NO_MEMBER, BrokerEpoch, BrokerId, GroupId, MemberId, TimestampMs

IDS = (1, 2, 3)
MOST_ASKED = 3
"""What has changed that no coordinator did; names in two places."""

NOBODY = Identity(NO_MEMBER, NO_GENERATION)
LONG_MS = 1_000_000
"""A session that outlasts the test's looks."""


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    """Three that know each other."""
    brokers = Brokers()
    for broker in IDS:
        brokers.start(broker)
    brokers.all_know(*IDS)
    yield brokers
    brokers.stop()


def coordinator_for(brokers: Brokers, group: GroupId) -> GroupCoordinator:
    return brokers.coordinators[brokers.coordinators[1].find_coordinator(group).id]


def make(brokers: Brokers, group: GroupId, *, empty: bool) -> int:
    """A group of clients at the broker that it falls to, which is the answer."""
    who = member_of(coordinator_for(brokers, group), group, session_timeout_ms=LONG_MS)
    if empty:
        coordinator_for(brokers, group).leave(group, [Leaver(who.member_id)])
    return read_claim(brokers.stores[1], group).claim.broker


def settle(brokers: Brokers) -> None:
    """Empty groups are put out of memory, and what is left of changes is seen to."""
    for _ in range(5):
        brokers.keep(*brokers.coordinators, after_ms=keeper.LOOK_MS)


def listed(brokers: Brokers) -> list[ListedGroup]:
    return sorted(each for coordinator in brokers.coordinators.values() for each in coordinator.list_groups())


def stored(brokers: Brokers) -> list[ListedGroup]:
    """The same by the store alone."""
    found: list[ListedGroup] = []
    for broker in brokers.coordinators:
        store = brokers.stores[broker]
        found += list_stored(store, group_nodes.group_ids(store), BrokerId(broker), brokers.state(broker))
    return sorted(found)


def take_by_actors(store: MemoryStore, group: GroupId) -> None:
    settle_kind(store, group, GroupKind.ACTORS)
    value = group_paths.encode_member(Registered(frozenset(), None), TimestampMs(1))
    store.create(group_paths.member(group, MemberId("actor")), value, ephemeral=True)


@pytest.mark.parametrize("groups", [8, 1_000])
def test_list_asks_as_much_however_many_groups(brokers: Brokers, groups: int) -> None:
    """One in four has members; the others have none, and are out of memory."""
    for number in range(groups):
        make(brokers, GroupId(f"g{number}"), empty=number % 4 > 0)
    settle(brokers)
    assert sum(coordinator.held_count for coordinator in brokers.coordinators.values()) == groups // 4
    assert listed(brokers) == stored(brokers)
    for broker, coordinator in brokers.coordinators.items():
        store = brokers.stores[broker]
        before = store.asked, store.trips
        assert coordinator.list_groups()
        assert store.asked - before[0] <= MOST_ASKED
        assert store.trips - before[1] <= MOST_ASKED


def test_empty_group_that_actors_take_is_listed_as_theirs(brokers: Brokers) -> None:
    make(brokers, GROUP, empty=True)
    make(brokers, GroupId("other"), empty=True)
    settle(brokers)
    assert listed(brokers) == stored(brokers)
    with MemoryStore(brokers.tree) as store:
        take_by_actors(store, GROUP)
        assert [each.state for each in listed(brokers)] == ["PreparingRebalance", "Empty"]


def test_group_that_another_broker_has_claimed_is_not_listed(brokers: Brokers) -> None:
    """Where the controller does not reach a broker, that may not know it; and it may be reached again."""
    names = [GroupId(f"g{number}") for number in range(30)]
    mine = [name for number, name in enumerate(names) if make(brokers, name, empty=number % 2 > 0) == 1]
    settle(brokers)
    brokers.fenced |= {2: {1}, 3: {1}}
    brokers.keep(2, 3)
    assert {read_claim(brokers.stores[1], name).claim.broker for name in mine} <= {2, 3}
    assert [each.group for each in listed(brokers)] == sorted(names)
    brokers.fenced = {}
    assert [each.group for each in listed(brokers)] == sorted(names)
    gone = next(name for name in mine if names.index(name) % 2 > 0)
    coordinator_for(brokers, gone).delete(gone)
    assert [each.group for each in listed(brokers)] == sorted({*names} - {gone})


def test_broker_that_registered_anew_lists_its_groups(brokers: Brokers) -> None:
    names = [GroupId(f"g{number}") for number in range(30)]
    for number, name in enumerate(names):
        make(brokers, name, empty=number % 2 > 0)
    settle(brokers)
    brokers.register_anew(1)
    assert [each.group for each in listed(brokers)] == sorted(names)


def test_claim_of_later_life_is_listed_though_group_falls_to_another(brokers: Brokers) -> None:
    """A restored metadata store has such: the broker that the claim names coordinates the group."""
    later = encode_claim(Claim(BrokerId(1), BrokerEpoch(9)))
    names = [GroupId(f"g{number}") for number in range(10)]
    for name in names:
        settle_kind(brokers.stores[1], name, GroupKind.CLIENTS)
        brokers.stores[1].create(group_paths.state(name))
        brokers.stores[1].create(group_paths.claim(name), later)
    assert [each.group for each in listed(brokers)] == sorted(names)
    brokers.keep(*IDS)
    assert [each.group for each in listed(brokers)] == sorted(names)
    assert {read_claim(brokers.stores[1], name).claim for name in names} == {(1, 1)}


def here_until_two_comes(brokers: Brokers) -> GroupId:
    """A group that only broker 1 can coordinate at the moment, and that falls to 2 where that is known."""
    infos = [BrokerInfo(BrokerId(broker), BrokerEpoch(1), ()) for broker in (1, 2)]
    names = (GroupId(f"g{number}") for number in range(100))
    group = next(name for name in names if (found := choose_coordinator(name, infos)) and found.id == 2)
    brokers.kill(3)
    brokers.all_know(1)
    brokers.keep(1)
    return group


def test_group_whose_claim_was_not_answered_is_listed_and_moves(brokers: Brokers) -> None:
    """The claim is stored; other brokers are able before the group is asked for again."""
    group, store = here_until_two_comes(brokers), brokers.stores[1]
    settle_kind(store, group, GroupKind.CLIENTS)
    store.create(group_paths.state(group))

    def lose_the_next() -> None:
        store.before_answer = None
        store.lose_next_answer()

    store.before_answer = lose_the_next  # the nodes are read, the claim comes next
    with pytest.raises(CoordinatorNotAvailable):
        brokers.coordinators[1].heartbeat(group, NOBODY)
    assert read_claim(brokers.stores[2], group).claim == (1, 1)
    brokers.all_know(1, 2)
    assert [each.group for each in listed(brokers)] == [group]
    brokers.keep(1, after_ms=keeper.LOOK_MS)
    brokers.keep(1, after_ms=keeper.SETTLE_MS)
    brokers.keep(2, after_ms=keeper.LOOK_MS)
    assert read_claim(brokers.stores[2], group).claim == (2, 1)


def test_group_that_actors_took_before_it_moved_is_listed(brokers: Brokers) -> None:
    """It cannot be released then: the claim stays this broker's."""
    group = here_until_two_comes(brokers)
    one = brokers.coordinators[1]
    who = member_of(one, group, session_timeout_ms=LONG_MS)
    brokers.all_know(1, 2)
    brokers.keep(1)
    one.leave(group, [Leaver(who.member_id)])
    with MemoryStore(brokers.tree) as actors:
        take_by_actors(actors, group)
        brokers.keep(1, after_ms=keeper.SETTLE_MS)
        assert [each.group for each in listed(brokers)] == [group]


def test_actors_group_with_claim_of_later_life_stays_listed(brokers: Brokers) -> None:
    """There is nothing to claim of it, with any look."""
    later = encode_claim(Claim(BrokerId(1), BrokerEpoch(9)))
    names = [GroupId(f"g{number}") for number in range(10)]
    for name in names:
        settle_kind(brokers.stores[1], name, GroupKind.ACTORS)
        brokers.stores[1].create(group_paths.claim(name), later)
    for _ in range(3):
        brokers.keep(*IDS, after_ms=keeper.LOOK_MS)
        assert [each.group for each in listed(brokers)] == sorted(names)


def test_claim_that_its_broker_does_not_know_is_found_in_time(brokers: Brokers) -> None:
    """Another program wrote it, or wrote it back."""
    group = here_until_two_comes(brokers)
    brokers.all_know(1, 2)
    brokers.keep(1, 2)
    settle_kind(brokers.stores[1], group, GroupKind.CLIENTS)
    brokers.stores[1].create(group_paths.state(group))
    brokers.stores[1].create(group_paths.claim(group), encode_claim(Claim(BrokerId(1), BrokerEpoch(1))))
    brokers.keep(1, after_ms=keeper.LOOK_MS)
    assert listed(brokers) == []
    brokers.keep(1, after_ms=keeper.ALL_CLAIMS_MS)
    assert [each.group for each in listed(brokers)] == [group]


def test_group_whose_deletion_was_not_answered_is_not_listed(brokers: Brokers) -> None:
    """Its coordinator remembers it."""
    make(brokers, GROUP, empty=True)
    settle(brokers)
    with MemoryStore(brokers.tree) as store:
        mark_deleted(store, GROUP, [])
    assert listed(brokers) == []


def test_forgotten_group_that_is_made_elsewhere_is_listed_once(brokers: Brokers) -> None:
    """Whether it was forgotten was not answered, so its former coordinator remembers it."""
    here = make(brokers, GROUP, empty=True)
    settle(brokers)
    with MemoryStore(brokers.tree) as store:
        assert group_nodes.delete_if_bare(store, GROUP, [])
    others = {*IDS} - {here}
    brokers.fenced |= {broker: {here} for broker in others}
    new = brokers.coordinators[others.pop()].find_coordinator(GROUP).id
    member_of(brokers.coordinators[new], GROUP, session_timeout_ms=LONG_MS)
    assert [each.group for each in listed(brokers)] == [GROUP]


@pytest.mark.parametrize("seed", range(12))
def test_list_agrees_with_store_whatever_happens(brokers: Brokers, seed: int) -> None:
    """Groups are made, left, deleted, taken by actors; brokers are cut off from the controller, killed, started."""
    chance = random.Random(seed)
    names = [GroupId(f"g{number}") for number in range(8)]
    with MemoryStore(brokers.tree) as actors:
        for _ in range(80):
            group, states = chance.choice(names), {each.group: each.state for each in stored(brokers)}
            match chance.randrange(9):
                case 0 | 1:
                    if states.get(group, "Empty") == "Empty":
                        make(brokers, group, empty=False)
                case 2 | 3:
                    one = coordinator_for(brokers, group)
                    if group in states:
                        one.leave(group, [Leaver(each.member_id) for each in one.describe(group).members])
                case 4:
                    if states.get(group) == "Empty":
                        coordinator_for(brokers, group).delete(group)
                case 5:
                    if states.get(group, "Empty") == "Empty":
                        take_by_actors(actors, group)
                case 6:
                    cut = chance.choice([None, *brokers.coordinators])
                    brokers.fenced = {} if cut is None else {b: {cut} for b in IDS}
                case 7:
                    brokers.keep(*brokers.coordinators, after_ms=chance.choice([0, keeper.SETTLE_MS, keeper.LOOK_MS]))
                case _:
                    brokers.register_anew(chance.choice([*brokers.coordinators]))
            assert listed(brokers) == stored(brokers)


def test_join_that_is_waited_for_changes_nothing_elsewhere(brokers: Brokers) -> None:
    """A broker that lost a group to another one while it held members lists it no more, and they are told."""
    make(brokers, GROUP, empty=False)
    old = coordinator_for(brokers, GROUP)
    waiting = old.join(GROUP, wishes())
    here = read_claim(brokers.stores[1], GROUP).claim.broker
    others = {broker for broker in IDS if broker != here}
    brokers.fenced |= {broker: {here} for broker in others}
    brokers.keep(*others)
    assert [each.group for each in listed(brokers)] == [GROUP]
    brokers.keep(here, after_ms=keeper.LOOK_MS)
    assert isinstance(waiting.exception(scaled(WAIT_S)), NotCoordinator)
    assert [each.group for each in listed(brokers)] == [GROUP]
    assert joined(coordinator_for(brokers, GroupId("new")).join(GroupId("new"), wishes()))
