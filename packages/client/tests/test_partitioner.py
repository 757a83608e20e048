from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.client.batches.partitioner import KeyPartitioner, StickyPartitioner, Turns, murmur2


@pytest.mark.parametrize(
    ("data", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_gives_the_values_of_kafkas_own_tests(data: bytes, signed: int) -> None:
    assert murmur2(data) == signed & 0xFFFFFFFF


@given(st.binary(max_size=64), st.integers(1, 100))
def test_a_key_always_goes_to_the_same_partition(key: bytes, count: int) -> None:
    partitioner = KeyPartitioner(kept_keys=2)
    first = partitioner.partition(key, count)
    partitioner.partition(b"another", count)
    partitioner.partition(b"and another", count)
    assert partitioner.partition(key, count) == first == (murmur2(key) & 0x7FFFFFFF) % count


def test_records_without_a_key_stay_for_a_batch_and_move_on() -> None:
    choices = iter([2, 0, 1])
    sticky = StickyPartitioner(lambda n: next(choices), switch_bytes=100)
    assert [sticky.partition(40, (0, 1, 2), 3) for _ in range(6)] == [2, 2, 0, 0, 1, 1]


def test_only_partitions_with_a_leader_are_chosen_while_there_are_any() -> None:
    sticky = StickyPartitioner(lambda n: n - 1, switch_bytes=10)
    assert sticky.partition(10, (0, 4), 6) == 4
    assert sticky.partition(10, (), 6) == 5


def test_a_topic_that_shrank_is_left_for_a_partition_that_exists() -> None:
    sticky = StickyPartitioner(lambda n: n - 1, switch_bytes=1_000)
    assert sticky.partition(1, (), 6) == 5
    assert sticky.partition(1, (), 3) == 2


def test_turns_leave_out_partitions_without_leader() -> None:
    turns = Turns()
    assert [turns.partition((0, 2, 3), 4) for _ in range(4)] == [0, 2, 3, 0]
    assert [turns.partition((), 4) for _ in range(3)] == [0, 1, 2]


@given(st.lists(st.integers(0, 9)), st.sets(st.integers(0, 5)).map(sorted).map(tuple))
def test_turns_of_many_records_are_those_of_each(runs: list[int], available: tuple[int, ...]) -> None:
    together, alone = Turns(), Turns()
    for records in runs:
        each = [alone.partition(available, 6) for _ in range(records)]
        assert together.partitions(records, available, 6) == each
