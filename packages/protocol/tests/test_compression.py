"""The four compressions: round trips, foreign framings, damage and bombs."""

from __future__ import annotations

import gzip
import random
import struct
import time
import tracemalloc
from collections.abc import Callable

import cramjam
import lz4.frame
import pytest
import zstandard

from raylog.protocol.batches.compression import Codec, compress, decompress, decompress_pieces
from raylog.protocol.errors import CorruptMessage, UnsupportedCompressionType

PACKING = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
TEXT = b"".join(b"line %d of some text\n" % i for i in range(20_000))
BOMB_BYTES = 100 << 20


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("data", [b"", b"x", TEXT, bytes(70_000)], ids=["empty", "one", "text", "zeros"])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_what_is_compressed_comes_back(codec: Codec, data: bytes, kind: type) -> None:
    packed = compress(codec, kind(data))
    assert type(packed) is bytes
    back = decompress(codec, kind(packed))
    assert back == data
    assert type(back) is bytes


def test_codecs_have_kafka_s_numbers_and_names() -> None:
    assert {codec.name.lower(): codec.value for codec in Codec} == {
        "none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4,
    }  # fmt: skip
    assert all(Codec.from_name(codec.name.lower()) is codec for codec in Codec)
    with pytest.raises(UnsupportedCompressionType, match="none, gzip, snappy, lz4, zstd"):
        Codec.from_name("brotli")


def test_levels_are_passed_on() -> None:
    for codec in (Codec.GZIP, Codec.LZ4, Codec.ZSTD):
        assert len(compress(codec, TEXT, 9)) < len(compress(codec, TEXT, 1))


def test_snappy_is_written_as_java_reads_it() -> None:
    packed = compress(Codec.SNAPPY, TEXT)
    assert packed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    (length,) = struct.unpack_from(">i", packed, 16)
    assert bytes(cramjam.snappy.decompress_raw(packed[20 : 20 + length])) == TEXT[: 32 << 10]


def test_snappy_is_read_raw_too_as_librdkafka_writes_it() -> None:
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))) == TEXT


def test_lz4_blocks_are_independent_as_java_reads_them() -> None:
    flags = compress(Codec.LZ4, TEXT)[4]
    assert flags >> 6 == 1  # the version
    assert flags & 0x20  # independent blocks
    assert not flags & 0x08  # no content size


def test_lz4_with_linked_blocks_and_checksums_is_read() -> None:
    packed = lz4.frame.compress(TEXT, block_linked=True, content_checksum=True, block_checksum=True)
    assert decompress(Codec.LZ4, packed) == TEXT


def test_several_members_and_frames_are_read_to_the_end() -> None:
    assert decompress(Codec.GZIP, gzip.compress(b"ab") + gzip.compress(b"cd")) == b"abcd"
    one, two = (zstandard.ZstdCompressor().compress(part) for part in (b"ab", b"cd"))
    assert decompress(Codec.ZSTD, one + two) == b"abcd"


def test_zstd_without_a_content_size_is_read() -> None:
    packer = zstandard.ZstdCompressor().compressobj()
    packed = packer.compress(TEXT) + packer.flush()
    assert decompress(Codec.ZSTD, packed) == TEXT


PIECE = 1 << 20


def streamed(data: bytes, **how: int | bool) -> bytes:
    """A zstd frame that does not say how much it stands for, as a stream's."""
    packer = zstandard.ZstdCompressor(**how).compressobj()
    return (
        packer.compress(data[:1])
        + packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        + packer.compress(data[1:])
        + packer.flush()
    )


@pytest.mark.parametrize("pack", [zstandard.ZstdCompressor().compress, streamed])
def test_zstd_of_noise_comes_in_whole_pieces(pack: Callable[[bytes], bytes]) -> None:
    noise = random.Random(1).randbytes(PIECE)
    pieces = list(decompress_pieces(Codec.ZSTD, pack(noise), PIECE))
    assert b"".join(pieces) == noise
    assert len(pieces) <= 2


@pytest.mark.parametrize("pack", [zstandard.ZstdCompressor().compress, streamed])
def test_zstd_pieces_are_no_larger_than_was_asked(pack: Callable[[bytes], bytes]) -> None:
    sizes = [len(piece) for piece in decompress_pieces(Codec.ZSTD, pack(bytes(20 * PIECE)), PIECE)]
    assert sum(sizes) == 20 * PIECE
    assert max(sizes) <= PIECE


@pytest.mark.parametrize("checksum", [False, True])
def test_zstd_stream_cut_anywhere_is_refused(checksum: bool) -> None:
    whole = zstandard.ZstdCompressor(write_checksum=checksum).compress(TEXT[:100])
    for frame in (streamed(TEXT[:100], write_checksum=checksum), streamed(bytes(1 << 18), write_checksum=checksum)):
        assert zstandard.frame_content_size(frame) == -1
        decompress(Codec.ZSTD, frame)
        for end in range(1, len(frame)):
            for packed in (frame[:end], whole + frame[:end], frame + frame[:end]):
                with pytest.raises(CorruptMessage):
                    decompress(Codec.ZSTD, packed)


def test_zstd_bytes_behind_the_frame_are_refused() -> None:
    for frame in (zstandard.ZstdCompressor().compress(TEXT), streamed(TEXT)):
        for behind in (b"\0", b"garbage, and some of it"):
            with pytest.raises(CorruptMessage):
                decompress(Codec.ZSTD, frame + behind)


def test_zstd_skippable_frames_are_skipped() -> None:
    note = b"\x50\x2a\x4d\x18\x04\0\0\0note"
    frame = zstandard.ZstdCompressor().compress(TEXT)
    assert decompress(Codec.ZSTD, note + frame + note) == TEXT
    with pytest.raises(CorruptMessage):
        decompress(Codec.ZSTD, frame + note[:-1])


@pytest.mark.parametrize("claim", [0, len(TEXT) - 1, len(TEXT) + 1])
def test_zstd_content_size_that_is_wrong_is_refused(claim: int) -> None:
    frame = bytearray(zstandard.ZstdCompressor().compress(TEXT))
    assert struct.unpack_from("<I", frame, 5) == (len(TEXT),)
    struct.pack_into("<I", frame, 5, claim)
    with pytest.raises(CorruptMessage):
        decompress(Codec.ZSTD, frame)


@pytest.mark.parametrize("behind", [b"x", b"garbage" * 9, lz4.frame.compress(b"more")])
def test_lz4_bytes_behind_the_frame_are_refused(behind: bytes) -> None:
    """Java's reader ends with the first frame: what follows would be lost."""
    with pytest.raises(CorruptMessage, match=f"{len(behind)} bytes follow"):
        decompress(Codec.LZ4, compress(Codec.LZ4, TEXT) + behind)


@pytest.mark.parametrize("codec", list(Codec))
def test_the_bound_is_exact(codec: Codec) -> None:
    packed = compress(codec, TEXT)
    assert decompress(codec, packed, max_bytes=len(TEXT)) == TEXT
    with pytest.raises(CorruptMessage, match=f"more than the {len(TEXT) - 1} bytes"):
        decompress(codec, packed, max_bytes=len(TEXT) - 1)


@pytest.mark.parametrize("codec", PACKING)
def test_a_bomb_takes_little_memory(codec: Codec) -> None:
    bomb = compress(codec, bytes(BOMB_BYTES))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptMessage, match="more than"):
            decompress(codec, bomb, max_bytes=1 << 20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


def test_a_snappy_length_that_is_only_claimed_is_not_believed() -> None:
    with pytest.raises(CorruptMessage):
        decompress(Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(20))


def test_a_zstd_content_size_that_is_only_claimed_is_not_believed() -> None:
    frame = bytearray(zstandard.ZstdCompressor().compress(bytes(1 << 20)))
    assert frame[4] == 0xA0  # a content size of four bytes follows
    struct.pack_into("<I", frame, 5, 0xFFFFFFF0)
    with pytest.raises(CorruptMessage):
        decompress(Codec.ZSTD, frame, max_bytes=64 << 20)


@pytest.mark.parametrize("codec", PACKING)
def test_garbage_is_corrupt(codec: Codec) -> None:
    for garbage in (b"\x01", b"\xff" * 40, b"not compressed at all", bytes(range(256))):
        with pytest.raises(CorruptMessage):
            decompress(codec, garbage)


@pytest.mark.parametrize("codec", PACKING)
@pytest.mark.parametrize("data", [b"", b"x" * 100, TEXT], ids=["empty", "short", "long"])
def test_a_cut_stream_is_refused(codec: Codec, data: bytes) -> None:
    packed = compress(codec, data)
    ends = range(len(packed)) if len(packed) < 200 else (0, 1, 10, 17, 25, len(packed) // 2, len(packed) - 1)
    for end in ends:
        if codec is Codec.SNAPPY and end == 16:
            continue  # a header and no block: nothing, compressed
        with pytest.raises(CorruptMessage):
            decompress(codec, packed[:end])


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_a_cut_second_member_is_refused(codec: Codec) -> None:
    packed = compress(codec, TEXT)
    for end in (1, 5, len(packed) - 1):
        with pytest.raises(CorruptMessage):
            decompress(codec, packed + packed[:end])


def test_millions_of_bytes_in_tiny_gzip_members_take_little_time() -> None:
    """All that follows a member is copied, unless little goes in at once."""
    packed = compress(Codec.GZIP, b"") * 250_000
    begun = time.process_time()
    assert decompress(Codec.GZIP, packed) == b""
    assert time.process_time() - begun < 3  # 0.25 s; over 9 s when all goes in at once


def test_many_tiny_snappy_blocks_take_little_memory() -> None:
    packed = compress(Codec.SNAPPY, b"") + b"\0\0\0\1\0" * 50_000
    tracemalloc.start()
    try:
        assert decompress(Codec.SNAPPY, packed) == b""
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 18  # 8 MB when they are listed first


@pytest.mark.parametrize("length", [-1, 0, 2**31 - 1])
def test_a_xerial_block_of_impossible_length_is_corrupt(length: int) -> None:
    packed = bytearray(compress(Codec.SNAPPY, TEXT))
    struct.pack_into(">i", packed, 16, length)
    with pytest.raises(CorruptMessage, match="does not fit"):
        decompress(Codec.SNAPPY, packed)
