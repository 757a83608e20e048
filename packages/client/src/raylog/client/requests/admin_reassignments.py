"""Moves of partitions to other replicas, as requests and read from answers. KIP-455, KIP-860.

Both are asked of the controller, although any broker lists what is under way: the others learn of a move a moment
later, so that one which has just begun would look complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kio.schema.alter_partition_reassignments.v1.request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kio.schema.alter_partition_reassignments.v1.response import AlterPartitionReassignmentsResponse
from kio.schema.list_partition_reassignments.v0.request import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from kio.schema.list_partition_reassignments.v0.response import ListPartitionReassignmentsResponse
from kio.schema.types import BrokerId as KioBrokerId
from kio.schema.types import TopicName as KioTopicName
from kio.static.primitive import i32, i32Timedelta

from raylog.client.requests.admin_requests import error_of
from raylog.client.requests.offset_queries import by_topic
from raylog.client.results import PartitionReassignment
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import BrokerId, PartitionIndex, TopicName, TopicPartition


def alter_reassignments(
    wanted: Mapping[TopicPartition, Sequence[int] | None], timeout: i32Timedelta, *, allow_factor_change: bool
) -> AlterPartitionReassignmentsRequest:
    """Move each partition to these brokers, or cancel its move (None)."""
    topics = by_topic(
        wanted,
        lambda tp, brokers: ReassignablePartition(
            partition_index=i32(tp.partition), replicas=None if brokers is None else tuple(map(KioBrokerId, brokers))
        ),
    )
    return AlterPartitionReassignmentsRequest(
        timeout=timeout,
        allow_replication_factor_change=allow_factor_change,
        topics=tuple(
            ReassignableTopic(name=KioTopicName(name), partitions=tuple(found)) for name, found in topics.items()
        ),
    )


def read_alter_reassignments(response: AlterPartitionReassignmentsResponse) -> dict[TopicPartition, RaylogError | None]:
    """Per partition, None or why it stays as it is. Raises what hits the request as a whole."""
    error = error_of(response.error_code.value, response.error_message, "moving partitions")
    if error is not None:
        raise error
    found: dict[TopicPartition, RaylogError | None] = {}
    for topic in response.responses:
        for result in topic.partitions:
            tp = TopicPartition(TopicName(topic.name), PartitionIndex(result.partition_index))
            found[tp] = error_of(result.error_code.value, result.error_message, f"{tp}: moving it")
    return found


def list_reassignments(
    partitions: Iterable[TopicPartition] | None, timeout: i32Timedelta
) -> ListPartitionReassignmentsRequest:
    """Which of these partitions, or of all (None), are being moved."""
    topics = by_topic(dict.fromkeys(partitions or ()), lambda tp, _: i32(tp.partition))
    named = tuple(
        ListPartitionReassignmentsTopics(name=KioTopicName(name), partition_indexes=tuple(found))
        for name, found in topics.items()
    )
    return ListPartitionReassignmentsRequest(timeout=timeout, topics=None if partitions is None else named)


def read_list_reassignments(
    response: ListPartitionReassignmentsResponse,
) -> dict[TopicPartition, PartitionReassignment]:
    """The moves under way. Raises what hits the request as a whole."""
    error = error_of(response.error_code.value, response.error_message, "listing moves of partitions")
    if error is not None:
        raise error
    return {
        TopicPartition(TopicName(topic.name), PartitionIndex(moving.partition_index)): PartitionReassignment(
            _brokers(moving.replicas), _brokers(moving.adding_replicas), _brokers(moving.removing_replicas)
        )
        for topic in response.topics
        for moving in topic.partitions
    }


def _brokers(ids: Iterable[int]) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, ids))
