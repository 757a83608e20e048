"""LeaveGroup (API 13): members leave, so that the others need not wait for the end of their sessions.

v0      one member, by its id
v1, v2  the throttle time
v3      many members, each also by its group.instance.id alone (KIP-345), with an error code each
v4      flexible
v5      why they leave (KIP-800), for people only
"""

from __future__ import annotations

from typing import Any

from raylog.broker.groups.classic.messages import Leaver
from raylog.broker.handlers.context import Operation, Ports, RequestContext
from raylog.broker.handlers.entities import make, throttle, told, types_of
from raylog.broker.handlers.groups.group_members import instance_of
from raylog.broker.handlers.groups.group_offsets import check_group
from raylog.protocol.errors import ErrorCode, RaylogError, code_of
from raylog.protocol.ids import MemberId

_FIRST_MANY = 3


def decide(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    group = check_group(ctx, ports, Operation.READ, request.group_id)
    types, leavers = types_of(ctx), _leavers(ctx, request)
    results = ports.groups.leave(group, leavers)
    if ctx.version < _FIRST_MANY:
        return make(types.LeaveGroupResponse, throttle_time=throttle(ctx), **told(results[0]))
    members = tuple(
        make(
            types.MemberResponse,
            member_id=leaver.member_id,
            group_instance_id=leaver.instance_id,
            **told(result),
        )
        for leaver, result in zip(leavers, results, strict=True)
    )
    return make(types.LeaveGroupResponse, throttle_time=throttle(ctx), error_code=ErrorCode.none, members=members)


def refuse(ctx: RequestContext, request: Any, error: RaylogError) -> Any:
    response = types_of(ctx).LeaveGroupResponse
    return make(response, throttle_time=throttle(ctx), error_code=code_of(error), members=())


def _leavers(ctx: RequestContext, request: Any) -> tuple[Leaver, ...]:
    if ctx.version < _FIRST_MANY:
        return (Leaver(MemberId(request.member_id)),)
    return tuple(Leaver(MemberId(member.member_id), instance_of(member)) for member in request.members)
