"""DeleteRecords (API 21): make a partition's log begin later (KIP-107).

v0, v1  per partition an offset; the answer is the log's start, which the API calls low watermark
v2      flexible

Offset -1 stands for the high watermark; beyond it is OFFSET_OUT_OF_RANGE. One below the log's start changes nothing.
The answer waits until the new starts are on the disk, and until the in-sync replicas have moved theirs, or for the
request's timeout: what a client was told is deleted does not come back, whoever leads next.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from raylog.broker.handlers.context import Operation, Ports, RequestContext, Resource
from raylog.broker.handlers.entities import Later, failure, make, throttle, timeout_ms, types_of
from raylog.broker.handlers.records.watermark_wait import WatermarkWait
from raylog.broker.partition.partition import Partition
from raylog.broker.replication.delayed_operations import DelayedOperations
from raylog.protocol.errors import ErrorCode, RaylogError, RequestTimedOut, TopicAuthorizationFailed, code_of
from raylog.protocol.ids import NO_OFFSET, Offset, PartitionIndex, TopicName, TopicPartition

HIGH_WATERMARK = -1


class Deleted(NamedTuple):
    """What became of one partition."""

    start: Offset = NO_OFFSET
    code: ErrorCode = ErrorCode.none


class _DeletionWait(WatermarkWait[Partition]):
    """The wait of one request: the in-sync replicas follow their leader's start with one of their next fetches."""

    def __init__(self, deletes: DelayedOperations, starts: dict[Partition, Offset], timeout_ms: int) -> None:
        self._starts = starts
        self.partitions = tuple(starts)
        super().__init__(deletes, self.partitions, timeout_ms)

    def required(self, each: Partition) -> tuple[TopicPartition, Offset]:
        return each.tp, self._starts[each]

    def is_done(self, each: Partition) -> bool:
        return each.role.low_watermark >= self._starts[each]

    def late(self, each: Partition) -> RaylogError:
        return RequestTimedOut(f"{each.tp}: the in-sync replicas did not delete records in time")


def decide(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    results: dict[TopicPartition, Deleted] = {}
    moved: dict[Path, dict[TopicPartition, Partition]] = {}
    for tp, offset in _asked(request).items():
        try:
            partition = _partition(ctx, ports, tp)
            asked = partition.high_watermark if offset == HIGH_WATERMARK else offset
            results[tp] = Deleted(partition.delete_records(asked))
        except Exception as error:  # noqa: BLE001 (whatever it is, the other partitions go on)
            results[tp] = Deleted(code=code_of(failure(error, ctx, f"deleting records of {tp}")))
            continue
        moved.setdefault(partition.log.directory.parent, {})[tp] = partition
    starts: dict[Partition, Offset] = {}
    for partitions in moved.values():
        try:
            next(iter(partitions.values())).save_start()
        except RaylogError as error:
            results.update((tp, Deleted(code=code_of(error))) for tp in partitions)
            continue
        starts |= {each: results[tp].start for tp, each in partitions.items() if results[tp].code is ErrorCode.none}
    return Later(
        _DeletionWait(ports.deletes, starts, timeout_ms(request)), lambda wait: _waited(ctx, request, results, wait)
    )


def _waited(ctx: RequestContext, request: Any, results: dict[TopicPartition, Deleted], wait: _DeletionWait) -> Any:
    for number, error in wait.errors.items():
        results[wait.partitions[number].tp] = Deleted(code=code_of(error))
    return _response(ctx, request, lambda tp: results[tp])


def refuse(ctx: RequestContext, request: Any, error: RaylogError) -> Any:
    return _response(ctx, request, lambda tp: Deleted(code=code_of(error)))


def _asked(request: Any) -> dict[TopicPartition, Offset]:
    """As in Kafka, of a partition that is named twice the last offset counts."""
    return {
        TopicPartition(TopicName(topic.name), PartitionIndex(part.partition_index)): Offset(part.offset)
        for topic in request.topics
        for part in topic.partitions
    }


def _partition(ctx: RequestContext, ports: Ports, tp: TopicPartition) -> Partition:
    if not ports.authorizer.allows(ctx, Operation.DELETE, Resource.TOPIC, tp.topic):
        raise TopicAuthorizationFailed(f"{ctx.principal} may not delete records of topic {tp.topic}")
    ports.lease.check()
    return ports.partitions.get(tp)


def _response(ctx: RequestContext, request: Any, result: Callable[[TopicPartition], Deleted]) -> Any:
    types = types_of(ctx)
    by_topic: dict[TopicName, list[Any]] = {}
    for tp in _asked(request):
        start, code = result(tp)
        by_topic.setdefault(tp.topic, []).append(
            make(
                types.DeleteRecordsPartitionResult,
                partition_index=tp.partition,
                low_watermark=start,
                error_code=code,
            )
        )
    return make(
        types.DeleteRecordsResponse,
        throttle_time=throttle(ctx),
        topics=tuple(
            make(types.DeleteRecordsTopicResult, name=name, partitions=tuple(of_it)) for name, of_it in by_topic.items()
        ),
    )
