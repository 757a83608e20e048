"""Messages through kio: headers, bodies, and malformed bytes of every kind."""

from __future__ import annotations

import struct
from datetime import timedelta

import pytest
from kio.schema.api_versions.v3 import ApiVersionsResponse
from kio.schema.create_topics.v7 import CreateTopicsRequest
from kio.schema.errors import ErrorCode
from kio.schema.metadata import v1, v12
from kio.schema.types import TopicName
from kio.static.primitive import i32Timedelta

from raylog.protocol.errors import CorruptMessage, InvalidRequest, UnsupportedVersion
from raylog.protocol.wire.messages import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    parse_request_header,
)
from raylog.protocol.wire.primitives import MAX_REQUEST_ITEMS, Reader, Writer

METADATA, CREATE_TOPICS, API_VERSIONS = 3, 19, 18
BYTE = struct.Struct(">B")


def uvarint(number: int) -> bytes:
    writer = Writer(flexible=True)
    writer.uvarint(number)
    return b"".join(writer.parts())


def metadata_request(*names: str) -> v12.MetadataRequest:
    topics = tuple(v12.request.MetadataRequestTopic(topic_id=None, name=TopicName(name)) for name in names)
    return v12.MetadataRequest(topics=topics, allow_auto_topic_creation=True, include_topic_authorized_operations=False)


@pytest.mark.parametrize("client_id", ["me", "", None, "ö" * 100], ids=["short", "empty", "null", "long"])
def test_a_request_comes_back(client_id: str | None) -> None:
    request = metadata_request("a", "b" * 200)
    frame = encode_request(request, 77, client_id)
    assert struct.unpack_from(">i", frame) == (len(frame) - 4,)
    header = parse_request_header(frame[4:])
    assert header[:4] == (METADATA, 12, 77, client_id)
    assert decode_request(METADATA, 12, memoryview(frame)[4 + header.body_pos :]) == request


def test_an_old_request_has_the_old_header() -> None:
    request = v1.MetadataRequest(topics=None)
    frame = encode_request(request, 1, "c")
    assert frame == struct.pack(">ihhih", 15, METADATA, 1, 1, 1) + b"c" + b"\xff\xff\xff\xff"
    assert decode_request(METADATA, 1, frame[15:]) == request


def test_a_response_comes_back() -> None:
    response = ApiVersionsResponse(
        error_code=ErrorCode.none, api_keys=(), throttle_time=i32Timedelta.parse(timedelta(milliseconds=5))
    )
    frame = encode_response(API_VERSIONS, 3, 9, response)
    assert frame[:6] == b"\0\0\0\x09\0\0"  # no tagged fields in this header, so that any client can read it
    assert decode_response(API_VERSIONS, 3, frame) == (9, response)


def test_other_flexible_responses_have_tagged_fields_in_their_header() -> None:
    response = v12.MetadataResponse(
        throttle_time=i32Timedelta.parse(timedelta()), brokers=(), topics=(), cluster_id=None
    )
    frame = encode_response(METADATA, 12, 9, response)
    assert frame[:5] == b"\0\0\0\x09\0"
    assert decode_response(METADATA, 12, bytearray(frame)) == (9, response)


def test_a_response_of_another_version_is_a_mistake() -> None:
    with pytest.raises(TypeError, match="response 3 v11"):
        encode_response(METADATA, 11, 1, v12.MetadataResponse(
            throttle_time=i32Timedelta.parse(timedelta()), brokers=(), topics=(), cluster_id=None
        ))  # fmt: skip


@pytest.mark.parametrize(("api_key", "version"), [(METADATA, 99), (METADATA, -1), (4, 0), (999, 0), (-1, 0)])
def test_an_unknown_version_is_said_so_with_its_correlation_id(api_key: int, version: int) -> None:
    header = parse_request_header(struct.pack(">hhi", api_key, version, 5) + b"anything")
    assert header == (api_key, version, 5, None, 8)
    with pytest.raises(UnsupportedVersion, match=f"API {api_key} has no version {version}"):
        decode_request(api_key, version, b"")
    with pytest.raises(UnsupportedVersion):
        decode_response(api_key, version, b"")


@pytest.mark.parametrize(("api_key", "version"), [(0, 0), (0, 2), (1, 0), (1, 3)])
def test_old_produce_and_fetch_headers_are_read_to_refuse_them(api_key: int, version: int) -> None:
    header = parse_request_header(struct.pack(">hhih", api_key, version, 5, 1) + b"c")
    assert header == (api_key, version, 5, "c", 11)


HEADER = struct.pack(">hhi", METADATA, 12, 1)
BAD_HEADERS = [
    b"",
    b"\0",
    HEADER[:7],
    HEADER,
    HEADER + b"\0",
    HEADER + b"\x00\x05abc",
    HEADER + b"\xff\xfe",
    HEADER + b"\x00\x01\xff\x00",
    HEADER + b"\x00\x01a",
    HEADER + b"\x00\x01a\x05",
    HEADER + b"\x00\x01a\x01\x00\x7f",
    HEADER + b"\x00\x01a\xff\xff\xff\xff\xff\xff",
]


@pytest.mark.parametrize("frame", BAD_HEADERS)
def test_a_bad_request_header_is_an_invalid_request(frame: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_request_header(frame)


def test_unknown_tagged_fields_are_skipped() -> None:
    frame = HEADER + b"\x00\x01a" + b"\x02\x07\x03abc\x09\x00"
    assert parse_request_header(frame).body_pos == len(frame)
    body = encode_request(metadata_request("t"), 1, None)[15:]
    assert body[-1] == 0
    assert decode_request(METADATA, 12, body[:-1] + b"\x01\x63\x02xy") == metadata_request("t")


def test_every_cut_is_an_invalid_request_and_an_addition_is_ignored() -> None:
    frame = encode_request(metadata_request("a", "topic"), 1, None)
    body = frame[4 + parse_request_header(frame[4:]).body_pos :]
    for end in range(len(body)):
        with pytest.raises(InvalidRequest, match="request 3 v12 is malformed"):
            decode_request(METADATA, 12, body[:end])
    assert decode_request(METADATA, 12, body + b"\0") == metadata_request("a", "topic")


def test_librdkafka_asks_for_all_topics_with_bytes_left_over() -> None:
    """Seen from librdkafka 2.x: a null flexible array keeps three bytes of the length that it reserved."""
    request = decode_request(METADATA, 13, bytes.fromhex("00000000010000"))
    assert getattr(request, "topics") is None  # noqa: B009


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\x7f", b"\x80" * 9])
def test_an_array_that_claims_billions_costs_nothing(length: bytes) -> None:
    """kio's own reader ends the process here."""
    with pytest.raises(InvalidRequest):
        decode_request(CREATE_TOPICS, 7, length)
    with pytest.raises(InvalidRequest):
        decode_request(METADATA, 1, b"\x7f\xff\xff\xff")
    with pytest.raises(CorruptMessage):
        decode_response(METADATA, 12, b"\0\0\0\1\0" + b"\0\0\0\0" + length)


def test_a_null_where_none_may_be_is_an_invalid_request() -> None:
    with pytest.raises(InvalidRequest, match="null"):
        decode_request(CREATE_TOPICS, 7, b"\x00" + struct.pack(">i?", 5, False) + b"\0")
    empty = CreateTopicsRequest(topics=(), timeout=i32Timedelta.parse(timedelta(milliseconds=5)), validate_only=False)
    assert decode_request(CREATE_TOPICS, 7, b"\x01" + struct.pack(">i?", 5, False) + b"\0") == empty


def test_an_error_code_of_the_future_is_an_unknown_error() -> None:
    frame = struct.pack(">ih", 1, 12345) + b"\x01" + struct.pack(">i", 0) + b"\0"
    _, response = decode_response(API_VERSIONS, 3, frame)
    assert isinstance(response, ApiVersionsResponse)
    assert response.error_code is ErrorCode.unknown_server_error


def test_a_request_has_a_bounded_number_of_items() -> None:
    """Twelve megabytes of a hostile request would become gigabytes of objects; an answer is as long as it is."""
    too_many = MAX_REQUEST_ITEMS + 1
    topic, rest = b"\x02t\0", bytes(4)  # Metadata version 9: a compact name without tags; three flags, no tags
    with pytest.raises(InvalidRequest, match="more array items than the 1000000"):
        decode_request(METADATA, 9, uvarint(too_many + 1) + topic * too_many + rest)
    assert decode_request(METADATA, 9, uvarint(1001) + topic * 1000 + rest)


def test_items_are_counted_over_arrays_within_arrays_and_tagged_fields() -> None:
    data = b"\0\0\0\3" + b"\0\0\0\2ab" * 3
    reader = Reader(data, flexible=False)
    reader.items = 9
    assert reader.array(lambda: bytes(reader.array(lambda: reader.unpack(BYTE)[0]))) == [b"ab"] * 3
    assert reader.items == 0
    reader = Reader(data, flexible=False)
    reader.items = 8
    with pytest.raises(InvalidRequest, match="more array items"):
        reader.array(lambda: reader.array(lambda: reader.unpack(BYTE)))
    reader = Reader(b"\1\0\3\3ab", flexible=True)  # one tagged field, number 0, three bytes: an array of two
    reader.items = 1
    with pytest.raises(InvalidRequest, match="more array items"):
        reader.tags(lambda _, value: value.array(lambda: value.unpack(BYTE)))
