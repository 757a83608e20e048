"""FindCoordinator (API 10): who coordinates a group or a transactional producer.

v0      one group
v1      a key type: group (0), transaction (1); a message
v3      flexible
v4      many keys at once (KIP-699)
v5, v6  other error codes; share groups

There are no coordinators yet: each key gets COORDINATOR_NOT_AVAILABLE, at which clients ask again later.
The API is offered because librdkafka compresses only when it is.
"""

from __future__ import annotations

from typing import Any

from raylog.broker.handlers.context import Ports, RequestContext
from raylog.broker.handlers.entities import make, throttle, types_of
from raylog.protocol.errors import CoordinatorNotAvailable, RaylogError, code_of
from raylog.protocol.ids import NO_LEADER


def decide(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    raise CoordinatorNotAvailable("groups and transactions are not built yet; assign partitions by hand")


def refuse(ctx: RequestContext, request: Any, error: RaylogError) -> Any:
    types = types_of(ctx)
    nobody = {
        "node_id": NO_LEADER,
        "host": "",
        "port": -1,
        "error_code": code_of(error),
        "error_message": str(error),
    }
    if ctx.version < 4:
        return make(types.FindCoordinatorResponse, throttle_time=throttle(ctx), **nobody)
    return make(
        types.FindCoordinatorResponse,
        throttle_time=throttle(ctx),
        coordinators=tuple(make(types.Coordinator, key=key, **nobody) for key in request.coordinator_keys),
    )
