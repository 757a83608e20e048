"""FindCoordinator (API 10): who coordinates a group or a transactional producer.

v0      one group
v1      a key type: group (0), transaction (1); a message
v3      flexible
v4      many keys at once (KIP-699)
v5, v6  other error codes; share groups

Any broker answers, also for a group that does not exist yet. Transactions are not offered: a transactional id gets
TRANSACTIONAL_ID_AUTHORIZATION_FAILED, at which all clients give up at once. librdkafka asks again for ever after any
other code but CLUSTER_AUTHORIZATION_FAILED, which it also gets where ACLs are wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raylog.broker.handlers.context import Operation, Ports, RequestContext
from raylog.broker.handlers.entities import failure, make, throttle, told, types_of
from raylog.broker.handlers.groups.group_offsets import check_group
from raylog.broker.handlers.records.init_producer_id import no_transactions
from raylog.coordination.metadata.model import Endpoint
from raylog.protocol.errors import CoordinatorNotAvailable, InvalidRequest, RaylogError
from raylog.protocol.ids import NO_LEADER, BrokerId

GROUP, TRANSACTION = 0, 1

Found = tuple[BrokerId, Endpoint] | RaylogError


def decide(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    key_type = request.key_type if ctx.version >= 1 else GROUP
    keys = _keys(ctx, request)
    return _response(ctx, keys, {key: _find(ctx, ports, key, key_type) for key in dict.fromkeys(keys)})


def refuse(ctx: RequestContext, request: Any, error: RaylogError) -> Any:
    keys = _keys(ctx, request)
    return _response(ctx, keys, dict.fromkeys(keys, error))


def _keys(ctx: RequestContext, request: Any) -> tuple[str, ...]:
    return tuple(request.coordinator_keys) if ctx.version >= 4 else (request.key,)


def _find(ctx: RequestContext, ports: Ports, key: str, key_type: int) -> Found:
    try:
        if key_type == TRANSACTION:
            raise no_transactions(key)
        if key_type != GROUP:
            raise InvalidRequest(f"key type {key_type}: must be 0 (group) or 1 (transaction)")
        broker = ports.groups.find_coordinator(check_group(ctx, ports, Operation.DESCRIBE, key))
        endpoint = broker.endpoint(ctx.listener)
        if endpoint is None:
            raise CoordinatorNotAvailable(f"broker {broker.id} coordinates {key} and has no listener {ctx.listener}")
    except Exception as error:  # noqa: BLE001 (whatever it is, the other keys go on)
        return failure(error, ctx, f"finding the coordinator of {key}")
    return broker.id, endpoint


def _response(ctx: RequestContext, keys: tuple[str, ...], found: Mapping[str, Found]) -> Any:
    types = types_of(ctx)
    if ctx.version < 4:
        [answer] = found.values()
        return make(types.FindCoordinatorResponse, throttle_time=throttle(ctx), **_told(answer))
    coordinators = tuple(make(types.Coordinator, key=key, **_told(found[key])) for key in keys)
    return make(types.FindCoordinatorResponse, throttle_time=throttle(ctx), coordinators=coordinators)


def _told(answer: Found) -> dict[str, Any]:
    if isinstance(answer, RaylogError):
        return {"node_id": NO_LEADER, "host": "", "port": -1, **told(answer)}
    broker, endpoint = answer
    return {"node_id": broker, "host": endpoint.host, "port": endpoint.port, **told(None)}
