"""Produce (API 0) by hand, because it is hot: records are never copied, only pointed at.

Versions, as Kafka 4.2.0 has them: 3 transactional id and record format 2; 5 log start offset; 8 record errors
(KIP-467); 9 flexible; 10 current leader and node endpoints (KIP-951); 13 topic ids instead of names (KIP-516). Versions
below 3 carry old record formats: they are advertised (librdkafka would otherwise not compress) but refused.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from raylog.protocol.compression import Buffer
from raylog.protocol.errors import CorruptMessage, UnsupportedVersion
from raylog.protocol.wire import (
    INT32,
    ZERO_UUID,
    NodeEndpoint,
    Reader,
    Writer,
    encode_node_endpoints,
    read_node_endpoints,
)

API_KEY = 0
MIN_VERSION = 3
MAX_VERSION = 13
FIRST_FLEXIBLE = 9
FIRST_TOPIC_ID = 13

_ACKS_TIMEOUT = struct.Struct(">hi")
_INDEX_ERROR_OFFSET_TIME = struct.Struct(">ihqq")
_LOG_START = struct.Struct(">q")
_LEADER = struct.Struct(">ii")


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
    """What became of one partition's batches. ``log_append_time`` is -1 unless the log's clock gave the timestamps."""

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

    Records are slices of ``body``. Raises InvalidRequest when it is malformed, UnsupportedVersion for a version that
    is not between 3 and 13.
    """
    raise NotImplementedError


def encode_produce_request(
    version: int, request: ProduceRequest, *, correlation_id: int, client_id: str | None
) -> list[Buffer]:
    """The request's frame with its length, in wire order, records uncopied: for ``sendmsg`` or ``b"".join``."""
    raise NotImplementedError


def encode_produce_response(version: int, correlation_id: int, response: ProduceResponse) -> bytes:
    """The response with its header, without a length before it."""
    raise NotImplementedError


def parse_produce_response(version: int, frame: Buffer) -> tuple[int, ProduceResponse]:
    """Correlation id and response of a frame without its length. Raises CorruptMessage when it is malformed."""
    raise NotImplementedError
