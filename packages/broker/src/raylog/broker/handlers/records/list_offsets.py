"""ListOffsets (API 2): the offset at a time, or at an end of the log.

v1      one offset per partition, with its timestamp (v0 is gone)
v2      isolation level
v4      leader epochs, for fencing (KIP-320)
v5      OFFSET_NOT_AVAILABLE; older versions get LEADER_NOT_AVAILABLE in its place (KIP-207)
v6      flexible
v7      timestamp -3: the record with the highest timestamp (KIP-734)
v8      timestamp -4: the first offset on local disk (KIP-405), here the log's start
v9      timestamp -5: the last offset in tiered storage (KIP-1005): none, -1
v10     a timeout, for tiered storage
v11     timestamp -6: the first offset that still has to go to tiered storage (KIP-1023): none, -1

A new leader does not know at first how far its predecessor had committed: until its high watermark has reached the
beginning of its epoch, it does not tell ends, which would go back (KIP-207), and neither does it tell of the highest
timestamp.

Timestamp -1 is the end that the isolation level lets a reader see, -2 the log's start. Each offset comes with the
leader epoch in which its record was written, the end with the current one (KIP-320). A time after the last record has
offset -1. Other negative timestamps, or one that the version does not have yet, are UNSUPPORTED_VERSION. A partition
that is named more than once is answered once, as an INVALID_REQUEST; another isolation level than 0 and 1 fails as in
Kafka, with UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from raylog.broker.handlers.context import Operation, Ports, RequestContext, Resource
from raylog.broker.handlers.entities import failure, make, throttle, types_of
from raylog.broker.partition.partition import Isolation, Partition
from raylog.protocol.errors import (
    ErrorCode,
    InvalidRequest,
    LeaderNotAvailable,
    OffsetNotAvailable,
    RaylogError,
    TopicAuthorizationFailed,
    UnsupportedVersion,
    code_of,
)
from raylog.protocol.ids import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    MAX_TIMESTAMP,
    NO_EPOCH,
    NO_OFFSET,
    NO_TIMESTAMP,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    TimestampMs,
    TopicName,
    TopicPartition,
)

LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

FIRST_VERSION = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}

FIRST_WITH_OFFSET_NOT_AVAILABLE = 5

Found = tuple[Offset, TimestampMs, LeaderEpoch]
NOTHING: Found = (NO_OFFSET, NO_TIMESTAMP, NO_EPOCH)


def decide(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    isolation_level = getattr(request, "isolation_level", 0)
    if isolation_level not in (0, 1):
        raise RaylogError(f"isolation level {isolation_level}: must be 0 (read uncommitted) or 1 (read committed)")
    times = Counter((topic.name, part.partition_index) for topic in request.topics for part in topic.partitions)

    def answer(topic: TopicName, part: Any) -> Any:
        tp = TopicPartition(topic, PartitionIndex(part.partition_index))
        try:
            if times[tp] > 1:
                raise InvalidRequest(f"{tp} is in the request more than once")
            if not ports.authorizer.allows(ctx, Operation.DESCRIBE, Resource.TOPIC, topic):
                raise TopicAuthorizationFailed(f"{ctx.principal} may not describe topic {topic}")
            ports.lease.check()
            found = _look_up(ctx, request, part, ports.partitions.get(tp))
            ports.lease.check()
        except Exception as error:  # noqa: BLE001 (whatever it is, the other partitions go on)
            return _partition(ctx, part, NOTHING, code_of(failure(error, ctx, f"listing offsets of {tp}")))
        return _partition(ctx, part, found)

    return _response(ctx, request, answer)


def refuse(ctx: RequestContext, request: Any, error: RaylogError) -> Any:
    return _response(ctx, request, lambda topic, part: _partition(ctx, part, NOTHING, code_of(error)))


def _look_up(ctx: RequestContext, request: Any, part: Any, partition: Partition) -> Found:
    timestamp = TimestampMs(part.timestamp)
    isolation = Isolation.COMMITTED if getattr(request, "isolation_level", 0) else Isolation.HIGH_WATERMARK
    known_epoch = LeaderEpoch(getattr(part, "current_leader_epoch", -1))
    partition.role.check_leader_epoch(known_epoch)
    if timestamp < 0 and ctx.version < FIRST_VERSION.get(timestamp, 1 << 15):
        raise UnsupportedVersion(f"timestamp {timestamp} means nothing in version {ctx.version} of ListOffsets")
    match timestamp:
        case -1:
            committed = isolation is Isolation.COMMITTED
            end = partition.last_stable_offset if committed else partition.high_watermark
            _check_end(ctx, partition, end)
            return end, NO_TIMESTAMP, partition.role.leader_epoch
        case -2 | -4:
            start, epoch = partition.earliest()
            return start, NO_TIMESTAMP, epoch
        case -3:
            _check_end(ctx, partition, partition.high_watermark)
            return partition.max_timestamp_offset() or NOTHING
        case -5 | -6:
            return NOTHING
    end = partition.high_watermark
    found = partition.offset_for_timestamp(timestamp, isolation=isolation, current_leader_epoch=known_epoch)
    if found is None:
        _check_end(ctx, partition, end)
    return found or NOTHING


def _check_end(ctx: RequestContext, partition: Partition, end: Offset) -> None:
    """Raise OffsetNotAvailable while ``end`` may lie below an end that the leader before us told."""
    if end < partition.role.epoch_start_offset:
        problem = OffsetNotAvailable if ctx.version >= FIRST_WITH_OFFSET_NOT_AVAILABLE else LeaderNotAvailable
        raise problem(
            f"{partition.tp}: its new leader knows offsets up to {end} as committed, and its epoch began at "
            f"{partition.role.epoch_start_offset}: ask again"
        )


def _response(ctx: RequestContext, request: Any, answer: Callable[[TopicName, Any], Any]) -> Any:
    types = types_of(ctx)
    asked: dict[TopicName, dict[int, Any]] = {}
    for topic in request.topics:
        for part in topic.partitions:
            asked.setdefault(topic.name, {})[part.partition_index] = part
    return make(
        types.ListOffsetsResponse,
        throttle_time=throttle(ctx),
        topics=tuple(
            make(
                types.ListOffsetsTopicResponse,
                name=name,
                partitions=tuple(answer(name, part) for part in parts.values()),
            )
            for name, parts in asked.items()
        ),
    )


def _partition(ctx: RequestContext, part: Any, found: Found, code: ErrorCode = ErrorCode.none) -> Any:
    offset, timestamp, epoch = found
    return make(
        types_of(ctx).ListOffsetsPartitionResponse,
        partition_index=part.partition_index,
        error_code=code,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=epoch,
    )
