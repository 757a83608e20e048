"""Delayed produces: who is woken by which high watermark, and that nothing piles up."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

from hypothesis import given
from hypothesis import strategies as st

from raylog.broker.replication.delayed_operations import DelayedOperations
from raylog.protocol.ids import Offset, PartitionIndex, TopicName, TopicPartition

A, B = (TopicPartition(TopicName("t"), PartitionIndex(index)) for index in range(2))


class Waiter:
    """Counts its wake-ups."""

    def __init__(self, table: DelayedOperations, required: Mapping[TopicPartition, int]) -> None:
        self.woken = 0
        self.produce = table.arm({tp: Offset(offset) for tp, offset in required.items()}, self._wake)

    def _wake(self) -> None:
        self.woken += 1


def test_a_high_watermark_wakes_those_it_satisfies_and_no_others() -> None:
    table = DelayedOperations(nullcontext())
    early, late = Waiter(table, {A: 10}), Waiter(table, {A: 11})
    table.advanced(A, Offset(10))
    assert (early.woken, late.woken) == (1, 0)
    table.advanced(A, Offset(20))
    assert (early.woken, late.woken) == (1, 1)


def test_a_request_over_several_partitions_waits_for_all_of_them() -> None:
    table = DelayedOperations(nullcontext())
    waiter = Waiter(table, {A: 5, B: 7})
    table.advanced(B, Offset(7))
    assert waiter.woken == 0
    table.advanced(A, Offset(6))
    assert waiter.woken == 1


def test_a_change_of_leadership_wakes_whoever_waits_there() -> None:
    table = DelayedOperations(nullcontext())
    there, elsewhere = Waiter(table, {A: 5, B: 7}), Waiter(table, {B: 1})
    table.interrupt(A)
    assert (there.woken, elsewhere.woken) == (1, 0)
    table.advanced(B, Offset(9))
    assert (there.woken, elsewhere.woken) == (1, 1)


def test_stopping_wakes_everybody() -> None:
    table = DelayedOperations(nullcontext())
    waiters = [Waiter(table, {A: 5}), Waiter(table, {A: 5, B: 7}), Waiter(table, {B: 7})]
    table.interrupt_all()
    assert [waiter.woken for waiter in waiters] == [1, 1, 1]
    assert table.waiting == 0


def test_who_was_removed_is_not_woken() -> None:
    table = DelayedOperations(nullcontext())
    waiter = Waiter(table, {A: 5})
    table.remove(waiter.produce)
    table.remove(waiter.produce)
    table.advanced(A, Offset(5))
    assert waiter.woken == 0


@given(
    required=st.lists(st.dictionaries(st.sampled_from((A, B)), st.integers(1, 9), min_size=1), max_size=8),
    moves=st.lists(st.tuples(st.sampled_from((A, B)), st.integers(0, 9)), max_size=20),
)
def test_woken_exactly_once_when_the_last_requirement_is_met(
    required: list[dict[TopicPartition, int]], moves: list[tuple[TopicPartition, int]]
) -> None:
    table = DelayedOperations(nullcontext())
    waiters = [Waiter(table, each) for each in required]
    seen = dict.fromkeys((A, B), 0)
    for tp, high_watermark in moves:
        table.advanced(tp, Offset(high_watermark))
        seen[tp] = max(seen[tp], high_watermark)
        for each, waiter in zip(required, waiters, strict=True):
            assert waiter.woken == all(seen[of] >= offset for of, offset in each.items())
    assert table.waiting == sum(waiter.woken == 0 for waiter in waiters)
