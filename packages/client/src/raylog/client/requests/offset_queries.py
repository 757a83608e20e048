"""◆ ListOffsets (version 8): the question for some partitions of one leader, and its answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar, cast

from kio.schema.list_offsets.v8.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.list_offsets.v8.response import ListOffsetsResponse
from kio.schema.types import BrokerId as KioBrokerId
from kio.schema.types import TopicName as KioTopicName
from kio.static.primitive import i8, i32, i64

from raylog.client.network.connection import Reply
from raylog.protocol.errors import RaylogError, exception_for
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition
from raylog.protocol.wire.messages import decode_response

T = TypeVar("T")
A = TypeVar("A")


def list_offsets_request(
    at: Mapping[TopicPartition, int],
    leader_epochs: Mapping[TopicPartition, int] | None = None,
    isolation_level: int = 0,
) -> ListOffsetsRequest:
    """Ask for the offsets at EARLIEST, LATEST or timestamps, of partitions of one leader.

    ``leader_epochs``: those in which it is known to lead, so that nobody answers who leads no more (KIP-320).
    ``isolation_level`` 1: LATEST is where the committed records end, the last stable offset.
    """
    epochs = leader_epochs or {}
    topics = by_topic(
        at,
        lambda tp, timestamp: ListOffsetsPartition(
            partition_index=i32(tp.partition),
            current_leader_epoch=i32(epochs.get(tp, -1)),
            timestamp=i64(timestamp),
        ),
    )
    return ListOffsetsRequest(
        replica_id=KioBrokerId(-1),
        isolation_level=i8(isolation_level),
        topics=tuple(
            ListOffsetsTopic(name=KioTopicName(name), partitions=tuple(partitions))
            for name, partitions in topics.items()
        ),
    )


def read_list_offsets(reply: Reply) -> dict[TopicPartition, tuple[int, int, int] | RaylogError]:
    """Offset, timestamp and leader epoch per partition, or its error. Raises what hit the whole request."""
    if reply.error is not None:
        raise reply.error
    _, entity = decode_response(reply.request.api_key, reply.request.version, reply.frame)
    answers: dict[TopicPartition, tuple[int, int, int] | RaylogError] = {}
    for topic in cast(ListOffsetsResponse, entity).topics:
        for partition in topic.partitions:
            tp = TopicPartition(TopicName(topic.name), PartitionIndex(partition.partition_index))
            code = partition.error_code.value
            if code:
                answers[tp] = exception_for(code, f"{tp}: asking for offsets")
            else:
                answers[tp] = (partition.offset, partition.timestamp, partition.leader_epoch)
    return answers


def by_topic(
    partitions: Mapping[TopicPartition, A], make: Callable[[TopicPartition, A], T]
) -> dict[TopicName, list[T]]:
    """What requests ask of each partition, in the order of its first mention under its topic."""
    topics: dict[TopicName, list[T]] = {}
    for tp, value in partitions.items():
        topics.setdefault(tp.topic, []).append(make(tp, value))
    return topics
