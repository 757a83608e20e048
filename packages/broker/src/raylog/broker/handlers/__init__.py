"""The Kafka APIs, one file each. :data:`TABLE` is the whole list: what is offered, and who handles it.

Versions are those that Kafka 4.2.0 marks stable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from raylog.broker.handlers import (
    api_versions,
    create_topics,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_log_dirs,
    describe_producers,
    fetch,
    find_coordinator,
    init_producer_id,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    produce,
)
from raylog.broker.handlers.api_versions import Offer
from raylog.broker.handlers.context import (
    CloseConnection,
    Connection,
    Operation,
    Ports,
    Reply,
    RequestContext,
    Resource,
)
from raylog.broker.handlers.entities import handler
from raylog.protocol.messages import parse_request_header

__all__ = ["TABLE", "ApiRow", "answer", "offers"]


class ApiRow(NamedTuple):
    """One API: its versions, what it does to what (for ACLs and metrics), and its handler."""

    key: int
    name: str
    min_version: int
    """The lowest version that is handled."""
    max_version: int
    operation: Operation
    resource: Resource
    handle: Callable[[RequestContext, memoryview, Ports], Reply]
    offered_from: int | None = None
    """The lowest version that clients are told, where it is another one."""


def _decide_api_versions(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    return api_versions.decide(ctx, request, offers())


_OP, _ON = Operation, Resource
TABLE: tuple[ApiRow, ...] = (
    ApiRow(0, "Produce", 3, 13, _OP.WRITE, _ON.TOPIC, produce.handle, offered_from=0),
    ApiRow(1, "Fetch", 4, 18, _OP.READ, _ON.TOPIC, fetch.handle),
    ApiRow(2, "ListOffsets", 1, 11, _OP.DESCRIBE, _ON.TOPIC, handler(list_offsets.decide, list_offsets.refuse)),
    ApiRow(3, "Metadata", 0, 13, _OP.DESCRIBE, _ON.TOPIC, handler(metadata.decide, metadata.refuse)),
    ApiRow(
        10,
        "FindCoordinator",
        0,
        6,
        _OP.DESCRIBE,
        _ON.GROUP,
        handler(find_coordinator.decide, find_coordinator.refuse),
    ),
    ApiRow(18, "ApiVersions", 0, 4, _OP.NONE, _ON.NONE, handler(_decide_api_versions, api_versions.refuse)),
    ApiRow(19, "CreateTopics", 2, 7, _OP.CREATE, _ON.TOPIC, handler(create_topics.decide, create_topics.refuse)),
    ApiRow(20, "DeleteTopics", 1, 6, _OP.DELETE, _ON.TOPIC, handler(delete_topics.decide, delete_topics.refuse)),
    ApiRow(21, "DeleteRecords", 0, 2, _OP.DELETE, _ON.TOPIC, handler(delete_records.decide, delete_records.refuse)),
    ApiRow(
        22,
        "InitProducerId",
        0,
        5,
        _OP.IDEMPOTENT_WRITE,
        _ON.CLUSTER,
        handler(init_producer_id.decide, init_producer_id.refuse),
    ),
    ApiRow(
        23,
        "OffsetForLeaderEpoch",
        2,
        4,
        _OP.DESCRIBE,
        _ON.TOPIC,
        handler(offset_for_leader_epoch.decide, offset_for_leader_epoch.refuse),
    ),
    ApiRow(
        32,
        "DescribeConfigs",
        1,
        4,
        _OP.DESCRIBE_CONFIGS,
        _ON.TOPIC,
        handler(describe_configs.decide, describe_configs.refuse),
    ),
    ApiRow(35, "DescribeLogDirs", 1, 5, _OP.DESCRIBE, _ON.CLUSTER, handler(describe_log_dirs.decide, describe_log_dirs.refuse)),
    ApiRow(
        60,
        "DescribeCluster",
        0,
        2,
        _OP.DESCRIBE,
        _ON.CLUSTER,
        handler(describe_cluster.decide, describe_cluster.refuse),
    ),
    ApiRow(61, "DescribeProducers", 0, 0, _OP.READ, _ON.TOPIC, handler(describe_producers.decide, describe_producers.refuse)),
)

_ROWS = {row.key: row for row in TABLE}


def offers() -> tuple[Offer, ...]:
    """What ApiVersions tells clients."""
    return tuple(
        Offer(row.key, row.min_version if row.offered_from is None else row.offered_from, row.max_version)
        for row in TABLE
    )


def answer(connection: Connection, frame: memoryview, ports: Ports) -> Reply:
    """Handle one request's frame.

    Raises CloseConnection, InvalidRequest or UnsupportedVersion when the client cannot be answered in a way
    that it would understand: the API or version is unknown here, or the request is malformed.
    """
    api_key, version, correlation_id, client_id, body_pos = parse_request_header(frame)
    row = _ROWS.get(api_key)
    if row is None:
        raise CloseConnection(f"client {client_id!r} sent API key {api_key}, which this broker does not offer")
    if not row.min_version <= version <= row.max_version:
        if api_key == api_versions.KEY:
            return api_versions.unsupported_version(correlation_id, Offer(api_key, row.min_version, row.max_version))
        raise CloseConnection(
            f"client {client_id!r} sent version {version} of {row.name}; "
            f"this broker has {row.min_version} to {row.max_version}"
        )
    ctx = RequestContext(connection, api_key, version, correlation_id, client_id)
    return row.handle(ctx, frame[body_pos:], ports)
