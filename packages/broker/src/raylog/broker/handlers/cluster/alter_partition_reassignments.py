"""AlterPartitionReassignments (API 45): move partitions to other replicas, or stop moving them. KIP-455.

v0      replicas by partition, the preferred leader first; null cancels what is under way
v1      whether another number of replicas than before is allowed (KIP-860)

Only the controller moves partitions. Answered once begun: ListPartitionReassignments tells how far it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raylog.broker.handlers.context import CLUSTER_NAME, Operation, Ports, RequestContext, Resource
from raylog.broker.handlers.entities import make, throttle, timeout_ms, told, types_of
from raylog.coordination.controller.events import NewReplicas
from raylog.protocol.errors import ClusterAuthorizationFailed, ErrorCode, RaylogError, code_of
from raylog.protocol.ids import BrokerId, PartitionIndex, TopicName, TopicPartition


def decide(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    if not ports.authorizer.allows(ctx, Operation.ALTER, Resource.CLUSTER, CLUSTER_NAME):
        raise ClusterAuthorizationFailed(f"{ctx.principal} may not move partitions")
    results = ports.topics.reassign(
        [_new_replicas(topic.name, each) for topic in request.topics for each in topic.partitions],
        timeout_ms=timeout_ms(request),
        allow_factor_change=getattr(request, "allow_replication_factor_change", True),
    )
    return _response(ctx, request, results)


def refuse(ctx: RequestContext, request: Any, error: RaylogError) -> Any:
    """Each partition tells it, too, as with Kafka."""
    count = sum(len(topic.partitions) for topic in request.topics)
    return _response(ctx, request, [error] * count, code_of(error), str(error))


def _new_replicas(name: str, asked: Any) -> NewReplicas:
    tp = TopicPartition(TopicName(name), PartitionIndex(asked.partition_index))
    return NewReplicas(tp, None if asked.replicas is None else tuple(map(BrokerId, asked.replicas)))


def _response(
    ctx: RequestContext,
    request: Any,
    results: Sequence[TopicPartition | RaylogError],
    code: ErrorCode = ErrorCode.none,
    message: str | None = None,
) -> Any:
    types, left = types_of(ctx), iter(results)
    return make(
        types.AlterPartitionReassignmentsResponse,
        throttle_time=throttle(ctx),
        allow_replication_factor_change=getattr(request, "allow_replication_factor_change", True),
        error_code=code,
        error_message=message,
        responses=tuple(
            make(
                types.ReassignableTopicResponse,
                name=topic.name,
                partitions=tuple(
                    make(types.ReassignablePartitionResponse, partition_index=each.partition_index, **told(next(left)))
                    for each in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )
