"""The bound for requests that are being received: large ones share it, small ones are outside of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

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
    """A connection's part, which gives its memory back when it is cut off."""

    def wake() -> None:
        if part.was_cut:
            part.resize(0)

    part = shared.share(wake)
    for capacity in capacities:
        assert part.resize(capacity)
    part.is_receiving = is_receiving
    return part


def asks(part: Share, capacity: int) -> bool | None:
    """Whether a connection that asks (again) gets that; None when it is refused, and ends."""
    try:
        return part.resize(capacity)
    except CloseConnection:
        part.resize(0)
        return None


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


def test_waiting_connection_is_woken_and_goes_on_when_another_is_done() -> None:
    shared = memory(2 * MB, wait_s=30)
    first = share(shared, 2 * MB)
    woken: list[bool] = []
    waiting = shared.share(lambda: woken.append(True))
    assert asks(waiting, MB) is False
    assert (waiting.is_waiting, waiting.counted, shared.is_short) == (True, 0, True)
    assert not woken
    first.resize(4096)
    assert woken
    assert asks(waiting, MB) is True
    assert (waiting.is_waiting, shared.is_short, shared.used) == (False, False, MB)


def test_waiting_connection_is_refused_in_the_end() -> None:
    clock = Clock()
    shared = memory(2 * MB, wait_s=5, clock=clock)
    share(shared, 2 * MB)
    waiting = share(shared)
    assert asks(waiting, MB) is False
    clock.now_s += 4.9
    assert asks(waiting, MB) is False
    clock.now_s += 0.2
    assert asks(waiting, MB) is None
    assert not shared.is_short


def test_those_that_have_memory_hear_that_another_waits() -> None:
    shared = memory(2 * MB, wait_s=30)
    told: list[bool] = []
    idle = shared.share(lambda: told.append(idle.is_wanted))
    assert idle.resize(2 * MB)
    asks(share(shared), MB)
    assert told == [True]


def test_connection_that_ends_while_it_waits_is_forgotten() -> None:
    shared = memory(2 * MB, wait_s=30)
    share(shared, 2 * MB)
    waiting = share(shared)
    assert asks(waiting, MB) is False
    waiting.resize(0)
    assert not shared.is_short


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
    waiting = share(shared)
    assert asks(waiting, 2 * MB) is False
    assert not stalled.was_cut
    clock.now_s += 0.01
    assert asks(waiting, 2 * MB) is False
    assert (stalled.was_cut, lively.was_cut) == (True, False)
    assert asks(waiting, 2 * MB) is True
    with pytest.raises(CloseConnection, match="too slowly"):
        stalled.came(1)
    assert shared.used == 3 * MB


def test_one_is_cut_off_at_a_time() -> None:
    """Its memory may be enough, once its connection has given it back."""
    clock = Clock()
    shared = memory(4 * MB, wait_s=30, clock=clock)
    slow = [shared.share(lambda: None) for _ in range(2)]
    for part in slow:
        assert part.resize(2 * MB)
        part.is_receiving = True
    clock.now_s += STALL_S + 0.1
    waiting = share(shared)
    assert [asks(waiting, MB) for _ in range(3)] == [False] * 3
    assert sum(part.was_cut for part in slow) == 1
    next(part for part in slow if part.was_cut).resize(0)
    assert asks(waiting, MB) is True
    assert sum(part.was_cut for part in slow) == 1


def test_request_that_trickles_gives_way() -> None:
    clock = Clock()
    shared = memory(4 * MB, wait_s=30, clock=clock)
    slow = share(shared, 4 * MB, is_receiving=True)
    for _ in range(20):
        clock.now_s += STALL_S / 2
        slow.came(MIN_BYTES_PER_S // 4)
    waiting = share(shared)
    assert asks(waiting, MB) is False
    assert slow.was_cut
    assert asks(waiting, MB) is True


def test_time_that_a_connection_waits_is_not_its_clients_fault() -> None:
    clock = Clock()
    shared = memory(4 * MB, wait_s=30, clock=clock)
    other = share(shared, 2 * MB)
    part = share(shared, 2 * MB, is_receiving=True)
    assert asks(part, 3 * MB) is False
    clock.now_s += 10
    other.resize(0)
    assert asks(part, 3 * MB) is True
    assert not part.is_too_slow(clock.now_s)


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
    assert [asks(part, 2 * MB) for part in parts] == [False, False, None]
    assert asks(parts[0], 2 * MB) is True
    assert asks(parts[1], 2 * MB) is False
    parts[0].resize(0)
    assert asks(parts[1], 2 * MB) is True
