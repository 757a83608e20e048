"""A write of one group that hangs, among a thousand groups: the others notice nothing, and it loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from kit.group_brokers import GROUP, IDS, Brokers, joined, member_of, wishes
from kit.machine import scaled
from kit.waiting import wait_until
from raylog.broker.groups.classic.claims import choose_coordinator
from raylog.broker.groups.classic.messages import Identity, Leaver, Sync
from raylog.broker.groups.coordinator import GroupCoordinator
from raylog.broker.groups.holding import keeper
from raylog.broker.groups.holding.held import read_claim
from raylog.broker.groups.offsets.retention import OffsetRetention
from raylog.coordination.groups.offsets import CommittedOffset, RegistryOffsetStore
from raylog.coordination.metadata import group_paths
from raylog.coordination.metadata.model import BrokerInfo
from raylog.protocol.errors import NotCoordinator
from raylog.protocol.ids import (
    NO_GENERATION,
    NO_MEMBER,
    BrokerEpoch,
    BrokerId,
    GroupId,
    Offset,
    PartitionIndex,
    TimestampMs,
    TopicName,
    TopicPartition,
)

WAIT_S = 60.0
NOBODY = Identity(NO_MEMBER, NO_GENERATION)
TP = TopicPartition(TopicName("t"), PartitionIndex(0))
OTHERS = [GroupId(f"group {number}") for number in range(1_000)]


def at(offset: int) -> dict[TopicPartition, CommittedOffset]:
    return {TP: CommittedOffset(Offset(offset))}


@contextmanager
def hanging(brokers: Brokers, below: str, *asks: Callable[[], object]) -> Iterator[list[Future[object]]]:
    """These are asked one after the other, each in a thread of its own, while writes below a node hang."""
    store = brokers.stores[1]
    with ThreadPoolExecutor(len(asks)) as threads:
        store.stuck = below
        answers = [threads.submit(asks[0])]
        wait_until(lambda: store.waiting, WAIT_S, "the write hangs")
        answers += map(threads.submit, asks[1:])
        try:
            yield answers
            assert not any(answer.done() for answer in answers)
        finally:
            store.stuck = None
            store.goes_on.set()


def test_write_under_its_lock_holds_up_no_other_group(brokers: Brokers, one: GroupCoordinator) -> None:
    who = member_of(one)
    members = {group: member_of(one, group) for group in OTHERS}
    again = joined(one.join(GROUP, wishes(who.member_id)))
    leader = Identity(again.member_id, again.generation)
    sync = Sync(leader, ((leader.member_id, b"new"),))
    with hanging(
        brokers,
        group_paths.group(GROUP),
        lambda: one.sync(GROUP, sync),
        lambda: one.commit_offsets(GROUP, leader, at(1), IDS),
    ):
        commits = [one.commit_offsets(group, member, at(7), IDS) for group, member in members.items()]
        assert all(commit.result(scaled(WAIT_S)) == {TP: None} for commit in commits)
        assert {each.group for each in one.list_groups()} == {GROUP, *OTHERS}
        joined(one.join(GroupId("new"), wishes()))
        brokers.keep(1)
        brokers.skipped_ms += 61_000  # all sessions are over, of the group that hangs as well
        wait_until(
            lambda: {"Empty"} == {each.state for each in one.list_groups() if each.group in members},
            WAIT_S,
            "they are given up",
        )
        commits = [one.commit_offsets(group, NOBODY, at(8), IDS) for group in OTHERS]
        assert all(commit.result(scaled(WAIT_S)) == {TP: None} for commit in commits)
    wait_until(lambda: one.describe(GROUP).state == "Empty", WAIT_S, "its time passes as soon as it is free")


def test_commit_that_hangs_holds_up_no_other_group(brokers: Brokers, one: GroupCoordinator) -> None:
    who = member_of(one)
    members = {group: member_of(one, group) for group in OTHERS}

    def commit(offset: int) -> object:
        return one.commit_offsets(GROUP, who, at(offset), IDS).result(scaled(WAIT_S))

    with hanging(brokers, group_paths.consumer(GROUP), lambda: commit(1), lambda: commit(2)) as answers:
        for number in range(3):
            commits = [one.commit_offsets(group, member, at(number), IDS) for group, member in members.items()]
            assert all(each.result(scaled(WAIT_S)) == {TP: None} for each in commits)
        one.heartbeat(GROUP, who)
    assert [answer.result(scaled(WAIT_S)) for answer in answers] == [{TP: None}] * 2
    assert RegistryOffsetStore(brokers.stores[1]).fetch(GROUP) == at(2)


def test_lost_lease_is_told_though_a_group_hangs(brokers: Brokers, one: GroupCoordinator) -> None:
    who, other = member_of(one), GroupId("other")
    again = joined(one.join(GROUP, wishes(who.member_id)))
    member_of(one, other)
    waiting = one.join(other, wishes())  # for the first one to join again
    sync = Sync(Identity(again.member_id, again.generation), ((again.member_id, b"new"),))
    with hanging(brokers, group_paths.group(GROUP), lambda: one.sync(GROUP, sync)) as [synced]:
        brokers.leases[1] = False
        assert isinstance(waiting.exception(scaled(WAIT_S)), NotCoordinator)
    answer = synced.result(scaled(WAIT_S))
    assert isinstance(answer, Future)
    assert isinstance(answer.exception(scaled(WAIT_S)), NotCoordinator)


def test_offsets_of_others_expire_though_a_group_hangs(brokers: Brokers, one: GroupCoordinator) -> None:
    """The group is looked through as soon as it is free, not with the next check."""
    who, others = member_of(one), OTHERS[:20]
    for group in (GROUP, *others):
        one.commit_offsets(group, who if group == GROUP else NOBODY, at(5), IDS).result(scaled(WAIT_S))
    retention = OffsetRetention(one, retention_ms=lambda: 1_000, state=lambda: brokers.state(1))
    offsets = RegistryOffsetStore(brokers.stores[1])
    with (
        ThreadPoolExecutor(1) as thread,
        hanging(brokers, group_paths.group(GROUP), lambda: one.leave(GROUP, [Leaver(who.member_id)])),
    ):
        for now_ms in (10_000, 11_000):
            thread.submit(retention.check, TimestampMs(now_ms)).result(scaled(WAIT_S / 4))
        assert [group for group in others if offsets.fetch(group)] == []
        thread.submit(retention.check_again, TimestampMs(11_001)).result(scaled(WAIT_S / 4))
        assert GROUP not in one.noted_empty()
    wait_until(lambda: one.describe(GROUP).state == "Empty", WAIT_S, "its member has left")
    retention.check_again(TimestampMs(11_002))
    assert GROUP in one.noted_empty()


def test_others_move_though_a_group_hangs(brokers: Brokers, one: GroupCoordinator) -> None:
    both = [BrokerInfo(BrokerId(broker), BrokerEpoch(1), ()) for broker in (1, 2)]
    names = [name for name in OTHERS if choose_coordinator(name, both) == both[1]][:10]
    who = {name: member_of(one, name) for name in names}
    brokers.start(2)
    brokers.all_know(1, 2)
    brokers.keep(1)
    busy = names[0]
    again = joined(one.join(busy, wishes(who[busy].member_id)))
    sync = Sync(Identity(again.member_id, again.generation), ((again.member_id, b"new"),))
    with (
        ThreadPoolExecutor(1) as thread,
        hanging(brokers, group_paths.group(busy), lambda: one.sync(busy, sync)),
    ):
        thread.submit(brokers.keep, 1, after_ms=keeper.SETTLE_MS).result(scaled(WAIT_S / 4))
        claims = {name: read_claim(brokers.stores[2], name).claim.broker for name in names}
        assert [name for name, broker in claims.items() if broker == 1] == [busy]
    brokers.keep(1)
    assert read_claim(brokers.stores[2], busy).claim.broker != 1, "it goes once it is free"


def test_others_are_let_go_of_though_a_group_hangs(brokers: Brokers, one: GroupCoordinator) -> None:
    """The controller does not reach this broker, and others have claimed all that it has."""
    who = member_of(one)
    others = {group: member_of(one, group) for group in OTHERS[:10]}
    waiting = [one.join(group, wishes()) for group in others]  # for the first ones to join again
    again = joined(one.join(GROUP, wishes(who.member_id)))
    sync = Sync(Identity(again.member_id, again.generation), ((again.member_id, b"new"),))
    for broker in (2, 3):
        brokers.start(broker)
    brokers.all_know(1, 2, 3)
    brokers.fenced |= {2: {1}, 3: {1}}
    with (
        ThreadPoolExecutor(1) as thread,
        hanging(brokers, group_paths.group(GROUP), lambda: one.sync(GROUP, sync)),
    ):
        brokers.keep(2, 3)
        thread.submit(brokers.keep, 1, after_ms=keeper.LOOK_MS).result(scaled(WAIT_S / 4))
        assert all(isinstance(answer.exception(scaled(WAIT_S)), NotCoordinator) for answer in waiting)
