"""When the upkeep of committed offsets does what, pass by pass, with a clock that is handed in."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest

from raylog.broker.config import BROKER_SETTINGS
from raylog.broker.groups.classic.described import ListedGroup
from raylog.broker.groups.offsets.lag import PASS_INTERVAL_MS, Led
from raylog.broker.groups.offsets.retention import RetainedGroups
from raylog.broker.groups.offsets.upkeep import GroupUpkeep
from raylog.coordination.host.loops import Loops
from raylog.coordination.metadata.model import ClusterState
from raylog.coordination.store.memory import MemoryStore
from raylog.coordination.store.memory_tree import MemoryTree
from raylog.protocol.errors import CoordinatorNotAvailable
from raylog.protocol.ids import GroupId, MonotonicMs, TimestampMs, TopicPartition

CHECK_MS = 25_000


class Stopping:
    """An event that is set or not, without the wait."""

    flag = False

    def is_set(self) -> bool:
        return self.flag

    def wait(self, timeout_s: float) -> bool:
        assert timeout_s > 0
        return self.flag


class Passes:
    """Counts what a pass does, at the times that a test sets."""

    def __init__(self, store: MemoryStore) -> None:
        self.now_ms = 0
        self.states = self.lags = self.checks = 0
        self.asked: set[GroupId] = set()
        self.groups: list[ListedGroup] = []
        self.fails = False
        self.stopping = Stopping()
        self.upkeep = GroupUpkeep(
            store,
            cast(RetainedGroups, self),
            self._led,
            state=self._state,
            settings=lambda: BROKER_SETTINGS.settings(
                {"broker.id": "1", "offsets.retention.check.interval.ms": str(CHECK_MS)}
            ),
            now_ms=lambda: MonotonicMs(self.now_ms),
            age_ms=lambda: TimestampMs(self.now_ms),
            loops=Loops(),
        )
        self.upkeep.lags.lags()
        self.states = self.lags = 0

    def _led(self) -> Mapping[TopicPartition, Led]:
        self.lags += 1
        if self.fails:
            raise CoordinatorNotAvailable("the store is away")
        return {}

    def _state(self) -> ClusterState:
        self.states += 1
        return ClusterState()

    def list_groups(self) -> list[Any]:
        self.checks += 1
        return self.groups

    def noted_empty(self) -> list[Any]:
        return []

    def finish_deletions(self) -> None: ...

    def __getattr__(self, name: str) -> Any:
        """What is asked about one group: meanwhile the broker is told to stop."""

        def ask(group: GroupId, *_: object) -> dict[Any, Any]:
            self.asked.add(group)
            self.stopping.flag = True
            return {}

        return ask

    def turn_at(self, now_ms: int) -> tuple[int, int, int]:
        """Looks at the topics, passes over lags and checks of retention, after a pass at that time."""
        self.now_ms = now_ms
        assert self.upkeep.turn(cast(threading.Event, self.stopping))
        return self.states, self.lags, self.checks


@pytest.fixture
def passes() -> Iterator[Passes]:
    store = MemoryStore(MemoryTree())
    store.start()
    yield Passes(store)
    store.close()


def test_lags_and_retention_have_intervals_of_their_own(passes: Passes) -> None:
    lag = PASS_INTERVAL_MS
    assert 2 * lag < CHECK_MS < 3 * lag
    assert passes.turn_at(0)[1:] == (1, 1)
    assert passes.turn_at(lag - 1)[1:] == (1, 1)
    assert passes.turn_at(lag)[1:] == (2, 1)
    assert passes.turn_at(CHECK_MS - 1)[1:] == (3, 1)
    assert passes.turn_at(CHECK_MS)[1:] == (3, 2)
    assert passes.turn_at(2 * CHECK_MS - 1)[1:] == (4, 2)
    assert passes.turn_at(2 * CHECK_MS)[1:] == (4, 3)


def test_each_pass_looks_for_deleted_topics(passes: Passes) -> None:
    assert [passes.turn_at(ms)[0] for ms in (0, 1, 2)] == [1, 2, 3]


def test_failure_of_one_step_holds_up_no_other(passes: Passes) -> None:
    passes.fails = True
    assert passes.turn_at(0) == (1, 1, 1)
    passes.fails = False
    assert passes.turn_at(PASS_INTERVAL_MS) == (2, 2, 1)


def test_pass_ends_when_it_is_told_to_stop(passes: Passes) -> None:
    passes.stopping.flag = True
    assert not passes.upkeep.turn(cast(threading.Event, passes.stopping))
    assert (passes.states, passes.lags, passes.checks) == (0, 0, 0)


def test_pass_over_all_groups_ends_at_the_next_one_when_broker_stops(passes: Passes) -> None:
    passes.groups = [ListedGroup(GroupId(f"g{number}"), "consumer", "Stable") for number in range(1_000)]
    passes.turn_at(0)
    assert passes.asked == {"g0"}
    assert not passes.upkeep.turn(cast(threading.Event, passes.stopping))
