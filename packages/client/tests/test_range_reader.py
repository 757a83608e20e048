"""A range is read to its end, which is a position, not a record; and what the log lost is told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.odd_logs import compacted
from raylog.client.batches.decode import schema_of
from raylog.client.ranges import range_reader
from raylog.client.ranges.offset_ranges import OffsetRange
from raylog.client.ranges.range_reader import decode_range
from raylog.protocol.batches.transactions import AbortedTransaction
from raylog.protocol.errors import CorruptMessage
from raylog.protocol.ids import Offset, PartitionIndex, TopicName, TopicPartition
from raylog.protocol.records import Batches, Codec, Record, encode_batch, frame_batch

TP = TopicPartition(TopicName("flights"), PartitionIndex(3))


def batch(base: int, values: Sequence[str], *, control: bool = False) -> bytes:
    records = [Record(value=value.encode(), timestamp=1_000) for value in values]
    return encode_batch(records, base_offset=base, codec=Codec.LZ4, control=control)


def values(start: int, end: int, *parts: bytes, at: int = 0) -> list[bytes]:
    """The values of the range in an answer to a fetch from ``at``."""
    piece = OffsetRange(TP, Offset(start), Offset(end))
    fetched = Batches(b"".join(parts), high_watermark=1_000, from_offset=at)
    return [
        value
        for found in decode_range(piece, fetched, schema_of(["value"]))
        for value in found.column("value").to_pylist()
    ]


def test_a_range_begins_and_ends_inside_batches() -> None:
    assert values(1, 5, batch(0, ["a", "b", "c"]), batch(3, ["d", "e", "f"])) == [b"b", b"c", b"d", b"e"]
    assert values(1, 2, batch(0, ["a", "b", "c"])) == [b"b"]


def test_what_was_handed_out_before_is_left_out() -> None:
    assert values(0, 9, batch(0, ["a", "b", "c"]), at=2) == [b"c"]


def test_control_batches_are_left_out() -> None:
    assert values(0, 4, batch(0, ["a", "b"]), batch(2, ["commit"], control=True), batch(3, ["c"])) == [b"a", b"b", b"c"]
    assert values(2, 3, batch(2, ["commit"], control=True)) == []


def test_what_a_transaction_aborted_is_left_out() -> None:
    def written(base: int, value: str, producer_id: int) -> bytes:
        records = [Record(value=value.encode())]
        return encode_batch(records, base_offset=base, producer_id=producer_id, producer_epoch=0, transactional=True)

    data = written(0, "a", 1) + written(1, "b", 2) + written(2, "c", 1)
    fetched = Batches(data, 9, aborted=(AbortedTransaction(1, 1),))
    piece = OffsetRange(TP, Offset(0), Offset(9))
    [found] = decode_range(piece, fetched, schema_of(["value"]))
    assert found.column("value").to_pylist() == [b"a", b"b"]


def test_a_batch_behind_the_range_is_not_looked_at() -> None:
    behind = bytearray(batch(40, ["z"]))
    behind[-1] ^= 1
    assert values(0, 6, batch(0, ["a", "b"]), bytes(behind)) == [b"a", b"b"]


def test_a_partial_batch_at_the_end_of_an_answer_waits_for_the_next() -> None:
    assert values(0, 4, batch(0, ["a", "b"]), batch(2, ["c", "d"])[:-1]) == [b"a", b"b"]


def test_nothing_is_handed_out_empty() -> None:
    piece = OffsetRange(TP, Offset(5), Offset(9))
    fetched = Batches(compacted([Record(value=b"%d" % number) for number in range(12)], {0, 11}), 100)
    assert list(decode_range(piece, fetched, schema_of(None))) == []


def test_what_comes_before_a_damaged_batch_is_handed_out_and_then_it_is_named() -> None:
    damaged = frame_batch(b"\xff" * 9, 1, 1, 1, base_offset=2)
    piece = OffsetRange(TP, Offset(0), Offset(9))
    found = decode_range(piece, Batches(batch(0, ["a", "b"]) + damaged, 9), schema_of(["value"]))
    assert next(found).column("value").to_pylist() == [b"a", b"b"]
    with pytest.raises(CorruptMessage, match="flights-3, batch at offset 2"):
        next(found)


def cut_batches(sizes: Iterable[int]) -> Iterator[bytes]:
    base = 0
    for size in sizes:
        yield batch(base, [str(base + number) for number in range(size)], control=size == 1)
        base += size


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=8),
    start=st.integers(0, 30),
    length=st.integers(1, 30),
    cut=st.integers(0, 10_000),
)
def test_any_range_of_any_batches_is_read_exactly(sizes: list[int], start: int, length: int, cut: int) -> None:
    """Batches of one record are control batches here."""
    parts = list(cut_batches(sizes))
    whole = values(start, start + length, *parts)
    offsets = [int(value) for value in whole]
    control, base = set(), 0
    for size in sizes:
        control |= {base} if size == 1 else set()
        base += size
    assert offsets == [offset for offset in range(start, min(start + length, base)) if offset not in control]
    data = b"".join(parts)
    first = Batches(data[: cut % (len(data) + 1)], 1_000, start)
    rest = values(start, start + length, *parts, at=first.next_offset)
    assert values(start, start + length, first.data, at=start) + rest == whole


def test_portions_are_bounded() -> None:
    value = "x" * 600_000
    parts = [batch(base, [value, value]) for base in range(0, 16, 2)]
    piece = OffsetRange(TP, Offset(0), Offset(16))
    found = list(decode_range(piece, Batches(b"".join(parts), 100), schema_of(["value"])))
    assert [len(portion) for portion in found] == [8, 8]
    assert all(portion.nbytes < 2 * range_reader.PORTION_BYTES for portion in found)
