"""Threads for connections: one each while there is work, used again, and gone after a while."""

from __future__ import annotations

import threading

from kit.machine import scaled
from kit.waiting import wait_until
from raylog.broker.net.threads import MAX_WAITING, Threads
from raylog.coordination.host.loops import Loops


def named(name: str) -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == name}


def test_jobs_run_at_the_same_time_and_their_threads_are_used_again() -> None:
    threads = Threads("reused", Loops(), max_wait_s=10)
    all_there = threading.Barrier(5)
    used: set[threading.Thread] = set()

    def job() -> None:
        used.add(threading.current_thread())
        all_there.wait(scaled(10))

    for _ in range(3):
        for _ in range(4):
            threads.run(job)
        all_there.wait(scaled(10))
        wait_until(lambda: threads.waiting == 4, 10, "all four wait for work")
    assert len(used) == 4
    assert used == named("reused")


def test_threads_that_wait_too_long_or_are_too_many_end() -> None:
    threads = Threads("ending", Loops(), max_wait_s=0.05)
    count = MAX_WAITING + 10
    all_there = threading.Barrier(count + 1)
    for _ in range(count):
        threads.run(lambda: all_there.wait(scaled(10)) and None)
    assert len(named("ending")) == count
    all_there.wait(scaled(10))
    wait_until(lambda: not named("ending"), 10, "all have ended")
    done = threading.Event()
    threads.run(done.set)
    assert done.wait(scaled(10))


def test_a_thread_that_waits_keeps_nothing_of_its_last_job() -> None:
    threads = Threads("free", Loops(), max_wait_s=60)
    kept: list[object] = []

    class Held:
        def __del__(self) -> None:
            kept.append("gone")

    def job(_: Held = Held()) -> None:  # noqa: B008 (the default is what the job holds)
        return

    threads.run(job)
    del job
    wait_until(lambda: kept == ["gone"], 10, "what the job held is gone")


def test_job_that_raises_is_told_and_ends_no_thread() -> None:
    loops = Loops()
    threads = Threads("raising", loops, max_wait_s=10)

    def job() -> None:
        raise ValueError("not foreseen")

    threads.run(job)
    wait_until(lambda: threads.waiting == 1, 10, "its thread waits for work")
    assert loops.failures() == {"raising": 1}
    assert loops.troubles() == {"raising": "ValueError: not foreseen"}
    done = threading.Event()
    threads.run(done.set)
    assert done.wait(scaled(10))
    assert len(named("raising")) == 1
