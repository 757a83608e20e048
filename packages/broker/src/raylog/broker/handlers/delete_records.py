"""DeleteRecords (API 21): make a partition's log begin later (KIP-107).

v0, v1  per partition an offset; the answer is the log's start, which the API calls low watermark
v2      flexible

Offset -1 stands for the high watermark; beyond it is OFFSET_OUT_OF_RANGE. One below the log's start changes nothing.
The answer waits until the new starts are on the disk, and until the in-sync replicas have moved theirs, or for the
request's timeout: what a client was told is deleted does not come back, whoever leads next.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from raylog.broker.handlers.context import Operation, Ports, RequestContext, Resource
from raylog.broker.handlers.entities import failure, make, throttle, types_of
from raylog.broker.partition import Partition
from raylog.broker.replication.delayed_operations import DelayedOperations
from raylog.protocol.errors import ErrorCode, RaylogError, TopicAuthorizationFailed, code_of
from raylog.protocol.ids import NO_OFFSET, Offset, PartitionIndex, TopicName, TopicPartition

HIGH_WATERMARK = -1


class Deleted(NamedTuple):
    """What became of one partition."""

    start: Offset = NO_OFFSET
    code: ErrorCode = ErrorCode.none


def decide(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    results: dict[TopicPartition, Deleted] = {}
    moved: dict[Path, list[Partition]] = {}
    for topic in request.topics:
        for part in topic.partitions:
            tp = TopicPartition(TopicName(topic.name), PartitionIndex(part.partition_index))
            try:
                partition = _partition(ctx, ports, tp)
                asked = partition.high_watermark if part.offset == HIGH_WATERMARK else Offset(part.offset)
                results[tp] = Deleted(partition.delete_records(asked))
            except Exception as error:  # noqa: BLE001 (whatever it is, the other partitions go on)
                results[tp] = Deleted(code=code_of(failure(error, ctx, f"deleting records of {tp}")))
                continue
            moved.setdefault(partition.log.directory.parent, []).append(partition)
    for partitions in moved.values():
        try:
            partitions[0].save_start()
        except RaylogError as error:
            results.update((partition.tp, Deleted(code=code_of(error))) for partition in partitions)
    _await_followers(
        ports.deletes,
        [partition for partitions in moved.values() for partition in partitions],
        results,
        request.timeout.total_seconds(),
    )
    return _response(ctx, request, lambda tp: results[tp])


def _await_followers(
    deletes: DelayedOperations, moved: list[Partition], results: dict[TopicPartition, Deleted], timeout_s: float
) -> None:
    """Wait for the in-sync replicas, which follow their leader's start with one of their next fetches."""
    deadline = time.monotonic() + timeout_s
    waiting = _undone([partition for partition in moved if results[partition.tp].code is ErrorCode.none], results)
    while waiting:
        news = threading.Event()
        operation = deletes.arm({partition.tp: results[partition.tp].start for partition in waiting}, news.set)
        try:
            left = _undone(waiting, results)
            if len(left) == len(waiting) and not news.wait(max(deadline - time.monotonic(), 0)):
                break
        finally:
            deletes.remove(operation)
        waiting = _undone(left, results)
    results.update((partition.tp, Deleted(code=ErrorCode.request_timed_out)) for partition in waiting)


def _undone(waiting: list[Partition], results: dict[TopicPartition, Deleted]) -> list[Partition]:
    """Those for which the wait is not over."""
    return [partition for partition in waiting if not _is_deleted(partition, results)]


def _is_deleted(partition: Partition, results: dict[TopicPartition, Deleted]) -> bool:
    """Whether the wait for one partition is over: they have come, or this broker does not lead them any more."""
    try:
        return partition.low_watermark >= results[partition.tp].start
    except RaylogError as error:
        results[partition.tp] = Deleted(code=code_of(error))
        return True


def refuse(ctx: RequestContext, request: Any, error: RaylogError) -> Any:
    return _response(ctx, request, lambda tp: Deleted(code=code_of(error)))


def _partition(ctx: RequestContext, ports: Ports, tp: TopicPartition) -> Partition:
    if not ports.authorizer.allows(ctx, Operation.DELETE, Resource.TOPIC, tp.topic):
        raise TopicAuthorizationFailed(f"{ctx.principal} may not delete records of topic {tp.topic}")
    ports.lease.check()
    return ports.partitions.get(tp)


def _response(ctx: RequestContext, request: Any, result: Any) -> Any:
    types = types_of(ctx)

    def answer(topic: TopicName, part: Any) -> Any:
        start, code = result(TopicPartition(topic, PartitionIndex(part.partition_index)))
        return make(
            types.DeleteRecordsPartitionResult,
            partition_index=part.partition_index,
            low_watermark=start,
            error_code=code,
        )

    return make(
        types.DeleteRecordsResponse,
        throttle_time=throttle(ctx),
        topics=tuple(
            make(
                types.DeleteRecordsTopicResult,
                name=topic.name,
                partitions=tuple(answer(topic.name, part) for part in topic.partitions),
            )
            for topic in request.topics
        ),
    )
