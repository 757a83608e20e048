"""OffsetDelete (API 47): forget how far a group has read partitions. KIP-496.

v0      the partitions by topic

Those of a topic that a member of the group subscribes to are in use: GROUP_SUBSCRIBED_TO_TOPIC. While a group has
members of another protocol than the consumers', nobody knows what they read: NON_EMPTY_GROUP.
"""

from __future__ import annotations

from typing import Any

from raylog.broker.handlers.context import Operation, Ports, RequestContext
from raylog.broker.handlers.entities import make, throttle, types_of
from raylog.broker.handlers.groups.group_offsets import (
    AskedTopic,
    Results,
    answers,
    asked_topic,
    check_exists,
    check_group,
)
from raylog.coordination.metadata.model import ClusterState
from raylog.protocol.errors import ErrorCode, RaylogError, code_of
from raylog.protocol.ids import PartitionIndex, TopicPartition


def decide(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    group = check_group(ctx, ports, Operation.DELETE, request.group_id)
    state = ports.cluster.state()
    topics = [asked_topic(ctx, ports, state, Operation.READ, topic) for topic in request.topics]
    asked = [
        TopicPartition(topic.name, PartitionIndex(part.partition_index))
        for topic in topics
        if topic.wrong is None
        for part in topic.asked.partitions
    ]
    wrong = {tp: error for tp in asked if (error := _absent(state, tp))}
    results = ports.groups.delete_offsets(group, [tp for tp in asked if tp not in wrong])
    return _response(ctx, topics, {**results, **wrong})


def _absent(state: ClusterState, tp: TopicPartition) -> RaylogError | None:
    try:
        check_exists(state, tp)
    except RaylogError as error:
        return error
    return None


def refuse(ctx: RequestContext, request: Any, error: RaylogError) -> Any:
    return make(types_of(ctx).OffsetDeleteResponse, error_code=code_of(error), throttle_time=throttle(ctx), topics=())


def _response(ctx: RequestContext, topics: list[AskedTopic], results: Results) -> Any:
    types = types_of(ctx)
    return make(
        types.OffsetDeleteResponse,
        error_code=ErrorCode.none,
        throttle_time=throttle(ctx),
        topics=answers(topics, results, types.OffsetDeleteResponseTopic, types.OffsetDeleteResponsePartition),
    )
