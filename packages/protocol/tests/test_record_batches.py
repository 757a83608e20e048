"""Encoding and decoding of whole batches: what goes in comes out, and damage never passes for data."""

from __future__ import annotations

import pickle
import struct
import tracemalloc
from collections.abc import Callable

import pytest
from crc32c import crc32c

from raylog.protocol.batches.compression import compress
from raylog.protocol.batches.header import HEADER
from raylog.protocol.batches.rows import encode_varint
from raylog.protocol.errors import CorruptMessage, InvalidRecord
from raylog.protocol.records import (
    HEADER_SIZE,
    Batches,
    Codec,
    Record,
    TimestampType,
    decode_batch,
    decode_batches,
    encode_batch,
    frame_batch,
    read_header,
    record_times,
    validate_batch,
)

NOW = 1_700_000_000_000


def batch_of(body: bytes, count: int, *, last_delta: int | None = None, codec: Codec = Codec.NONE) -> bytes:
    """A batch with a right checksum around any bytes."""
    body = compress(codec, body)
    out = bytearray(HEADER_SIZE) + body
    delta = count - 1 if last_delta is None else last_delta
    HEADER.pack_into(out, 0, 100, len(out) - 12, 0, 2, 0, codec, delta, NOW, NOW, -1, -1, -1, count)
    struct.pack_into(">I", out, 17, crc32c(memoryview(out)[21:]))
    return bytes(out)


def record_of(*fields: int | bytes) -> bytes:
    """A record's bytes: numbers as varints, bytes as they are."""
    body = b"\x00" + b"".join(encode_varint(each) if isinstance(each, int) else each for each in fields)
    return encode_varint(len(body)) + body


# The example is worked out by hand from the format's description.
BY_HAND = bytes.fromhex(
    "0000000000000000"  # base offset
    "00000045"  # length 69
    "ffffffff"  # leader epoch
    "02"  # magic
    "00000000"  # checksum, below
    "0000"  # attributes
    "00000001"  # last offset delta
    "0000018bcfe56800"  # base timestamp
    "0000018bcfe56801"  # max timestamp
    "ffffffffffffffff"  # producer id
    "ffff"  # producer epoch
    "ffffffff"  # base sequence
    "00000002"  # records
    "10" "00" "00" "00" "01" "04" "6869" "00"  # hi
    "14" "00" "02" "02" "02" "6b" "01" "02" "02" "68" "01"  # null, key k, header h: null
)  # fmt: skip


def by_hand() -> bytes:
    batch = bytearray(BY_HAND)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return bytes(batch)


def test_the_format_is_the_one_described() -> None:
    records = [Record(b"hi", timestamp=NOW), Record(None, b"k", [("h", None)], timestamp=NOW + 1)]
    assert encode_batch(records) == by_hand()
    assert decode_batch(by_hand()) == [
        Record(b"hi", None, (), NOW, 0),
        Record(None, b"k", [("h", None)], NOW + 1, 1),
    ]


SIZES = [0, 1, 63, 64, 8000, 8063, 8064, 8127, 8128, 8191, 8192, 8193, 70_000, 1_048_577, 2_100_000]


@pytest.mark.parametrize("size", SIZES)
def test_sizes_at_the_edges_of_varints(size: int) -> None:
    data = b"x" * size
    for record in (
        Record(data),
        Record(data, b"k" * 63),
        Record(data, b"k" * 64),
        Record(b"v", data),
        Record(None, data),
        Record(data, data, [("h", data), ("h" * size, b"")]),
    ):
        (back,) = decode_batch(encode_batch([record]))
        assert (back.value, back.key, list(back.headers)) == (record.value, record.key, list(record.headers))


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 66, 8191, 8192, 8193])
def test_counts_at_the_edges_of_varints(count: int) -> None:
    records = [Record(b"%d" % i, timestamp=NOW + i % 3) for i in range(count)]
    batch = encode_batch(records, base_offset=5)
    assert validate_batch(batch).record_count == count
    back = decode_batch(batch)
    assert [record.value for record in back] == [record.value for record in records]
    assert [record.offset for record in back] == list(range(5, 5 + count))
    assert [record.timestamp for record in back] == [record.timestamp for record in records]


def test_a_million_records_need_three_bytes_of_offset() -> None:
    count = (1 << 20) + 1
    back = decode_batch(encode_batch([Record(b"")] * count))
    assert back[-1].offset == count - 1


@pytest.mark.parametrize("difference", [-(2**40), -8193, -65, -64, -1, 0, 63, 64, 8191, 8192, 2**40])
def test_timestamps_may_go_either_way(difference: int) -> None:
    records = [Record(b"a", timestamp=2**41), Record(b"b", timestamp=2**41 + difference)]
    batch = encode_batch(records)
    assert [record.timestamp for record in decode_batch(batch)] == [2**41, 2**41 + difference]
    assert read_header(batch).max_timestamp == max(2**41, 2**41 + difference)
    validate_batch(batch)


@pytest.mark.parametrize("times", [(-1, 2**63 - 1), (2**63 - 1, -1), (0, 2**63 - 1), (-1, 2**63 - 1, 0)])
def test_timestamps_lie_as_far_apart_as_can_be(times: tuple[int, ...]) -> None:
    batch = encode_batch([Record(b"v", timestamp=time) for time in times])
    assert [record.timestamp for record in decode_batch(batch)] == [*times]
    assert [time for _, time in record_times(batch)] == [*times]


@pytest.mark.parametrize(
    ("base", "difference", "sum_as_javas"),
    [(2**63 - 1, 1, -(2**63)), (5, 2**63 - 1, -(2**63) + 4), (-(2**63), -1, 2**63 - 1), (-6, -(2**63), 2**63 - 6)],
)
def test_timestamp_always_fits_64_bits(base: int, difference: int, sum_as_javas: int) -> None:
    body = record_of(0, 0, -1, -1, 0) + record_of(difference, 1, -1, -1, 0)
    batch = frame_batch(body, 2, base, base)
    assert [record.timestamp for record in decode_batch(batch)] == [base, sum_as_javas]
    assert [time for _, time in record_times(batch)] == [base, sum_as_javas]


def test_no_timestamp_is_minus_one() -> None:
    assert [record.timestamp for record in decode_batch(encode_batch([Record(b"a"), Record(b"b")]))] == [-1, -1]


@pytest.mark.parametrize("codec", list(Codec))
def test_every_codec_round_trips(codec: Codec) -> None:
    records = [Record(b"value %d" % i, b"key", [("h", b"x")], NOW + i) for i in range(1000)]
    batch = encode_batch(records, codec=codec)
    assert validate_batch(batch).codec is codec
    assert [(r.value, r.timestamp) for r in decode_batch(batch)] == [(r.value, r.timestamp) for r in records]
    if codec is not Codec.NONE:
        assert len(batch) < len(encode_batch(records)) / 2


def test_a_level_makes_a_difference() -> None:
    records = [Record(b"value %d" % (i * 7919)) for i in range(5000)]
    for codec in (Codec.GZIP, Codec.ZSTD, Codec.LZ4):
        fast, small = (encode_batch(records, codec=codec, level=level) for level in (1, 9))
        assert fast != small
        assert decode_batch(fast) == decode_batch(small)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_will_do(kind: Callable[[bytes], bytes]) -> None:
    (record,) = decode_batch(kind(b"ab" + encode_batch([Record(b"v", b"k")])), 2)
    assert type(record.value) is type(record.key) is bytes


def test_a_batch_needs_a_record() -> None:
    with pytest.raises(InvalidRecord, match="at least one record"):
        encode_batch([])


def test_numbers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidRecord, match="do not make a batch"):
        encode_batch([Record(b"a", timestamp=2**63)])
    with pytest.raises(InvalidRecord, match="do not make a batch"):
        encode_batch([Record(b"a")], producer_epoch=1 << 15)


DAMAGED = {
    "empty": (b"", 1),
    "ends in a record": (record_of(0, 0, -1, 1, b"v", 0)[:-1], 1),
    "fewer records": (record_of(0, 0, -1, -1, 0), 2),
    "more records": (record_of(0, 0, -1, -1, 0) * 2, 1),
    "negative length": (b"\x03" + record_of(0, 0, -1, -1, 0)[1:], 1),
    "length too long": (b"\x0e" + record_of(0, 0, -1, -1, 0)[1:], 1),
    "length too short": (b"\x0a" + record_of(0, 0, -1, -1, 0)[1:], 1),
    "length without end": (b"\xff" * 30, 1),
    "length of 2**40": (encode_varint(2**40) + bytes(20), 1),
    "key of -2": (record_of(0, 0, -2, -1, 0), 1),
    "value of -2": (record_of(0, 0, -1, -2, 0), 1),
    "key beyond its record": (record_of(0, 0, 50, b"k", -1, 0), 1),
    "value beyond its record": (record_of(0, 0, -1, 5, b"v", 0) + bytes(10), 1),
    "value of 2**31": (record_of(0, 0, -1, 2**31, b"v", 0), 1),
    "offset beyond the last": (record_of(0, 1, -1, -1, 0), 1),
    "negative offset": (record_of(0, -1, -1, -1, 0), 1),
    "repeated offset": (record_of(0, 0, -1, -1, 0) * 2, 2),
    "headers -1": (record_of(0, 0, -1, -1, -1), 1),
    "headers 2**31": (record_of(0, 0, -1, -1, 2**31), 1),
    "header without key": (record_of(0, 0, -1, -1, 1, -1, -1), 1),
    "header key of -2": (record_of(0, 0, -1, -1, 1, -2, -1), 1),
    "header key beyond": (record_of(0, 0, -1, -1, 1, 99, b"h", -1), 1),
    "header key not UTF-8": (record_of(0, 0, -1, -1, 1, 1, b"\xff", -1), 1),
    "record count 2**31 - 1": (record_of(0, 0, -1, -1, 0), 2**31 - 1),
    "record count -1": (record_of(0, 0, -1, -1, 0), -1),
    "timestamp of 80 bits": (b"\x20\x00" + b"\xff" * 11 + b"\x01" + bytes(5), 1),
    "timestamp of 70 bits": (b"\x20\x00" + b"\xff" * 9 + b"\x7f" + bytes(8), 1),
}


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("case", DAMAGED)
def test_damage_inside_a_sound_batch_is_found(case: str, codec: Codec) -> None:
    body, count = DAMAGED[case]
    with pytest.raises(CorruptMessage):
        decode_batch(batch_of(body, count, codec=codec))


def test_compacted_batches_keep_their_offsets() -> None:
    body = record_of(0, 2, -1, 1, b"a", 0) + record_of(0, 7, -1, 1, b"b", 0)
    batch = batch_of(body, 2, last_delta=9)
    assert [(r.offset, r.value) for r in decode_batch(batch)] == [(102, b"a"), (107, b"b")]


def test_a_wrong_checksum_is_an_error_unless_not_asked_for() -> None:
    batch = bytearray(encode_batch([Record(b"v")]))
    batch[17] ^= 1
    with pytest.raises(CorruptMessage, match="checksum"):
        decode_batch(batch)
    with pytest.raises(CorruptMessage, match="checksum"):
        decode_batches(batch)
    assert decode_batch(batch, check_crc=False)[0].value == b"v"


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_bomb_does_not_go_off(codec: Codec) -> None:
    batch = encode_batch([Record(bytes(50_000_000))], codec=codec)
    assert len(batch) < 3_000_000
    with pytest.raises(CorruptMessage, match="more than the 1000000 bytes"):
        decode_batch(batch, max_bytes=1_000_000)


def stream() -> bytes:
    """Offsets 0-2, a control batch at 3, 4-5."""
    return (
        encode_batch([Record(b"a"), Record(b"b"), Record(b"c")], codec=Codec.SNAPPY)
        + encode_batch([Record(b"x", b"\0\0\0\1")], base_offset=3, producer_id=1, producer_epoch=0, control=True)
        + encode_batch([Record(b"d"), Record(b"e")], base_offset=4)
    )


def test_a_fetch_s_batches_are_decoded_without_control_records() -> None:
    assert [(r.offset, r.value) for r in decode_batches(stream())] == [
        (0, b"a"), (1, b"b"), (2, b"c"), (4, b"d"), (5, b"e"),
    ]  # fmt: skip


def test_control_records_can_be_decoded_alone() -> None:
    control = encode_batch([Record(b"x", b"k")], control=True)
    assert [record.value for record in decode_batch(control)] == [b"x"]


@pytest.mark.parametrize(("start", "expected"), [(0, b"abcde"), (1, b"bcde"), (3, b"de"), (5, b"e"), (6, b"")])
def test_a_fetch_may_begin_inside_a_batch(start: int, expected: bytes) -> None:
    assert b"".join(r.value or b"" for r in decode_batches(stream(), from_offset=start)) == expected


def test_a_partial_last_batch_is_left_out() -> None:
    whole = stream()
    assert [r.value for r in decode_batches(whole[:-1])] == [b"a", b"b", b"c"]
    assert decode_batches(whole[:30]) == []


def test_batches_unpack_to_records_and_high_watermark() -> None:
    batches: Batches = pickle.loads(pickle.dumps(Batches(stream(), high_watermark=9, from_offset=2)))
    records, high_watermark = batches
    assert high_watermark == 9
    assert isinstance(records, list)
    assert [record.value for record in records] == [b"c", b"d", b"e"]
    assert batches.next_offset == 6


def test_nothing_fetched_goes_on_where_it_was() -> None:
    assert Batches(b"", 5, from_offset=5).next_offset == 5
    assert Batches(b"", 5, from_offset=5).records() == []


def test_log_append_time_is_everybody_s() -> None:
    batch = encode_batch(
        [Record(b"a", timestamp=5), Record(b"b", timestamp=9)], timestamp_type=TimestampType.LOG_APPEND_TIME
    )
    assert [record.timestamp for record in decode_batch(batch)] == [9, 9]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("kind", list(TimestampType))
def test_times_are_scanned_as_they_are_decoded(codec: Codec, kind: TimestampType) -> None:
    records = [Record(b"v" * 300, b"k", [("h", b"x")], time) for time in (1 << 40, (1 << 40) - 5, -1, (1 << 40) + 9999)]
    batch = encode_batch(records, codec=codec, base_offset=7, timestamp_type=kind)
    expected = [(record.offset, record.timestamp) for record in decode_batch(batch)]
    assert list(record_times(batch)) == expected
    assert list(record_times(b"before" + batch, 6)) == expected
    with pytest.raises(CorruptMessage):
        list(record_times(batch[:-1] + b"\x7f"))


def test_the_times_of_millions_of_records_take_no_object_each() -> None:
    """A hostile batch of a few kilobytes, and a look-up by time in the broker."""
    count, record = 200_000, record_of(0, 0, -1, -1, 0)
    batch = batch_of(record * count, count, codec=Codec.ZSTD)
    tracemalloc.start()
    try:
        assert sum(1 for each in record_times(batch) if each == (100, NOW)) == count
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(record) * count  # decoded, they take many times as much
