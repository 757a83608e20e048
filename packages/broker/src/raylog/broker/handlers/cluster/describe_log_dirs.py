"""DescribeLogDirs (API 35): this broker's log directories, the logs in them and the room on their disks.

v1      sizes and lags of partitions, an error for a directory that is offline (v0 is gone)
v2      flexible
v3      an error for the whole
v4      total and usable bytes of the volume (KIP-827)

The lag is how far the log's end is ahead of the high watermark. No partition is on its way to another directory, so
no log is a future one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from raylog.broker.handlers.context import CLUSTER_NAME, Operation, Ports, RequestContext, Resource
from raylog.broker.handlers.entities import make, throttle, types_of
from raylog.broker.storage.directories.log_dir import LogDirFacts
from raylog.broker.storage.log.log import Log
from raylog.protocol.errors import ClusterAuthorizationFailed, ErrorCode, RaylogError, code_of
from raylog.protocol.ids import TopicPartition


def decide(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    if not ports.authorizer.allows(ctx, Operation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME):
        raise ClusterAuthorizationFailed(f"{ctx.principal} may not describe the log directories")
    asked: set[tuple[str, int]] | None = None
    if request.topics is not None:
        asked = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    results = tuple(_directory(ctx, facts, asked) for facts in ports.log_dirs.describe())
    return _response(ctx, ErrorCode.none, results)


def refuse(ctx: RequestContext, request: Any, error: RaylogError) -> Any:
    return _response(ctx, code_of(error), ())


def _directory(ctx: RequestContext, facts: LogDirFacts, asked: set[tuple[str, int]] | None) -> Any:
    types = types_of(ctx)
    by_topic: dict[str, list[tuple[int, Log]]] = {}
    for tp, log in sorted(_chosen(facts, asked)):
        by_topic.setdefault(tp.topic, []).append((tp.partition, log))
    return make(
        types.DescribeLogDirsResult,
        error_code=ErrorCode.kafka_storage_error if facts.failure else ErrorCode.none,
        log_dir=str(facts.path),
        topics=tuple(
            make(types.DescribeLogDirsTopic, name=name, partitions=tuple(_log(ctx, *one) for one in logs))
            for name, logs in by_topic.items()
        ),
        total_bytes=facts.space.total,
        usable_bytes=facts.space.usable,
    )


def _chosen(facts: LogDirFacts, asked: set[tuple[str, int]] | None) -> Iterable[tuple[TopicPartition, Log]]:
    return [(tp, log) for tp, log in facts.logs.items() if asked is None or (tp.topic, tp.partition) in asked]


def _log(ctx: RequestContext, index: int, log: Log) -> Any:
    offsets = log.offsets
    return make(
        types_of(ctx).DescribeLogDirsPartition,
        partition_index=index,
        partition_size=log.size,
        offset_lag=offsets.end.offset - offsets.high_watermark.offset,
        is_future_key=False,
    )


def _response(ctx: RequestContext, code: ErrorCode, results: tuple[Any, ...]) -> Any:
    return make(types_of(ctx).DescribeLogDirsResponse, throttle_time=throttle(ctx), error_code=code, results=results)
