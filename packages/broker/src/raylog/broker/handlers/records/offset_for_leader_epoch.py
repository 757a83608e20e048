"""OffsetForLeaderEpoch (API 23): where an epoch ends in the leader's log. KIP-101, 279, 320.

v2      the leader epoch that the client knows, for fencing (older versions are gone)
v3      a replica id: consumers send -1 or -2, and followers of other brokers than ours their own
v4      flexible

The answer is the largest epoch at or below the one asked for, and the offset after its last record; (-1,
-1) when the log has none: the client knows by it whether, and from where, its own view of the log diverges. Our own
followers are told by Fetch.
"""

from __future__ import annotations

from typing import Any

from raylog.broker.handlers.context import Operation, Ports, RequestContext, Resource
from raylog.broker.handlers.entities import failure, make, throttle, types_of
from raylog.protocol.errors import ErrorCode, RaylogError, TopicAuthorizationFailed, code_of
from raylog.protocol.ids import (
    NO_EPOCH,
    NO_OFFSET,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    TopicName,
    TopicPartition,
)


def decide(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    def answer(topic: TopicName, part: Any) -> Any:
        tp = TopicPartition(topic, PartitionIndex(part.partition))
        try:
            if not ports.authorizer.allows(ctx, Operation.DESCRIBE, Resource.TOPIC, topic):
                raise TopicAuthorizationFailed(f"{ctx.principal} may not describe topic {topic}")
            ports.lease.check()
            epoch, end = ports.partitions.get(tp).end_offset_for_epoch(
                LeaderEpoch(part.current_leader_epoch), LeaderEpoch(part.leader_epoch)
            )
        except Exception as error:  # noqa: BLE001 (whatever it is, the other partitions go on)
            return _partition(ctx, part, code_of(failure(error, ctx, f"looking up an epoch of {tp}")))
        return _partition(ctx, part, ErrorCode.none, epoch, end)

    return _response(ctx, request, answer)


def refuse(ctx: RequestContext, request: Any, error: RaylogError) -> Any:
    return _response(ctx, request, lambda topic, part: _partition(ctx, part, code_of(error)))


def _response(ctx: RequestContext, request: Any, answer: Any) -> Any:
    types = types_of(ctx)
    return make(
        types.OffsetForLeaderEpochResponse,
        throttle_time=throttle(ctx),
        topics=tuple(
            make(
                types.OffsetForLeaderTopicResult,
                topic=topic.topic,
                partitions=tuple(answer(topic.topic, part) for part in topic.partitions),
            )
            for topic in request.topics
        ),
    )


def _partition(
    ctx: RequestContext, part: Any, code: ErrorCode, epoch: LeaderEpoch = NO_EPOCH, end: Offset = NO_OFFSET
) -> Any:
    return make(
        types_of(ctx).EpochEndOffset,
        error_code=code,
        partition=part.partition,
        leader_epoch=epoch,
        end_offset=end,
    )
