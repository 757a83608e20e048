"""Fetch (API 1) by hand, because it is hot: record data passes through as file slices or views, never copied.

Versions, as Kafka 4.2.0 has them: 4 isolation level and record format 2; 5 log start offset; 7 fetch sessions
(KIP-227); 9 current leader epoch (KIP-320); 11 rack and preferred read replica (KIP-392); 12 flexible, last
fetched epoch, diverging epoch; 13 topic ids instead of names (KIP-516); 15 replica state (KIP-903); 16 node
endpoints (KIP-951); 17 directory id (KIP-853); 18 the follower's high watermark (KIP-1166).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar
from uuid import UUID

from raylog.protocol.batches.compression import Buffer
from raylog.protocol.batches.transactions import AbortedTransaction
from raylog.protocol.errors import CorruptMessage
from raylog.protocol.wire.frames import encode_frame
from raylog.protocol.wire.primitives import (
    INT32,
    INT64,
    ZERO_UUID,
    NodeEndpoint,
    Reader,
    Slice,
    Writer,
    check_version,
    encode_node_endpoints,
    encode_request_header,
    encode_string,
    read_node_endpoints,
    read_topics,
    tagged,
    write_topics,
)

API_KEY = 1
MIN_VERSION = 4
MAX_VERSION = 18
FIRST_FLEXIBLE = 12

MAX_INT32 = (1 << 31) - 1
MAX_INT64 = (1 << 63) - 1

_WAIT_MIN_MAX_ISOLATION = struct.Struct(">iiib")
_SESSION = struct.Struct(">ii")
_ERROR_SESSION = struct.Struct(">hi")
_REPLICA_STATE = struct.Struct(">iq")
_FETCHED = struct.Struct(">ihqq")
_ABORTED = struct.Struct(">qq")
_EPOCH_END = struct.Struct(">iq")
_SNAPSHOT = struct.Struct(">qi")
_LEADER = struct.Struct(">ii")


def _partition_layout(version: int) -> struct.Struct:
    """A partition of a request, up to its tagged fields."""
    if version >= 12:
        return struct.Struct(">iiqiqi")
    if version >= 9:
        return struct.Struct(">iiqqi")
    return struct.Struct(">iqqi") if version >= 5 else struct.Struct(">iqi")


_PARTITION_BY_VERSION = {version: _partition_layout(version) for version in range(MIN_VERSION, MAX_VERSION + 1)}

R = TypeVar("R", bound=bytes | bytearray | memoryview | Slice)


class FetchPartition(NamedTuple):
    """What to fetch of one partition. The fields after ``current_leader_epoch`` are only set by followers."""

    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    directory_id: UUID = ZERO_UUID
    high_watermark: int = MAX_INT64


class FetchTopic(NamedTuple):
    """What to fetch of one topic, which has its name up to version 12 and its id from 13 on."""

    name: str
    topic_id: UUID
    partitions: Sequence[FetchPartition]


class ForgottenTopic(NamedTuple):
    """Partitions to take out of the fetch session."""

    name: str
    topic_id: UUID
    partitions: Sequence[int]


class FetchRequest(NamedTuple):
    """``replica_id`` is -1 for consumers; ``isolation_level`` 0 reads all, 1 what is committed."""

    max_wait_ms: int
    min_bytes: int
    topics: Sequence[FetchTopic]
    max_bytes: int = MAX_INT32
    isolation_level: int = 0
    session_id: int = 0
    session_epoch: int = -1
    forgotten: Sequence[ForgottenTopic] = ()
    rack_id: str = ""
    replica_id: int = -1
    replica_epoch: int = -1
    cluster_id: str | None = None


class EpochEndOffset(NamedTuple):
    """The largest epoch that leader and follower share, and where it ends: the follower truncates to it."""

    epoch: int = -1
    end_offset: int = -1


NO_EPOCH_END = EpochEndOffset()


class FetchedPartition(NamedTuple, Generic[R]):
    """What was found in one partition. ``records`` is bytes, a view of the frame or a slice of a file."""

    partition: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: R | None = None
    aborted: Sequence[AbortedTransaction] | None = None
    preferred_read_replica: int = -1
    diverging_epoch: EpochEndOffset = NO_EPOCH_END
    leader_id: int = -1
    leader_epoch: int = -1
    snapshot_id: EpochEndOffset = NO_EPOCH_END


class FetchedTopic(NamedTuple, Generic[R]):
    """What was found in one topic."""

    name: str
    topic_id: UUID
    partitions: Sequence[FetchedPartition[R]]


class FetchResponse(NamedTuple, Generic[R]):
    """What was found; ``error_code`` is about the session, the partitions have their own."""

    topics: Sequence[FetchedTopic[R]]
    throttle_ms: int = 0
    error_code: int = 0
    session_id: int = 0
    node_endpoints: Sequence[NodeEndpoint] = ()


def parse_fetch_request(version: int, body: Buffer) -> FetchRequest:
    """The request in ``body``, which begins after the request header.

    Raises InvalidRequest when it is malformed, UnsupportedVersion for a version that is not between 4 and 18.
    """
    check_version("Fetch", version, MIN_VERSION, MAX_VERSION)
    reader = Reader(body, flexible=version >= FIRST_FLEXIBLE)
    layout = _PARTITION_BY_VERSION[version]

    def partition() -> FetchPartition:
        return _read_partition(version, reader, layout)

    cluster_id: str | None = None
    replica_id = reader.int32() if version < 15 else -1
    replica_epoch = -1

    def known(tag: int, value: Reader) -> None:
        nonlocal cluster_id, replica_id, replica_epoch
        if tag == 0:
            cluster_id = value.nullable_string()
        elif tag == 1 and version >= 15:
            replica_id, replica_epoch = value.unpack(_REPLICA_STATE)

    max_wait_ms, min_bytes, max_bytes, isolation_level = reader.unpack(_WAIT_MIN_MAX_ISOLATION)
    session_id, session_epoch = reader.unpack(_SESSION) if version >= 7 else (0, -1)
    topics = read_topics(version, reader, FetchTopic, partition)
    forgotten = read_topics(version, reader, ForgottenTopic, reader.int32) if version >= 7 else []
    rack_id = reader.string() if version >= 11 else ""
    reader.tags(known)
    reader.finish()
    return FetchRequest(
        max_wait_ms, min_bytes, topics, max_bytes, isolation_level, session_id, session_epoch,
        forgotten, rack_id, replica_id, replica_epoch, cluster_id,
    )  # fmt: skip


def _read_partition(version: int, reader: Reader, layout: struct.Struct) -> FetchPartition:
    fields = reader.unpack(layout)
    if version < 9:
        partition, offset, *start, max_bytes = fields
        return FetchPartition(partition, offset, max_bytes, log_start_offset=start[0] if start else -1)
    if version < 12:
        partition, leader_epoch, offset, log_start_offset, max_bytes = fields
        return FetchPartition(partition, offset, max_bytes, leader_epoch, -1, log_start_offset)
    partition, leader_epoch, offset, fetched_epoch, log_start_offset, max_bytes = fields
    directory_id, high_watermark = ZERO_UUID, MAX_INT64

    def known(tag: int, value: Reader) -> None:
        nonlocal directory_id, high_watermark
        if tag == 0 and version >= 17:
            directory_id = value.uuid()
        elif tag == 1 and version >= 18:
            (high_watermark,) = value.unpack(INT64)

    reader.tags(known)
    return FetchPartition(
        partition,
        offset,
        max_bytes,
        leader_epoch,
        fetched_epoch,
        log_start_offset,
        directory_id,
        high_watermark,
    )


def encode_fetch_request(version: int, request: FetchRequest, *, correlation_id: int, client_id: str | None) -> bytes:
    """The request's frame with its length. Raises UnsupportedVersion."""
    check_version("Fetch", version, MIN_VERSION, MAX_VERSION)
    writer = Writer(flexible=version >= FIRST_FLEXIBLE)

    def partition(data: FetchPartition) -> None:
        _write_partition(version, writer, data)

    encode_request_header(writer, API_KEY, version, correlation_id, client_id)
    if version < 15:
        writer.pack(INT32, request.replica_id)
    writer.pack(
        _WAIT_MIN_MAX_ISOLATION,
        request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level,
    )  # fmt: skip
    if version >= 7:
        writer.pack(_SESSION, request.session_id, request.session_epoch)
    write_topics(version, writer, request.topics, partition)
    if version >= 7:
        write_topics(version, writer, request.forgotten, lambda index: writer.pack(INT32, index))
    if version >= 11:
        writer.string(request.rack_id)
    tags: list[tuple[int, bytes]] = []
    if request.cluster_id is not None:
        tags.append((0, encode_string(request.cluster_id)))
    if version >= 15 and (request.replica_id, request.replica_epoch) != (-1, -1):
        tags.append((1, tagged(_REPLICA_STATE, request.replica_id, request.replica_epoch)))
    writer.tags(tags)
    return encode_frame(b"".join(writer.parts()))


def _write_partition(version: int, writer: Writer, data: FetchPartition) -> None:
    writer.pack(INT32, data.partition)
    if version >= 9:
        writer.pack(INT32, data.current_leader_epoch)
    writer.pack(INT64, data.fetch_offset)
    if version >= 12:
        writer.pack(INT32, data.last_fetched_epoch)
    if version >= 5:
        writer.pack(INT64, data.log_start_offset)
    writer.pack(INT32, data.max_bytes)
    tags: list[tuple[int, bytes]] = []
    if version >= 17 and data.directory_id != ZERO_UUID:
        tags.append((0, data.directory_id.bytes))
    if version >= 18 and data.high_watermark != MAX_INT64:
        tags.append((1, INT64.pack(data.high_watermark)))
    writer.tags(tags)


def encode_fetch_response(version: int, correlation_id: int, response: FetchResponse[R]) -> list[bytes | R]:
    """The response with its header, without a length before it, in wire order: bytes and record data.

    Missing record data leaves no part, and neither does empty: a slice of length 0 stays with the caller.
    Raises UnsupportedVersion.
    """
    check_version("Fetch", version, MIN_VERSION, MAX_VERSION)
    writer = Writer(flexible=version >= FIRST_FLEXIBLE)

    def partition(data: FetchedPartition[R]) -> None:
        _write_fetched(version, writer, data)

    writer.pack(INT32, correlation_id)
    writer.tags()
    writer.pack(INT32, response.throttle_ms)
    if version >= 7:
        writer.pack(_ERROR_SESSION, response.error_code, response.session_id)
    write_topics(version, writer, response.topics, partition)
    if version >= 16 and response.node_endpoints:
        writer.tags([(0, encode_node_endpoints(response.node_endpoints))])
    else:
        writer.tags()
    return writer.parts()


def _write_fetched(version: int, writer: Writer, data: FetchedPartition[R]) -> None:
    writer.pack(_FETCHED, data.partition, data.error_code, data.high_watermark, data.last_stable_offset)
    if version >= 5:
        writer.pack(INT64, data.log_start_offset)
    writer.array(data.aborted, lambda aborted: writer.pack_item(_ABORTED, *aborted))
    if version >= 11:
        writer.pack(INT32, data.preferred_read_replica)
    writer.records(data.records)
    if version < FIRST_FLEXIBLE:
        return
    tags: list[tuple[int, bytes]] = []
    if data.diverging_epoch != NO_EPOCH_END:
        tags.append((0, tagged(_EPOCH_END, *data.diverging_epoch)))
    if (data.leader_id, data.leader_epoch) != (-1, -1):
        tags.append((1, tagged(_LEADER, data.leader_id, data.leader_epoch)))
    if data.snapshot_id != NO_EPOCH_END:
        tags.append((2, tagged(_SNAPSHOT, data.snapshot_id.end_offset, data.snapshot_id.epoch)))
    writer.tags(tags)


def parse_fetch_response(version: int, frame: Buffer) -> tuple[int, FetchResponse[memoryview]]:
    """Correlation id and response of a frame without its length; record data are views of ``frame``.

    Raises CorruptMessage when it is malformed, UnsupportedVersion.
    """
    check_version("Fetch", version, MIN_VERSION, MAX_VERSION)
    reader = Reader(frame, flexible=version >= FIRST_FLEXIBLE, error=CorruptMessage)

    def partition() -> FetchedPartition[memoryview]:
        return _read_fetched(version, reader)

    endpoints: list[NodeEndpoint] = []

    def known(tag: int, value: Reader) -> None:
        if tag == 0 and version >= 16:
            endpoints.extend(read_node_endpoints(value))

    correlation_id = reader.int32()
    reader.tags()
    throttle_ms = reader.int32()
    error_code, session_id = reader.unpack(_ERROR_SESSION) if version >= 7 else (0, 0)
    topics = read_topics(version, reader, FetchedTopic[memoryview], partition)
    reader.tags(known)
    reader.finish()
    return correlation_id, FetchResponse(topics, throttle_ms, error_code, session_id, endpoints)


def _read_fetched(version: int, reader: Reader) -> FetchedPartition[memoryview]:
    def aborted() -> AbortedTransaction:
        parsed = AbortedTransaction._make(reader.unpack(_ABORTED))
        reader.tags()
        return parsed

    partition, error_code, high_watermark, last_stable_offset = reader.unpack(_FETCHED)
    log_start_offset = reader.unpack(INT64)[0] if version >= 5 else -1
    aborted_transactions = reader.nullable_array(aborted)
    preferred_read_replica = reader.int32() if version >= 11 else -1
    records = reader.bytes()
    diverging_epoch = snapshot_id = NO_EPOCH_END
    leader_id = leader_epoch = -1

    def known(tag: int, value: Reader) -> None:
        nonlocal diverging_epoch, leader_id, leader_epoch, snapshot_id
        if tag == 0:
            diverging_epoch = EpochEndOffset._make(value.unpack(_EPOCH_END))
        elif tag == 1:
            leader_id, leader_epoch = value.unpack(_LEADER)
        elif tag == 2:
            end_offset, epoch = value.unpack(_SNAPSHOT)
            snapshot_id = EpochEndOffset(epoch, end_offset)

    reader.tags(known)
    return FetchedPartition(
        partition, error_code, high_watermark, last_stable_offset, log_start_offset, records,
        aborted_transactions, preferred_read_replica, diverging_epoch, leader_id, leader_epoch, snapshot_id,
    )  # fmt: skip
