"""DeleteGroups (API 42): forget groups without members, and their offsets.

v0, v1  by name
v2      flexible
"""

from __future__ import annotations

from typing import Any

from raylog.broker.handlers.context import Operation, Ports, RequestContext
from raylog.broker.handlers.entities import failure, make, throttle, types_of
from raylog.broker.handlers.groups.group_offsets import check_group
from raylog.protocol.errors import ErrorCode, RaylogError, code_of


def decide(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    return _response(ctx, {name: _delete(ctx, ports, name) for name in dict.fromkeys(request.groups_names)})


def refuse(ctx: RequestContext, request: Any, error: RaylogError) -> Any:
    return _response(ctx, dict.fromkeys(request.groups_names, code_of(error)))


def _delete(ctx: RequestContext, ports: Ports, name: str) -> ErrorCode:
    try:
        ports.groups.delete(check_group(ctx, ports, Operation.DELETE, name))
    except Exception as error:  # noqa: BLE001 (whatever it is, the other groups go on)
        return code_of(failure(error, ctx, f"deleting group {name}"))
    return ErrorCode.none


def _response(ctx: RequestContext, results: dict[str, ErrorCode]) -> Any:
    types = types_of(ctx)
    return make(
        types.DeleteGroupsResponse,
        throttle_time=throttle(ctx),
        results=tuple(
            make(types.DeletableGroupResult, group_id=name, error_code=code) for name, code in results.items()
        ),
    )
