"""A write of one group that hangs, among a thousand groups: the others notice nothing, and it loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from kit.group_brokers import GROUP, IDS, Brokers, joined, member_of, wishes
from kit.waiting import wait_until
from raylog.broker.groups.classic_messages import Identity, Sync
from raylog.broker.groups.coordinator import GroupCoordinator
from raylog.coordination import group_paths
from raylog.coordination.offsets import CommittedOffset, RegistryOffsetStore
from raylog.protocol.errors import NotCoordinator
from raylog.protocol.ids import (
    NO_GENERATION,
    NO_MEMBER,
    GroupId,
    Offset,
    PartitionIndex,
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
        assert all(commit.result(WAIT_S) == {TP: None} for commit in commits)
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
        assert all(commit.result(WAIT_S) == {TP: None} for commit in commits)
    wait_until(lambda: one.describe(GROUP).state == "Empty", WAIT_S, "its time passes as soon as it is free")


def test_commit_that_hangs_holds_up_no_other_group(brokers: Brokers, one: GroupCoordinator) -> None:
    who = member_of(one)
    members = {group: member_of(one, group) for group in OTHERS}

    def commit(offset: int) -> object:
        return one.commit_offsets(GROUP, who, at(offset), IDS).result(WAIT_S)

    with hanging(brokers, group_paths.consumer(GROUP), lambda: commit(1), lambda: commit(2)) as answers:
        for number in range(3):
            commits = [one.commit_offsets(group, member, at(number), IDS) for group, member in members.items()]
            assert all(each.result(WAIT_S) == {TP: None} for each in commits)
        one.heartbeat(GROUP, who)
    assert [answer.result(WAIT_S) for answer in answers] == [{TP: None}] * 2
    assert RegistryOffsetStore(brokers.stores[1]).fetch(GROUP) == at(2)


def test_lost_lease_is_told_though_a_group_hangs(brokers: Brokers, one: GroupCoordinator) -> None:
    who, other = member_of(one), GroupId("other")
    again = joined(one.join(GROUP, wishes(who.member_id)))
    member_of(one, other)
    waiting = one.join(other, wishes())  # for the first one to join again
    sync = Sync(Identity(again.member_id, again.generation), ((again.member_id, b"new"),))
    with hanging(brokers, group_paths.group(GROUP), lambda: one.sync(GROUP, sync)) as [synced]:
        brokers.leases[1] = False
        assert isinstance(waiting.exception(WAIT_S), NotCoordinator)
    answer = synced.result(WAIT_S)
    assert isinstance(answer, Future)
    assert isinstance(answer.exception(WAIT_S), NotCoordinator)
