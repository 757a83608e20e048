"""The bound for requests that are being received: large ones share it, small ones are outside of it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from kit.machine import scaled
from kit.waiting import wait_until
from raylog.broker.config import BROKER_SETTINGS
from raylog.broker.handlers.context import CloseConnection
from raylog.broker.net.request_memory import MIN_BYTES_PER_S, STALL_S, RequestMemory, Share
from raylog.protocol.wire.frames import GREEDY_BYTES

MB = 1 << 20


class Clock:
    """Monotonic seconds that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def memory(limit: int, wait_s: float = 0.0, clock: Callable[[], float] | None = None) -> RequestMemory:
    settings = BROKER_SETTINGS.settings({"queued.max.request.bytes": str(limit)})
    return RequestMemory(lambda: settings, wait_s, *(() if clock is None else (clock,)))


def share(shared: RequestMemory, *capacities: int, is_receiving: bool = False) -> Share:
    """A connection's part, which gives its memory back when it is cut off, as its thread would."""
    part = shared.share(lambda: ends.append(threading.Thread(target=part.resize, args=(0,))))
    ends: list[threading.Thread] = []
    original = part.cut

    def cut() -> None:
        original()
        ends[-1].start()

    part.cut = cut
    for capacity in capacities:
        part.resize(capacity)
    part.is_receiving = is_receiving
    return part


class Waiter:
    """Another thread's wait for memory."""

    def __init__(self, part: Share, capacity: int) -> None:
        self.refused = False
        self._part, self._capacity = part, capacity
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._part.resize(self._capacity)
        except CloseConnection:
            self.refused = True
            self._part.resize(0)

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def end(self) -> None:
        self._thread.join(scaled(10))
        assert self.is_over


def test_large_buffers_share_the_limit() -> None:
    shared = memory(3 * MB)
    share(shared, MB)
    share(shared, 2 * MB)
    assert shared.used == 3 * MB
    with pytest.raises(CloseConnection, match=r"queued.max.request.bytes=3145728 are taken"):
        share(shared, MB)
    assert shared.used == 3 * MB


def test_small_buffers_are_not_counted() -> None:
    shared = memory(0)
    share(shared, MB)
    for _ in range(1000):
        share(shared, 4096, GREEDY_BYTES)
    assert shared.used == MB


def test_one_alone_may_grow_beyond_the_limit() -> None:
    shared = memory(MB)
    alone = share(shared, 2 * MB, 50 * MB)
    assert shared.used == 50 * MB
    with pytest.raises(CloseConnection):
        share(shared, MB)
    alone.resize(0)
    share(shared, MB)
    assert shared.used == MB


def test_there_may_be_no_limit() -> None:
    shared = memory(-1)
    for _ in range(100):
        share(shared, 100 * MB)
    assert shared.used == 10_000 * MB


def test_waiting_connection_goes_on_when_another_is_done() -> None:
    shared = memory(2 * MB, wait_s=30)
    first = share(shared, 2 * MB)
    waiter = Waiter(share(shared), MB)
    wait_until(lambda: len(shared._waiting) == 1, 5, "it waits")
    first.resize(4096)
    waiter.end()
    assert (waiter.refused, shared.used) == (False, MB)


@pytest.mark.parametrize("fast", [False, True])
def test_stalled_request_gives_way_to_one_that_waits(fast: bool) -> None:
    clock = Clock()
    shared = memory(4 * MB, wait_s=30, clock=clock)
    stalled = share(shared, 3 * MB, is_receiving=True)
    lively = share(shared, MB, is_receiving=True)
    if fast:
        stalled.came(3 * MB)
    clock.now_s += STALL_S
    lively.came(MB)
    waiter = Waiter(share(shared), 2 * MB)
    wait_until(lambda: len(shared._waiting) == 1, 5, "it waits")
    assert not stalled.was_cut
    clock.now_s += 0.01
    waiter.end()
    assert (stalled.was_cut, lively.was_cut, waiter.refused) == (True, False, False)
    with pytest.raises(CloseConnection, match="too slowly"):
        stalled.came(1)
    assert shared.used == 3 * MB


def test_request_that_trickles_gives_way() -> None:
    clock = Clock()
    shared = memory(4 * MB, wait_s=30, clock=clock)
    slow = share(shared, 4 * MB, is_receiving=True)
    for _ in range(20):
        clock.now_s += STALL_S / 2
        slow.came(MIN_BYTES_PER_S // 4)
    waiter = Waiter(share(shared), MB)
    waiter.end()
    assert (slow.was_cut, waiter.refused) == (True, False)


def test_nobody_is_cut_while_nobody_waits() -> None:
    clock = Clock()
    shared = memory(4 * MB, clock=clock)
    stalled = share(shared, 3 * MB, is_receiving=True)
    clock.now_s += 1_000
    share(shared, MB)
    assert not stalled.was_cut


def test_request_that_the_broker_works_on_is_not_cut() -> None:
    clock = Clock()
    shared = memory(3 * MB, clock=clock)
    at_work = share(shared, 3 * MB)
    clock.now_s += 1_000
    with pytest.raises(CloseConnection):
        share(shared, MB)
    assert not at_work.was_cut


def test_last_of_those_that_wait_for_each_other_gives_up() -> None:
    shared = memory(3 * MB, wait_s=30)
    parts = [share(shared, MB, is_receiving=True) for _ in range(3)]
    waiters = []
    for part in parts:
        waiters.append(Waiter(part, 2 * MB))
        wait_until(lambda: part in shared._waiting or waiters[-1].is_over, 5, "it waits")  # noqa: B023
    for waiter in waiters[1:]:
        wait_until(lambda: waiter.is_over or waiters[0].is_over, 10, "one goes on")  # noqa: B023
    waiters[0].end()
    assert not waiters[0].refused
    assert waiters[2].refused
    parts[0].resize(0)
    waiters[1].end()
    assert not waiters[1].refused
