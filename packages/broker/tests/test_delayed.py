"""Delayed fetches: who is woken when, and that nobody is left behind."""

from __future__ import annotations

import threading
from contextlib import nullcontext

from hypothesis import given
from hypothesis import strategies as st

from kit.machine import scaled
from raylog.broker.replication.delayed import AT_ONCE, DelayedFetches, FetchWatch, Interest, Level
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition

A, B = (TopicPartition(TopicName("t"), PartitionIndex(index)) for index in range(2))


class Waiter:
    """Counts its wake-ups."""

    def __init__(
        self,
        table: DelayedFetches,
        *partitions: TopicPartition,
        min_bytes: int = 1,
        level: Level = Level.HIGH_WATERMARK,
    ) -> None:
        self.woken = 0
        self.fetch = FetchWatch(level)
        table.arm(self.fetch, min_bytes, self._wake)
        self.interests = {tp: Interest(self.fetch) for tp in partitions}
        self._table = table
        table.watch((interest, tp) for tp, interest in self.interests.items())

    def changed(self) -> set[TopicPartition]:
        """What changed, which is handed over."""
        noted = self._table.arm(self.fetch, 100, self._wake)
        return {tp for tp, interest in self.interests.items() if interest in noted}

    def _wake(self) -> None:
        self.woken += 1


def test_wakes_only_those_who_have_enough() -> None:
    table = DelayedFetches(nullcontext())
    small, large = Waiter(table, A, min_bytes=10), Waiter(table, A, min_bytes=100)
    table.advanced(A, 40)
    assert (small.woken, large.woken) == (1, 0)
    table.advanced(A, 60)
    assert (small.woken, large.woken) == (1, 1)


def test_counts_over_all_partitions_of_a_fetch() -> None:
    table = DelayedFetches(nullcontext())
    waiter = Waiter(table, A, B, min_bytes=100)
    table.advanced(A, 50)
    table.advanced(B, 50)
    assert waiter.woken == 1


def test_bytes_that_were_there_before_count() -> None:
    table = DelayedFetches(nullcontext())
    waiter = Waiter(table, A, min_bytes=100)
    table.credit(waiter.fetch, 60)
    assert waiter.woken == 0
    table.advanced(A, 40)
    assert waiter.woken == 1


def test_what_changed_is_handed_over_once() -> None:
    table = DelayedFetches(nullcontext())
    waiter = Waiter(table, A, B, min_bytes=100)
    table.advanced(A, 1)
    table.changed(B)
    assert waiter.woken == 0
    assert waiter.changed() == {A, B}
    assert waiter.changed() == set()


def test_a_watch_that_nobody_waits_for_is_told_once_and_costs_nothing_after_that() -> None:
    table = DelayedFetches(nullcontext())
    waiter = Waiter(table, A, B)
    table.disarm(waiter.fetch)
    for _ in range(3):
        table.advanced(A, 1)
    assert len(table) == 1
    table.interrupt(B)
    assert len(table) == 0
    assert waiter.woken == 0
    assert waiter.changed() == {A, B}


def test_a_partition_can_be_left() -> None:
    table = DelayedFetches(nullcontext())
    waiter = Waiter(table, A, B)
    table.unwatch([waiter.interests[A]])
    table.advanced(A, 1)
    assert waiter.woken == 0
    table.advanced(B, 1)
    assert waiter.woken == 1


def test_interest_that_moves_hears_of_one_place_only() -> None:
    table = DelayedFetches(nullcontext())
    waiter = Waiter(table, A, min_bytes=100)
    interest = waiter.interests[A]
    table.watch([(interest, B)])
    table.advanced(A, 1)
    assert waiter.changed() == set()
    table.advanced(B, 1)
    assert table.arm(waiter.fetch, 1, waiter._wake) == {interest}
    table.watch([(interest, None)])
    assert len(table) == 0


def test_change_of_what_is_left_is_not_handed_over() -> None:
    table = DelayedFetches(nullcontext())
    waiter = Waiter(table, A, B, min_bytes=100)
    table.advanced(A, 1)
    table.unwatch([waiter.interests[A]])
    assert waiter.changed() == set()


def test_waiting_fetches_are_counted_once_each() -> None:
    table = DelayedFetches(nullcontext())
    first, second = Waiter(table, A, B), Waiter(table, A, min_bytes=5)
    assert table.waiting == 2
    table.advanced(A, 1)
    assert table.waiting == 1
    table.disarm(first.fetch)
    table.remove(second.fetch)
    table.arm(second.fetch, 1, second._wake)
    assert table.waiting == 0


def test_lock_is_held_for_a_bounded_number_of_changes() -> None:
    holds: list[int] = []

    class Counting:
        """A lock that tells how many interests were registered or not any more while it was held."""

        def __enter__(self) -> None:
            self.before = len(table)

        def __exit__(self, *_: object) -> None:
            holds.append(abs(len(table) - self.before))

    table = DelayedFetches(Counting())
    tps = [TopicPartition(TopicName("t"), PartitionIndex(index)) for index in range(5 * AT_ONCE + 1)]
    left, removed = Waiter(table, *tps), Waiter(table, *tps)
    assert len(table) == 2 * len(tps)
    table.unwatch(left.interests.values())
    table.remove(removed.fetch)
    assert len(table) == 0
    assert max(holds) == AT_ONCE


def test_a_late_wake_up_meets_the_gate_of_its_own_time() -> None:
    """Who advances wakes outside the lock: the watch may have been armed anew by then."""
    table = DelayedFetches(nullcontext())
    watch, woken = FetchWatch(), []
    interest = Interest(watch)

    def first() -> None:
        table.arm(watch, 10, lambda: woken.append("second"))
        table.watch([(interest, A)])
        woken.append("first")

    table.arm(watch, 1, first)
    table.watch([(interest, A)])
    table.advanced(A, 1)
    assert woken == ["first"]
    table.advanced(A, 10)
    assert woken == ["first", "second"]


def test_a_removed_fetch_is_not_woken() -> None:
    table = DelayedFetches(nullcontext())
    waiter = Waiter(table, A, B)
    table.remove(waiter.fetch)
    table.advanced(A, 1)
    table.credit(waiter.fetch, 1)
    table.interrupt(B)
    table.watch([(waiter.interests[A], A)])
    assert waiter.woken == 0
    assert len(table) == 0


def test_an_interruption_wakes_whatever_is_missing() -> None:
    table = DelayedFetches(nullcontext())
    waiter, other = Waiter(table, A, min_bytes=1 << 30), Waiter(table, B)
    table.interrupt(A)
    assert (waiter.woken, other.woken) == (1, 0)
    table.interrupt_all()
    assert (waiter.woken, other.woken) == (1, 1)


@given(st.lists(st.tuples(st.sampled_from([A, B]), st.integers(1, 50)), max_size=30), st.integers(1, 300))
def test_is_woken_exactly_when_enough_has_come(advances: list[tuple[TopicPartition, int]], wanted: int) -> None:
    table = DelayedFetches(nullcontext())
    waiter = Waiter(table, A, B, min_bytes=wanted)
    come = 0
    for tp, count in advances:
        table.advanced(tp, count)
        come += count
        assert waiter.woken == (come >= wanted)


def test_no_wake_up_is_lost_between_threads() -> None:
    """The rule of the module: watch first, count afterwards; appenders count first and tell afterwards."""
    table = DelayedFetches(threading.Lock())
    rounds = 2000
    total = 0
    turn = threading.Semaphore(0)

    def append() -> None:
        nonlocal total
        for _ in range(rounds):
            turn.acquire()
            total += 1
            table.advanced(A, 1)

    appender = threading.Thread(target=append)
    appender.start()
    for expected in range(1, rounds + 1):
        gate = threading.Semaphore(0)
        fetch = FetchWatch()
        turn.release()
        table.arm(fetch, 1, gate.release)
        table.watch((Interest(fetch), tp) for tp in (A, B))
        table.credit(fetch, total - (expected - 1))
        assert gate.acquire(timeout=scaled(10)), f"nobody woke the fetch of round {expected}"
        table.remove(fetch)
    appender.join()
    assert len(table) == 0


def test_followers_wait_for_the_end_of_the_log_and_consumers_for_the_high_watermark() -> None:
    table = DelayedFetches(nullcontext())
    follower, consumer = Waiter(table, A, min_bytes=10, level=Level.LOG_END), Waiter(table, A, min_bytes=10)
    table.advanced(A, 9)
    table.appended(A, 9)
    assert (follower.woken, consumer.woken) == (0, 0)
    table.appended(A, 1)
    assert (follower.woken, consumer.woken) == (1, 0)
    table.advanced(A, 1)
    assert (follower.woken, consumer.woken) == (1, 1)


def test_a_follower_is_told_of_the_high_watermark_with_the_next_answer() -> None:
    table = DelayedFetches(nullcontext())
    follower = Waiter(table, A, B, level=Level.LOG_END)
    table.advanced(A, 1_000)
    assert follower.woken == 0
    table.appended(B, 1)
    assert follower.woken == 1
    assert follower.changed() == {A, B}


def test_a_consumer_does_not_look_again_at_what_is_not_committed() -> None:
    table = DelayedFetches(nullcontext())
    consumer = Waiter(table, A)
    table.appended(A, 1_000)
    assert consumer.changed() == set()
