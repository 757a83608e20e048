"""Fetch (API 1) by hand, because it is hot: record data passes through as file slices or views, never copied.

Versions, as Kafka 4.2.0 has them: 4 isolation level and record format 2; 5 log start offset; 7 fetch sessions (KIP-227);
9 current leader epoch (KIP-320); 11 rack and preferred read replica (KIP-392); 12 flexible, last fetched epoch, diverging
epoch; 13 topic ids instead of names (KIP-516); 15 replica state (KIP-903); 16 node endpoints (KIP-951); 17 directory id
(KIP-853); 18 the follower's high watermark (KIP-1166).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar
from uuid import UUID

from raylog.protocol.compression import Buffer
from raylog.protocol.wire import ZERO_UUID, NodeEndpoint, Slice

API_KEY = 1
MIN_VERSION = 4
MAX_VERSION = 18
FIRST_FLEXIBLE = 12
FIRST_TOPIC_ID = 13

MAX_INT32 = (1 << 31) - 1
MAX_INT64 = (1 << 63) - 1

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


class AbortedTransaction(NamedTuple):
    """A transaction whose records a reader of committed data must drop, up to its marker."""

    producer_id: int
    first_offset: int


class EpochEndOffset(NamedTuple):
    """The largest epoch that leader and follower share, and where it ends: the follower truncates to it."""

    epoch: int = -1
    end_offset: int = -1


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
    diverging_epoch: EpochEndOffset = EpochEndOffset()
    leader_id: int = -1
    leader_epoch: int = -1
    snapshot_id: EpochEndOffset = EpochEndOffset()


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
    raise NotImplementedError


def encode_fetch_request(
    version: int, request: FetchRequest, *, correlation_id: int, client_id: str | None
) -> bytes:
    """The request's frame with its length."""
    raise NotImplementedError


def encode_fetch_response(version: int, correlation_id: int, response: FetchResponse[R]) -> list[bytes | R]:
    """The response with its header, without a length before it, in wire order: bytes and, uncopied, the record data.

    Empty or missing record data leaves no part of its own.
    """
    raise NotImplementedError


def parse_fetch_response(version: int, frame: Buffer) -> tuple[int, FetchResponse[memoryview]]:
    """Correlation id and response of a frame without its length; record data are views of ``frame``.

    Raises CorruptMessage when it is malformed.
    """
    raise NotImplementedError
