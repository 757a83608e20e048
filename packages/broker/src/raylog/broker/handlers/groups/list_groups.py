"""ListGroups (API 16): the groups that this broker coordinates; a client asks every broker.

v0      all
v1, v2  throttle time
v3      flexible
v4      states, and only groups in these states (KIP-518)
v5      types, and only groups of these types (KIP-848): all are "classic", that is not of the new protocol
"""

from __future__ import annotations

from typing import Any

from raylog.broker.groups.classic.described import ListedGroup
from raylog.broker.handlers.context import CLUSTER_NAME, Operation, Ports, RequestContext, Resource
from raylog.broker.handlers.entities import make, throttle, types_of
from raylog.protocol.errors import ErrorCode, RaylogError, code_of

TYPE = "classic"


def decide(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    states = {state.lower() for state in getattr(request, "states_filter", ())}
    types = {kind.lower() for kind in getattr(request, "types_filter", ())}
    if types and TYPE not in types:
        return _response(ctx, [])
    groups = [
        group
        for group in ports.groups.list_groups()
        if (not states or group.state.lower() in states) and _may_see(ctx, ports, group)
    ]
    return _response(ctx, groups)


def refuse(ctx: RequestContext, request: Any, error: RaylogError) -> Any:
    return _response(ctx, [], code_of(error))


def _may_see(ctx: RequestContext, ports: Ports, group: ListedGroup) -> bool:
    """Whoever may describe the cluster sees all."""
    allows = ports.authorizer.allows
    return allows(ctx, Operation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME) or allows(
        ctx, Operation.DESCRIBE, Resource.GROUP, group.group
    )


def _response(ctx: RequestContext, groups: list[ListedGroup], code: ErrorCode = ErrorCode.none) -> Any:
    types = types_of(ctx)
    listed = tuple(
        make(
            types.ListedGroup,
            group_id=group.group,
            protocol_type=group.protocol_type,
            group_state=group.state,
            group_type=TYPE,
        )
        for group in groups
    )
    return make(types.ListGroupsResponse, throttle_time=throttle(ctx), error_code=code, groups=listed)
