"""Batch headers: what is read, what is refused, what is stamped."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from crc32c import crc32c

from raylog.protocol.batches.header import HEADER
from raylog.protocol.errors import CorruptMessage, InvalidRecord, RaylogError, UnsupportedCompressionType
from raylog.protocol.records import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    Codec,
    Record,
    TimestampType,
    batch_headers,
    decode_batch,
    encode_batch,
    read_header,
    stamp,
    stamp_log_append_time,
    validate_batch,
)

RECORDS = [Record(b"one", timestamp=1000), Record(b"two", timestamp=1010), Record(None, b"k", timestamp=990)]


def changed(batch: bytes, **fields: int) -> bytearray:
    """The batch with other header fields and, unless that is given, a checksum that fits them."""
    out = bytearray(batch)
    header = read_header(batch)._replace(**{name: value for name, value in fields.items() if name != "crc"})
    HEADER.pack_into(out, 0, *header)
    struct.pack_into(">I", out, 17, fields.get("crc", crc32c(memoryview(out)[21:])))
    return out


def test_a_header_tells_all_that_was_encoded() -> None:
    batch = encode_batch(
        RECORDS,
        codec=Codec.ZSTD,
        base_offset=40,
        leader_epoch=3,
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        producer_id=7,
        producer_epoch=2,
        base_sequence=11,
        transactional=True,
        control=True,
    )
    header = read_header(b"xx" + batch, 2)
    assert header == validate_batch(batch)
    assert header.size == len(batch) == header.batch_length + LOG_OVERHEAD
    assert (header.base_offset, header.last_offset, header.next_offset) == (40, 42, 43)
    assert (header.record_count, header.last_offset_delta, header.leader_epoch, header.magic) == (3, 2, 3, 2)
    assert (header.base_timestamp, header.max_timestamp) == (1000, 1010)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (7, 2, 11, 13)
    assert header.codec is Codec.ZSTD
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header.is_transactional
    assert header.is_control
    assert header.has_producer
    assert not header.has_delete_horizon


def test_a_plain_batch_has_none_of_the_flags() -> None:
    header = read_header(encode_batch(RECORDS))
    assert header.codec is Codec.NONE
    assert header.timestamp_type is TimestampType.CREATE_TIME
    assert (header.is_transactional, header.is_control, header.has_producer) == (False, False, False)
    assert header.last_sequence == -1


def test_sequences_wrap() -> None:
    header = read_header(encode_batch(RECORDS, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2))
    assert header.last_sequence == 0


@pytest.mark.parametrize("size", [0, 1, 12, HEADER_SIZE - 1])
def test_a_short_header_is_corrupt(size: int) -> None:
    with pytest.raises(CorruptMessage, match="batch header has 61"):
        read_header(encode_batch(RECORDS)[:size])
    with pytest.raises(CorruptMessage):
        validate_batch(encode_batch(RECORDS)[:size])


@pytest.mark.parametrize("pos", [-1, -61, 10**9])
def test_a_position_outside_the_buffer_is_corrupt(pos: int) -> None:
    with pytest.raises(CorruptMessage):
        validate_batch(encode_batch(RECORDS), pos)
    with pytest.raises(CorruptMessage):
        read_header(encode_batch(RECORDS), pos)


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48])
def test_an_impossible_length_is_corrupt(length: int) -> None:
    batch = changed(encode_batch(RECORDS), batch_length=length)
    with pytest.raises(CorruptMessage, match="claims"):
        read_header(batch)


@pytest.mark.parametrize("length", [2**31 - 1, 200])
def test_a_batch_that_goes_beyond_its_end_is_corrupt(length: int) -> None:
    batch = changed(encode_batch(RECORDS), batch_length=length)
    assert read_header(batch).batch_length == length  # the header alone is sound
    with pytest.raises(CorruptMessage, match="claims"):
        validate_batch(batch)
    with pytest.raises(CorruptMessage, match="claims"):
        decode_batch(batch)


def test_the_end_may_be_before_the_buffer_s() -> None:
    batch = encode_batch(RECORDS)
    buffer = b"ab" + batch + batch
    assert validate_batch(buffer, 2, end=2 + len(batch)) == read_header(batch)
    with pytest.raises(CorruptMessage):
        validate_batch(buffer, 2, end=1 + len(batch))


def test_every_flipped_bit_is_noticed_but_where_the_leader_stamps() -> None:
    batch = encode_batch(RECORDS)
    for position in range(len(batch)):
        for bit in range(8):
            damaged = bytearray(batch)
            damaged[position] ^= 1 << bit
            if position < 8 or 12 <= position < 16:
                validate_batch(damaged)
            else:
                with pytest.raises(RaylogError):
                    validate_batch(damaged)


def test_a_wrong_checksum_names_both() -> None:
    with pytest.raises(CorruptMessage, match=r"checksum 0x[0-9a-f]{8}, its header says 0x00000007"):
        validate_batch(changed(encode_batch(RECORDS), crc=7))


@pytest.mark.parametrize("magic", [3, 127])
def test_an_unknown_magic_is_corrupt(magic: int) -> None:
    with pytest.raises(CorruptMessage, match=f"magic {magic}"):
        validate_batch(changed(encode_batch(RECORDS), magic=magic))


@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_format_is_invalid_not_corrupt(magic: int) -> None:
    with pytest.raises(InvalidRecord, match="message format"):
        validate_batch(changed(encode_batch(RECORDS), magic=magic))


CONTRADICTIONS: list[dict[str, Any]] = [
    {"record_count": 2},
    {"record_count": 4},
    {"record_count": 0},
    {"record_count": -1},
    {"last_offset_delta": 1},
    {"last_offset_delta": -1},
    {"last_offset_delta": -1, "record_count": 0},
    {"record_count": 1000, "last_offset_delta": 999},
    {"max_timestamp": 999},
    {"producer_id": 5, "producer_epoch": -1, "base_sequence": 0},
    {"producer_id": 5, "producer_epoch": 0, "base_sequence": -1},
    {"attributes": 0x10},
]


@pytest.mark.parametrize("fields", CONTRADICTIONS, ids=str)
def test_a_header_that_contradicts_itself_is_invalid(fields: dict[str, int]) -> None:
    with pytest.raises(InvalidRecord, match="contradicts itself"):
        validate_batch(changed(encode_batch(RECORDS), **fields))


@pytest.mark.parametrize("bits", [5, 6, 7])
def test_an_unknown_compression_is_named(bits: int) -> None:
    batch = changed(encode_batch(RECORDS), attributes=bits)
    with pytest.raises(UnsupportedCompressionType, match=f"compression {bits}"):
        validate_batch(batch)
    with pytest.raises(UnsupportedCompressionType):
        decode_batch(batch)


def test_compaction_may_leave_fewer_records_or_none() -> None:
    fewer = changed(encode_batch(RECORDS), last_offset_delta=9)
    with pytest.raises(InvalidRecord):
        validate_batch(fewer)
    assert validate_batch(fewer, sparse=True).last_offset == 9
    empty = changed(encode_batch(RECORDS)[:HEADER_SIZE], record_count=0, batch_length=HEADER_SIZE - LOG_OVERHEAD)
    assert validate_batch(empty, sparse=True).record_count == 0
    assert decode_batch(bytes(empty)) == []
    with pytest.raises(InvalidRecord):
        validate_batch(changed(encode_batch(RECORDS), record_count=4), sparse=True)


def test_a_delete_horizon_may_be_after_the_last_timestamp() -> None:
    assert validate_batch(changed(encode_batch(RECORDS), attributes=0x40, max_timestamp=999)).has_delete_horizon


def test_a_control_batch_has_a_producer_and_no_sequence() -> None:
    marker = [Record(b"\0\0\0\0\0\0", b"\0\0\0\1", timestamp=5)]
    batch = encode_batch(marker, producer_id=1, producer_epoch=0, transactional=True, control=True)
    assert validate_batch(batch).is_control


def test_stamping_keeps_the_checksum_right() -> None:
    buffer = bytearray(b"ab" + encode_batch(RECORDS))
    stamp(memoryview(buffer), 2, 12345678901, 6)
    header = validate_batch(buffer, 2)
    assert (header.base_offset, header.leader_epoch) == (12345678901, 6)
    assert [record.offset for record in decode_batch(buffer, 2)] == [12345678901 + i for i in range(3)]


def test_log_append_time_replaces_every_timestamp() -> None:
    buffer = bytearray(b"ab" + encode_batch(RECORDS, codec=Codec.GZIP) + b"cd")
    stamp_log_append_time(memoryview(buffer), 2, 7)  # a clock behind the producer's is no contradiction
    header = validate_batch(buffer, 2, end=len(buffer) - 2)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header.codec is Codec.GZIP
    assert [record.timestamp for record in decode_batch(buffer, 2)] == [7, 7, 7]
    assert buffer[-2:] == b"cd"


def test_batch_headers_stop_before_a_partial_batch() -> None:
    first, second = encode_batch(RECORDS), encode_batch(RECORDS, base_offset=3)
    whole = first + second
    positions = [0, len(first)]
    for end in range(len(whole) + 1):
        expected = [pos for pos in positions if pos + len(first) <= end]
        assert [pos for pos, _ in batch_headers(whole[:end])] == expected
    assert [header.base_offset for _, header in batch_headers(whole, len(first))] == [3]


def test_batch_headers_refuse_garbage() -> None:
    with pytest.raises(CorruptMessage):
        list(batch_headers(encode_batch(RECORDS) + bytes(100)))
