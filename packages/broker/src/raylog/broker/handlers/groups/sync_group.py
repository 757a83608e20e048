"""SyncGroup (API 14): learn what one was assigned; the leader says what all were.

v0      per member its assignment, from the leader alone
v1, v2  the throttle time
v3      group.instance.id: static members (KIP-345)
v4      flexible
v5      protocol type and name on both sides (KIP-559), which the coordinator checks

The answer comes once the leader has assigned and that is stored.
"""

from __future__ import annotations

from typing import Any

from raylog.broker.groups.classic.messages import Sync, Synced
from raylog.broker.handlers.context import Operation, Ports, RequestContext
from raylog.broker.handlers.entities import later, make, throttle, types_of
from raylog.broker.handlers.groups.group_members import identity
from raylog.broker.handlers.groups.group_offsets import check_group
from raylog.protocol.errors import ErrorCode, InconsistentGroupProtocol, RaylogError, code_of
from raylog.protocol.ids import MemberId

_FIRST_PROTOCOL = 5


def decide(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    group = check_group(ctx, ports, Operation.READ, request.group_id)
    return later(ports.groups.sync(group, _sync(ctx, request)), lambda synced: _synced(ctx, synced))


def refuse(ctx: RequestContext, request: Any, error: RaylogError) -> Any:
    return make(
        types_of(ctx).SyncGroupResponse,
        throttle_time=throttle(ctx),
        error_code=code_of(error),
        protocol_type=None,
        protocol_name=None,
        assignment=b"",
    )


def _sync(ctx: RequestContext, request: Any) -> Sync:
    """Raises InconsistentGroupProtocol."""
    names_protocol = ctx.version >= _FIRST_PROTOCOL
    if names_protocol and (request.protocol_type is None or request.protocol_name is None):
        raise InconsistentGroupProtocol("the member names no protocol, as versions from 5 on must")
    return Sync(
        who=identity(request, request.generation_id),
        assignments=tuple((MemberId(part.member_id), bytes(part.assignment)) for part in request.assignments),
        protocol_type=request.protocol_type if names_protocol else None,
        protocol=request.protocol_name if names_protocol else None,
    )


def _synced(ctx: RequestContext, synced: Synced) -> Any:
    return make(
        types_of(ctx).SyncGroupResponse,
        throttle_time=throttle(ctx),
        error_code=ErrorCode.none,
        protocol_type=synced.protocol_type,
        protocol_name=synced.protocol,
        assignment=synced.assignment,
    )
