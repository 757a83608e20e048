"""What a consumer does with its membership: over one in memory, and without a broker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from itertools import count

import pytest

from kit.interrupts import Interrupt
from raylog.client.fetch.subscription import Subscription
from raylog.client.groups import change_queue, group_consumer, group_consumer_core
from raylog.client.groups.calls import made_here
from raylog.client.groups.change_queue import ChangeQueue
from raylog.client.groups.changes import Assigned, Change, Lost, Revoked
from raylog.client.groups.group_consumer import GroupReader
from raylog.client.groups.group_consumer_core import GroupCore
from raylog.client.network.guards import OneUser
from raylog.client.network.metadata import ClusterView, Metadata
from raylog.client.results import ConsumerRecord, TopicDescription
from raylog.coordination.groups.offsets import RegistryOffsetStore
from raylog.coordination.metadata.group_model import CommittedOffset
from raylog.coordination.store.memory import MemoryStore
from raylog.coordination.store.memory_tree import MemoryTree
from raylog.protocol.errors import IllegalGeneration, InvalidRequest, UnknownTopicOrPartition
from raylog.protocol.ids import (
    EARLIEST,
    NO_TOPIC_ID,
    Generation,
    GroupId,
    MemberId,
    Offset,
    PartitionIndex,
    TopicName,
    TopicPartition,
)

A, B = (TopicPartition(TopicName("t"), PartitionIndex(index)) for index in (0, 1))
Offsets = Mapping[TopicPartition, CommittedOffset]


class MemoryMembership:
    """A membership whose changes the test makes; commits wait until :meth:`answer`, or come through at once."""

    member_id = MemberId("m")
    generation = Generation(1)

    def __init__(self, woken: Callable[[], None]) -> None:
        self.woken = woken
        self.queue = ChangeQueue(lambda: None)
        self.quieted: list[tuple[TopicPartition, int | None]] = []
        self.commits: list[tuple[dict[TopicPartition, int], Future[None]]] = []
        self.deliverable = {A, B}
        self.left: dict[TopicPartition, int] | None = None
        self.polls = 0

    def tell(self, *changes: Change) -> None:
        for change in changes:
            self.queue.tell(change, 1)
        self.woken()

    def answer(self, error: Exception | None = None) -> None:
        """Of the oldest commit that waits."""
        future = next(future for _, future in self.commits if not future.done())
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    def untold(self, heard: int) -> tuple[int, Sequence[Change]]:
        return self.queue.untold(heard)

    def quiet(self, tp: TopicPartition, position: CommittedOffset | None) -> None:
        self.quieted.append((tp, None if position is None else position.offset))

    def may_deliver(self, tp: TopicPartition) -> bool:
        return tp in self.deliverable

    def commit(self, offsets: Offsets) -> None:
        self.commit_async(offsets).set_result(None)

    def commit_async(self, offsets: Offsets) -> Future[None]:
        future: Future[None] = Future()
        self.commits.append(({tp: committed.offset for tp, committed in offsets.items()}, future))
        assert all(committed.committed_ms > 0 for committed in offsets.values())
        return future

    def polled(self) -> None:
        self.polls += 1

    def leave(self, timeout_s: float, positions: Offsets) -> bool:
        self.left = {tp: committed.offset for tp, committed in positions.items()}
        return True


class Listener:
    """Notes what it is told; raises what ``fails`` says, once."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, tuple[TopicPartition, ...]]] = []
        self.fails: dict[str, Exception] = {}
        self.do: Callable[[], object] = lambda: None

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._hear("assigned", partitions)

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._hear("revoked", partitions)

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._hear("lost", partitions)

    def _hear(self, what: str, partitions: Sequence[TopicPartition]) -> None:
        self.heard.append((what, tuple(partitions)))
        self.do()
        if what in self.fails:
            raise self.fails.pop(what)


class World:
    """A reader with what is around it; ``now_ms`` is its clock."""

    def __init__(self, *, auto_commit: bool = True) -> None:
        self.now_ms = 0
        self.wakes = 0
        self.closed = 0
        self.subscription = Subscription(EARLIEST)
        self.listener = Listener()
        self.metadata = Metadata()
        self.committed: list[Offsets] = []
        self.user = OneUser("consumer")
        core = GroupCore(
            self.subscription, auto_commit=auto_commit, auto_commit_interval_ms=5_000, max_metadata_bytes=100
        )
        self.reader = GroupReader(
            GroupId("g"),
            frozenset({TopicName("t")}),
            self._join,
            core,
            RegistryOffsetStore(MemoryStore(MemoryTree())),
            self.listener,
            self.metadata,
            self.committed.append,
            self._wake,
            self._close,
            clock=lambda: self.now_ms,
        )

    def attend(self) -> float:
        with self.user.alone():
            return made_here(self.reader.attend(), self.user)

    def leave(self, *, commit: bool = True) -> None:
        with self.user.alone():
            made_here(self.reader.leave(1, commit=commit), self.user)

    def begin(self, *partitions: TopicPartition, committed: int = 7) -> None:
        self.member.tell(*(Assigned(tp, CommittedOffset(Offset(committed))) for tp in partitions))
        self.attend()
        self.listener.heard.clear()

    def _join(self, woken: Callable[[], None]) -> MemoryMembership:
        self.member = MemoryMembership(woken)
        return self.member

    def _wake(self) -> None:
        self.wakes += 1

    def _close(self) -> None:
        self.closed += 1


@pytest.fixture
def world() -> World:
    return World()


def records(*offsets: int) -> list[ConsumerRecord]:
    return [ConsumerRecord("t", 0, offset, 0, 0, None, b"", ()) for offset in offsets]


def test_a_poll_that_waits_is_woken_and_the_listener_hears_all_in_order(world: World) -> None:
    world.member.tell(Assigned(B, None), Assigned(A, None))
    assert world.wakes == 1
    world.attend()
    world.member.tell(Revoked(A), Lost(B))
    world.attend()
    assert world.listener.heard == [("assigned", (A, B)), ("revoked", (A,)), ("lost", (B,))]
    assert list(world.subscription) == []
    assert world.member.polls == 2


def test_what_is_revoked_is_committed_as_it_is_given_up(world: World) -> None:
    world.begin(A, B)
    world.subscription[A].seek(9)
    world.member.tell(Revoked(A), Revoked(B))
    world.attend()
    assert world.member.quieted == [(A, 9), (B, None)]  # nothing of B is new


def test_without_auto_commit_only_the_user_commits() -> None:
    world = World(auto_commit=False)
    world.begin(A)
    world.subscription[A].seek(9)
    world.listener.do = lambda: world.reader.commit(None)
    world.member.tell(Revoked(A))
    world.attend()
    assert [offsets for offsets, _ in world.member.commits] == [{A: 9}]
    assert world.member.quieted == [(A, None)]
    world.now_ms = 1_000_000
    world.attend()
    assert len(world.member.commits) == 1


def test_after_on_revoked_raised_nothing_is_committed_and_the_rest_comes_with_the_next_poll(world: World) -> None:
    world.begin(A, B)
    world.subscription[A].seek(9)
    world.listener.fails["revoked"] = ValueError("disk full")
    world.member.tell(Revoked(A), Lost(B))
    with pytest.raises(ValueError, match="disk full"):
        world.attend()
    assert world.member.quieted == [(A, None)]
    assert A not in world.subscription
    world.attend()
    assert world.listener.heard == [("revoked", (A,)), ("lost", (B,))]


def test_on_assigned_that_raised_is_called_again_before_anything_is_read(world: World) -> None:
    world.member.tell(Assigned(A, None))
    world.listener.fails["assigned"] = ValueError("my database is away")
    with pytest.raises(ValueError, match="away"):
        world.attend()
    world.attend()
    assert world.listener.heard == [("assigned", (A,))] * 2


def test_a_listener_may_use_the_consumer_but_not_poll_it(world: World) -> None:
    def use() -> None:
        with world.user.alone():  # as position() does
            pass
        with pytest.raises(InvalidRequest, match="cannot poll"):
            world.attend()

    world.listener.do = use
    world.begin(A)
    world.leave()
    assert world.closed == 1


def test_positions_are_committed_once_an_interval_one_commit_at_a_time(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.begin(A)
    world.subscription[A].seek(9)
    world.now_ms = 4_999
    assert world.attend() == 100  # soon
    assert world.member.commits == []
    world.now_ms = 5_000
    world.attend()
    assert [offsets for offsets, _ in world.member.commits] == [{A: 9}]
    world.now_ms = 20_000
    world.attend()
    assert len(world.member.commits) == 1, "the store has not answered yet"
    with caplog.at_level(logging.WARNING):
        world.member.answer(IllegalGeneration("another owns it"))
    assert "not committed, which is tried again: another owns it" in caplog.text
    world.attend()
    world.member.answer()
    world.now_ms = 40_000
    world.attend()
    assert [offsets for offsets, _ in world.member.commits] == [{A: 9}, {A: 9}], "nothing is new since"
    assert len(world.committed) == 1


def test_what_came_of_a_commit_is_no_news_of_a_later_ownership(world: World) -> None:
    """It was committed, then read by another, up to 20: a position of 9 is a rewind, and to be committed."""
    world.begin(A)
    world.subscription[A].seek(9)
    future = world.reader.commit_async(None)
    world.member.tell(Lost(A), Assigned(A, CommittedOffset(Offset(20))))
    world.attend()
    future.set_result(None)
    world.attend()
    world.subscription[A].seek(9)
    world.reader.commit(None)
    assert [offsets for offsets, _ in world.member.commits] == [{A: 9}, {A: 9}]


def test_records_stop_coming_one_by_one_when_something_happens(world: World) -> None:
    world.begin(A, B)
    place = world.subscription[A]

    def taken_until(happens: Callable[[], object]) -> int:
        world.attend()
        count = 0
        for count, _ in enumerate(world.reader.while_owned(place, records(*range(10))), 1):
            if count == 3:
                happens()
        return count

    assert taken_until(lambda: None) == 10
    assert taken_until(lambda: world.member.tell()) == 3
    assert taken_until(lambda: setattr(world, "now_ms", world.now_ms + 5_000)) == 3
    assert taken_until(lambda: world.member.deliverable.clear()) == 3
    assert taken_until(lambda: None) == 0
    world.member.deliverable = {A}
    world.member.tell(Lost(A), Assigned(A, None))
    assert taken_until(lambda: None) == 0, "it was given away and came back: it is read from the committed offset"


@pytest.mark.parametrize(("commit", "committed"), [(True, {A: 9}), (False, {})])
def test_leaving_commits_unless_an_error_led_to_it(world: World, commit: bool, committed: dict[str, int]) -> None:
    world.begin(A)
    world.subscription[A].seek(9)
    world.leave(commit=commit)
    assert world.listener.heard == [("revoked", (A,))]
    assert (world.member.left, world.closed, len(world.committed)) == (committed, 1, len(committed))


def test_who_leaves_is_told_of_no_partition_that_has_just_come(world: World) -> None:
    world.begin(A)
    world.member.tell(Assigned(B, None))
    world.leave()
    assert world.listener.heard == [("revoked", (A,))]
    assert B not in world.member.left


def test_a_listener_that_raises_does_not_keep_a_consumer_in_the_group(world: World) -> None:
    world.begin(A)
    world.subscription[A].seek(9)
    world.listener.fails["revoked"] = ValueError("no")
    with pytest.raises(ValueError, match="no"):
        world.leave()
    assert (world.member.left, world.closed) == ({}, 1)


def test_a_topic_that_is_not_there_is_told_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    error = UnknownTopicOrPartition("topic 't': unknown")
    with caplog.at_level(logging.WARNING):
        for version in (1, 2):
            world.metadata.view = ClusterView(errors={"t": error}, version=version)
            world.attend()
        there = TopicDescription(TopicName("t"), NO_TOPIC_ID, ())
        world.metadata.view = ClusterView(topics={"t": there}, version=3)
        world.attend()
    assert caplog.text.count("'t' cannot be read yet") == 1


@pytest.mark.parametrize("before", [(), (Assigned(A, None),)], ids=["nothing", "one"])
def test_interrupt_in_any_line_of_taking_up_changes_loses_none(before: tuple[Change, ...]) -> None:
    """The listener hears what began, and what ceased is given up."""
    for nth in count():
        world = World()
        world.member.tell(*before)
        world.attend()
        interrupted = False
        world.member.tell(Assigned(B, CommittedOffset(Offset(3))))
        try:
            with Interrupt(nth, change_queue, group_consumer, group_consumer_core):
                world.attend()
        except KeyboardInterrupt:
            interrupted = True
        where = f"interrupted at line {nth}"
        world.attend()
        told = [partitions for what, partitions in world.listener.heard if what == "assigned"]
        assert told[-1] == (B,), where
        assert world.subscription[B].position == 3, where
        world.member.tell(Revoked(B))
        try:
            with Interrupt(nth, change_queue, group_consumer, group_consumer_core):
                world.attend()
        except KeyboardInterrupt:
            pass
        world.attend()
        assert B not in world.subscription, where
        assert (B, None) in world.member.quieted, where
        if not interrupted:
            break
    assert nth > 30


@pytest.mark.parametrize(
    ("change", "what", "committed"),
    [(Revoked(B), "revoked", Offset(7)), (Lost(B), "lost", None)],
    ids=["ceased", "lost"],
)
def test_interrupt_before_the_listener_is_called_is_no_error_of_its(
    change: Change, what: str, committed: Offset | None
) -> None:
    """It hears at the next poll, and what was handed out is committed when partitions are given up."""
    for nth in count():
        world = World()
        world.member.tell(Assigned(B, CommittedOffset(Offset(3))))
        world.attend()
        world.subscription[B].seek(7)
        world.member.tell(change)
        interrupted = False
        try:
            with Interrupt(
                nth, change_queue, group_consumer, group_consumer_core, but=[group_consumer.Telling.__call__]
            ):
                world.attend()
        except KeyboardInterrupt:
            interrupted = True
        where = f"interrupted at line {nth}"
        was_called = (what, (B,)) in world.listener.heard
        world.attend()
        assert (what, (B,)) in world.listener.heard, where
        assert B not in world.subscription, where
        if what == "revoked" and not was_called:
            assert world.member.quieted[-1] == (B, committed), where
        if not interrupted:
            break
    assert nth > 10
