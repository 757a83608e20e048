"""Heartbeat (API 12): a member of a group lives, and learns whether it has to join again.

v0      member and generation
v1, v2  the throttle time
v3      group.instance.id: static members (KIP-345)
v4      flexible
"""

from __future__ import annotations

from typing import Any

from raylog.broker.handlers.context import Operation, Ports, RequestContext
from raylog.broker.handlers.entities import make, throttle, types_of
from raylog.broker.handlers.groups.group_members import identity
from raylog.broker.handlers.groups.group_offsets import check_group
from raylog.protocol.errors import ErrorCode, RaylogError, code_of


def decide(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    group = check_group(ctx, ports, Operation.READ, request.group_id)
    ports.groups.heartbeat(group, identity(request, request.generation_id))
    return make(types_of(ctx).HeartbeatResponse, throttle_time=throttle(ctx), error_code=ErrorCode.none)


def refuse(ctx: RequestContext, request: Any, error: RaylogError) -> Any:
    return make(types_of(ctx).HeartbeatResponse, throttle_time=throttle(ctx), error_code=code_of(error))
