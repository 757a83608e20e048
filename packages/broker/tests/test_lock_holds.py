"""How long the locks are held that all connections share, under the largest requests: in CPU time, which a busy machine
does not stretch.
"""

from __future__ import annotations

import gc
import itertools
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from raylog.broker.handlers.fetch_sessions import EVICTION_MS, FetchSessions, IncrementalFetch
from raylog.broker.replication.delayed import DelayedFetches
from raylog.broker.replication.delayed_operations import DelayedOperations
from raylog.protocol.errors import FetchSessionIdNotFound
from raylog.protocol.ids import Offset, PartitionIndex, TopicName, TopicPartition
from raylog.protocol.wire.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from raylog.protocol.wire.primitives import ZERO_UUID

MANY = 80_000
MOST_S = 0.02
"""4 s were measured before sessions had locks of their own, with five times as many partitions."""


class Measured:
    """A lock that knows its longest hold."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.longest_s = 0.0

    def __enter__(self) -> None:
        self._lock.acquire()
        self._begun = time.thread_time()

    def __exit__(self, *_: object) -> None:
        self.longest_s = max(self.longest_s, time.thread_time() - self._begun)
        self._lock.release()


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    """A collection may come while a lock is held, and is not due to the holder."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class World:
    """A broker's sessions, and the locks that they share."""

    def __init__(self, slots: int = 1_000) -> None:
        self.fetches = Measured()
        locks: list[Measured] = []

        def new_lock() -> Measured:
            locks.append(Measured())
            return locks[-1]

        self.delayed = DelayedFetches(self.fetches)
        self.sessions = FetchSessions(slots, self.delayed, new_id=itertools.count(1).__next__, new_lock=new_lock)
        self.cache = locks[0]

    def create(self, count: int, *, error: int = 0, now_ms: int = 0) -> int:
        request = FetchRequest(500, 1, topics(count), session_epoch=0)
        told = [FetchedPartition(index, error) for index in range(count)]
        return self.sessions.create(request, told, by_id=False, now_ms=now_ms)

    def fetch(self, session_id: int, epoch: int, count: int = 0, *, error: int = 0, now_ms: int = 0) -> int:
        """A request that adds ``count`` partitions; how many were looked at."""
        request = FetchRequest(500, 1, topics(count), session_id=session_id, session_epoch=epoch)
        going = self.sessions.begin(request, by_id=False, now_ms=now_ms)
        assert going is not None
        return self.read(going, error)

    def read(self, going: IncrementalFetch, error: int) -> int:
        looked_at = going.look(1, lambda: None)
        going.watch_also([(each, None if error else tp(each.key[2])) for each in looked_at])
        going.report([(each, FetchedPartition(each.key[2], error, 0, 0, 0), False) for each in looked_at])
        return len(looked_at)


def topics(count: int) -> list[FetchTopic]:
    return [FetchTopic("t", ZERO_UUID, [FetchPartition(index, 0, 100) for index in range(count)])] if count else []


def tp(index: int) -> TopicPartition:
    return TopicPartition(TopicName("t"), PartitionIndex(index))


def grow(world: World) -> None:
    """One session gets very many partitions, is asked over all, forgets them."""
    session_id = world.create(1)
    assert world.fetch(session_id, 1, MANY) == MANY
    assert world.fetch(session_id, 2) == 0
    forgotten = [ForgottenTopic("t", ZERO_UUID, range(MANY))]
    request = FetchRequest(500, 1, [], session_id=session_id, session_epoch=3, forgotten=forgotten)
    assert world.sessions.begin(request, by_id=False, now_ms=0) is None


def end(world: World) -> None:
    """A session over very many partitions ends."""
    session_id = world.create(MANY)
    world.fetch(session_id, 1)
    assert len(world.delayed) == MANY
    assert (
        world.sessions.begin(FetchRequest(0, 0, [], session_id=session_id, session_epoch=0), by_id=False, now_ms=0)
        is None
    )
    assert len(world.delayed) == 0


def fail(world: World) -> None:
    """Very many partitions that do not exist: they get no session, or end theirs."""
    assert world.create(MANY, error=3) == 0
    session_id = world.create(1)
    assert world.fetch(session_id, 1, MANY, error=3) == MANY
    with pytest.raises(FetchSessionIdNotFound):
        world.fetch(session_id, 2)


def evict(world: World) -> None:
    """The cache is full of sessions, of which one over very many partitions is the oldest."""
    for _ in range(1_000):
        world.create(1, now_ms=EVICTION_MS)
    assert world.create(2, now_ms=EVICTION_MS + 1) == 0
    assert world.create(MANY, now_ms=2 * EVICTION_MS + 1) > 0


@pytest.mark.parametrize("use", [grow, end, fail, evict])
def test_fetch_sessions_hold_shared_locks_briefly(use: Callable[[World], None]) -> None:
    world = World()
    use(world)
    assert world.cache.longest_s < MOST_S
    assert world.fetches.longest_s < MOST_S


def test_partition_that_very_many_sessions_watch_moves_on() -> None:
    world = World()
    for _ in range(1_000):
        world.fetch(world.create(10), 1)
    for index in range(10):
        world.delayed.advanced(tp(index), 1)
    assert len(world.delayed) == 0
    assert world.fetches.longest_s < MOST_S


def test_delayed_operations_hold_their_lock_briefly() -> None:
    """A produce to each of a topic's 10,000 partitions, the most that one may have, and what ends its wait."""
    lock = Measured()
    operations = DelayedOperations(lock)
    woken: list[str] = []
    required = {tp(index): Offset(1) for index in range(10_000)}
    operations.arm(required, lambda: woken.append("interrupted"))
    operations.interrupt(tp(0))
    removed = operations.arm(required, lambda: woken.append("removed"))
    assert operations.waiting == 1
    operations.remove(removed)
    assert operations.waiting == 0
    assert woken == ["interrupted"]
    assert lock.longest_s < MOST_S
