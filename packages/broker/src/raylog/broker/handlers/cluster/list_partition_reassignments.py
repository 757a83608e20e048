"""ListPartitionReassignments (API 46): the partitions that are being moved. KIP-455.

v0      of the partitions named, or of all; those that are not being moved are left out

Any broker answers, from what the controller told it last. A move is as far as the added replicas are in the ISR.
"""

from __future__ import annotations

from typing import Any

from raylog.broker.handlers.context import CLUSTER_NAME, Operation, Ports, RequestContext, Resource
from raylog.broker.handlers.entities import make, throttle, types_of
from raylog.coordination.control import reassignment
from raylog.coordination.metadata.model import ClusterState, TopicState
from raylog.protocol.errors import ClusterAuthorizationFailed, ErrorCode, RaylogError, code_of
from raylog.protocol.ids import TopicName


def decide(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    if not ports.authorizer.allows(ctx, Operation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME):
        raise ClusterAuthorizationFailed(f"{ctx.principal} may not list reassignments")
    state = ports.cluster.state()
    found = ((topic, _moving(ctx, topic, indexes)) for topic, indexes in _asked(request, state))
    types = types_of(ctx)
    topics = tuple(
        make(types.OngoingTopicReassignment, name=topic.name, partitions=moving) for topic, moving in found if moving
    )
    return _response(ctx, topics)


def refuse(ctx: RequestContext, request: Any, error: RaylogError) -> Any:
    return _response(ctx, (), code_of(error), str(error))


def _asked(request: Any, state: ClusterState) -> list[tuple[TopicState, set[int]]]:
    """The topics that there are, and the partitions that are asked for."""
    if request.topics is None:
        return [(topic, set(range(len(topic.partitions)))) for topic in state.topics.values()]
    asked: dict[TopicName, set[int]] = {}
    for topic in request.topics:
        asked.setdefault(topic.name, set()).update(topic.partition_indexes)
    known = ((state.topic(name), indexes) for name, indexes in asked.items())
    return [(topic, indexes) for topic, indexes in known if topic is not None]


def _moving(ctx: RequestContext, topic: TopicState, indexes: set[int]) -> tuple[Any, ...]:
    return tuple(
        make(
            types_of(ctx).OngoingPartitionReassignment,
            partition_index=tp.partition,
            replicas=partition.replicas,
            adding_replicas=partition.adding,
            removing_replicas=partition.removing,
        )
        for tp, partition in topic.topic_partitions()
        if tp.partition in indexes and reassignment.is_under_way(partition)
    )


def _response(
    ctx: RequestContext, topics: tuple[Any, ...], code: ErrorCode = ErrorCode.none, message: str | None = None
) -> Any:
    return make(
        types_of(ctx).ListPartitionReassignmentsResponse,
        throttle_time=throttle(ctx),
        error_code=code,
        error_message=message,
        topics=topics,
    )
