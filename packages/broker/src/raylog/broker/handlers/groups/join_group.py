"""JoinGroup (API 11): take part in a group's next generation.

v0      one timeout for session and rebalance
v1      a rebalance timeout of its own (KIP-62)
v2, v3  the throttle time
v4      who has no member id gets one first, with MEMBER_ID_REQUIRED, and joins with it (KIP-394)
v5      group.instance.id: static members (KIP-345)
v6      flexible
v7      the protocol type in the answer
v8      why the member joins (KIP-800), for people only
v9      a leader may be told that the assignment stands (KIP-814)

The answer comes once the generation begins: when all members have joined, or those that have not are given up.
"""

from __future__ import annotations

from typing import Any

from raylog.broker.groups.classic.messages import Join, Joined, MemberIdIs, Protocol
from raylog.broker.handlers.context import Operation, Ports, RequestContext
from raylog.broker.handlers.entities import in_ms, later, make, throttle, types_of
from raylog.broker.handlers.groups.group_members import instance_of
from raylog.broker.handlers.groups.group_offsets import check_group
from raylog.protocol.errors import ErrorCode, GroupMaxSizeReached, RaylogError, code_of
from raylog.protocol.ids import NO_GENERATION, NO_MEMBER, MemberId

_FIRST_REBALANCE_TIMEOUT = 1
_FIRST_MEMBER_ID_REQUIRED = 4
_FIRST_NULLABLE_PROTOCOL = 7
_FIRST_SKIP_ASSIGNMENT = 9


def decide(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    group = check_group(ctx, ports, Operation.READ, request.group_id)
    return later(ports.groups.join(group, _join(ctx, request)), lambda answer: _joined(ctx, answer))


def refuse(ctx: RequestContext, request: Any, error: RaylogError) -> Any:
    member_id = NO_MEMBER if isinstance(error, GroupMaxSizeReached) else request.member_id
    return _response(ctx, code_of(error), Joined(member_id, NO_GENERATION, "", "", NO_MEMBER))


def _join(ctx: RequestContext, request: Any) -> Join:
    has_wait = ctx.version >= _FIRST_REBALANCE_TIMEOUT
    return Join(
        member_id=MemberId(request.member_id),
        instance_id=instance_of(request),
        client_id=ctx.client_id or "",
        client_host=f"/{ctx.connection.host}",
        session_timeout_ms=in_ms(request.session_timeout),
        rebalance_timeout_ms=max(0, in_ms(request.rebalance_timeout if has_wait else request.session_timeout)),
        protocol_type=request.protocol_type,
        protocols=tuple(Protocol(protocol.name, bytes(protocol.metadata)) for protocol in request.protocols),
        needs_id=ctx.version >= _FIRST_MEMBER_ID_REQUIRED,
        can_skip_assignment=ctx.version >= _FIRST_SKIP_ASSIGNMENT,
    )


def _joined(ctx: RequestContext, answer: Joined | MemberIdIs) -> Any:
    if isinstance(answer, MemberIdIs):
        return _response(ctx, ErrorCode.member_id_required, Joined(answer.member_id, NO_GENERATION, "", "", NO_MEMBER))
    return _response(ctx, ErrorCode.none, answer)


def _response(ctx: RequestContext, code: ErrorCode, joined: Joined) -> Any:
    types = types_of(ctx)
    nothing = None if ctx.version >= _FIRST_NULLABLE_PROTOCOL else ""
    return make(
        types.JoinGroupResponse,
        throttle_time=throttle(ctx),
        error_code=code,
        generation_id=joined.generation,
        protocol_type=joined.protocol_type or None,
        protocol_name=joined.protocol or nothing,
        leader=joined.leader,
        skip_assignment=joined.skip_assignment,
        member_id=joined.member_id,
        members=tuple(
            make(
                types.JoinGroupResponseMember,
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata,
            )
            for member in joined.members
        ),
    )
