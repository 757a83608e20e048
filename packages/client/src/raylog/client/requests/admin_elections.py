"""Elections of leaders that an admin client asks the controller for, as requests and read from answers. KIP-460."""

from __future__ import annotations

from collections.abc import Iterable

from kio.schema.elect_leaders.v2.request import ElectLeadersRequest, TopicPartitions
from kio.schema.elect_leaders.v2.response import ElectLeadersResponse
from kio.schema.types import TopicName as KioTopicName
from kio.static.primitive import i8, i32, i32Timedelta

from raylog.client.requests.admin_requests import error_of
from raylog.client.requests.offset_queries import by_topic
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition

_PREFERRED, _UNCLEAN = i8(0), i8(1)


def elect_leaders(
    partitions: Iterable[TopicPartition] | None, timeout: i32Timedelta, *, unclean: bool
) -> ElectLeadersRequest:
    """Let the preferred replicas lead, or any live ones (``unclean``), in these partitions or in all (None)."""
    topics = by_topic(dict.fromkeys(partitions or ()), lambda tp, _: i32(tp.partition))
    named = tuple(TopicPartitions(topic=KioTopicName(name), partitions=tuple(found)) for name, found in topics.items())
    return ElectLeadersRequest(
        election_type=_UNCLEAN if unclean else _PREFERRED,
        topic_partitions=None if partitions is None else named,
        timeout=timeout,
    )


def read_elect_leaders(response: ElectLeadersResponse) -> dict[TopicPartition, RaylogError | None]:
    """Per partition, None or why it has no other leader. Raises what hits the request as a whole."""
    error = error_of(response.error_code.value, None, "electing leaders")
    if error is not None:
        raise error
    found: dict[TopicPartition, RaylogError | None] = {}
    for topic in response.replica_election_results:
        for result in topic.partition_result:
            tp = TopicPartition(TopicName(topic.topic), PartitionIndex(result.partition_id))
            found[tp] = error_of(result.error_code.value, result.error_message, f"{tp}: electing a leader")
    return found
