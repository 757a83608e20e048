"""The loop that serves all sockets: events, wakes, times, work done elsewhere, and a source that is stuck."""

from __future__ import annotations

import gc
import os
import select
import socket
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kit.waiting import wait_until
from raylog.broker.net.loop import MOST_STALE, EventLoop
from raylog.broker.net.source import Source
from raylog.coordination.host.loops import Loops

WAIT_S = 20


class Told(Source):
    """Notes what the loop tells it, and does with that what a test wants."""

    def __init__(self, loop: EventLoop) -> None:
        self.loop = loop
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.got = b""
        self.threads: list[int] = []
        self.wakes = 0
        self.on_ready: Callable[[], None] = lambda: None
        self.on_woken: Callable[[], None] = lambda: None

    def fileno(self) -> int:
        return self.ours.fileno()

    def ready(self, events: int) -> None:
        self.threads.append(threading.get_ident())
        self.got += self.ours.recv(100)
        self.on_ready()

    def woken(self) -> None:
        self.wakes += 1
        self.on_woken()

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def loops() -> Loops:
    return Loops()


@pytest.fixture
def loop(loops: Loops) -> Iterator[EventLoop]:
    loop = EventLoop(loops)
    loop.start()
    yield loop
    loop.stop(WAIT_S)
    assert not loops.names() & {"net", "net-watch"}, "a thread is still there"


@pytest.fixture
def source(loop: EventLoop) -> Iterator[Told]:
    yield from added(loop)


@pytest.fixture
def other(loop: EventLoop) -> Iterator[Told]:
    yield from added(loop)


def added(loop: EventLoop) -> Iterator[Told]:
    told = Told(loop)
    loop.add(told, select.EPOLLIN)
    yield told
    loop.remove(told)
    told.close()


def says(source: Told, text: bytes) -> None:
    """Its peer says something, and it hears that."""
    before = source.got
    source.theirs.send(text)
    wait_until(lambda: source.got == before + text, WAIT_S, f"{text!r} is heard")


def test_what_comes_in_is_told(source: Told, other: Told) -> None:
    says(source, b"one")
    says(other, b"two")
    says(source, b"three")
    assert (source.got, other.got) == (b"onethree", b"two")
    assert len({*source.threads, *other.threads}) == 1, "one thread serves all"


def test_any_thread_may_wake_a_source(loop: EventLoop, source: Told) -> None:
    for count in range(1, 200):
        loop.wake(source)
        wait_until(lambda: source.wakes == count, WAIT_S, "it is woken", interval_s=0)  # noqa: B023


def test_a_source_is_looked_at_when_it_is_due(loop: EventLoop, source: Told, other: Told) -> None:
    source.on_ready = lambda: loop.look_at(source, loop.now_s + 0.05)
    other.on_ready = lambda: loop.look_at(other, loop.now_s + 3600)
    says(source, b"x")
    says(other, b"x")
    wait_until(lambda: source.wakes == 1, WAIT_S, "it is looked at")
    assert other.wakes == 0


def test_the_earliest_time_counts_and_once(loop: EventLoop, source: Told) -> None:
    def times() -> None:
        for after_s in (0.06, 0.03, 0.05):
            loop.look_at(source, loop.now_s + after_s)

    source.on_ready = times
    says(source, b"x")
    wait_until(lambda: source.wakes == 1, WAIT_S, "it is looked at")
    done = threading.Event()
    source.on_woken = done.set
    assert not done.wait(0.2)


def test_a_source_that_is_away_is_left_alone_until_it_comes_back(loop: EventLoop, source: Told, other: Told) -> None:
    source.on_ready = lambda: loop.leave(source)
    says(source, b"go")
    source.on_ready = lambda: None
    source.theirs.send(b"more")
    source.theirs.shutdown(socket.SHUT_WR)
    loop.wake(source)
    says(other, b"meanwhile")
    assert (source.got, source.wakes) == (b"go", 0)
    source.on_woken = lambda: loop.want(source, select.EPOLLIN)
    loop.come_back(source)
    wait_until(lambda: source.got == b"gomore", WAIT_S, "it hears what was said meanwhile")
    assert source.wakes >= 1


def test_a_source_that_is_stuck_keeps_no_other(loop: EventLoop, source: Told, other: Told) -> None:
    """As in a write to a disk that hangs: another thread goes on, and the source comes back after it."""
    says(source, b"well")
    free = threading.Event()
    source.on_ready = lambda: free.wait(WAIT_S * 10)
    source.on_woken = lambda: loop.want(source, select.EPOLLIN)
    source.theirs.send(b"stuck")
    for number in range(3):
        says(other, b"%d" % number)
    assert source.threads[-1] != other.threads[-1]
    source.theirs.send(b"more")
    loop.wake(source)
    says(other, b"still")
    assert (source.got, source.wakes) == (b"wellstuck", 0), "what another thread works for is left alone"
    source.on_ready = lambda: None
    free.set()
    wait_until(lambda: source.got == b"wellstuckmore", WAIT_S, "it comes back")
    assert source.wakes >= 1
    says(source, b"again")
    assert source.threads[-1] == other.threads[-1], "one thread serves all again"


def test_one_after_the_other_may_be_stuck(loop: EventLoop, source: Told, other: Told) -> None:
    free = threading.Event()
    source.on_ready = other.on_ready = lambda: free.wait(WAIT_S * 10)
    for stuck in (source, other):
        stuck.theirs.send(b"x")
        wait_until(lambda: stuck.got, WAIT_S, "it is served")  # noqa: B023
    third = Told(loop)
    loop.add(third, select.EPOLLIN)
    try:
        says(third, b"served")
    finally:
        free.set()
        wait_until(lambda: not (source.is_away or other.is_away), WAIT_S, "both have come back")
        loop.remove(third)
        third.close()


def test_the_next_may_be_stuck_before_the_takeover_is_over(
    loop: EventLoop, source: Told, other: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that takes over runs before the watcher does anything else."""
    free = threading.Event()
    source.on_ready = other.on_ready = lambda: free.wait(WAIT_S * 10)
    begin = loop._start_thread

    def begin_and_be_stuck() -> None:
        monkeypatch.undo()
        begin()
        wait_until(lambda: other.got, WAIT_S, "the other is served")

    monkeypatch.setattr(loop, "_start_thread", begin_and_be_stuck)
    source.theirs.send(b"x")
    wait_until(lambda: source.got, WAIT_S, "it is served")
    other.theirs.send(b"x")
    third = Told(loop)
    loop.add(third, select.EPOLLIN)
    try:
        says(third, b"served")
    finally:
        free.set()
        wait_until(lambda: not (source.is_away or other.is_away), WAIT_S, "both have come back")
        loop.remove(third)
        third.close()


def test_a_source_that_fails_ends_nothing(loops: Loops, loop: EventLoop, source: Told, other: Told) -> None:
    def fail() -> None:
        raise ValueError("a defect")

    source.on_ready = fail
    source.theirs.send(b"x")
    wait_until(lambda: loops.failures()["net"] == 1, WAIT_S, "it is counted")
    says(other, b"served")


def test_times_that_are_not_due_any_more_hold_nothing(loop: EventLoop, source: Told) -> None:
    """A connection's time is often ten minutes away, and it has long ended then."""
    done = threading.Event()

    def many() -> None:
        for _ in range(1000):
            short = Told(loop)
            loop.add(short, select.EPOLLIN)
            loop.look_at(short, loop.now_s + 3600)
            loop.look_at(short, loop.now_s + 3500)
            loop.remove(short)
            short.close()
            gone.append(weakref.ref(short))
        done.set()

    gone: list[weakref.ref[Told]] = []
    source.on_ready = many
    says(source, b"x")
    assert done.wait(WAIT_S)
    source.on_ready = lambda: None
    says(source, b"y")
    gc.disable()
    try:
        assert not any(each() for each in gone)
        assert len(loop._timers) <= 3 * MOST_STALE
    finally:
        gc.enable()


def test_a_source_that_was_stuck_and_then_left_comes_back_once_both_are_over(
    loop: EventLoop, source: Told, other: Told
) -> None:
    free = threading.Event()

    def stuck_and_left() -> None:
        free.wait(WAIT_S * 10)
        loop.leave(source)

    source.on_ready = stuck_and_left
    source.theirs.send(b"x")
    says(other, b"meanwhile")
    wait_until(lambda: source.away == 1, WAIT_S, "another thread has taken over")
    free.set()
    says(other, b"still")
    wait_until(lambda: source.away == 1, WAIT_S, "the stuck thread is back, the other work is not over")
    says(other, b"and still")
    assert source.wakes == 0
    loop.come_back(source)
    wait_until(lambda: source.wakes, WAIT_S, "it is back")


def test_a_takeover_that_finds_no_thread_is_tried_again(
    loops: Loops, loop: EventLoop, source: Told, other: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, failures = loops.loop, ["can't start new thread"]

    def refuse(name: str, *args: Any, **options: Any) -> Any:
        if name == "net" and failures:
            raise RuntimeError(failures.pop())
        return make(name, *args, **options)

    monkeypatch.setattr(loops, "loop", refuse)
    free = threading.Event()
    source.on_ready = lambda: free.wait(WAIT_S * 10)
    try:
        source.theirs.send(b"stuck")
        says(other, b"served")
        assert not failures
    finally:
        free.set()
    wait_until(lambda: not source.away, WAIT_S, "it comes back")


def test_long_work_goes_on_for_as_long_as_the_others_take(loop: EventLoop, source: Told, other: Told) -> None:
    """Else a crowd of busy clients would leave replicas and consumers that are behind next to nothing."""
    over = threading.Event()
    turns: Counter[int] = Counter()

    class Long(Told):
        def ready(self, events: int) -> None:
            turns[len(other.threads)] += 1
            if not over.is_set():
                loop.again(self)

    crowd = [Long(loop) for _ in range(20)]
    source.on_ready = lambda: [loop.again(long) for long in crowd] and None
    other.on_ready = lambda: over.wait(0.05) and None
    says(source, b"begin")
    for _ in range(3):
        says(other, b"busy")
    over.set()
    says(source, b"end")
    for long in crowd:
        long.close()
    assert max(turns[passes] for passes in (1, 2, 3)) >= len(crowd)


class Owner(Told):
    """Gives back what it has when the loop is over."""

    given_back = 0

    def loop_ended(self) -> None:
        self.loop.remove(self)
        self.close()
        self.given_back += 1


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_stop_gives_back_what_is_away_once_it_comes_back(loops: Loops) -> None:
    before = descriptors()
    loop = EventLoop(loops)
    away, here = Owner(loop), Owner(loop)
    for each in (away, here):
        loop.add(each, select.EPOLLIN)
    loop.start()
    away.on_ready = lambda: loop.leave(away)
    says(away, b"x")
    loop.stop(WAIT_S)
    assert (here.given_back, away.given_back) == (1, 0)
    loop.come_back(away)
    assert (here.given_back, away.given_back) == (1, 1)
    assert descriptors() == before
    late = Owner(loop)
    with pytest.raises(OSError, match="stopped"):
        loop.add(late, select.EPOLLIN)
    late.close()


def test_stop_with_a_stuck_source_leaks_nothing_once_it_returns(loops: Loops) -> None:
    """Its thread is the last, and closes what the loop had."""
    before = descriptors()
    loop = EventLoop(loops)
    stuck, other = Owner(loop), Owner(loop)
    for each in (stuck, other):
        loop.add(each, select.EPOLLIN)
    loop.start()
    free = threading.Event()
    stuck.on_ready = lambda: free.wait(WAIT_S * 10) and None
    stuck.theirs.send(b"x")
    says(other, b"served by another thread")
    loop.stop(0.01)
    assert stuck.given_back == 0
    loop.wake(stuck)
    free.set()
    wait_until(lambda: descriptors() == before, WAIT_S, "all descriptors are closed")
    assert (stuck.given_back, other.given_back) == (1, 1)
    wait_until(lambda: not loops.names() & {"net", "net-watch"}, WAIT_S, "no thread is left")
    assert not any(loops.failures().values())
