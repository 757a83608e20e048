from __future__ import annotations

from collections.abc import Callable

import pytest

from kit.interrupts import Interrupt
from kit.odd_logs import compacted
from raylog.client.arguments.serde import Deserializer, deserializer
from raylog.client.batches.decode import SCHEMA
from raylog.client.fetch import fetch_state
from raylog.client.fetch.fetch_state import Gap, PartitionBuffer
from raylog.client.fetch.subscription import Place
from raylog.client.read_errors import CorruptBatch, RecordDeserializationError
from raylog.client.results import ConsumerRecord
from raylog.protocol.batches.header import CRC_POSITION, HEADER_SIZE
from raylog.protocol.batches.transactions import AbortedTransaction
from raylog.protocol.errors import MessageTooLarge, UnsupportedCompressionType
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition
from raylog.protocol.records import Codec, Record, TimestampType, encode_batch

TP = TopicPartition(TopicName("t"), PartitionIndex(3))


def encoded(first: int, count: int, *, control: bool = False, kind: TimestampType = TimestampType.CREATE_TIME) -> bytes:
    records = [Record(b"v%d" % (first + n), b"k", (("h", None),), 5) for n in range(count)]
    return encode_batch(records, base_offset=first, control=control, timestamp_type=kind)


def damaged(batch: bytes) -> bytes:
    return batch[:-1] + bytes([batch[-1] ^ 1])


def buffer_at(position: int, *, value: str | Deserializer = "bytes") -> PartitionBuffer:
    place = Place(TP)
    place.seek(position)
    return PartitionBuffer(place, None, deserializer(value), check_crcs=True)


def take(buffer: PartitionBuffer, count: int = 100, gaps: list[Gap] | None = None) -> list[ConsumerRecord]:
    """The next records, handed out."""
    records = buffer.peek(count, [] if gaps is None else gaps)
    if records:
        buffer.place.position = records[-1].offset + 1
    return records


def offsets(buffer: PartitionBuffer, count: int = 100, gaps: list[Gap] | None = None) -> list[int]:
    return [record.offset for record in take(buffer, count, gaps)]


def columns(buffer: PartitionBuffer, gaps: list[Gap] | None = None) -> list[int] | None:
    found = buffer.columns(SCHEMA, [] if gaps is None else gaps)
    return None if found is None else found["offset"].to_pylist()  # type: ignore[no-any-return]


def raw(buffer: PartitionBuffer) -> list[int] | None:
    found = buffer.raw()
    return None if found is None else [record.offset for record in found.records()]


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
    assert take(buffer, 1) == [("t", 3, 0, 5, 1, b"k", b"v0", [("h", None)])]


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


def test_peek_moves_nothing() -> None:
    buffer = buffer_at(0)
    buffer.add(encoded(0, 4), 4)
    assert [record.offset for record in buffer.peek(3, [])] == [0, 1, 2]
    assert buffer.place.position == 0
    assert offsets(buffer) == [0, 1, 2, 3]


def test_position_goes_behind_what_compaction_took() -> None:
    buffer, gaps = buffer_at(0), list[Gap]()
    buffer.add(compacted([Record(b"v")] * 5, {0, 2}) + encoded(5, 1), 6)
    assert offsets(buffer) == [0, 2]
    assert offsets(buffer, gaps=gaps) == [5]
    assert gaps == []
    buffer = buffer_at(0)
    buffer.add(compacted([Record(b"v")] * 5, {0, 2}), 5)
    assert offsets(buffer) + offsets(buffer) == [0, 2]
    assert buffer.place.position == 5


READERS: dict[str, Callable[[PartitionBuffer], list[int] | None]] = {"rows": offsets, "columns": columns, "raw": raw}


def test_damaged_batch_is_told_and_fetched_again() -> None:
    buffer = buffer_at(0)
    buffer.add(encoded(0, 1) + damaged(encoded(1, 3)) + encoded(4, 1), 5)
    assert offsets(buffer) == [0]
    with pytest.raises(
        CorruptBatch, match=r"t-3, batch at offset 1: .*; seek to offset 4 to go on .*start_offset"
    ) as caught:
        offsets(buffer)
    assert (caught.value.tp, caught.value.offset, caught.value.next_offset) == (TP, 1, 4)
    assert (buffer.fetch_offset, buffer.place.position, buffer.has_data()) == (1, 1, False)


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_no_damaged_bit_of_a_header_skips_a_batch(read: Callable[[PartitionBuffer], list[int] | None]) -> None:
    """Of the checksum itself, and of all that is behind it in the header."""
    before, sound, behind = encoded(0, 3), encoded(3, 3), encoded(6, 3)
    for bit in range(8 * CRC_POSITION, 8 * HEADER_SIZE):
        bad = bytearray(sound)
        bad[bit // 8] ^= 1 << bit % 8
        buffer = buffer_at(0)
        buffer.add(before + bytes(bad) + behind, 9, [AbortedTransaction(-1, 3)])
        assert read(buffer) == [0, 1, 2], f"bit {bit}"
        with pytest.raises(CorruptBatch) as caught:
            read(buffer)
        assert (caught.value.offset, caught.value.next_offset) == (3, 6), f"bit {bit}"
        assert (buffer.place.position, buffer.fetch_offset) == (3, 3), f"bit {bit}"


@pytest.mark.parametrize("behind", [b"", damaged(encoded(6, 3)), encoded(6, 3)[:-1], encoded(2, 3)])
def test_next_offset_is_not_told_where_no_sound_batch_follows(behind: bytes) -> None:
    buffer = buffer_at(3)
    buffer.add(damaged(encoded(3, 3)) + behind, 9)
    with pytest.raises(CorruptBatch, match="seek to an offset behind it, which is not known, to go on") as caught:
        offsets(buffer)
    assert caught.value.next_offset == -1


def test_negative_last_offset_is_refused_without_checksums() -> None:
    bad = bytearray(encoded(0, 3))
    bad[23] ^= 0x80
    place = Place(TP)
    place.seek(0)
    buffer = PartitionBuffer(place, None, None, check_crcs=False)
    buffer.add(bytes(bad), 3)
    with pytest.raises(CorruptBatch, match="last offset delta"):
        offsets(buffer)
    assert place.position == 0


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_data_before_a_damaged_header_comes_first(read: Callable[[PartitionBuffer], list[int] | None]) -> None:
    bad = bytearray(encoded(2, 2))
    bad[16] = 77  # magic
    buffer = buffer_at(0)
    buffer.add(encoded(0, 1) + encoded(1, 1) + bytes(bad), 4)
    found: list[int] = []
    while buffer.place.position != 2:
        found += read(buffer) or []
    assert found == [0, 1]
    buffer.add(bytes(bad), 4)
    with pytest.raises(CorruptBatch, match=r"t-3, batch at offset 2: .*; seek to an offset behind it") as caught:
        read(buffer)
    assert (caught.value.next_offset, buffer.place.position, buffer.fetch_offset) == (-1, 2, 2)


def test_unknown_compression_keeps_its_class_and_names_the_place() -> None:
    batch = bytearray(encoded(0, 1))
    batch[22] |= 7
    place = Place(TP)
    place.seek(0)
    for read in (offsets, columns):
        buffer = PartitionBuffer(place, None, None, check_crcs=False)
        buffer.add(bytes(batch), 1)
        with pytest.raises(UnsupportedCompressionType, match="t-3, batch at offset 0"):
            read(buffer)


# --- what a deserializer raises ---


class Odd(Exception):
    """Fails even when it is told."""

    def __str__(self) -> str:
        raise ValueError("no text")


class Poison:
    """A deserializer that raises for these values, and counts its calls."""

    def __init__(self, error: BaseException, *values: bytes) -> None:
        self.error = error
        self.values = values
        self.calls = 0

    def __call__(self, data: bytes) -> str:
        self.calls += 1
        if data in self.values:
            raise self.error
        return data.decode()


@pytest.mark.parametrize("at", [0, 2, 4])
@pytest.mark.parametrize("error", [KeyError("user's"), RecursionError(), StopIteration(), Odd()], ids=repr)
def test_records_before_a_poison_record_come_first(at: int, error: Exception) -> None:
    poison = Poison(error, b"v%d" % at)
    buffer = buffer_at(0, value=poison)
    buffer.add(encoded(0, 5) + encoded(5, 1), 6)
    if at:
        assert offsets(buffer) == list(range(at))
    for _ in range(2):
        with pytest.raises(RecordDeserializationError, match=f"t-3 offset {at}: the value cannot be des") as caught:
            offsets(buffer)
        assert (buffer.place.position, caught.value.__cause__) == (at, error)
    told = caught.value
    assert (told.tp, told.offset, told.timestamp, told.timestamp_type) == (TP, at, 5, 0)
    assert (told.key, told.value, told.headers, told.origin) == (b"k", b"v%d" % at, [("h", None)], "value")
    poison.values = ()
    assert offsets(buffer) == list(range(at, 5))
    assert offsets(buffer) == [5]


def test_a_poison_key_is_told_as_such() -> None:
    place = Place(TP)
    place.seek(0)
    buffer = PartitionBuffer(place, Poison(ValueError("odd"), b"k"), None, check_crcs=True)
    buffer.add(encoded(0, 1), 1)
    with pytest.raises(RecordDeserializationError, match="the key cannot be deserialized: ValueError: odd") as caught:
        offsets(buffer)
    assert (caught.value.origin, caught.value.key, caught.value.value) == ("key", b"k", b"v0")


def test_records_are_deserialized_once_and_only_when_wanted() -> None:
    poison = Poison(ValueError())
    buffer = buffer_at(0, value=poison)
    buffer.add(encoded(0, 10), 10)
    assert offsets(buffer, 3) == [0, 1, 2]
    assert poison.calls == 3
    buffer.peek(100, [])
    assert offsets(buffer) == [3, 4, 5, 6, 7, 8, 9]
    assert poison.calls == 10


# --- interrupts ---


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_an_interrupt_at_any_line_loses_nothing(read: Callable[[PartitionBuffer], list[int] | None]) -> None:
    """What moves the position is undone by the consumer; peeking goes on with the buffer as it is."""
    log = [encoded(0, 3), encoded(3, 1, control=True), encoded(4, 3), encoded(7, 2)]
    ends = [3, 4, 7, 9]
    interrupts = 0
    for nth in range(10_000):
        buffer = buffer_at(0, value="str")
        found: list[int] = []
        interrupt = Interrupt(nth, fetch_state)
        was_interrupted = False
        while buffer.place.position != 9:
            before = buffer.place.position
            try:
                with interrupt:
                    if buffer.wants_more():
                        behind = [batch for batch, end in zip(log, ends, strict=True) if end > buffer.fetch_offset]
                        if behind:
                            buffer.add(b"".join(behind[:2]), 9)
                    found += read(buffer) or []
            except KeyboardInterrupt:
                was_interrupted = True
                if read is not offsets:
                    buffer.place.seek(before or 0)
                    buffer = PartitionBuffer(buffer.place, None, deserializer("str"), check_crcs=True)
        assert found == [0, 1, 2, 4, 5, 6, 7, 8], f"interrupted at line {nth}"
        if not was_interrupted:
            break
        interrupts += 1
    assert interrupts > 50


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
    answer = encoded(0, 2) + encoded(2, 2) + damaged(encoded(4, 1)) + encoded(5, 1)
    buffer.add(answer, 6)
    assert columns(buffer) == [0, 1, 2, 3]
    assert buffer.place.position == 4
    with pytest.raises(CorruptBatch, match="t-3, batch at offset 4"):
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
