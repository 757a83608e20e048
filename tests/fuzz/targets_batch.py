"""Targets of record batches and of what compresses them: what can be read is written and read again, the same."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from fuzz.target import Target, fix_checksums
from raylog.protocol.batches.compression import Codec, compress, decompress
from raylog.protocol.batches.header import HEADER_SIZE, read_header
from raylog.protocol.batches.rows import decode_records
from raylog.protocol.errors import CorruptMessage, InvalidRecord, UnsupportedCompressionType
from raylog.protocol.records import (
    MAX_LOOKED_AT,
    Record,
    batch_headers,
    decode_batch,
    decode_batches,
    encode_batch,
    first_record_at,
    max_record_time,
    record_times,
    stamp,
    stamp_log_append_time,
    validate_batch,
)

MAX_BYTES = 1 << 20
"""What a batch may grow to here."""

ERRORS = (CorruptMessage, InvalidRecord, UnsupportedCompressionType)

_RECORDS = [
    Record(b"value", b"key", [("h", b"x"), ("n", None)], 1_700_000_000_000),
    Record(None, None, (), 1_700_000_000_100),
    Record(bytes(200), b"k" * 70, (), 1_699_999_000_000),
    Record(b"", b"", [("", b"")], 1_700_000_020_000),
]


def batch(data: bytes) -> None:
    """Bytes as a broker and as a client meet them; checksums are put right before every second input is read."""
    if not data:
        return
    batches = bytearray(data[1:])
    if data[0] & 1:
        fix_checksums(batches)
    try:
        for pos, header in batch_headers(batches):
            assert HEADER_SIZE <= header.size <= len(batches) - pos
    except CorruptMessage:
        pass
    try:
        header = validate_batch(batches)
    except ERRORS:
        pass
    else:
        stamp(batches, 0, 77, 5)
        stamp_log_append_time(batches, 0, 1_700_000_000_000)
        again = validate_batch(batches)
        assert (again.base_offset, again.leader_epoch, again.max_timestamp) == (77, 5, 1_700_000_000_000)
        assert again.record_count == header.record_count
    for check_crc in (True, False):
        try:
            decode_batches(batches, from_offset=3, check_crc=check_crc, max_bytes=MAX_BYTES)
        except ERRORS:
            pass
    try:
        for _ in islice(record_times(batches), MAX_LOOKED_AT):
            pass
        first_record_at(batches, 1_700_000_000_000, 3)
        max_record_time(batches, 3)
    except ERRORS:
        pass
    try:
        records = decode_batch(batches, max_bytes=MAX_BYTES)
    except ERRORS:
        return
    assert list(record_times(batches)) == [(each.offset, each.timestamp) for each in records]
    if records:
        _comes_back(records, Codec(read_header(batches).attributes & 7))


def _comes_back(records: list[Record], codec: Codec) -> None:
    """Offsets are the batch's to give, and so are times outside 64 bits: the rest comes back as it was."""
    try:
        written = encode_batch(records, codec=codec)
    except InvalidRecord:
        return
    read = decode_batch(written)
    for one, other in zip(records, read, strict=True):
        assert (one.key, one.value, list(one.headers)) == (other.key, other.value, list(other.headers))


def batch_seeds() -> Iterator[bytes]:
    """A byte, then batches of every codec and kind."""
    for codec in Codec:
        yield b"\1" + encode_batch(_RECORDS, codec=codec, base_offset=7)
    yield b"\1" + encode_batch(_RECORDS[:1], producer_id=5, producer_epoch=1, base_sequence=9, transactional=True)
    yield b"\1" + encode_batch([Record(b"\0\0\0\0\0\0", b"\0\0\0\1")], producer_id=5, producer_epoch=1, control=True)
    yield b"\1" + encode_batch(_RECORDS[:1]) + encode_batch(_RECORDS[1:], base_offset=1)
    yield b"\0" + encode_batch(_RECORDS)


def records(data: bytes) -> None:
    """A count, the last offset delta, then the records of a batch that is not compressed."""
    if len(data) < 2:
        return
    try:
        found = decode_records(
            Record, data[2:], data[0], base_offset=0, last_delta=data[1], base_timestamp=1 << 40, append_time=None
        )
    except CorruptMessage:
        return
    assert len(found) == data[0]
    assert [record.offset for record in found] == sorted({record.offset for record in found})
    if found:
        _comes_back(found, Codec.NONE)


def _record_seeds() -> Iterator[bytes]:
    for few in (_RECORDS, _RECORDS[:1], _RECORDS[2:], []):
        body = encode_batch(few)[HEADER_SIZE:] if few else b""
        yield bytes([len(few), max(len(few) - 1, 0)]) + body


def compressed(data: bytes) -> None:
    """A codec, then what claims to be its output: what comes out is bounded."""
    if not data:
        return
    codec = Codec(data[0] % len(Codec))
    try:
        out = decompress(codec, data[1:], max_bytes=MAX_BYTES)
    except CorruptMessage:
        return
    assert len(out) <= MAX_BYTES
    assert decompress(codec, compress(codec, out), max_bytes=MAX_BYTES) == out


def _compressed_seeds() -> Iterator[bytes]:
    varied = bytes(range(256)) * 2
    for codec in Codec:
        for plain in (b"", b"x", bytes(MAX_BYTES + 1) if codec else b"", varied):
            yield bytes([codec]) + compress(codec, plain)
        yield bytes([codec]) + compress(codec, varied) + compress(codec, b"second frame")
        yield bytes([codec]) + compress(codec, varied)[:-3]


BATCH_TARGETS = {
    "batch": Target(batch, batch_seeds, max_len=1024),
    "records": Target(records, _record_seeds, max_len=512),
    "compressed": Target(compressed, _compressed_seeds, max_len=2048),
}
