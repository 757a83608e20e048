"""Targets of the protocol's readers: frames, headers, Produce and Fetch, and every cold message there is.

What can be read is written again and must come out the same; what is read in two ways must agree.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from kio.schema.index import api_key_map, schema_name_map

from fuzz.target import Target, filled
from raylog.protocol.batches.compression import Codec
from raylog.protocol.batches.transactions import AbortedTransaction
from raylog.protocol.errors import CorruptMessage, InvalidRequest, UnsupportedVersion
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition
from raylog.protocol.records import Record, encode_batch
from raylog.protocol.wire import fetch, produce
from raylog.protocol.wire.consumer_protocol import (
    assigned_partitions,
    encode_assignment,
    encode_subscription,
    subscribed_topics,
)
from raylog.protocol.wire.frames import GREEDY_BYTES, FrameBuffer
from raylog.protocol.wire.messages import (
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    parse_request_header,
    request_type,
    response_type,
)
from raylog.protocol.wire.primitives import REQUEST_HEADER, ZERO_UUID, NodeEndpoint, Reader

MAX_FRAME = 1000

MESSAGES = [(key, version) for key, name in sorted(api_key_map.items()) for version in sorted(schema_name_map[name])]
"""(API key, version) of everything that kio knows."""

_FLEXIBLE = {which: bool(request_type(*which).__header_schema__.__flexible__) for which in MESSAGES}
_FLEXIBLE |= {(produce.API_KEY, version): False for version in range(3)}  # old formats, which kio has dropped
_FLEXIBLE |= {(fetch.API_KEY, version): False for version in range(4)}

# --- frames ------------------------------------------------------------------------------------------------------


def frames(data: bytes) -> None:
    """The first byte says in which pieces the rest arrives: the frames are those of a reader that sees all at once."""
    if not data:
        return
    step, stream = data[0] * 7 + 1, data[1:]
    expected, sound = _frames_at_once(stream)
    buffer, found = FrameBuffer(MAX_FRAME), []
    try:
        for start in range(0, len(stream), step):
            piece = stream[start : start + step]
            while piece:
                room = buffer.writable()
                assert len(room) > 0
                taken = min(len(room), len(piece))
                room[:taken] = piece[:taken]
                buffer.advance(taken)
                piece = piece[taken:]
                while (frame := buffer.next_frame()) is not None:
                    found.append(bytes(frame))
    except InvalidRequest:
        assert not sound
    else:
        assert sound
    assert found == expected
    assert buffer.capacity <= GREEDY_BYTES
    buffer.trim()


def _frames_at_once(stream: bytes) -> tuple[list[bytes], bool]:
    """The whole frames, and whether the lengths are all allowed."""
    found, pos = [], 0
    while len(stream) - pos >= 4:
        (length,) = struct.unpack_from(">i", stream, pos)
        if not 0 < length <= MAX_FRAME:
            return found, False
        if len(stream) - pos - 4 < length:
            break
        found.append(stream[pos + 4 : pos + 4 + length])
        pos += 4 + length
    return found, True


def _frame_seeds() -> Iterator[bytes]:
    for step in (0, 1, 40):
        yield bytes([step]) + b"".join(struct.pack(">i", size) + bytes(size) for size in (1, 3, 300, 999))
    yield b"\x05" + struct.pack(">i", MAX_FRAME + 1) + b"x"


# --- the header of a request -------------------------------------------------------------------------------------


def request_header(data: bytes) -> None:
    """The short cut for usual headers finds what the general reader finds."""
    try:
        found = parse_request_header(data)
    except InvalidRequest:
        found = None
    reader = Reader(data, flexible=False)
    try:
        api_key, version, correlation_id = reader.unpack(REQUEST_HEADER)
        client_id = None
        if (api_key, version) in _FLEXIBLE:
            client_id = reader.nullable_string()
            if _FLEXIBLE[api_key, version]:
                reader.flexible = True
                reader.tags()
        assert found == RequestHeader(api_key, version, correlation_id, client_id, reader.pos)
    except InvalidRequest:
        assert found is None


def _header_seeds() -> Iterator[bytes]:
    for key, version in ((0, 2), (0, 9), (1, 11), (1, 12), (3, 0), (18, 0), (18, 3), (18, 99), (999, 0)):
        for client in (b"\xff\xff", b"\0\0", b"\0\3abc"):
            yield struct.pack(">hhi", key, version, 7) + client + b"\0rest"
    yield struct.pack(">hhi", 3, 9, 7) + b"\0\1a" + b"\1\5\2xy"


# --- Produce and Fetch -------------------------------------------------------------------------------------------


def produce_request(data: bytes) -> None:
    """A version, then a body; what can be read is written and read again, and kio's types hold the same."""
    version, body = _versioned(data)
    try:
        parsed = produce.parse_produce_request(version, body)
    except (InvalidRequest, UnsupportedVersion):
        return
    frame = b"".join(produce.encode_produce_request(version, parsed, correlation_id=1, client_id="c"))[4:]
    again = frame[parse_request_header(frame).body_pos :]
    assert produce.parse_produce_request(version, again) == parsed
    cold: Any = decode_request(produce.API_KEY, version, body)
    assert (cold.transactional_id, cold.acks) == (parsed.transactional_id, parsed.acks)
    assert [len(topic.partition_data) for topic in cold.topic_data] == [len(t.partitions) for t in parsed.topics]


def fetch_request(data: bytes) -> None:
    """As :func:`produce_request`."""
    version, body = _versioned(data)
    try:
        parsed = fetch.parse_fetch_request(version, body)
    except (InvalidRequest, UnsupportedVersion):
        return
    frame = fetch.encode_fetch_request(version, parsed, correlation_id=1, client_id="c")[4:]
    again = frame[parse_request_header(frame).body_pos :]
    assert fetch.parse_fetch_request(version, again) == parsed


def produce_response(data: bytes) -> None:
    """A version, then a frame; what can be read is written and read again."""
    version, frame = _versioned(data)
    try:
        correlation_id, parsed = produce.parse_produce_response(version, frame)
    except (CorruptMessage, UnsupportedVersion):
        return
    again = produce.encode_produce_response(version, correlation_id, parsed)
    assert produce.parse_produce_response(version, again) == (correlation_id, parsed)


def fetch_response(data: bytes) -> None:
    """As :func:`produce_response`; missing records come back as empty ones."""
    version, frame = _versioned(data)
    try:
        correlation_id, parsed = fetch.parse_fetch_response(version, frame)
    except (CorruptMessage, UnsupportedVersion):
        return
    again = b"".join(fetch.encode_fetch_response(version, correlation_id, parsed))
    twice = fetch.parse_fetch_response(version, again)
    assert b"".join(fetch.encode_fetch_response(version, *twice)) == again
    assert len(twice[1].topics) == len(parsed.topics)


def _versioned(data: bytes) -> tuple[int, bytes]:
    return (data[0] if data else 0), data[1:]


BATCH = encode_batch([Record(b"value", b"key", [("h", b"x")], 5)], codec=Codec.NONE)
_NAMED = ("t", ZERO_UUID)
_PRODUCES = (
    produce.ProduceRequest(None, -1, 1000, [produce.TopicRecords(*_NAMED, [produce.PartitionRecords(0, BATCH)])]),
    produce.ProduceRequest(
        "tx",
        1,
        5,
        [produce.TopicRecords(*_NAMED, [produce.PartitionRecords(0, b"r"), produce.PartitionRecords(1, None)])],
    ),
)
_FETCHES = (
    fetch.FetchRequest(0, 1, [fetch.FetchTopic(*_NAMED, [fetch.FetchPartition(0, 1, 2)])]),
    fetch.FetchRequest(
        0, 1, [fetch.FetchTopic(*_NAMED, [fetch.FetchPartition(0, 1, 2, 3, 4, 5, ZERO_UUID, 6)])],
        isolation_level=1, session_id=7, session_epoch=8, forgotten=[fetch.ForgottenTopic(*_NAMED, [1, 2])],
        rack_id="r", replica_id=2, replica_epoch=3, cluster_id="x",
    ),
)  # fmt: skip
_ENDPOINTS = [NodeEndpoint(1, "host", 9092, "rack")]
_PRODUCED = (
    produce.ProduceResponse([produce.ProducedTopic(*_NAMED, [produce.ProducedPartition(0, 0, 5)])]),
    produce.ProduceResponse(
        [
            produce.ProducedTopic(
                *_NAMED,
                [produce.ProducedPartition(0, 6, 1, 2, 3, [produce.RecordError(4, "m")], "message", 5, 6)],
            )
        ],
        7,
        _ENDPOINTS,
    ),
)
_FETCHED = (
    fetch.FetchResponse([fetch.FetchedTopic(*_NAMED, [fetch.FetchedPartition(0, records=BATCH)])]),
    fetch.FetchResponse(
        [
            fetch.FetchedTopic(
                *_NAMED,
                [
                    fetch.FetchedPartition(
                        0, 6, 1, 2, 3, b"r", [AbortedTransaction(4, 5)], 6,
                        fetch.EpochEndOffset(1, 2), 3, 4, fetch.EpochEndOffset(5, 6),
                    )
                ],
            )
        ],
        1, 2, 3, _ENDPOINTS,
    ),
)  # fmt: skip
_PRODUCE_VERSIONS = range(produce.MIN_VERSION, produce.MAX_VERSION + 1)
_FETCH_VERSIONS = range(fetch.MIN_VERSION, fetch.MAX_VERSION + 1)


def produce_frames() -> Iterator[bytes]:
    """Produce requests of every version, as frames without their length."""
    for version in _PRODUCE_VERSIONS:
        for request in _PRODUCES:
            yield b"".join(produce.encode_produce_request(version, request, correlation_id=1, client_id="c"))[4:]


def fetch_frames() -> Iterator[bytes]:
    """Fetch requests of every version, as frames without their length."""
    for version in _FETCH_VERSIONS:
        for request in _FETCHES:
            yield fetch.encode_fetch_request(version, request, correlation_id=1, client_id="c")[4:]


def _bodies(frames: Iterator[bytes]) -> Iterator[bytes]:
    for frame in frames:
        header = parse_request_header(frame)
        yield bytes([header.version]) + frame[header.body_pos :]


def _produce_response_seeds() -> Iterator[bytes]:
    for version in _PRODUCE_VERSIONS:
        for response in _PRODUCED:
            yield bytes([version]) + produce.encode_produce_response(version, 1, response)


def _fetch_response_seeds() -> Iterator[bytes]:
    for version in _FETCH_VERSIONS:
        for response in _FETCHED:
            yield bytes([version]) + b"".join(fetch.encode_fetch_response(version, 1, response))


# --- all other messages ------------------------------------------------------------------------------------------


def cold_request(data: bytes) -> None:
    """Which message (two bytes), then a body: what can be read is written and read again, the same."""
    which, body = _which(data)
    if which is None:
        return
    key, version = which
    try:
        parsed = decode_request(key, version, body)
    except InvalidRequest:
        return
    frame = encode_request(parsed, 1, "c")[4:]
    again = decode_request(key, version, frame[parse_request_header(frame).body_pos :])
    assert encode_request(again, 1, "c")[4:] == frame


def cold_response(data: bytes) -> None:
    """As :func:`cold_request`."""
    which, frame = _which(data)
    if which is None:
        return
    key, version = which
    try:
        correlation_id, parsed = decode_response(key, version, frame)
    except CorruptMessage:
        return
    written = encode_response(key, version, correlation_id, parsed)
    assert encode_response(key, version, *decode_response(key, version, written)) == written


def _which(data: bytes) -> tuple[tuple[int, int] | None, bytes]:
    if len(data) < 2:
        return None, b""
    return MESSAGES[int.from_bytes(data[:2], "big") % len(MESSAGES)], data[2:]


def _cold_request_seeds() -> Iterator[bytes]:
    for number, (key, version) in enumerate(MESSAGES):
        frame = encode_request(filled(request_type(key, version), name="t", topic="t"), 1, "c")[4:]
        yield number.to_bytes(2, "big") + frame[parse_request_header(frame).body_pos :]


def _cold_response_seeds() -> Iterator[bytes]:
    for number, (key, version) in enumerate(MESSAGES):
        response = filled(response_type(key, version), name="t", topic="t")
        yield number.to_bytes(2, "big") + encode_response(key, version, 1, response)


# --- what consumers say through their group's coordinator ------------------------------------------------------------


def consumer_messages(data: bytes) -> None:
    """Subscriptions and assignments: what can be read is written and read again, the same."""
    try:
        topics = subscribed_topics(data)
        assert subscribed_topics(encode_subscription(topics)) == topics
    except InvalidRequest:
        pass
    try:
        partitions = assigned_partitions(data)
        assert assigned_partitions(encode_assignment(partitions)) == partitions
    except InvalidRequest:
        pass


def _consumer_seeds() -> Iterator[bytes]:
    yield encode_subscription(["t", "u"])
    yield encode_assignment(TopicPartition(TopicName("t"), PartitionIndex(number)) for number in range(3))


WIRE_TARGETS = {
    "frames": Target(frames, _frame_seeds),
    "request_header": Target(request_header, _header_seeds, max_len=256),
    "produce_request": Target(produce_request, lambda: _bodies(produce_frames()), max_len=1024),
    "fetch_request": Target(fetch_request, lambda: _bodies(fetch_frames()), max_len=1024),
    "produce_response": Target(produce_response, _produce_response_seeds, max_len=1024),
    "fetch_response": Target(fetch_response, _fetch_response_seeds, max_len=1024),
    "cold_request": Target(cold_request, _cold_request_seeds, max_len=1024),
    "cold_response": Target(cold_response, _cold_response_seeds, max_len=1024),
    "consumer_messages": Target(consumer_messages, _consumer_seeds, max_len=256),
}
