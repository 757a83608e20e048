"""ElectLeaders (API 43): give partitions another leader. KIP-183, KIP-460.

v0      the preferred replica leads; no partitions named: all of them
v1      of type 1: where nobody leads, any live replica does, and records may be lost (an unclean election)
v2      flexible

Only the controller elects. Where all partitions are asked for, those that need no election are left out of the answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from raylog.broker.handlers.context import CLUSTER_NAME, Operation, Ports, RequestContext, Resource
from raylog.broker.handlers.entities import make, throttle, timeout_ms, told, types_of
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

Results = Iterable[tuple[TopicPartition, TopicPartition | RaylogError]]


def decide(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    if not ports.authorizer.allows(ctx, Operation.ALTER, Resource.CLUSTER, CLUSTER_NAME):
        raise ClusterAuthorizationFailed(f"{ctx.principal} may not elect leaders")
    election = getattr(request, "election_type", PREFERRED)
    if election not in (PREFERRED, UNCLEAN):
        raise InvalidRequest(f"election type {election}: 0 elects the preferred replica, 1 any live one")
    asked = _asked(request)
    tps = [tp for tp, _ in ports.cluster.state().partitions()] if asked is None else asked
    results = ports.topics.elect_leaders(tps, unclean=election == UNCLEAN, timeout_ms=timeout_ms(request))
    pairs = zip(tps, results, strict=True)
    if asked is None:
        return _response(ctx, [(tp, result) for tp, result in pairs if not isinstance(result, ElectionNotNeeded)])
    return _response(ctx, pairs)


def refuse(ctx: RequestContext, request: Any, error: RaylogError) -> Any:
    """v0 has no place for an error of the whole request, so each partition tells it."""
    return _response(ctx, [(tp, error) for tp in _asked(request) or ()], code_of(error))


def _asked(request: Any) -> list[TopicPartition] | None:
    """None: all."""
    if request.topic_partitions is None:
        return None
    return [
        TopicPartition(TopicName(topic.topic), PartitionIndex(index))
        for topic in request.topic_partitions
        for index in topic.partitions
    ]


def _response(ctx: RequestContext, results: Results, code: ErrorCode = ErrorCode.none) -> Any:
    types = types_of(ctx)
    by_topic: dict[TopicName, list[Any]] = defaultdict(list)
    for tp, result in results:
        by_topic[tp.topic].append(
            make(
                types.PartitionResult,
                partition_id=tp.partition,
                **told(result),
            )
        )
    return make(
        types.ElectLeadersResponse,
        throttle_time=throttle(ctx),
        error_code=code,
        replica_election_results=tuple(
            make(types.ReplicaElectionResult, topic=topic, partition_result=tuple(of_it))
            for topic, of_it in by_topic.items()
        ),
    )
