"""DescribeTopicPartitions (API 75): topics and their partitions, a page at a time. KIP-966.

v0      topics by name, or all; at most so many partitions; a cursor says where the next page begins

Topics come sorted by name. The cursor names a topic and a partition: topics before it are left out, and of that
topic the partitions before it. A cursor in the answer means that there is more. A topic that is asked for by
name and does not exist is an error of its own; among all topics there is none such. The last known ELR is not kept
here: an empty list, since Kafka's Java client cannot take the null that the schema allows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from raylog.broker.handlers.context import Ports, RequestContext
from raylog.broker.handlers.entities import make, throttle, types_of
from raylog.broker.handlers.leaders import state_to_tell
from raylog.broker.handlers.operations import OPERATIONS_UNKNOWN, topic_operations
from raylog.broker.handlers.topics.metadata import find_topic, partition_fields
from raylog.coordination.metadata.model import ClusterState, TopicState
from raylog.protocol.errors import ErrorCode, InvalidRequest, RaylogError, code_of
from raylog.protocol.ids import NO_TOPIC_ID, TopicName

MAX_PARTITIONS = 2_000
"""In one answer, however many are asked for: Kafka's default of max.request.partition.size.limit."""

Found = TopicState | tuple[TopicName, RaylogError]


def decide(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    state = state_to_tell(ports)
    asked = {topic.name for topic in request.topics}
    start = _start(request.cursor, asked)
    names = sorted(name for name in asked or state.topics if name >= start[0])
    found = [_find(ctx, ports, state, TopicName(name)) for name in names]
    if not asked:
        found = [topic for topic in found if isinstance(topic, TopicState)]
    return _page(ctx, ports, state, found, start, _limit(request))


def refuse(ctx: RequestContext, request: Any, error: RaylogError) -> Any:
    topics = [_failed(ctx, TopicName(topic.name), error) for topic in request.topics]
    return _response(ctx, topics, None)


def _start(cursor: Any, asked: set[str]) -> tuple[str, int]:
    if cursor is None:
        return "", 0
    if cursor.partition_index < 0:
        raise InvalidRequest(f"the cursor names partition {cursor.partition_index}")
    if asked and cursor.topic_name not in asked:
        raise InvalidRequest(f"the cursor's topic {cursor.topic_name!r} is not among the topics of the request")
    return cursor.topic_name, cursor.partition_index


def _limit(request: Any) -> int:
    limit: int = request.response_partition_limit
    return max(1, min(MAX_PARTITIONS, limit))


def _find(ctx: RequestContext, ports: Ports, state: ClusterState, name: TopicName) -> Found:
    try:
        return find_topic(ctx, ports, state, name)
    except RaylogError as error:
        return name, error


def _page(
    ctx: RequestContext,
    ports: Ports,
    state: ClusterState,
    found: Iterable[Found],
    start: tuple[str, int],
    limit: int,
) -> Any:
    """Topics until ``limit`` partitions are told; ``start`` names a topic, and its first partition to tell."""
    types, topics, left = types_of(ctx), [], limit
    for topic in found:
        if isinstance(topic, tuple):
            topics.append(_failed(ctx, *topic, topic_operations(ctx, ports, *topic)))
            continue
        if left == 0:
            return _response(ctx, topics, make(types.Cursor, topic_name=topic.name, partition_index=0))
        begin = start[1] if topic.name == start[0] else 0
        end = min(begin + left, len(topic.partitions))
        topics.append(_topic(ctx, state, topic, begin, end, topic_operations(ctx, ports, topic.name)))
        if end < len(topic.partitions):
            return _response(ctx, topics, make(types.Cursor, topic_name=topic.name, partition_index=end))
        left -= max(0, end - begin)
    return _response(ctx, topics, None)


def _topic(ctx: RequestContext, state: ClusterState, topic: TopicState, begin: int, end: int, allowed: int) -> Any:
    types = types_of(ctx)
    return make(
        types.DescribeTopicPartitionsResponseTopic,
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=tuple(
            make(
                types.DescribeTopicPartitionsResponsePartition,
                eligible_leader_replicas=topic.partitions[index].elr,
                last_known_elr=(),
                **partition_fields(ctx, state, index, topic.partitions[index]),
            )
            for index in range(begin, end)
        ),
        topic_authorized_operations=allowed,
    )


def _failed(ctx: RequestContext, name: TopicName, error: RaylogError, allowed: int = OPERATIONS_UNKNOWN) -> Any:
    return make(
        types_of(ctx).DescribeTopicPartitionsResponseTopic,
        error_code=code_of(error),
        name=name,
        topic_id=NO_TOPIC_ID,
        is_internal=False,
        partitions=(),
        topic_authorized_operations=allowed,
    )


def _response(ctx: RequestContext, topics: list[Any], next_cursor: Any) -> Any:
    return make(
        types_of(ctx).DescribeTopicPartitionsResponse,
        throttle_time=throttle(ctx),
        topics=tuple(topics),
        next_cursor=next_cursor,
    )
