"""DescribeGroups (API 15): groups, their members, and what each member reads.

v0      the groups by name
v1, v2  throttle time
v3      authorized operations (KIP-430)
v4      group.instance.id (KIP-345)
v5      flexible
v6      a message; GROUP_ID_NOT_FOUND for a group that there is not, which was "Dead" and no error before (KIP-1043)

Groups of actors are shown as if they were Kafka's consumers.
"""

from __future__ import annotations

from typing import Any

from raylog.broker.groups.classic.described import DescribedGroup
from raylog.broker.groups.classic.group import GroupState
from raylog.broker.handlers.context import Operation, Ports, RequestContext, Resource
from raylog.broker.handlers.entities import failure, make, throttle, told, types_of
from raylog.broker.handlers.groups.group_offsets import check_group
from raylog.broker.handlers.operations import OPERATIONS_UNKNOWN, operations
from raylog.protocol.errors import GroupIdNotFound, RaylogError

DEAD = DescribedGroup("Dead", "", "", ())
NOTHING = DescribedGroup("", "", "", ())


def decide(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    with_operations = getattr(request, "include_authorized_operations", False)
    return _response(ctx, [_isolated(ctx, ports, name, with_operations) for name in dict.fromkeys(request.groups)])


def refuse(ctx: RequestContext, request: Any, error: RaylogError) -> Any:
    return _response(ctx, [_refused(ctx, name, error) for name in dict.fromkeys(request.groups)])


def _isolated(ctx: RequestContext, ports: Ports, name: str, with_operations: bool) -> Any:
    try:
        group = check_group(ctx, ports, Operation.DESCRIBE, name)
        allowed = operations(ctx, ports, Resource.GROUP, name) if with_operations else OPERATIONS_UNKNOWN
        return _group(ctx, name, ports.groups.describe(group), allowed=allowed)
    except Exception as error:  # noqa: BLE001 (whatever it is, the other groups go on)
        return _refused(ctx, name, failure(error, ctx, f"describing group {name}"))


def _refused(ctx: RequestContext, name: str, error: RaylogError) -> Any:
    if isinstance(error, GroupIdNotFound):
        return _group(ctx, name, DEAD, error if ctx.version >= 6 else None)
    return _group(ctx, name, NOTHING, error)


def _group(
    ctx: RequestContext,
    name: str,
    group: DescribedGroup,
    error: RaylogError | None = None,
    allowed: int = OPERATIONS_UNKNOWN,
) -> Any:
    """As Kafka's: what the members of a new generation said is not shown before that generation is settled."""
    types = types_of(ctx)
    is_settled = group.state != GroupState.COMPLETING_REBALANCE
    return make(
        types.DescribedGroup,
        **told(error),
        group_id=name,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol if is_settled else "",
        members=tuple(
            make(
                types.DescribedGroupMember,
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata if is_settled else b"",
                member_assignment=member.assignment,
            )
            for member in group.members
        ),
        authorized_operations=allowed,
    )


def _response(ctx: RequestContext, groups: list[Any]) -> Any:
    return make(types_of(ctx).DescribeGroupsResponse, throttle_time=throttle(ctx), groups=tuple(groups))
