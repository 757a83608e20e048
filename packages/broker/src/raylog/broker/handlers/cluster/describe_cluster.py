"""DescribeCluster (API 60): the cluster's id, its controller and its brokers. KIP-700.

v0      brokers, through the request's listener; authorized operations on request (KIP-430)
v1      an endpoint type: brokers (1); controllers (2) are not told, as by Kafka's brokers
v2      fenced brokers on request (KIP-1073): those that are registered and do not answer the controller
"""

from __future__ import annotations

from typing import Any

from raylog.broker.handlers.context import (
    CLUSTER_NAME,
    Operation,
    Ports,
    RequestContext,
    Resource,
)
from raylog.broker.handlers.entities import make, throttle, types_of
from raylog.broker.handlers.leaders import reachable_brokers
from raylog.broker.handlers.operations import OPERATIONS_UNKNOWN, cluster_operations
from raylog.coordination.metadata.model import ClusterState
from raylog.protocol.errors import ClusterAuthorizationFailed, ErrorCode, RaylogError, code_of

BROKERS, CONTROLLERS = 1, 2


def decide(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    if not ports.authorizer.allows(ctx, Operation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME):
        raise ClusterAuthorizationFailed(f"{ctx.principal} may not describe the cluster")
    asked = getattr(request, "endpoint_type", BROKERS)
    if asked != BROKERS:
        is_known = asked == CONTROLLERS
        code = ErrorCode.mismatched_endpoint_type if is_known else ErrorCode.unsupported_endpoint_type
        return _response(ctx, ClusterState(), code, f"endpoint type {asked}: this broker tells of brokers (1)")
    with_fenced = getattr(request, "include_fenced_brokers", False)
    wants = request.include_cluster_authorized_operations
    allowed = cluster_operations(ctx, ports) if wants else OPERATIONS_UNKNOWN
    return _response(ctx, ports.cluster.state(), ErrorCode.none, None, with_fenced=with_fenced, allowed=allowed)


def refuse(ctx: RequestContext, request: Any, error: RaylogError) -> Any:
    return _response(ctx, ClusterState(), code_of(error), str(error))


def _response(
    ctx: RequestContext,
    state: ClusterState,
    code: ErrorCode,
    message: str | None,
    *,
    with_fenced: bool = False,
    allowed: int = OPERATIONS_UNKNOWN,
) -> Any:
    types = types_of(ctx)
    brokers = [
        make(
            types.DescribeClusterBroker,
            broker_id=node.node_id,
            host=node.host,
            port=node.port,
            rack=node.rack,
            is_fenced=node.node_id in state.fenced,
        )
        for node in reachable_brokers(ctx, state, with_fenced=with_fenced)
    ]
    return make(
        types.DescribeClusterResponse,
        throttle_time=throttle(ctx),
        error_code=code,
        error_message=message,
        endpoint_type=BROKERS,
        cluster_id=state.cluster_id,
        controller_id=state.controller_id,
        brokers=tuple(brokers),
        cluster_authorized_operations=allowed,
    )
