"""Offset commits gathered and written at once: fenced at the write, and none holds up another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from kit.machine import scaled
from kit.stores import Contended
from kit.topics import forget_offsets, put_topic, replace_topic
from kit.waiting import wait_until
from raylog.broker.groups.holding.due import THREADS
from raylog.broker.groups.offsets.committer import Commit, OffsetCommitter, Results
from raylog.coordination.groups.kinds import GroupKind, settle_kind
from raylog.coordination.groups.offsets import CommittedOffset, RegistryOffsetStore
from raylog.coordination.host.clocks import monotonic_ms
from raylog.coordination.host.loops import Loops
from raylog.coordination.membership.registration import ensure_cluster
from raylog.coordination.metadata import group_paths
from raylog.coordination.store.memory import MemoryStore
from raylog.coordination.store.memory_tree import MemoryTree
from raylog.coordination.store.port import Check, Op
from raylog.protocol.errors import CoordinatorNotAvailable, IllegalGeneration, NotCoordinator, UnknownTopicOrPartition
from raylog.protocol.ids import GroupId, Offset, PartitionIndex, TopicId, TopicName, TopicPartition

GROUP, OTHER = GroupId("readers"), GroupId("others")


def tp(index: int, topic: str = "flights") -> TopicPartition:
    return TopicPartition(TopicName(topic), PartitionIndex(index))


def at(offset: int) -> CommittedOffset:
    return CommittedOffset(Offset(offset))


@dataclass
class World:
    """A committer over a tree in which others act, too."""

    store: Contended
    outside: MemoryStore
    offsets: RegistryOffsetStore
    lost: list[GroupId]
    committer: OffsetCommitter = field(init=False)
    loops: Loops = field(default_factory=Loops)

    def submit(
        self, offsets: dict[TopicPartition, CommittedOffset], group: GroupId = GROUP, fence: Sequence[Op] = ()
    ) -> Future[Results]:
        return self.submit_asking(offsets, lambda: fence, group)

    def submit_asking(
        self,
        offsets: dict[TopicPartition, CommittedOffset],
        fence: Callable[[], Sequence[Op]],
        group: GroupId = GROUP,
        topics: Mapping[TopicName, TopicId] | None = None,
    ) -> Future[Results]:
        answer: Future[Results] = Future()
        self.committer.submit(Commit(group, offsets, topics or {}, fence, answer))
        return answer

    @contextmanager
    def running(self) -> Iterator[None]:
        self.committer.start()
        yield
        self.committer.close()


@pytest.fixture
def world() -> Iterator[World]:
    tree = MemoryTree()
    with Contended(tree) as store, MemoryStore(tree) as outside:
        ensure_cluster(outside)
        put_topic(outside, "flights", 20)
        put_topic(outside, "taken")
        outside.create("/state")
        for group in (GROUP, OTHER):
            settle_kind(outside, group, GroupKind.CLIENTS)
        offsets = RegistryOffsetStore(store)
        lost: list[GroupId] = []
        world = World(store, outside, offsets, lost)
        world.committer = OffsetCommitter(offsets, lambda: 0, lost.append, monotonic_ms, world.loops)
        committer = world.committer
        yield world
        committer.close()


def test_what_members_of_a_group_commit_meanwhile_is_one_write(world: World) -> None:
    world.offsets.write(GROUP, {tp(index): at(0) for index in range(20)}, [])
    world.offsets.write(OTHER, {tp(0): at(0)}, [])
    world.store.multis = 0
    answers = [world.submit({tp(index): at(index)}, fence=[Check("/state", 0)]) for index in range(20)]
    answers.append(world.submit({tp(0): at(5)}, OTHER))
    with world.running():
        assert [answer.result(scaled(5)) for answer in answers[:20]] == [{tp(index): None} for index in range(20)]
        assert answers[20].result(scaled(5)) == {tp(0): None}
    assert world.store.multis == 2
    assert world.offsets.fetch(GROUP) == {tp(index): at(index) for index in range(20)}
    assert world.offsets.fetch(OTHER) == {tp(0): at(5)}


def test_of_two_commits_for_a_partition_the_later_stands(world: World) -> None:
    first, second = world.submit({tp(0): at(5)}), world.submit({tp(0): at(6)})
    with world.running():
        assert first.result(scaled(5)) == second.result(scaled(5)) == {tp(0): None}
    assert world.offsets.fetch(GROUP) == {tp(0): at(6)}


def test_a_rebalance_right_before_the_write_keeps_the_old_generation_out(world: World) -> None:
    """The member was asked about before; its group then went on, and the state with it."""
    version = 0

    def old_generation() -> Sequence[Op]:
        if version > 0:
            raise IllegalGeneration("generation 4 is over")
        return [Check("/state", version)]

    def rebalance(number: int) -> None:
        nonlocal version
        if number == 1:
            version = world.outside.set("/state", b"generation 5")

    world.store.happens = rebalance
    late = world.submit_asking({tp(0): at(5)}, old_generation)
    current = world.submit_asking({tp(1): at(6)}, lambda: [Check("/state", version)])
    with world.running():
        with pytest.raises(IllegalGeneration):
            late.result(scaled(5))
        assert current.result(scaled(5)) == {tp(1): None}
    assert world.offsets.fetch(GROUP) == {tp(1): at(6)}
    assert world.lost == []


def test_another_coordinator_is_noticed_by_its_writes(world: World) -> None:
    world.outside.set("/state", b"taken over")
    fenced = world.submit({tp(0): at(5)}, fence=[Check("/state", 0)])
    other = world.submit({tp(0): at(7)}, OTHER)
    with world.running():
        with pytest.raises(NotCoordinator, match="readers"):
            fenced.result(scaled(5))
        assert other.result(scaled(5)) == {tp(0): None}
    assert world.lost == [GROUP]
    assert world.offsets.fetch(GROUP) == {}


def test_a_group_that_never_rests_is_given_up_in_the_end(world: World) -> None:
    versions = iter(range(100))

    def moves_on(number: int) -> None:
        world.outside.set("/state", b"%d" % number)

    world.store.happens = moves_on
    chased = world.submit_asking({tp(0): at(5)}, lambda: [Check("/state", next(versions))])
    with world.running(), pytest.raises(NotCoordinator):
        chased.result(scaled(5))
    assert world.offsets.fetch(GROUP) == {}


def test_an_offset_that_is_deleted_meanwhile_is_made_anew(world: World) -> None:
    world.offsets.write(GROUP, {tp(0): at(1), tp(1): at(1)}, [])

    def deletes(number: int) -> None:
        if number == 2:
            forget_offsets(RegistryOffsetStore(world.outside), GROUP, [tp(1)], [])

    world.store.happens = deletes
    answer = world.submit({tp(0): at(2), tp(1): at(2)})
    with world.running():
        assert answer.result(scaled(5)) == {tp(0): None, tp(1): None}
    assert world.offsets.fetch(GROUP) == {tp(0): at(2), tp(1): at(2)}


def test_an_offset_that_always_fails_is_answered_alone(world: World) -> None:
    def plays(number: int) -> None:
        """Makes the node where there is none, and the reverse: what was read is never so at the write."""
        node = group_paths.offset(GROUP, tp(1))
        if world.outside.exists(node) is None:
            world.outside.create(node, b"1", parents=True)
        else:
            world.outside.delete(node)

    world.store.happens = plays
    bad, good = world.submit({tp(0): at(2), tp(1): at(2)}), world.submit({tp(2): at(3)})
    with world.running():
        results = bad.result(scaled(5))
        assert results[tp(0)] is None
        assert "flights-1" in str(results[tp(1)])
        assert good.result(scaled(5)) == {tp(2): None}
    fetched = world.offsets.fetch(GROUP, [tp(0), tp(2)])
    assert fetched == {tp(0): at(2), tp(2): at(3)}


def test_without_the_store_members_hear_so_and_later_ones_are_served(world: World) -> None:
    world.store.lose_next_answer()
    in_doubt = world.submit({tp(0): at(2)})
    with world.running():
        with pytest.raises(CoordinatorNotAvailable, match="may not have been committed"):
            in_doubt.result(scaled(5))
        assert world.submit({tp(0): at(3)}).result(scaled(5)) == {tp(0): None}
    assert world.lost == []


def test_what_was_submitted_before_the_end_is_written_and_the_rest_refused(world: World) -> None:
    with world.running():
        before = world.submit({tp(0): at(2)})
    assert before.result(0) == {tp(0): None}
    with pytest.raises(CoordinatorNotAvailable):
        world.submit({tp(0): at(3)}).result(0)
    assert world.offsets.fetch(GROUP) == {tp(0): at(2)}


def raising(error: BaseException) -> Callable[[], Sequence[Op]]:
    def fence() -> Sequence[Op]:
        raise error

    return fence


def test_commit_is_answered_when_the_thread_meets_a_defect(world: World) -> None:
    with world.running():
        with pytest.raises(CoordinatorNotAvailable, match="may not have been committed: not foreseen"):
            world.submit_asking({tp(0): at(5)}, raising(ValueError("not foreseen"))).result(scaled(5))
        assert world.submit({tp(0): at(6)}).result(scaled(5)) == {tp(0): None}


def test_commit_is_refused_when_its_thread_is_gone_others_serve(world: World) -> None:
    with world.running():
        with pytest.raises(CoordinatorNotAvailable):
            world.submit_asking({tp(0): at(5)}, raising(SystemExit())).result(scaled(5))
        assert world.submit({tp(0): at(6)}).result(scaled(5)) == {tp(0): None}
    assert "offset-committer" in world.loops.failure


def test_commits_are_refused_at_the_end_when_all_threads_are_gone(world: World) -> None:
    with world.running():
        for _ in range(THREADS):
            with pytest.raises(CoordinatorNotAvailable):
                world.submit_asking({tp(0): at(5)}, raising(SystemExit())).result(scaled(5))
        wait_until(lambda: not world.loops.names(), 5, "they are gone")
        left = world.submit({tp(0): at(6)})
    with pytest.raises(CoordinatorNotAvailable, match="the broker stops"):
        left.result(0)


def test_slow_write_holds_up_no_other_group_and_keeps_the_order(world: World) -> None:
    slow = [GroupId(f"slow {number}") for number in range(THREADS - 1)]
    others = [GroupId(f"g{number}") for number in range(100)]
    for group in (*slow, *others):
        settle_kind(world.outside, group, GroupKind.CLIENTS)
    hung, goes_on = threading.Semaphore(0), threading.Event()

    def hang() -> Sequence[Op]:
        hung.release()
        assert goes_on.wait(scaled(30))
        return ()

    with world.running():
        first = [world.submit_asking({tp(0): at(1)}, hang, group) for group in slow]
        for _ in slow:
            assert hung.acquire(timeout=scaled(5))
        later = [world.submit({tp(0): at(2)}, group) for group in slow]
        for group in others:
            assert world.submit({tp(0): at(3)}, group).result(scaled(5)) == {tp(0): None}
        assert not any(answer.done() for answer in first + later)
        goes_on.set()
        assert [answer.result(scaled(5)) for answer in first + later] == [{tp(0): None}] * 2 * len(slow)
    assert all(world.offsets.fetch(group) == {tp(0): at(2)} for group in slow)


@pytest.mark.parametrize("old_is_first", [True, False])
def test_commit_for_former_topic_holds_up_none_for_the_new_one(world: World, old_is_first: bool) -> None:
    """Both came within the linger time, one before the broker knew of the new topic."""
    old = put_topic(world.outside, "flights", 20)
    new = replace_topic(world.outside, "flights", 20)
    answers = {
        topic: world.submit_asking({tp(0): at(7)}, lambda: (), topics={tp(0).topic: topic})
        for topic in ((old, new) if old_is_first else (new, old))
    }
    with world.running():
        assert answers[new].result(scaled(10)) == {tp(0): None}
        assert isinstance(answers[old].result(scaled(10))[tp(0)], UnknownTopicOrPartition)
    assert world.offsets.fetch(GROUP) == {tp(0): at(7)}
