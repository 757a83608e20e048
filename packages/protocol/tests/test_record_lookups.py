"""Look-ups by time in one batch: exact in an honest one, and cheap whatever a producer sent."""

from __future__ import annotations

import struct
import time
import tracemalloc
from itertools import accumulate, pairwise

import pytest
import zstandard
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from raylog.protocol.batches.compression import DEFAULT_MAX_BYTES, Codec, compress, decompress_pieces, max_decompressed
from raylog.protocol.batches.header import HEADER, HEADER_SIZE
from raylog.protocol.batches.rows import encode_records, scan_times
from raylog.protocol.errors import CorruptMessage, InvalidRecord
from raylog.protocol.records import (
    MAX_LOOKED_AT,
    Record,
    encode_batch,
    first_record_at,
    max_record_time,
    record_times,
    validate_batch,
)

PACKING = [codec for codec in Codec if codec is not Codec.NONE]
SECONDS = 3.0
"""CPU time in which a look-up must end on any machine; it takes a fifth of a second."""


def batch_around(
    body: bytes, count: int, *, codec: Codec = Codec.NONE, first: int = 0, highest: int = 0, base_offset: int = 0
) -> bytes:
    """A batch with a right checksum around a body that is compressed already."""
    out = bytearray(HEADER_SIZE) + body
    HEADER.pack_into(
        out, 0, base_offset, len(out) - 12, 0, 2, 0, codec, count - 1, first, highest, -1, -1, -1, count
    )  # fmt: skip
    struct.pack_into(">I", out, 17, crc32c(memoryview(out)[21:]))
    return bytes(out)


def null_records(count: int) -> bytes:
    """The smallest records that there are."""
    return b"".join(encode_records([Record(None, timestamp=0)] * count)[0])


# --- how many records a batch may claim


@pytest.mark.parametrize("codec", list(Codec))
def test_no_data_packs_better_than_its_format_can(codec: Codec) -> None:
    for data in (bytes(16 << 20), b"ab" * (1 << 20), null_records(100_000), b"", b"x"):
        levels = {Codec.GZIP: (1, 9), Codec.LZ4: (0, 12), Codec.ZSTD: (1, 19)}.get(codec, (None,))
        for level in levels if len(data) < 1 << 22 else levels[:1]:
            packed = compress(codec, data, level)
            assert max_decompressed(codec, len(packed)) >= len(data)


def test_a_zstd_block_stands_for_no_more_than_its_format_can() -> None:
    block = struct.pack("<I", (128 << 10) << 3 | 1 << 1 | 1)[:3] + b"\0"  # the last one, of one byte repeated
    frame = b"\x28\xb5\x2f\xfd\x00\x38" + block
    assert zstandard.ZstdDecompressor().decompressobj().decompress(frame) == bytes(128 << 10)
    assert max_decompressed(Codec.ZSTD, len(block)) == 128 << 10


@pytest.mark.parametrize("codec", PACKING)
@pytest.mark.parametrize("size", [1, 10, 1000])
def test_more_records_than_the_codec_can_hold_are_refused(codec: Codec, size: int) -> None:
    most = min(max_decompressed(codec, size), DEFAULT_MAX_BYTES) // 7
    assert validate_batch(batch_around(bytes(size), most, codec=codec)).record_count == most
    for count in (most + 1, 2**31 - 1):
        claim = batch_around(bytes(size), count, codec=codec)
        with pytest.raises(InvalidRecord, match=f"{count} records in {size} bytes of {codec.name.lower()}"):
            validate_batch(claim)
        assert validate_batch(claim, sparse=True).record_count == count, "what a log holds stays readable"


@pytest.mark.parametrize("codec", PACKING)
def test_no_records_in_nothing(codec: Codec) -> None:
    with pytest.raises(InvalidRecord):
        validate_batch(batch_around(b"", 1, codec=codec))


@pytest.mark.parametrize("codec", list(Codec))
def test_the_best_packed_honest_batch_is_taken(codec: Codec) -> None:
    batch = encode_batch([Record(None, timestamp=0)] * 100_000, codec=codec, level=None)
    assert validate_batch(batch).record_count == 100_000


# --- scanning


@given(st.lists(st.integers(0, 40), max_size=60), st.lists(st.integers(-1, 1 << 41), min_size=1, max_size=20))
def test_records_cut_anywhere_are_scanned_the_same(cuts: list[int], times: list[int]) -> None:
    records = [Record(b"v" * (each % 90), timestamp=each) for each in times]
    body = b"".join(encode_records(records)[0])
    bounds = [0, *(at for at in accumulate(cuts) if at < len(body)), len(body)]
    pieces = [body[start:end] for start, end in pairwise(bounds)]
    found = scan_times(pieces, len(times), base_offset=7, base_timestamp=times[0])
    assert list(found) == [(7 + n, each) for n, each in enumerate(times)]
    with pytest.raises(CorruptMessage):
        list(scan_times([*pieces[:-1], pieces[-1][:-1]], len(times), base_offset=7, base_timestamp=times[0]))
    with pytest.raises(CorruptMessage):
        list(scan_times(pieces, len(times) + 1, base_offset=7, base_timestamp=times[0]))


@pytest.mark.parametrize("codec", PACKING)
def test_pieces_are_the_whole(codec: Codec) -> None:
    data = bytes(3 << 20) + bytes(range(256)) * 4000
    pieces = list(decompress_pieces(codec, compress(codec, data), 1 << 20))
    assert b"".join(pieces) == data
    assert max(map(len, pieces)) <= 2 << 20
    assert next(decompress_pieces(codec, compress(codec, data)[:-1], 1 << 10)), "what is good comes first"
    with pytest.raises(CorruptMessage):
        list(decompress_pieces(codec, compress(codec, data)[:-1], 1 << 20))


# --- look-ups


@pytest.mark.parametrize("codec", list(Codec))
def test_a_look_up_is_exact(codec: Codec) -> None:
    times = [2, 4, 6, 8, 3]
    batch = encode_batch([Record(b"v", timestamp=each) for each in times], codec=codec, base_offset=100)
    for asked in range(9):
        for start in range(98, 106):
            expected = next(((100 + n, t) for n, t in enumerate(times) if t >= asked and 100 + n >= start), None)
            assert first_record_at(batch, asked, start) == expected
    for start in range(98, 106):
        assert max_record_time(batch, start) == max((t for n, t in enumerate(times) if 100 + n >= start), default=-1)


def test_a_header_that_promises_too_late_a_time_gets_its_last_record() -> None:
    batch = batch_around(null_records(3), 3, highest=500, base_offset=100)
    assert first_record_at(batch, 400, 0) == (102, 0)
    assert first_record_at(batch, 400, 101) is None, "the record may be among the deleted ones"
    assert first_record_at(batch, 0, 101) == (101, 0)


@pytest.mark.parametrize("codec", PACKING)
def test_a_look_up_among_too_many_records_costs_little(codec: Codec) -> None:
    """As many as the batch may claim, and the one that is asked for is not among them."""
    count = min(max_decompressed(codec, 100_000), DEFAULT_MAX_BYTES) // 7
    packed = compress(codec, null_records(1) * (MAX_LOOKED_AT + 1000))
    batch = batch_around(packed + bytes(100_000 - len(packed)), count, codec=codec, highest=500)
    begun = time.process_time()
    assert first_record_at(batch, 400, 0) == (0, 0), "all have offset 0"
    assert max_record_time(batch, 7) == 500
    assert time.process_time() - begun < SECONDS


@pytest.mark.parametrize("codec", PACKING)
def test_a_look_up_in_a_bomb_costs_little(codec: Codec) -> None:
    """A batch of a megabyte, or much less, that stands for 200."""
    records = [Record(bytes(200 << 20), timestamp=0), Record(b"", timestamp=500)]
    batch = encode_batch(records, codec=codec, base_offset=100)
    tracemalloc.start()
    begun = time.process_time()
    try:
        assert first_record_at(batch, 400, 0) == (100, 0)
        assert first_record_at(batch, 400, 101) == (101, 0)
        assert max_record_time(batch, 101) == 500
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert time.process_time() - begun < SECONDS
    assert peak < 12 << 20


def test_scanning_is_fast() -> None:
    batch = batch_around(null_records(MAX_LOOKED_AT), MAX_LOOKED_AT, highest=500)
    begun = time.process_time()
    assert first_record_at(batch, 400, 0) == (MAX_LOOKED_AT - 1, 0)
    assert time.process_time() - begun < SECONDS


def test_a_damaged_batch_is_told() -> None:
    batch = encode_batch([Record(b"v", timestamp=5)], base_offset=100)
    with pytest.raises(CorruptMessage, match="base offset 100"):
        first_record_at(batch[:-1] + b"\x7f", 5, 0)
    with pytest.raises(CorruptMessage):
        first_record_at(batch_around(b"not gzip", 1, codec=Codec.GZIP, highest=9), 5, 0)
    assert list(record_times(batch)) == [(100, 5)]
