"""What a client may do with a topic, a group or the cluster, as the bit field that Kafka tells of it (KIP-430)."""

from __future__ import annotations

from collections.abc import Mapping

from raylog.broker.handlers.context import CLUSTER_NAME, Operation, Ports, RequestContext, Resource
from raylog.protocol.errors import RaylogError, TopicAuthorizationFailed

__all__ = ["OPERATIONS_UNKNOWN", "cluster_operations", "operations", "topic_operations"]

OPERATIONS_UNKNOWN = -(2**31)
"""Where nothing is said of what the client may do."""

_PLACES: Mapping[Operation, int] = {
    Operation.READ: 3,
    Operation.WRITE: 4,
    Operation.CREATE: 5,
    Operation.DELETE: 6,
    Operation.ALTER: 7,
    Operation.DESCRIBE: 8,
    Operation.CLUSTER_ACTION: 9,
    Operation.DESCRIBE_CONFIGS: 10,
    Operation.ALTER_CONFIGS: 11,
    Operation.IDEMPOTENT_WRITE: 12,
}
"""In the bit field: the numbers of Kafka's AclOperation."""

_OF: Mapping[Resource, tuple[Operation, ...]] = {
    Resource.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    Resource.GROUP: (Operation.READ, Operation.DELETE, Operation.DESCRIBE),
    Resource.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
}
"""Groups have no settings here."""


def operations(ctx: RequestContext, ports: Ports, resource: Resource, name: str) -> int:
    """Those of the resource's operations that the client may do."""
    allows = ports.authorizer.allows
    return sum(1 << _PLACES[each] for each in _OF[resource] if allows(ctx, each, resource, name))


def topic_operations(ctx: RequestContext, ports: Ports, name: str | None, error: RaylogError | None = None) -> int:
    """Those on a topic, also on one that is not there. ``error``: what is told of it.

    Nothing is said of a topic that the client may not describe.
    """
    if name is None or isinstance(error, TopicAuthorizationFailed):
        return OPERATIONS_UNKNOWN
    return operations(ctx, ports, Resource.TOPIC, name)


def cluster_operations(ctx: RequestContext, ports: Ports) -> int:
    """None for a client that may not even describe the cluster."""
    if not ports.authorizer.allows(ctx, Operation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME):
        return 0
    return operations(ctx, ports, Resource.CLUSTER, CLUSTER_NAME)
