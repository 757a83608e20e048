"""Produce (API 0) by hand, because it is hot: records are never copied, only pointed at.

Versions, as Kafka 4.2.0 has them: 3 transactional id and record format 2; 5 log start offset; 8 record errors
(KIP-467); 9 flexible; 10 current leader and node endpoints (KIP-951); 13 topic ids instead of names
(KIP-516). Versions below 3 carry old record formats: they are advertised (librdkafka would otherwise not
compress) but refused.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from raylog.protocol.batches.compression import Buffer
from raylog.protocol.errors import CorruptMessage
from raylog.protocol.wire.frames import frame_length
from raylog.protocol.wire.primitives import (
    FIRST_TOPIC_ID,
    INT32,
    INT64,
    ZERO_UUID,
    NodeEndpoint,
    Reader,
    Writer,
    check_version,
    encode_node_endpoints,
    encode_request_header,
    read_node_endpoints,
    read_topics,
    tagged,
    write_topics,
)

API_KEY = 0
MIN_VERSION = 3
MAX_VERSION = 13
FIRST_FLEXIBLE = 9

_ACKS_TIMEOUT = struct.Struct(">hi")
_INDEX_ERROR_OFFSET_TIME = struct.Struct(">ihqq")
_LEADER = struct.Struct(">ii")

# One topic with one partition, in a flexible version: array lengths are one too high, tagged fields are none.
_SINGLE_HEAD = struct.Struct(">BhiBB")  # transactional id, acks, timeout, topics, length of the name
_SINGLE_HEAD_WITH_ID = struct.Struct(">BhiB16s")  # transactional id, acks, timeout, topics, id of the topic
_SINGLE_PARTITION = struct.Struct(">Bi")  # partitions, index
_NO_TAGS = b"\0\0\0"  # of the partition, the topic and the request
_SINGLE_REPLY_HEAD = struct.Struct(">iBB")  # correlation id, tags, topics
# Partitions, index, error, base offset, append time, log start; record errors, message, tags, tags; throttle, tags.
_SINGLE_REPLY = struct.Struct(">BihqqqBBBBiB")


class PartitionRecords(NamedTuple):
    """Batches for one partition; parsed ones are a slice of the request's frame, writable if that is."""

    partition: int
    records: Buffer | None


class TopicRecords(NamedTuple):
    """Batches for one topic, which has its name up to version 12 and its id from 13 on."""

    name: str
    topic_id: UUID
    partitions: Sequence[PartitionRecords]


class ProduceRequest(NamedTuple):
    """``acks`` is 0, 1 or -1 (all in-sync replicas); whether it is one of them is the handler's to check."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: Sequence[TopicRecords]


class RecordError(NamedTuple):
    """Which record of a refused batch was the reason, and why (KIP-467)."""

    batch_index: int
    message: str | None = None


class ProducedPartition(NamedTuple):
    """What became of one partition's batches.

    ``log_append_time`` is -1 unless the log's clock gave the timestamps.
    """

    partition: int
    error_code: int = 0
    base_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[RecordError] = ()
    error_message: str | None = None
    leader_id: int = -1
    leader_epoch: int = -1


class ProducedTopic(NamedTuple):
    """What became of one topic's batches."""

    name: str
    topic_id: UUID
    partitions: Sequence[ProducedPartition]


class ProduceResponse(NamedTuple):
    """What became of all batches; ``node_endpoints`` tells where the leaders are that partitions name."""

    topics: Sequence[ProducedTopic]
    throttle_ms: int = 0
    node_endpoints: Sequence[NodeEndpoint] = ()


def parse_produce_request(version: int, body: Buffer) -> ProduceRequest:
    """The request in ``body``, which begins after the request header.

    Records are slices of ``body``. Raises InvalidRequest when it is malformed, UnsupportedVersion for a
    version that is not between 3 and 13.
    """
    check_version("Produce", version, MIN_VERSION, MAX_VERSION)
    if version >= FIRST_FLEXIBLE and (single := _parse_single(version, memoryview(body))) is not None:
        return single
    reader = Reader(body, flexible=version >= FIRST_FLEXIBLE)

    def partition() -> PartitionRecords:
        parsed = PartitionRecords(reader.int32(), reader.bytes())
        reader.tags()
        return parsed

    transactional_id = reader.nullable_string()
    acks, timeout_ms = reader.unpack(_ACKS_TIMEOUT)
    topics = read_topics(version, reader, TopicRecords, partition)
    reader.tags()
    reader.finish()
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _parse_single(version: int, body: memoryview) -> ProduceRequest | None:
    """One batch for one partition in versions from 9 on, which is what producers send all day, without a detour.

    None for everything else, malformed requests too: the general way tells what is wrong with them.
    """
    name, topic_id = "", ZERO_UUID
    try:
        if version >= FIRST_TOPIC_ID:
            transactional_id, acks, timeout_ms, topics, id_bytes = _SINGLE_HEAD_WITH_ID.unpack_from(body)
            at = _SINGLE_HEAD_WITH_ID.size
            topic_id = UUID(bytes=id_bytes)
        else:
            transactional_id, acks, timeout_ms, topics, name_size = _SINGLE_HEAD.unpack_from(body)
            at = _SINGLE_HEAD.size + name_size - 1
            if not 1 < name_size < 128:
                return None
            name = str(body[_SINGLE_HEAD.size : at], "utf-8")
        partitions, index = _SINGLE_PARTITION.unpack_from(body, at)
        if transactional_id != 0 or topics != 2 or partitions != 2:
            return None
        at += _SINGLE_PARTITION.size
        size = shift = 0
        while (byte := body[at]) & 0x80:
            size |= (byte & 0x7F) << shift
            shift += 7
            at += 1
            if shift > 28:
                return None
        end = at + (size | byte << shift)
        if body[end:] != _NO_TAGS or end == at:
            return None
        part = PartitionRecords(index, body[at + 1 : end])
    except (struct.error, IndexError, UnicodeDecodeError):
        return None
    return ProduceRequest(None, acks, timeout_ms, [TopicRecords(name, topic_id, [part])])


def encode_produce_request(
    version: int, request: ProduceRequest, *, correlation_id: int, client_id: str | None
) -> list[Buffer]:
    """The request's frame with its length, in wire order, records uncopied: for ``sendmsg`` or ``b"".join``.

    Raises UnsupportedVersion.
    """
    check_version("Produce", version, MIN_VERSION, MAX_VERSION)
    writer = Writer(flexible=version >= FIRST_FLEXIBLE)

    def partition(data: PartitionRecords) -> None:
        writer.pack(INT32, data.partition)
        writer.nullable_records(data.records)
        writer.tags()

    encode_request_header(writer, API_KEY, version, correlation_id, client_id)
    writer.string(request.transactional_id)
    writer.pack(_ACKS_TIMEOUT, request.acks, request.timeout_ms)
    write_topics(version, writer, request.topics, partition)
    writer.tags()
    parts = writer.parts()
    return [frame_length(parts), *parts]


def encode_produce_response(version: int, correlation_id: int, response: ProduceResponse) -> bytes:
    """The response with its header, without a length before it. Raises UnsupportedVersion."""
    check_version("Produce", version, MIN_VERSION, MAX_VERSION)
    if version >= FIRST_FLEXIBLE and len(response.topics) == 1 and not response.node_endpoints:
        single = _encode_single(version, correlation_id, response)
        if single is not None:
            return single
    writer = Writer(flexible=version >= FIRST_FLEXIBLE)

    def record_error(error: RecordError) -> None:
        writer.pack(INT32, error.batch_index)
        writer.string(error.message)
        writer.tags()

    def partition(data: ProducedPartition) -> None:
        writer.pack(_INDEX_ERROR_OFFSET_TIME, data.partition, data.error_code, data.base_offset, data.log_append_time)
        if version >= 5:
            writer.pack(INT64, data.log_start_offset)
        if version >= 8:
            writer.array(data.record_errors, record_error)
            writer.string(data.error_message)
        if version >= 10 and (data.leader_id, data.leader_epoch) != (-1, -1):
            writer.tags([(0, tagged(_LEADER, data.leader_id, data.leader_epoch))])
        else:
            writer.tags()

    writer.pack(INT32, correlation_id)
    writer.tags()
    write_topics(version, writer, response.topics, partition)
    writer.pack(INT32, response.throttle_ms)
    if version >= 10 and response.node_endpoints:
        writer.tags([(0, encode_node_endpoints(response.node_endpoints))])
    else:
        writer.tags()
    return b"".join(writer.parts())


def _encode_single(version: int, correlation_id: int, response: ProduceResponse) -> bytes | None:
    """The answer to a request as in :func:`_parse_single` when there is no error to tell; else None."""
    topic = response.topics[0]
    if len(topic.partitions) != 1:
        return None
    part = topic.partitions[0]
    if version >= FIRST_TOPIC_ID:
        name = topic.topic_id.bytes
    else:
        name = topic.name.encode()
        if len(name) > 126:
            return None
        name = bytes([len(name) + 1]) + name
    if part.error_code or part.record_errors or part.error_message is not None:
        return None
    if part.leader_id != -1 or part.leader_epoch != -1:
        return None
    head = _SINGLE_REPLY_HEAD.pack(correlation_id, 0, 2)
    offsets = (part.base_offset, part.log_append_time, part.log_start_offset)
    return head + name + _SINGLE_REPLY.pack(2, part.partition, 0, *offsets, 1, 0, 0, 0, response.throttle_ms, 0)


def parse_produce_response(version: int, frame: Buffer) -> tuple[int, ProduceResponse]:
    """Correlation id and response of a frame without its length.

    Raises CorruptMessage when it is malformed, UnsupportedVersion.
    """
    check_version("Produce", version, MIN_VERSION, MAX_VERSION)
    reader = Reader(frame, flexible=version >= FIRST_FLEXIBLE, error=CorruptMessage)

    def record_error() -> RecordError:
        parsed = RecordError(reader.int32(), reader.nullable_string())
        reader.tags()
        return parsed

    def partition() -> ProducedPartition:
        index, error_code, base_offset, log_append_time = reader.unpack(_INDEX_ERROR_OFFSET_TIME)
        log_start_offset = reader.unpack(INT64)[0] if version >= 5 else -1
        record_errors = reader.array(record_error) if version >= 8 else []
        error_message = reader.nullable_string() if version >= 8 else None
        leader = (-1, -1)

        def known(tag: int, value: Reader) -> None:
            nonlocal leader
            if tag == 0 and version >= 10:
                leader_id, leader_epoch = value.unpack(_LEADER)
                leader = leader_id, leader_epoch

        reader.tags(known)
        return ProducedPartition(
            index,
            error_code,
            base_offset,
            log_append_time,
            log_start_offset,
            record_errors,
            error_message,
            *leader,
        )

    endpoints: list[NodeEndpoint] = []

    def known(tag: int, value: Reader) -> None:
        if tag == 0 and version >= 10:
            endpoints.extend(read_node_endpoints(value))

    correlation_id = reader.int32()
    reader.tags()
    topics = read_topics(version, reader, ProducedTopic, partition)
    throttle_ms = reader.int32()
    reader.tags(known)
    reader.finish()
    return correlation_id, ProduceResponse(topics, throttle_ms, endpoints)
