"""The Kafka APIs, one file each. :data:`TABLE` is the whole list: what is offered, and who handles it.

Versions are those that Kafka 4.2.0 marks stable.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from raylog.broker.handlers.cluster import (
    alter_partition_reassignments,
    api_versions,
    describe_cluster,
    describe_log_dirs,
    elect_leaders,
    list_partition_reassignments,
)
from raylog.broker.handlers.cluster.api_versions import Offer
from raylog.broker.handlers.configs import alter_configs, describe_configs, incremental_alter_configs
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
from raylog.broker.handlers.groups import (
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
)
from raylog.broker.handlers.records import (
    delete_records,
    describe_producers,
    fetch,
    init_producer_id,
    list_offsets,
    offset_for_leader_epoch,
    produce,
)
from raylog.broker.handlers.topics import (
    create_partitions,
    create_topics,
    delete_topics,
    describe_topic_partitions,
    metadata,
)
from raylog.protocol.wire.messages import parse_request_header

__all__ = ["TABLE", "ApiRow", "answer", "may_wait", "offers"]


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
    may_wait: bool = True
    """Whether the handler may wait for a disk or the metadata store, and so must not run in the loop."""


def _decide_api_versions(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    return api_versions.decide(ctx, request, offers())


def _cold(key: int, name: str, low: int, high: int, operation: Operation, on: Resource, api: ModuleType) -> ApiRow:
    """The row of an API whose messages are kio's."""
    return ApiRow(key, name, low, high, operation, on, handler(api.decide, api.refuse))


_OP, _ON = Operation, Resource
TABLE: tuple[ApiRow, ...] = (
    ApiRow(0, "Produce", 3, 13, _OP.WRITE, _ON.TOPIC, produce.handle, offered_from=0, may_wait=False),
    ApiRow(1, "Fetch", 4, 18, _OP.READ, _ON.TOPIC, fetch.handle, may_wait=False),
    _cold(2, "ListOffsets", 1, 11, _OP.DESCRIBE, _ON.TOPIC, list_offsets),
    _cold(3, "Metadata", 0, 13, _OP.DESCRIBE, _ON.TOPIC, metadata),
    _cold(8, "OffsetCommit", 2, 10, _OP.READ, _ON.GROUP, offset_commit),
    _cold(9, "OffsetFetch", 1, 10, _OP.DESCRIBE, _ON.GROUP, offset_fetch),
    _cold(10, "FindCoordinator", 0, 6, _OP.DESCRIBE, _ON.GROUP, find_coordinator),
    _cold(11, "JoinGroup", 0, 9, _OP.READ, _ON.GROUP, join_group),
    _cold(12, "Heartbeat", 0, 4, _OP.READ, _ON.GROUP, heartbeat),
    _cold(13, "LeaveGroup", 0, 5, _OP.READ, _ON.GROUP, leave_group),
    _cold(14, "SyncGroup", 0, 5, _OP.READ, _ON.GROUP, sync_group),
    _cold(15, "DescribeGroups", 0, 6, _OP.DESCRIBE, _ON.GROUP, describe_groups),
    _cold(16, "ListGroups", 0, 5, _OP.DESCRIBE, _ON.CLUSTER, list_groups),
    ApiRow(
        18, "ApiVersions", 0, 4, _OP.NONE, _ON.NONE, handler(_decide_api_versions, api_versions.refuse), may_wait=False
    ),
    _cold(19, "CreateTopics", 2, 7, _OP.CREATE, _ON.TOPIC, create_topics),
    _cold(20, "DeleteTopics", 1, 6, _OP.DELETE, _ON.TOPIC, delete_topics),
    _cold(21, "DeleteRecords", 0, 2, _OP.DELETE, _ON.TOPIC, delete_records),
    _cold(22, "InitProducerId", 0, 5, _OP.IDEMPOTENT_WRITE, _ON.CLUSTER, init_producer_id),
    _cold(23, "OffsetForLeaderEpoch", 2, 4, _OP.DESCRIBE, _ON.TOPIC, offset_for_leader_epoch),
    _cold(32, "DescribeConfigs", 1, 4, _OP.DESCRIBE_CONFIGS, _ON.TOPIC, describe_configs),
    _cold(33, "AlterConfigs", 0, 2, _OP.ALTER_CONFIGS, _ON.TOPIC, alter_configs),
    _cold(35, "DescribeLogDirs", 1, 4, _OP.DESCRIBE, _ON.CLUSTER, describe_log_dirs),
    _cold(37, "CreatePartitions", 0, 3, _OP.ALTER, _ON.TOPIC, create_partitions),
    _cold(42, "DeleteGroups", 0, 2, _OP.DELETE, _ON.GROUP, delete_groups),
    _cold(43, "ElectLeaders", 0, 2, _OP.ALTER, _ON.CLUSTER, elect_leaders),
    _cold(44, "IncrementalAlterConfigs", 0, 1, _OP.ALTER_CONFIGS, _ON.TOPIC, incremental_alter_configs),
    _cold(45, "AlterPartitionReassignments", 0, 1, _OP.ALTER, _ON.CLUSTER, alter_partition_reassignments),
    _cold(46, "ListPartitionReassignments", 0, 0, _OP.DESCRIBE, _ON.CLUSTER, list_partition_reassignments),
    _cold(47, "OffsetDelete", 0, 0, _OP.DELETE, _ON.GROUP, offset_delete),
    _cold(60, "DescribeCluster", 0, 2, _OP.DESCRIBE, _ON.CLUSTER, describe_cluster),
    _cold(61, "DescribeProducers", 0, 0, _OP.READ, _ON.TOPIC, describe_producers),
    _cold(75, "DescribeTopicPartitions", 0, 0, _OP.DESCRIBE, _ON.TOPIC, describe_topic_partitions),
)

_ROWS = {row.key: row for row in TABLE}


def offers() -> tuple[Offer, ...]:
    """What ApiVersions tells clients."""
    return tuple(
        Offer(row.key, row.min_version if row.offered_from is None else row.offered_from, row.max_version)
        for row in TABLE
    )


def may_wait(api_key: int) -> bool:
    """Whether a request must not be answered in the loop. One that is not offered is refused at once."""
    row = _ROWS.get(api_key)
    return row is not None and row.may_wait


def answer(connection: Connection, frame: memoryview, ports: Ports, *, may_wait: bool = True) -> Reply:
    """Handle one request's frame. Where ``may_wait`` is False it raises MustWait instead of waiting for a disk.

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
    ctx = RequestContext(connection, api_key, version, correlation_id, client_id, may_wait)
    return row.handle(ctx, frame[body_pos:], ports)
