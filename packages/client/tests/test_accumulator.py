from __future__ import annotations

import pytest

from kit.interrupts import Interrupt
from raylog.client.batches import accumulator as module
from raylog.client.batches.accumulator import Accumulator, Batch, BatchState, EncodedRecords
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition
from raylog.protocol.records import HEADER_SIZE, Record, encode_batch

A = TopicPartition(TopicName("t"), PartitionIndex(0))
B = TopicPartition(TopicName("t"), PartitionIndex(1))
RECORD = Record(b"v")


def accumulator(memory: int = 10_000) -> Accumulator[str]:
    return Accumulator(batch_size=1_000, linger_ms=5, buffer_memory=memory, new_outcome=str)


def opened(core: Accumulator[str], tp: TopicPartition, now_ms: int = 0, size: int = 100) -> Batch[str]:
    batch = core.open_batch(tp, size, now_ms, RECORD)
    assert batch is not None
    return batch


def test_a_batch_is_ready_after_linger_when_full_or_in_a_hurry() -> None:
    core = accumulator()
    batch = opened(core, A)
    assert core.ready(A, 4) is None
    assert core.linger_left_ms(A, 4) == 1
    assert core.ready(A, 5) is batch
    core.in_a_hurry = 1
    assert core.ready(A, 0) is batch
    core.in_a_hurry = 0
    opened(core, A)  # the first is full now
    assert core.ready(A, 0) is batch
    assert core.ready(B, 100) is None


def test_memory_is_taken_per_batch_and_given_back_once() -> None:
    core = accumulator(memory=2_500)
    first = opened(core, A)
    opened(core, B)
    assert core.open_batch(A, 100, 0, RECORD) is None
    core.take(first)
    assert core.open_batch(A, 100, 0, RECORD) is None  # in flight: still held
    core.release(first)
    assert core.open_batch(A, 100, 0, RECORD) is not None
    with pytest.raises(KeyError):
        core.release(first)


def test_a_large_record_has_a_batch_of_its_size() -> None:
    core = accumulator()
    assert opened(core, A, size=5_000).limit > 5_000
    assert core.free_memory < 5_000


RECORDS = [
    Record(b"v" * size, b"k" if size % 2 else None, (("\u00e4", b"h" * size), ("n", None)), 900 - size)
    for size in range(5)
]


def parts_of(record: Record) -> tuple[object, ...]:
    return record.value, record.key, tuple(record.headers), record.timestamp


@pytest.mark.parametrize("columns", [False, True])
def test_a_batch_that_is_too_large_is_halved_at_its_place(columns: bool) -> None:
    core = accumulator(memory=4_000)
    before = opened(core, B)
    if columns:
        body = encode_batch(RECORDS)[HEADER_SIZE:]
        batch = core.add_encoded(A, EncodedRecords(0, body, 5, RECORDS[0].timestamp, RECORDS[0].timestamp), 7)
        assert batch is not None
    else:
        batch = opened(core, A, now_ms=7)
        batch.records[:] = RECORDS
    after = opened(core, B, now_ms=9)
    core.take(batch)
    free = core.free_memory
    parts = core.split(batch, lambda counts: [f"of {count}" for count in counts])
    assert list(core.incomplete) == [before, *parts, after]
    assert [part.outcome for part in parts] == ["of 2", "of 3"]
    halves = [[parts_of(record) for record in part.records] for part in parts]
    assert halves == [[*map(parts_of, RECORDS[:2])], [*map(parts_of, RECORDS[2:])]]
    assert all(len(encode_batch(part.records)) <= part.size for part in parts)
    assert {(part.created_ms, part.state, part.full) for part in parts} == {(7, BatchState.RETRY, True)}
    for part in parts:
        core.release(part)
    assert core.free_memory == free + batch.reserved


def test_a_batch_that_is_taken_takes_no_more_records() -> None:
    core = accumulator()
    batch = opened(core, A)
    core.take(batch)
    assert A not in core.open
    assert A not in core.waiting


def test_no_batch_overtakes_another() -> None:
    core = accumulator()
    opened(core, A)
    second = opened(core, A)
    with pytest.raises(RuntimeError, match="overtake"):
        core.take(second)


def test_partitions_take_turns() -> None:
    core = accumulator()
    first = opened(core, A)
    opened(core, A)
    opened(core, B)
    core.take(first)
    assert list(core.waiting) == [B, A]


def test_old_batches_are_found_in_order() -> None:
    core = accumulator()
    batches = [opened(core, A, 0), opened(core, B, 1), opened(core, A, 2)]
    assert core.older_than(1) == batches[:2]


@pytest.mark.parametrize("encoded", [False, True])
def test_interrupt_while_a_batch_is_made_leaves_all_of_it_or_none(encoded: bool) -> None:
    """What is counted is to be sent, and has records."""
    for nth in range(100):
        core = accumulator()
        opened(core, A)
        try:
            with Interrupt(nth, module, but=(Accumulator._add,)):
                if encoded:
                    core.add_encoded(A, EncodedRecords(0, b"x" * 2_000, 1, 0, 0), 0)
                else:
                    core.open_batch(A, 2_000, 0, RECORD)
            break
        except KeyboardInterrupt:
            pass
        assert list(core.incomplete) == list(core.waiting[A])
        assert core.free_memory + sum(batch.reserved for batch in core.incomplete) == core.buffer_memory
        assert all(batch.count for batch in core.incomplete)
        assert set(core.open.values()) <= core.incomplete.keys()
    assert 10 < nth < 99
