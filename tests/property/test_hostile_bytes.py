"""Whatever the bytes, reading ends with a value or a domain error, and soon; what must be refused is."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from raylog.protocol.batches.compression import DEFAULT_MAX_BYTES, Codec, compress, decompress, max_decompressed
from raylog.protocol.batches.header import HEADER
from raylog.protocol.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidRequest,
    RaylogError,
    UnsupportedCompressionType,
    UnsupportedVersion,
)
from raylog.protocol.records import (
    HEADER_SIZE,
    Record,
    batch_headers,
    decode_batch,
    decode_batches,
    encode_batch,
    first_record_at,
    read_header,
    validate_batch,
)
from raylog.protocol.wire import fetch, produce
from raylog.protocol.wire.frames import FrameBuffer
from raylog.protocol.wire.messages import decode_request, decode_response, parse_request_header
from raylog.protocol.wire.primitives import ZERO_UUID

LENGTHS = [b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\x7f", b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00"]
EVIL = st.sampled_from([*LENGTHS, b"\xff" * 9, b"\x00", b"\x01"])
NOISE = st.lists(EVIL | st.binary(max_size=8), max_size=20).map(b"".join)


@st.composite
def mutated(draw: st.DrawFn, originals: list[bytes]) -> bytes:
    """A sound message with a few bytes replaced, left out or put in."""
    data = bytearray(draw(st.sampled_from(originals)))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        data[start : start + draw(st.integers(0, 4))] = draw(EVIL | st.binary(max_size=4))
    return bytes(data)


RECORDS = [Record(b"value", b"key", [("h", b"x"), ("n", None)], 5), Record(None, None, (), 3), Record(bytes(300))]
BATCHES = [encode_batch(RECORDS, codec=codec, base_offset=7) for codec in Codec]
BATCH_ERRORS = (CorruptMessage, InvalidRecord, UnsupportedCompressionType)


def with_right_crc(batch: bytes) -> bytes:
    """So that the mutation is met by the decoder and not by the checksum."""
    data = bytearray(batch)
    if len(data) >= 61:
        (length,) = struct.unpack_from(">i", data, 8)
        end = min(max(12 + length, 21), len(data))
        struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:end]))
    return bytes(data)


@given(NOISE | mutated(BATCHES) | mutated(BATCHES).map(with_right_crc))
def test_batches(data: bytes) -> None:
    readers: list[Callable[[bytes], object]] = [
        read_header, validate_batch, lambda data: list(batch_headers(data)),
        lambda data: decode_batch(data, max_bytes=1 << 20),
        lambda data: decode_batch(data, check_crc=False, max_bytes=1 << 20),
        lambda data: decode_batches(data, max_bytes=1 << 20),
    ]  # fmt: skip
    for read in readers:
        try:
            read(data)
        except BATCH_ERRORS:
            pass


def with_header(batch: bytes, **fields: int) -> bytes:
    """The batch with other fields in its header, and the checksum that belongs to them."""
    data = bytearray(batch)
    HEADER.pack_into(data, 0, *read_header(batch)._replace(**fields))
    return with_right_crc(bytes(data))


SENT = encode_batch(RECORDS, producer_id=7, producer_epoch=0, base_sequence=0)
ROOM = len(SENT) - HEADER_SIZE

REFUSED: dict[str, tuple[bytes, type[RaylogError]]] = {
    "too short for a header": (SENT[:60], CorruptMessage),
    "cut off": (SENT[:-1], CorruptMessage),
    "a bit flipped": (SENT[:-1] + bytes([SENT[-1] ^ 1]), CorruptMessage),
    "length too small": (with_header(SENT, batch_length=48), CorruptMessage),
    "length beyond the end": (with_header(SENT, batch_length=2**31 - 1), CorruptMessage),
    "negative length": (with_header(SENT, batch_length=-1), CorruptMessage),
    "an unknown format": (with_header(SENT, magic=3), CorruptMessage),
    "format 1": (with_header(SENT, magic=1), InvalidRecord),
    "format 0": (with_header(SENT, magic=0), InvalidRecord),
    "no record": (with_header(SENT, record_count=0, last_offset_delta=-1), InvalidRecord),
    "no record for an offset": (with_header(SENT, record_count=0, last_offset_delta=0), InvalidRecord),
    "fewer records than offsets": (with_header(SENT, record_count=2), InvalidRecord),
    "more records than offsets": (with_header(SENT, record_count=4), InvalidRecord),
    "negative counts": (with_header(SENT, record_count=-3, last_offset_delta=-4), InvalidRecord),
    "more records than bytes": (
        with_header(SENT, record_count=ROOM // 7 + 1, last_offset_delta=ROOM // 7),
        InvalidRecord,
    ),
    "highest timestamp before the first": (with_header(SENT, max_timestamp=1), InvalidRecord),
    "a producer without an epoch": (with_header(SENT, producer_epoch=-1), InvalidRecord),
    "a producer without a sequence": (with_header(SENT, base_sequence=-1), InvalidRecord),
    "a transaction without a producer": (with_header(SENT, attributes=0x10, producer_id=-1), InvalidRecord),
    **{f"codec {bits}": (with_header(SENT, attributes=bits), UnsupportedCompressionType) for bits in (5, 6, 7)},
    **{
        f"more records than {codec.name} can hold": (
            with_header(batch, record_count=2**31 - 1, last_offset_delta=2**31 - 2),
            InvalidRecord,
        )
        for codec, batch in zip(Codec, BATCHES, strict=True)
    },
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_by_its_header(what: str) -> None:
    batch, error = REFUSED[what]
    with pytest.raises(error):
        validate_batch(batch)


def test_what_is_refused_is_refused_for_one_reason() -> None:
    """What the table changes is taken unchanged."""
    assert validate_batch(SENT) == read_header(SENT)
    assert validate_batch(with_header(SENT, record_count=3)) == read_header(SENT)
    for batch in BATCHES:
        assert validate_batch(batch).record_count == len(RECORDS)


@given(mutated(BATCHES).map(with_right_crc))
def test_what_is_taken_agrees_with_itself(data: bytes) -> None:
    """Whatever else a batch says: what a broker stores has an offset for each record, and bytes for them."""
    try:
        header = validate_batch(data)
    except BATCH_ERRORS:
        return
    assert header.size <= len(data)
    assert header.magic == 2
    assert 1 <= header.record_count == header.last_offset_delta + 1
    room = header.size - HEADER_SIZE
    assert header.record_count * 7 <= min(max_decompressed(header.codec, room), DEFAULT_MAX_BYTES)
    assert crc32c(data[21 : header.size]) == header.crc
    if header.producer_id >= 0 and not header.is_control:
        assert min(header.base_sequence, header.producer_epoch) >= 0
    assert header.producer_id >= 0 or header.is_control or not header.is_transactional


@given(mutated(BATCHES).map(with_right_crc), st.integers(-2, 1 << 40), st.integers(0, 20))
def test_look_ups_by_time(data: bytes, timestamp: int, start: int) -> None:
    """In whatever was stored, a look-up finds a record that is really there, or none."""
    try:
        header = validate_batch(data)
        found = first_record_at(data, min(timestamp, header.max_timestamp), start)
        records = decode_batch(data, max_bytes=1 << 20)
    except BATCH_ERRORS:
        return
    exact = [each for each in records if each.timestamp >= timestamp and each.offset >= start]
    if exact and timestamp <= header.max_timestamp:
        assert found == (exact[0].offset, exact[0].timestamp)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
@given(data=st.data())
def test_compressed_data(codec: Codec, data: st.DataObject) -> None:
    originals = [compress(codec, bytes(1000)), compress(codec, bytes(range(256)) * 400)]
    try:
        assert len(decompress(codec, data.draw(NOISE | mutated(originals)), max_bytes=1 << 20)) <= 1 << 20
    except CorruptMessage:
        pass


PRODUCE = produce.ProduceRequest(
    "tx", 1, 5, [produce.TopicRecords("t", ZERO_UUID, [produce.PartitionRecords(0, b"r")])]
)
FETCH = fetch.FetchRequest(
    1, 1, [fetch.FetchTopic("t", ZERO_UUID, [fetch.FetchPartition(0, 1, 2, high_watermark=4)])], cluster_id="x"
)
FRAMES = [
    b"".join(produce.encode_produce_request(version, PRODUCE, correlation_id=1, client_id="c"))[4:]
    for version in (3, 9, 13)
] + [fetch.encode_fetch_request(version, FETCH, correlation_id=1, client_id="c")[4:] for version in (4, 11, 12, 18)]


@given(NOISE | mutated(FRAMES) | st.tuples(st.integers(0, 92), st.integers(0, 14), NOISE).map(
    lambda parts: struct.pack(">hhih", parts[0], parts[1], 1, -1) + parts[2]
))  # fmt: skip
def test_requests(frame: bytes) -> None:
    try:
        header = parse_request_header(frame)
        body = frame[header.body_pos :]
        match header.api_key:
            case produce.API_KEY:
                produce.parse_produce_request(header.version, body)
            case fetch.API_KEY:
                fetch.parse_fetch_request(header.version, body)
        decode_request(header.api_key, header.version, body)
    except (InvalidRequest, UnsupportedVersion):
        pass


PRODUCED = produce.ProduceResponse([produce.ProducedTopic("t", ZERO_UUID, [produce.ProducedPartition(0)])])
FETCHED = fetch.FetchResponse(
    [fetch.FetchedTopic("t", ZERO_UUID, [fetch.FetchedPartition(0, records=b"r", leader_id=3)])]
)
RESPONSES = [produce.encode_produce_response(version, 1, PRODUCED) for version in (3, 8, 10)] + [
    b"".join(fetch.encode_fetch_response(version, 1, FETCHED)) for version in (4, 11, 12, 16)
]


@given(NOISE | mutated(RESPONSES), st.integers(3, 18))
def test_responses(frame: bytes, version: int) -> None:
    readers: list[Callable[[], object]] = [
        lambda: produce.parse_produce_response(version, frame),
        lambda: fetch.parse_fetch_response(version, frame),
        lambda: decode_response(3, version, frame),
        lambda: decode_response(0, version, frame),
    ]
    for read in readers:
        try:
            read()
        except (CorruptMessage, UnsupportedVersion):
            pass


@given(st.lists(NOISE | st.binary(max_size=300).map(lambda data: len(data).to_bytes(4, "big") + data), max_size=8))
def test_frames(pieces: list[bytes]) -> None:
    buffer = FrameBuffer(1000)
    for piece in pieces:
        rest = piece
        while rest:
            room = buffer.writable()
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            buffer.advance(count)
            rest = rest[count:]
        try:
            while (frame := buffer.next_frame()) is not None:
                assert 1 <= len(frame) <= 1000
        except InvalidRequest:
            return
    assert buffer.capacity <= 1 << 18
