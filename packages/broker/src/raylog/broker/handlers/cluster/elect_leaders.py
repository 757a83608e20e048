"""ElectLeaders (API 43): give partitions another leader. KIP-183, KIP-460.

v0      the preferred replica leads; no partitions named: all of them
v1      of type 1: where nobody leads, any live replica does, and records may be lost (an unclean election)
v2      flexible

Only the controller elects. Where all partitions are asked for, those that need no election are left out of the answer,
and their topics are not, as with Kafka.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raylog.broker.handlers.context import CLUSTER_NAME, Operation, Ports, RequestContext, Resource
from raylog.broker.handlers.entities import make, throttle, timeout_ms, told, types_of
from raylog.coordination.metadata.model import ClusterState
from raylog.protocol.errors import (
    ClusterAuthorizationFailed,
    ElectionNotNeeded,
    ErrorCode,
    InvalidRequest,
    RaylogError,
    code_of,
)
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition

PREFERRED, UNCLEAN = 0, 1

Asked = list[tuple[TopicName, tuple[PartitionIndex, ...]]]
Result = TopicPartition | RaylogError


def decide(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    if not ports.authorizer.allows(ctx, Operation.ALTER, Resource.CLUSTER, CLUSTER_NAME):
        raise ClusterAuthorizationFailed(f"{ctx.principal} may not elect leaders")
    election = getattr(request, "election_type", PREFERRED)
    if election not in (PREFERRED, UNCLEAN):
        raise InvalidRequest(f"election type {election}: 0 elects the preferred replica, 1 any live one")
    is_all = request.topic_partitions is None
    asked = _all(ports.cluster.state()) if is_all else _asked(request)
    tps = [TopicPartition(topic, index) for topic, indexes in asked for index in indexes]
    results = ports.topics.elect_leaders(tps, unclean=election == UNCLEAN, timeout_ms=timeout_ms(request))
    return _response(ctx, asked, results, leave_out=ElectionNotNeeded if is_all else None)


def refuse(ctx: RequestContext, request: Any, error: RaylogError) -> Any:
    """v0 has no place for an error of the whole request, so each partition tells it."""
    asked = _asked(request)
    count = sum(len(indexes) for _, indexes in asked)
    return _response(ctx, asked, [error] * count, code_of(error))


def _all(state: ClusterState) -> Asked:
    return [
        (topic.name, tuple(PartitionIndex(index) for index in range(len(topic.partitions))))
        for topic in state.topics.values()
    ]


def _asked(request: Any) -> Asked:
    """As the request has it, topics and partitions that it names twice included."""
    return [
        (TopicName(topic.topic), tuple(PartitionIndex(index) for index in topic.partitions))
        for topic in request.topic_partitions or ()
    ]


def _response(
    ctx: RequestContext,
    asked: Asked,
    results: Sequence[Result],
    code: ErrorCode = ErrorCode.none,
    leave_out: type[RaylogError] | None = None,
) -> Any:
    """``leave_out``: what is not told of."""
    types = types_of(ctx)
    told_of, left = [], iter(results)
    for topic, indexes in asked:
        of_it = [(index, next(left)) for index in indexes]
        if leave_out is not None:
            of_it = [(index, result) for index, result in of_it if not isinstance(result, leave_out)]
        each = tuple(make(types.PartitionResult, partition_id=index, **told(result)) for index, result in of_it)
        told_of.append(make(types.ReplicaElectionResult, topic=topic, partition_result=each))
    return make(
        types.ElectLeadersResponse,
        throttle_time=throttle(ctx),
        error_code=code,
        replica_election_results=tuple(told_of),
    )
