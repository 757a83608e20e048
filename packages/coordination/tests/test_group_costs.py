"""What it costs the metadata store when members of a group of actors come and go: counted, without threads."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest

from kit.group_members import GROUP, TOPIC, make_topic
from kit.stores import Counting
from kit.topics import drop_topic, put_topic
from raylog.coordination.groups.assignors import Assignor
from raylog.coordination.groups.group import Member
from raylog.coordination.groups.kinds import GroupKind, settle_kind
from raylog.coordination.groups.offsets import RegistryOffsetStore
from raylog.coordination.groups.registry import GroupRegistry
from raylog.coordination.metadata import group_paths
from raylog.coordination.metadata.group_events import (
    Assign,
    Effect,
    Event,
    Leave,
    Lose,
    Noticed,
    Quiet,
    Revoke,
    Started,
)
from raylog.coordination.metadata.group_model import CommittedOffset, Registered
from raylog.coordination.store.memory_tree import MemoryTree
from raylog.coordination.store.port import NodeEvent, StoreEvent
from raylog.protocol.ids import MemberId, MonotonicMs, Offset, PartitionIndex, TimestampMs, TopicName, TopicPartition

MOST_TRIPS = 9
"""Topics, partitions of each, nodes twice, topics, times of writes of numbers and topics."""

MOST_TRIPS_OF = {"first": 5, "second": 1, "deleted": 14, "forget": 8}
"""For any number of topics: first with their nodes made, then as they are; with deleted topics cleared; by hand."""


@pytest.mark.parametrize("partitions", [10, 1_000])
def test_numbers_of_old_tools_are_fetched_in_few_round_trips(partitions: int) -> None:
    with Counting(MemoryTree()) as store:
        put_topic(store, TOPIC, partitions)
        tps = [TopicPartition(TOPIC, PartitionIndex(index)) for index in range(partitions)]
        for tp in tps:
            store.create(group_paths.offset(GROUP, tp), b"5", parents=True)
        before = store.trips
        assert list(RegistryOffsetStore(store).fetch(GROUP)) == tps
        assert store.trips - before <= MOST_TRIPS


@pytest.mark.parametrize("topics", [1, 200])
def test_offsets_of_many_topics_are_made_and_forgotten_in_few_round_trips(topics: int) -> None:
    with Counting(MemoryTree()) as store:
        settle_kind(store, GROUP, GroupKind.CLIENTS)
        names = [TopicName(f"t{number}") for number in range(2 * topics)]
        ids = {name: put_topic(store, name) for name in names}
        offsets = RegistryOffsetStore(store)
        commits = {TopicPartition(name, PartitionIndex(0)): CommittedOffset(Offset(1)) for name in names}
        steps: dict[str, Callable[[], object]] = {
            "first": lambda: offsets.write(GROUP, commits, [], ids),
            "second": lambda: offsets.write(GROUP, commits, [], ids),
            "deleted": lambda: offsets.forget_deleted_topics(GROUP, []),
            "forget": lambda: offsets.forget(GROUP, offsets.look(GROUP), list(commits)[topics:], []),
        }
        trips = {}
        for step, act in steps.items():
            if step == "deleted":
                for name in names[:topics]:
                    drop_topic(store, name)
            before = store.trips
            act()
            trips[step] = store.trips - before
        assert offsets.partitions(GROUP) == store.children(group_paths.offsets(GROUP)) == []
        assert all(trips[step] <= MOST_TRIPS_OF[step] for step in steps), trips


class Actor:
    """A member whose user is always done with what it was handed out."""

    def __init__(self, store: Counting, number: int) -> None:
        self.store = store
        self._events: queue.SimpleQueue[StoreEvent] = queue.SimpleQueue()
        name = MemberId(f"client-{1_700_000_000_000 + number}-{number:08}")
        self.machine = Member(name, Assignor.STICKY, lambda: 0.0)
        wants = Registered(frozenset({TOPIC}), None, "192.0.2.1", 9_000, "a machine")
        self._registry = GroupRegistry(store, GROUP, name, wants, self._events, lambda: TimestampMs(1_000))

    def feed(self, event: Event) -> None:
        """Take it in, and what follows from what follows from it."""
        now_ms = MonotonicMs(0)
        todo: deque[Effect] = deque(self.machine.on(event, now_ms))
        while todo:
            outcome = self._carry_out(todo.popleft())
            if outcome is not None:
                todo.extendleft(reversed(self.machine.on(outcome, now_ms)))

    def _carry_out(self, effect: Effect) -> Event | None:
        match effect:
            case Revoke(tp):
                return Quiet(tp, None)
            case Assign() | Lose():
                return None
            case _:
                return self._registry.carry_out(effect)

    def notice(self) -> bool:
        """Take in what watches have told by now, all at once; False when they have told nothing."""
        told = False
        while not self._events.empty():
            event = self._events.get()
            assert isinstance(event, NodeEvent)
            self._registry.noticed(event)
            told = True
        if told:
            self.feed(Noticed())
        return told


class Group:
    """Members that come and go one after the other, each when all is as it should be."""

    def __init__(self, actors: Sequence[Actor]) -> None:
        self._waiting = deque(actors)
        self.actors: list[Actor] = []
        self._all = tuple(actors)

    @property
    def costs(self) -> tuple[int, int]:
        """Requests and bytes of all together."""
        return sum(actor.store.asked for actor in self._all), sum(actor.store.bytes for actor in self._all)

    def join(self) -> None:
        actor = self._waiting.popleft()
        self.actors.append(actor)
        actor.feed(Started())
        self._settle()

    def leave(self, actor: Actor) -> None:
        self.actors.remove(actor)
        actor.feed(Leave())
        assert actor.machine.has_left
        self._settle()

    def _settle(self) -> None:
        told = True
        while told:
            told = sum(actor.notice() for actor in self.actors) > 0


@contextmanager
def group_of(members: int, partitions: int) -> Iterator[Group]:
    tree = MemoryTree()
    with ExitStack() as stack:
        stores = [stack.enter_context(Counting(tree)) for _ in range(members)]
        make_topic(stores[0], partitions)
        yield Group([Actor(store, number) for number, store in enumerate(stores)])


def all_owned(group: Group, partitions: int) -> bool:
    owned = [tp for actor in group.actors for tp in actor.machine.owned]
    return len(owned) == len(set(owned)) == partitions and all(actor.machine.is_settled for actor in group.actors)


def cost_of_coming_and_going(members: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Requests and bytes until so many members have come, and until all but one have gone, the oldest first."""
    partitions = 200
    with group_of(members, partitions) as group:
        for _ in range(members):
            group.join()
        assert all_owned(group, partitions)
        came = group.costs
        for actor in tuple(group.actors[:-1]):
            group.leave(actor)
        assert all_owned(group, partitions)
        went = group.costs
    return came, (went[0] - came[0], went[1] - came[1])


@pytest.mark.timeout(120)
def test_cost_of_members_grows_with_members_and_changes() -> None:
    """Twice the members are twice the changes, each for twice the members: so four times the cost, and no more."""
    costs = {members: cost_of_coming_and_going(members) for members in (25, 50, 100)}
    for which in (0, 1):
        for kind in (0, 1):
            cost = {members: cost[which][kind] for members, cost in costs.items()}
            assert cost[100] <= 4.5 * cost[50], cost
            assert cost[50] <= 4.5 * cost[25], cost
