"""DescribeProducers (API 61): the idempotent producers that a partition's leader remembers (KIP-664).

v0      flexible; per producer its epoch, last sequence and when it was seen last

A producer is forgotten after producer.id.expiration.ms without a batch. No transactions are open before they are built.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raylog.broker.handlers.context import Operation, Ports, RequestContext, Resource
from raylog.broker.handlers.entities import failure, make, throttle, told, types_of
from raylog.broker.storage.state.producers import ProducerFacts
from raylog.coordination.metadata.topic_names import check_topic_name
from raylog.protocol.errors import RaylogError, TopicAuthorizationFailed
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition


def decide(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    def answer(topic: TopicName, index: int) -> Any:
        tp = TopicPartition(topic, PartitionIndex(index))
        try:
            if not ports.authorizer.allows(ctx, Operation.READ, Resource.TOPIC, topic):
                raise TopicAuthorizationFailed(f"{ctx.principal} may not read topic {topic}")
            check_topic_name(topic)
            ports.lease.check()
            producers = ports.partitions.get(tp).active_producers()
        except Exception as error:  # noqa: BLE001 (whatever it is, the other partitions go on)
            return _partition(ctx, index, error=failure(error, ctx, f"describing the producers of {tp}"))
        return _partition(ctx, index, producers)

    return _response(ctx, request, answer)


def refuse(ctx: RequestContext, request: Any, error: RaylogError) -> Any:
    return _response(ctx, request, lambda _, index: _partition(ctx, index, error=error))


def _response(ctx: RequestContext, request: Any, answer: Any) -> Any:
    """Each partition once, however often it is asked for: it may remember very many producers."""
    types = types_of(ctx)
    asked: dict[TopicName, dict[int, None]] = {}
    for topic in request.topics:
        asked.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return make(
        types.DescribeProducersResponse,
        throttle_time=throttle(ctx),
        topics=tuple(
            make(types.TopicResponse, name=name, partitions=tuple(answer(name, index) for index in indexes))
            for name, indexes in asked.items()
        ),
    )


def _partition(
    ctx: RequestContext, index: int, producers: Sequence[ProducerFacts] = (), error: RaylogError | None = None
) -> Any:
    types = types_of(ctx)
    return make(
        types.PartitionResponse,
        partition_index=index,
        **told(error),
        active_producers=tuple(
            make(
                types.ProducerState,
                producer_id=producer.id,
                producer_epoch=producer.epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_seen_ms,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.transaction_start,
            )
            for producer in producers
        ),
    )
