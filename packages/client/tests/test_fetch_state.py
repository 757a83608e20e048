from __future__ import annotations

import pytest

from raylog.client.columns import SCHEMA
from raylog.client.fetch_state import Gap, PartitionBuffer
from raylog.client.serde import deserializer
from raylog.client.subscription import Place
from raylog.protocol.errors import CorruptMessage, InvalidRecord, MessageTooLarge
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition
from raylog.protocol.records import Codec, Record, TimestampType, encode_batch
from raylog.protocol.transactions import AbortedTransaction

TP = TopicPartition(TopicName("t"), PartitionIndex(3))


def encoded(first: int, count: int, *, control: bool = False, kind: TimestampType = TimestampType.CREATE_TIME) -> bytes:
    records = [Record(b"v%d" % (first + n), b"k", (("h", None),), 5) for n in range(count)]
    return encode_batch(records, base_offset=first, control=control, timestamp_type=kind)


def buffer_at(position: int, *, value: str = "bytes") -> PartitionBuffer:
    place = Place(TP)
    place.seek(position)
    return PartitionBuffer(place, None, deserializer(value), check_crcs=True)


def offsets(buffer: PartitionBuffer, count: int = 100, gaps: list[Gap] | None = None) -> list[int]:
    return [record.offset for record in buffer.take(count, [] if gaps is None else gaps)]


def test_records_come_batch_by_batch_and_the_position_follows() -> None:
    buffer = buffer_at(0)
    buffer.add(encoded(0, 3) + encoded(3, 2), 5)
    assert buffer.fetch_offset == 5
    assert offsets(buffer, 2) == [0, 1]
    assert buffer.place.position == 2
    assert offsets(buffer) == [2]
    assert offsets(buffer) == [3, 4]
    assert offsets(buffer) == []
    assert not buffer.has_data()


def test_a_record_has_everything() -> None:
    buffer = buffer_at(0)
    buffer.add(encoded(0, 1, kind=TimestampType.LOG_APPEND_TIME), 1)
    assert buffer.take(1, []) == [("t", 3, 0, 5, 1, b"k", b"v0", [("h", None)])]


def test_records_before_the_position_are_left_out() -> None:
    buffer = buffer_at(2)
    buffer.add(encoded(0, 4), 4)
    assert offsets(buffer) == [2, 3]


def test_control_batches_are_passed_over() -> None:
    buffer = buffer_at(0)
    buffer.add(encoded(0, 1) + encoded(1, 1, control=True), 2)
    assert offsets(buffer) == [0]
    assert offsets(buffer) == []
    assert buffer.place.position == 2


def test_aborted_batches_are_passed_over_however_they_are_read() -> None:
    data = b"".join(
        encode_batch(
            [Record(b"v")], base_offset=at, producer_id=7, producer_epoch=0, transactional=True, control=control
        )
        for at, control in ((0, False), (1, True), (2, False), (3, True))
    )
    aborted = [AbortedTransaction(7, 0)]
    rows, columns, raw = buffer_at(0), buffer_at(0), buffer_at(0)
    for buffer in (rows, columns, raw):
        buffer.add(data, 4, aborted)
    assert offsets(rows) + offsets(rows) == [2]
    table = columns.columns(SCHEMA, [])
    assert table is not None
    assert table.column("offset").to_pylist() == [2]
    batches = raw.raw()
    assert batches is not None
    assert [record.offset for record in batches.records()] == [2]
    assert [buffer.place.position for buffer in (rows, columns, raw)] == [4, 4, 4]


def test_a_partial_batch_at_the_end_is_fetched_again() -> None:
    buffer = buffer_at(0)
    buffer.add(encoded(0, 2) + encoded(2, 2)[:-5], 4)
    assert buffer.fetch_offset == 2
    with pytest.raises(MessageTooLarge, match="offset 2"):
        buffer.add(encoded(2, 2)[:-5], 4)


def test_gaps_are_reported() -> None:
    buffer, gaps = buffer_at(0), list[Gap]()
    buffer.add(encoded(0, 1) + encoded(5, 1), 6)
    assert offsets(buffer, gaps=gaps) + offsets(buffer, gaps=gaps) == [0, 5]
    assert gaps == [Gap(TP, 1, 5)]


def test_two_answers_are_kept_at_most() -> None:
    buffer = buffer_at(0)
    buffer.add(encoded(0, 2), 4)
    assert buffer.wants_more()
    buffer.add(encoded(2, 2), 4)
    assert not buffer.wants_more()


def test_what_the_user_did_not_see_is_given_back() -> None:
    buffer = buffer_at(0)
    buffer.add(encoded(0, 4), 4)
    buffer.give_back(buffer.take(4, [])[1:])
    assert buffer.place.position == 1
    assert offsets(buffer) == [1, 2, 3]


def test_a_damaged_batch_is_reported_with_its_place_and_fetched_again() -> None:
    buffer = buffer_at(0)
    damaged = bytearray(encoded(1, 1))
    damaged[-1] ^= 1
    buffer.add(encoded(0, 1) + bytes(damaged), 2)
    assert offsets(buffer) == [0]
    with pytest.raises(CorruptMessage, match="t-3, batch at offset 1"):
        buffer.take(1, [])
    assert (buffer.fetch_offset, buffer.place.position) == (1, 1)


def test_a_value_that_cannot_be_decoded_is_reported_with_its_offset() -> None:
    buffer = buffer_at(0, value="json")
    buffer.add(encoded(0, 1), 1)
    with pytest.raises(InvalidRecord, match="t-3 offset 0"):
        buffer.take(1, [])


def test_raw_answers_move_the_position_behind_them() -> None:
    buffer = buffer_at(1)
    buffer.add(encoded(0, 3), 9)
    raw = buffer.raw()
    assert raw is not None
    assert [record.offset for record in raw.records()] == [1, 2]
    assert (raw.high_watermark, buffer.place.position, buffer.raw()) == (9, 3, None)


def test_ways_of_reading_mix_in_the_middle_of_a_batch() -> None:
    buffer = buffer_at(0)
    buffer.add(encoded(0, 3) + encoded(3, 2), 9)
    assert offsets(buffer, 1) == [0]
    raw = buffer.raw()
    assert raw is not None
    assert [record.offset for record in raw.records()] == [1, 2, 3, 4]
    assert offsets(buffer) == []
    buffer.add(encoded(5, 3), 9)
    assert offsets(buffer, 2) == [5, 6]
    assert columns(buffer) == [7]
    assert columns(buffer) is None


def columns(buffer: PartitionBuffer, gaps: list[Gap] | None = None) -> list[int] | None:
    found = buffer.columns(SCHEMA, [] if gaps is None else gaps)
    return None if found is None else found["offset"].to_pylist()  # type: ignore[no-any-return]


def test_columns_hold_an_answer_from_the_position_on() -> None:
    buffer, gaps = buffer_at(1), list[Gap]()
    buffer.add(encoded(0, 3) + encoded(3, 1, control=True) + encoded(6, 2) + encoded(8, 1, control=True), 9)
    assert columns(buffer, gaps) == [1, 2, 6, 7]
    assert (buffer.place.position, gaps) == (9, [Gap(TP, 4, 6)])
    buffer.add(encoded(9, 1, control=True), 10)
    assert columns(buffer) is None
    assert buffer.place.position == 10


def test_columns_end_before_a_damaged_batch_which_is_reported_and_fetched_again() -> None:
    buffer = buffer_at(0)
    damaged = bytearray(encoded(4, 1))
    damaged[-1] ^= 1
    answer = encoded(0, 2) + encoded(2, 2) + bytes(damaged) + encoded(5, 1)
    buffer.add(answer, 6)
    assert columns(buffer) == [0, 1, 2, 3]
    assert (buffer.fetch_offset, buffer.place.position) == (4, 4)
    buffer.add(bytes(damaged) + encoded(5, 1), 6)
    with pytest.raises(CorruptMessage, match="t-3, batch at offset 4"):
        columns(buffer)
    assert (buffer.fetch_offset, buffer.place.position) == (4, 4)


def test_what_compresses_well_comes_in_portions() -> None:
    buffer = buffer_at(0)
    batches = [
        encode_batch([Record(bytes(1 << 20), None, (), 5)] * 20, base_offset=20 * n, codec=Codec.ZSTD) for n in range(3)
    ]
    assert sum(map(len, batches)) < 1 << 20
    buffer.add(b"".join(batches), 60)
    assert columns(buffer) == list(range(40))
    assert buffer.has_data()
    assert offsets(buffer, 5) == [40, 41, 42, 43, 44]
    assert columns(buffer) == list(range(45, 60))
    assert columns(buffer) is None
