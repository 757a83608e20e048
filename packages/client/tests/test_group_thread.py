"""The thread of a group's member, turned by hand, over registries in memory."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from kit.group_members import GROUP, TOPIC, make_topic, tps
from kit.topics import drop_topic
from raylog.client.groups.changes import Assigned, Change, Lost, Revoked
from raylog.client.groups.member_thread import MemberThread
from raylog.client.groups.ports import MemberPorts
from raylog.client.groups.requests import Commit, GoodBye, PolledAgain
from raylog.coordination.groups.assignors import Assignor
from raylog.coordination.groups.group import Member
from raylog.coordination.groups.kinds import GroupKind, settle_kind
from raylog.coordination.groups.registry import GroupRegistry
from raylog.coordination.host.clocks import wall_ms
from raylog.coordination.host.loops import Loop, Loops
from raylog.coordination.metadata import group_paths
from raylog.coordination.metadata.group_events import Evict
from raylog.coordination.metadata.group_model import CommittedOffset, Registered
from raylog.coordination.store.memory import MemoryStore
from raylog.coordination.store.memory_tree import MemoryTree
from raylog.protocol.errors import InconsistentGroupProtocol, UnknownTopicOrPartition
from raylog.protocol.ids import MemberId, MonotonicMs

MAX_POLL_MS = 60_000
WANTS = Registered(frozenset({TOPIC}), None)


class Inbox(queue.SimpleQueue[Any]):
    """Nobody waits on it."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        return self.get_nowait()


class ByHand(Loops):
    """Of a thread that never runs: the test calls its steps."""

    step: Callable[[], bool]
    finish: Callable[[], None]

    def loop(self, name: str, step: Callable[[], bool], **more: Any) -> Loop:
        self.step, self.finish = step, more["finish"]
        return super().loop(name, step, **more)

    def inbox(self) -> queue.SimpleQueue[Any]:
        return Inbox()


class Unwatched:
    """The liveness connections of a member whose peers never die."""

    def __init__(self, *_: object) -> None: ...

    def watch(self, peers: object) -> None: ...

    def stop(self) -> None: ...


class Joined:
    """A member with its thread."""

    def __init__(self, tree: MemoryTree, name: str) -> None:
        self.id = MemberId(name)
        self.now_ms = MonotonicMs(0)
        self.store = MemoryStore(tree)
        self.store.start()
        loops = ByHand()
        self.thread = MemberThread(
            self.store,
            GROUP,
            Member(self.id, Assignor.STICKY, lambda: 0.0),
            WANTS,
            MAX_POLL_MS,
            lambda: None,
            loops,
            MemberPorts(now_ms=lambda: self.now_ms, liveness=Unwatched),
        )
        self.step, self.finish = loops.step, loops.finish

    def heard(self) -> list[Change]:
        """What its user is told."""
        return self.thread.changes.take()

    def begin(self, count: int) -> None:
        """Turn until it has nothing more to do, and so many partitions."""
        for _ in range(20):
            assert self.step()
        assert len(self.thread.owned) == count

    def is_evicted(self) -> None:
        """Another member takes it for dead; the news of that come behind what it was asked to do before."""
        elected = GroupRegistry(self.store, GROUP, MemberId("elected"), WANTS, Inbox(), wall_ms)
        elected.carry_out(Evict(self.id))

    def end(self) -> None:
        """Turn until the membership is over."""
        for _ in range(20):
            if not self.step():
                return
        raise AssertionError("the membership goes on")


@pytest.fixture
def tree() -> MemoryTree:
    tree = MemoryTree()
    with MemoryStore(tree) as store:
        make_topic(store, 4)
    return tree


def test_member_evicted_while_it_gives_up_all_leaves(tree: MemoryTree) -> None:
    """That the first is not its own any more makes it look: the others are dropped before their turn has come."""
    member = Joined(tree, "a")
    member.begin(4)
    assert [*map(type, member.heard())] == [Assigned] * 4
    member.thread.post(GoodBye({}, {}))
    member.is_evicted()
    member.end()
    assert (member.thread.has_left, member.thread.failure) == (True, None)
    assert {change.tp for change in member.heard() if isinstance(change, Lost)} == {*tps(1, 2, 3)}


def test_commit_that_cannot_be_written_ends_no_membership(tree: MemoryTree) -> None:
    member = Joined(tree, "a")
    member.begin(4)
    member.heard()
    tenures = {tp: member.thread._tenures.get(tp) for tp in tps(0)}
    for offset in (object(), 5):
        commit = Commit({tp: CommittedOffset(offset) for tp in tps(0)}, tenures, Future())  # type: ignore[arg-type]
        member.thread.post(commit)
        member.step()
        assert commit.done.done()
        assert (commit.done.exception() is None) == (offset == 5)
    assert (member.thread.failure, member.heard()) == (None, [])


def test_claims_that_a_commit_finds_lost_are_given_up_in_order(tree: MemoryTree) -> None:
    """The same in every process, whose sets have orders of their own."""
    member = Joined(tree, "a")
    make_topic(member.store, 12)
    member.begin(12)
    partitions = sorted(member.thread.owned)
    member.heard()
    drop_topic(member.store, TOPIC)
    tenures = {tp: member.thread._tenures.get(tp) for tp in partitions}
    commit = Commit(dict.fromkeys(reversed(partitions), CommittedOffset(5)), tenures, Future())
    member.thread._commit(commit)
    assert isinstance(commit.done.exception(), UnknownTopicOrPartition)
    assert [change.tp for change in member.heard() if isinstance(change, Lost)] == partitions


def test_member_that_cannot_come_back_ends_all_the_same(tree: MemoryTree) -> None:
    """It was stuck, and its group is one of Kafka's clients when its user polls again."""
    member = Joined(tree, "a")
    member.begin(4)
    member.now_ms = MonotonicMs(MAX_POLL_MS + 1)
    member.step()
    assert member.thread.is_stuck
    settle_kind(member.store, GROUP, GroupKind.CLIENTS)
    member.store.create(group_paths.state(GROUP), b'{"members": {"a": {}}}')
    member.thread.post(PolledAgain())
    member.end()
    member.finish()
    assert isinstance(member.thread.failure, InconsistentGroupProtocol)


def test_member_evicted_before_its_user_is_done_leaves(tree: MemoryTree) -> None:
    """The same for what is revoked, since the group has another member, when its user leaves without a word."""
    member, other = Joined(tree, "a"), Joined(tree, "b")
    member.begin(4)
    member.heard()
    other.begin(0)
    member.begin(2)
    assert [*map(type, member.heard())] == [Revoked] * 2
    member.thread.post(GoodBye({}, {}))
    member.is_evicted()
    member.end()
    assert (member.thread.has_left, member.thread.failure) == (True, None)
    other.begin(4)
