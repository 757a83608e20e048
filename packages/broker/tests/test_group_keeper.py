"""Every stored group is coordinated though nobody asks for it, and each broker has its share, at a bounded cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from time import thread_time

import pytest

from kit.group_brokers import GROUP, IDS, WAIT_S, Brokers, joined, member_of, wishes
from kit.machine import scaled
from kit.stores import close_node
from raylog.broker.groups.classic.claims import choose_coordinator
from raylog.broker.groups.classic.messages import Identity, Leaver, Sync
from raylog.broker.groups.coordinator import GroupCoordinator
from raylog.broker.groups.holding import keeper
from raylog.broker.groups.holding.held import read_claim
from raylog.broker.groups.holding.table import GroupBusy
from raylog.coordination.groups.kinds import GroupKind, settle_kind
from raylog.coordination.groups.offsets import CommittedOffset, RegistryOffsetStore
from raylog.coordination.metadata import group_paths
from raylog.coordination.metadata.model import BrokerInfo
from raylog.coordination.store.memory import MemoryStore
from raylog.coordination.store.unreadable import collecting
from raylog.protocol.errors import CoordinatorNotAvailable, NotCoordinator
from raylog.protocol.ids import BrokerEpoch, BrokerId, GroupId, Offset, PartitionIndex, TopicName, TopicPartition

READ = {TopicPartition(TopicName("t"), PartitionIndex(0)): CommittedOffset(Offset(5))}


def group_of(chosen: int, *alive: int) -> GroupId:
    """A group that falls to ``chosen`` when these live."""
    infos = [BrokerInfo(BrokerId(broker), BrokerEpoch(1), ()) for broker in alive]
    names = (GroupId(f"group-{number}") for number in range(1_000))
    return next(name for name in names if (found := choose_coordinator(name, infos)) and found.id == chosen)


def start_all(brokers: Brokers, *alive: int) -> None:
    for broker in alive:
        brokers.start(broker)
    brokers.all_know(*alive)


def make(brokers: Brokers, groups: int, *alive: int) -> list[GroupId]:
    """Empty groups of clients, each at the broker that it falls to."""
    names = [GroupId(f"many-{number}") for number in range(groups)]
    for name in names:
        coordinator = brokers.coordinators[brokers.coordinators[alive[0]].find_coordinator(name).id]
        who = joined(coordinator.join(name, wishes())).member_id
        coordinator.leave(name, [Leaver(who)])
    return names


def claims(brokers: Brokers, names: list[GroupId], asked: int) -> Counter[int]:
    """How many groups each incarnation has claimed, as broker → number; -1: nobody."""
    return Counter(read_claim(brokers.stores[asked], name).claim.broker for name in names)


def test_group_whose_coordinator_is_gone_becomes_empty_unasked(brokers: Brokers) -> None:
    start_all(brokers, 1, 2)
    group = group_of(1, 1, 2)
    member_of(brokers.coordinators[1], group, session_timeout_ms=100)
    brokers.kill(1)
    brokers.all_know(2)
    brokers.keep(2)
    brokers.await_members_gone(2, group)
    assert read_claim(brokers.stores[2], group).claim == (2, 1)


def test_groups_of_fenced_broker_move_and_it_lets_go(brokers: Brokers) -> None:
    """It is registered and has its lease, but the controller does not reach it; members go on where they were."""
    start_all(brokers, 1, 2, 3)
    group = group_of(1, 1, 2, 3)
    old = brokers.coordinators[1]
    who = member_of(old, group)
    brokers.fenced |= {2: {1}, 3: {1}}
    brokers.keep(2, 3)
    new = read_claim(brokers.stores[2], group).claim.broker
    assert new in (2, 3)
    brokers.coordinators[new].heartbeat(group, who)
    waiting = old.join(group, wishes(who.member_id))
    again = joined(waiting)
    stale = old.sync(group, Sync(Identity(again.member_id, again.generation), ((who.member_id, b"stale"),)))
    assert isinstance(stale.exception(scaled(WAIT_S)), NotCoordinator), "it can assign nothing"
    assert brokers.coordinators[new].sync(group, Sync(who)).result(scaled(WAIT_S)).assignment == b"share"
    with pytest.raises(NotCoordinator, match=f"by broker {new}"):
        old.heartbeat(group, who)


def test_fenced_broker_that_writes_nothing_lets_go_with_its_look(brokers: Brokers) -> None:
    start_all(brokers, 1, 2, 3)
    group = group_of(1, 1, 2, 3)
    old = brokers.coordinators[1]
    who = member_of(old, group)
    waiting = old.join(group, wishes())  # for the first one to join again
    brokers.fenced |= {2: {1}, 3: {1}}
    brokers.keep(2, 3)
    brokers.keep(1, after_ms=keeper.LOOK_MS)
    assert isinstance(waiting.exception(scaled(WAIT_S)), NotCoordinator)
    with pytest.raises(NotCoordinator):
        old.heartbeat(group, who)
    new = old.find_coordinator(group).id
    brokers.coordinators[new].heartbeat(group, who)


def test_group_becomes_empty_unasked_after_restart_of_all(brokers: Brokers) -> None:
    brokers.start(1)
    member_of(brokers.coordinators[1], session_timeout_ms=100)
    brokers.kill(1)
    brokers.start(1)
    brokers.keep(1)
    brokers.await_members_gone(1)


def test_group_let_go_of_without_lease_is_held_again(brokers: Brokers) -> None:
    """Its claim is of this very incarnation, but nobody lets its time pass."""
    one = brokers.start(1)
    member_of(one, session_timeout_ms=200)
    brokers.keep(1)
    brokers.lose_lease(1)
    brokers.keep(1, after_ms=keeper.LOOK_MS)
    assert one.held_count == 0, "it may not act"
    brokers.leases[1] = True
    brokers.keep(1)
    brokers.await_members_gone(1)


def test_group_let_go_of_is_held_again_with_next_pass(brokers: Brokers) -> None:
    """Else what its dead members had would stay unread until the next look."""
    one = brokers.start(1)
    member_of(one, session_timeout_ms=100)
    brokers.keep(1)
    brokers.lose_lease(1)
    brokers.leases[1] = True
    brokers.keep(1)
    assert one.held_count == 1
    brokers.await_members_gone(1)


def let_go_of_with_a_member(brokers: Brokers) -> tuple[GroupCoordinator, GroupId]:
    """A group that was idle at the last look, has had a member since, and was let go of under the same claim."""
    one = brokers.start(1)
    make(brokers, 1, 1)
    group = GroupId("many-0")
    brokers.keep(1, after_ms=keeper.LOOK_MS)
    brokers.keep(1, after_ms=keeper.LOOK_MS)
    member_of(one, group, session_timeout_ms=100)
    brokers.lose_lease(1)
    brokers.leases[1] = True
    return one, group


def test_group_that_was_idle_and_had_members_since_is_held_again(brokers: Brokers) -> None:
    """The member comes and the lease goes between two looks, under the same claim; then the member is gone."""
    _, group = let_go_of_with_a_member(brokers)
    brokers.keep(1, after_ms=keeper.LOOK_MS)
    brokers.await_members_gone(1, group)


def test_group_that_could_not_be_held_again_is_not_forgotten(brokers: Brokers) -> None:
    """As before; and the store does not answer when it is to be held again, and until the next look."""
    one, group = let_go_of_with_a_member(brokers)
    brokers.stores[1].lose_next_answer()
    brokers.keep(1)
    assert one.held_count == 0
    brokers.keep(1, after_ms=keeper.LOOK_MS)
    brokers.await_members_gone(1, group)


def test_busy_groups_that_were_let_go_of_hold_up_no_other(brokers: Brokers) -> None:
    one, busy = brokers.start(1), [GroupId(f"busy-{number}") for number in range(keeper.CLAIMS_AT_ONCE)]
    for group in (*busy, GROUP):
        member_of(one, group, session_timeout_ms=1_000_000)
    brokers.keep(1)
    brokers.lose_lease(1)
    brokers.leases[1] = True
    asked = Counter[GroupId]()

    def adopt(group: GroupId) -> bool:
        asked[group] += 1
        if group in busy:
            raise GroupBusy("its write hangs")
        return adopts(group)

    adopts, one.keeper._groups.adopt = one.keeper._groups.adopt, adopt  # type: ignore[method-assign]
    brokers.keep(1)
    brokers.keep(1)
    assert one.keeper._groups.held_groups() == (GROUP,)
    assert asked == Counter([*busy, GROUP])


def test_group_moves_to_broker_that_comes_and_members_go_on(brokers: Brokers) -> None:
    start_all(brokers, 1)
    one = brokers.coordinators[1]
    group = group_of(2, 1, 2)
    who = member_of(one, group)
    two = brokers.start(2)
    brokers.all_know(1, 2)
    brokers.keep(1, 2)
    one.heartbeat(group, who)
    brokers.keep(1, 2, after_ms=keeper.SETTLE_MS // 2)
    one.heartbeat(group, who)
    brokers.keep(1, 2, after_ms=keeper.SETTLE_MS)
    with pytest.raises(NotCoordinator, match="by broker 2"):
        one.heartbeat(group, who)
    assert one.find_coordinator(group).id == 2
    two.heartbeat(group, who)
    assert two.sync(group, Sync(who)).result(scaled(WAIT_S)).assignment == b"share"


def test_moved_group_is_claimed_though_nobody_asks(brokers: Brokers) -> None:
    start_all(brokers, 1)
    group = group_of(2, 1, 2)
    member_of(brokers.coordinators[1], group)
    two = brokers.start(2)
    brokers.all_know(1, 2)
    brokers.keep(1, 2)
    brokers.keep(1, after_ms=keeper.SETTLE_MS)
    brokers.keep(2, after_ms=keeper.LOOK_MS)
    assert two.held_count == 1


def test_group_that_rebalances_stays_until_that_is_over(brokers: Brokers) -> None:
    start_all(brokers, 1)
    one = brokers.coordinators[1]
    group = group_of(2, 1, 2)
    first = member_of(one, group)
    second = one.join(group, wishes())
    brokers.start(2)
    brokers.all_know(1, 2)
    brokers.keep(1)
    brokers.keep(1, after_ms=keeper.SETTLE_MS)
    leader = joined(one.join(group, wishes(first.member_id)))
    follower = joined(second)
    brokers.keep(1, after_ms=keeper.LOOK_MS)
    shares = ((leader.member_id, b"1"), (follower.member_id, b"2"))
    one.sync(group, Sync(Identity(leader.member_id, leader.generation), shares)).result(scaled(WAIT_S))
    brokers.keep(1, after_ms=keeper.LOOK_MS)
    follows = Identity(follower.member_id, follower.generation)
    assert brokers.coordinators[2].sync(group, Sync(follows)).result(scaled(WAIT_S)).assignment == b"2"


def test_commit_that_waits_while_its_group_moves_is_refused(brokers: Brokers) -> None:
    one = brokers.start(1, started=False)  # nothing is written yet
    group = group_of(2, 1, 2)
    late = one.commit_offsets(group, member_of(one, group), READ, IDS)
    brokers.start(2)
    brokers.all_know(1, 2)
    brokers.keep(1)
    brokers.keep(1, after_ms=keeper.SETTLE_MS)
    one.start()
    assert isinstance(late.exception(scaled(WAIT_S)), NotCoordinator)
    assert RegistryOffsetStore(brokers.stores[1]).fetch(group) == {}


def test_groups_spread_again_after_rolling_restart_and_onto_new_broker(brokers: Brokers) -> None:
    start_all(brokers, 1, 2, 3)
    names = make(brokers, 150, 1, 2, 3)

    def settle(*alive: int) -> None:
        brokers.all_know(*alive)
        brokers.keep(*alive)
        brokers.keep(*alive, after_ms=keeper.SETTLE_MS)
        for _ in range(10):
            brokers.keep(*alive, after_ms=keeper.LOOK_MS)

    settle(1, 2, 3)
    before = claims(brokers, names, 1)
    for broker in (1, 2, 3):
        brokers.kill(broker)
        rest = {1, 2, 3} - {broker}
        brokers.all_know(*rest)
        brokers.keep(*rest)
        brokers.keep(*rest)
        brokers.start(broker)
        brokers.all_know(1, 2, 3)
        brokers.keep(1, 2, 3)
    assert claims(brokers, names, 1)[3] < before[3] / 2
    settle(1, 2, 3)
    assert claims(brokers, names, 1) == before
    brokers.start(4)
    settle(1, 2, 3, 4)
    after = claims(brokers, names, 1)
    assert min(after.values()) > 150 / 4 / 2
    assert set(after) == {1, 2, 3, 4}


def test_groups_move_a_few_at_a_time(brokers: Brokers) -> None:
    start_all(brokers, 1)
    names = make(brokers, 4 * keeper.MOVES_AT_ONCE, 1)
    brokers.start(2)
    brokers.all_know(1, 2)
    brokers.keep(1)
    brokers.keep(1, after_ms=keeper.SETTLE_MS)
    assert claims(brokers, names, 1)[-1] == keeper.MOVES_AT_ONCE


def test_odd_groups_hold_up_no_other_and_are_told_once(brokers: Brokers, caplog: pytest.LogCaptureFixture) -> None:
    one = brokers.start(1)
    member_of(one, session_timeout_ms=1_000_000)  # longer than the looks
    store = brokers.stores[1]
    settle_kind(store, GroupId("actors"), GroupKind.ACTORS)
    settle_kind(store, GroupId("told once"), GroupKind.CLIENTS)
    store.create(group_paths.claim(GroupId("told once")), b"no JSON")
    store.create(f"{group_paths.GROUPS}/%told-once")
    brokers.kill(1)
    one = brokers.start(1)
    for _ in range(3):
        brokers.keep(1, after_ms=keeper.LOOK_MS)
    assert one.held_count == 1
    told = [record.getMessage() for record in caplog.records if "cannot be understood" in record.getMessage()]
    assert len(told) == 2


def evil_ephemeral(store: MemoryStore, group: GroupId) -> None:
    store.create(group_paths.group(group), group_paths.encode_kind(GroupKind.CLIENTS), ephemeral=True, parents=True)


def evil_closed_claim(store: MemoryStore, group: GroupId) -> None:
    settle_kind(store, group, GroupKind.CLIENTS)
    store.create(group_paths.claim(group))
    close_node(store, group_paths.claim(group))


def evil_closed_kind(store: MemoryStore, group: GroupId) -> None:
    settle_kind(store, group, GroupKind.CLIENTS)
    close_node(store, group_paths.group(group))


@pytest.mark.parametrize("plant", [evil_ephemeral, evil_closed_claim, evil_closed_kind])
def test_groups_that_the_store_refuses_hold_up_no_other(
    brokers: Brokers, plant: Callable[[MemoryStore, GroupId], None]
) -> None:
    """All of them come before it."""
    evil = [GroupId(f"!evil-{number}") for number in range(9)]
    member_of(brokers.start(1))
    brokers.kill(1)
    with MemoryStore(brokers.tree) as other, collecting() as told:
        for group in evil:
            plant(other, group)
        one = brokers.start(1)
        brokers.keep(1)
        assert one.held_count == 1
        before = brokers.stores[1].asked
        brokers.keep(1, after_ms=keeper.LOOK_MS // 2)
        assert brokers.stores[1].asked == before, "they are looked at with the next look only"
        assert {path.split("/")[3] for path in told.known} == {group_paths.node_name(group) for group in evil}
        listed = {each.group: each.state for each in one.list_groups()}
        assert listed[GROUP] == "Stable"
        brokers.tree.unreadable.clear()
    brokers.keep(1, after_ms=keeper.LOOK_MS)
    claimed = {read_claim(brokers.stores[1], group).claim.broker for group in evil}
    assert claimed == ({-1} if plant is evil_ephemeral else {1}), "what is mended is claimed with the next look"


def test_group_whose_answer_is_lost_comes_after_all_others(brokers: Brokers) -> None:
    first, second = (GroupId(name) for name in ("a", "b"))
    one = brokers.start(1)
    for group in (first, second):
        member_of(one, group)
    brokers.kill(1)
    one = brokers.start(1)

    def lost(group: GroupId) -> bool:
        if group == first:
            raise CoordinatorNotAvailable("the store does not answer for it")
        return adopt(group)

    adopt, one.keeper._groups.adopt = one.keeper._groups.adopt, lost  # type: ignore[method-assign]
    brokers.keep(1)
    assert one.keeper._groups.held_groups() == ()
    brokers.keep(1)
    assert one.keeper._groups.held_groups() == (second,)


@pytest.mark.parametrize("groups", [1_000, 3_000])
def test_look_costs_names_and_claims_of_own_groups(brokers: Brokers, groups: int) -> None:
    """Seen: 336 and 1,017 reads in two round trips, 23 and 73 kB, 6 and 18 ms of CPU."""
    start_all(brokers, 1, 2, 3)
    store = brokers.stores[1]
    for number in range(groups):
        group = GroupId(f"many-{number}")
        settle_kind(store, group, GroupKind.CLIENTS)
        store.create(group_paths.state(group))
    for _ in range(2):  # it claims them, and sees its claims
        brokers.keep(1, after_ms=keeper.LOOK_MS)
        for _ in range(groups // keeper.CLAIMS_AT_ONCE):
            brokers.keep(1)
    assert {claim.broker for claim in (read_claim(store, GroupId(f"many-{n}")).claim for n in range(groups))} == {1, -1}
    trips, asked, total, cpu_s = store.trips, store.asked, store.bytes, thread_time()
    brokers.keep(1, after_ms=keeper.LOOK_MS)
    cost = store.trips - trips, store.asked - asked, store.bytes - total
    cpu_s = thread_time() - cpu_s
    assert cost[0] == 2
    assert cost[1] <= groups / 3 * 1.2 + 1
    assert cost[2] <= 30 * groups
    assert cpu_s < 0.1 * groups / 1_000
