"""What the APIs about groups' offsets share: topics by name or by id, and who may touch a group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from raylog.broker.handlers.context import Operation, Ports, RequestContext, Resource
from raylog.broker.handlers.entities import make, told
from raylog.coordination.metadata.model import ClusterState
from raylog.protocol.errors import (
    GroupAuthorizationFailed,
    RaylogError,
    TopicAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from raylog.protocol.ids import GroupId, PartitionIndex, TopicName, TopicPartition

Results = Mapping[TopicPartition, RaylogError | None]


class AskedTopic(NamedTuple):
    """A topic of a request, as the client named it and as we know it."""

    asked: Any
    name: TopicName
    """Empty when the id is nobody's."""
    wrong: RaylogError | None
    """Why nothing is done with it."""

    def fields(self) -> dict[str, Any]:
        """What names it in the answer, by name or by id as it was asked for."""
        return {"name": self.name, "topic_id": getattr(self.asked, "topic_id", None)}


def check_group(ctx: RequestContext, ports: Ports, operation: Operation, group: str) -> GroupId:
    """Raises GroupAuthorizationFailed."""
    if not ports.authorizer.allows(ctx, operation, Resource.GROUP, group):
        raise GroupAuthorizationFailed(f"{ctx.principal} may not {operation.value.lower()} group {group}")
    return GroupId(group)


def asked_topic(ctx: RequestContext, ports: Ports, state: ClusterState, operation: Operation, asked: Any) -> AskedTopic:
    """The topic by its id where the version has it, else by name."""
    if hasattr(asked, "topic_id"):
        found = None if asked.topic_id is None else state.topic_by_id(asked.topic_id)
        if found is None:
            return AskedTopic(asked, TopicName(""), UnknownTopicId(f"no topic has the id {asked.topic_id}"))
        name = found.name
    else:
        name = TopicName(asked.name)
    if not ports.authorizer.allows(ctx, operation, Resource.TOPIC, name):
        wrong = TopicAuthorizationFailed(f"{ctx.principal} may not {operation.value.lower()} topic {name}")
        return AskedTopic(asked, name, wrong)
    return AskedTopic(asked, name, None)


def check_exists(state: ClusterState, tp: TopicPartition) -> None:
    """Raises UnknownTopicOrPartition."""
    topic = state.topic(tp.topic)
    if topic is None or not 0 <= tp.partition < len(topic.partitions):
        raise UnknownTopicOrPartition(f"there is no partition {tp}: create the topic first")


def answers(topics: Sequence[AskedTopic], results: Results, topic_type: Any, partition_type: Any) -> tuple[Any, ...]:
    """What became of each partition that was asked about: its result, or what is wrong with its topic.

    As with Kafka, a topic without partitions is left out.
    """

    def answer(topic: AskedTopic, index: int) -> Any:
        tp = TopicPartition(topic.name, PartitionIndex(index))
        return make(partition_type, partition_index=index, **told(topic.wrong or results[tp]))

    return tuple(
        make(
            topic_type,
            **topic.fields(),
            partitions=tuple(answer(topic, part.partition_index) for part in topic.asked.partitions),
        )
        for topic in topics
        if topic.asked.partitions
    )
