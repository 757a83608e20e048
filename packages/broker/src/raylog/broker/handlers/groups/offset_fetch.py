"""OffsetFetch (API 9): how far groups have read.

v1      of the partitions named
v2      null stands for all partitions with an offset; an error of the whole request
v3, v4  throttle time
v5      leader epochs (KIP-320)
v6, v7  flexible; require_stable, which waits for nothing before there are transactions
v8      many groups at once
v9      a member says who it is, which nobody checks in groups of the classic protocol
v10     topics by id

A partition without an offset is offset -1 and no error, as is one of a topic that does not exist. An offset that cannot
be read is an error of its partition alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from raylog.broker.handlers.context import Operation, Ports, RequestContext, Resource
from raylog.broker.handlers.entities import failure, make, throttle, told, types_of
from raylog.broker.handlers.groups.group_offsets import AskedTopic, asked_topic, check_group
from raylog.coordination.groups.offsets import CommittedOffset
from raylog.coordination.metadata.model import ClusterState
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import NO_OFFSET, PartitionIndex, TopicName, TopicPartition

NOTHING = CommittedOffset(NO_OFFSET)
MANY_GROUPS = 8
"""The first version with more than one."""


class FoundTopic(NamedTuple):
    """A topic of the answer; its partitions by index."""

    names: Mapping[str, Any]
    partitions: Sequence[tuple[int, CommittedOffset | RaylogError]]
    """With their indexes."""


class FoundGroup(NamedTuple):
    group: str
    topics: Sequence[FoundTopic]
    error: RaylogError | None = None


def decide(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    if ctx.version >= MANY_GROUPS:
        return _response(ctx, [_isolated(ctx, ports, asked) for asked in _distinct(request)])
    return _response(ctx, [_group(ctx, ports, request)])


def refuse(ctx: RequestContext, request: Any, error: RaylogError) -> Any:
    asked = _distinct(request) if ctx.version >= MANY_GROUPS else [request]
    return _response(ctx, [_refused(ctx, each, error) for each in asked])


def _distinct(request: Any) -> Iterable[Any]:
    """What is asked of each group once, however often it is: a group may have very many offsets."""
    return {(asked.group_id, asked.topics): asked for asked in request.groups}.values()


def _isolated(ctx: RequestContext, ports: Ports, asked: Any) -> FoundGroup:
    try:
        return _group(ctx, ports, asked)
    except Exception as error:  # noqa: BLE001 (whatever it is, the other groups go on)
        return _refused(ctx, asked, failure(error, ctx, f"reading the offsets of group {asked.group_id}"))


def _refused(ctx: RequestContext, asked: Any, error: RaylogError) -> FoundGroup:
    """Version 1 has errors of partitions only; the others have no partitions then."""
    if ctx.version >= 2:
        return FoundGroup(asked.group_id, (), error)
    topics = [FoundTopic({"name": t.name}, [(index, error) for index in t.partition_indexes]) for t in asked.topics]
    return FoundGroup(asked.group_id, topics)


def _group(ctx: RequestContext, ports: Ports, asked: Any) -> FoundGroup:
    group = check_group(ctx, ports, Operation.DESCRIBE, asked.group_id)
    state = ports.cluster.state()
    if asked.topics is None:
        return FoundGroup(group, _all(ctx, ports, state, ports.groups.fetch_offsets(group, None)))
    topics = [asked_topic(ctx, ports, state, Operation.DESCRIBE, topic) for topic in asked.topics]
    partitions = [
        TopicPartition(topic.name, PartitionIndex(index))
        for topic in topics
        if topic.wrong is None
        for index in topic.asked.partition_indexes
    ]
    by_id = {topic.name: topic.asked.topic_id for topic in topics if hasattr(topic.asked, "topic_id")}
    offsets = ports.groups.fetch_offsets(group, partitions, by_id)
    return FoundGroup(group, [FoundTopic(topic.fields(), _of_topic(topic, offsets)) for topic in topics])


def _of_topic(
    topic: AskedTopic, offsets: Mapping[TopicPartition, CommittedOffset | RaylogError]
) -> list[tuple[int, CommittedOffset | RaylogError]]:
    return [
        (index, topic.wrong or offsets.get(TopicPartition(topic.name, PartitionIndex(index)), NOTHING))
        for index in topic.asked.partition_indexes
    ]


def _all(
    ctx: RequestContext,
    ports: Ports,
    state: ClusterState,
    offsets: Mapping[TopicPartition, CommittedOffset | RaylogError],
) -> list[FoundTopic]:
    """Every topic that the client may see; by id, only those that there are still."""
    by_topic: dict[TopicName, list[tuple[int, CommittedOffset | RaylogError]]] = {}
    for tp, committed in sorted(offsets.items()):
        by_topic.setdefault(tp.topic, []).append((tp.partition, committed))
    found = []
    for name, partitions in by_topic.items():
        topic = state.topic(name)
        if topic is None and ctx.version >= 10:
            continue
        if ports.authorizer.allows(ctx, Operation.DESCRIBE, Resource.TOPIC, name):
            found.append(FoundTopic({"name": name, "topic_id": None if topic is None else topic.id}, partitions))
    return found


def _response(ctx: RequestContext, groups: Sequence[FoundGroup]) -> Any:
    types = types_of(ctx)
    if ctx.version >= MANY_GROUPS:
        answers = tuple(
            make(
                types.OffsetFetchResponseGroup,
                group_id=group.group,
                topics=_topics(group, types.OffsetFetchResponseTopics, types.OffsetFetchResponsePartitions),
                **told(group.error),
            )
            for group in groups
        )
        return make(types.OffsetFetchResponse, throttle_time=throttle(ctx), groups=answers)
    [group] = groups
    return make(
        types.OffsetFetchResponse,
        throttle_time=throttle(ctx),
        topics=_topics(group, types.OffsetFetchResponseTopic, types.OffsetFetchResponsePartition),
        **told(group.error),
    )


def _topics(group: FoundGroup, topic_type: Any, partition_type: Any) -> tuple[Any, ...]:
    def answer(index: int, found: CommittedOffset | RaylogError) -> Any:
        committed, error = (NOTHING, found) if isinstance(found, RaylogError) else (found, None)
        return make(
            partition_type,
            partition_index=index,
            committed_offset=committed.offset,
            committed_leader_epoch=committed.leader_epoch,
            metadata=committed.metadata,
            **told(error),
        )

    return tuple(
        make(topic_type, **topic.names, partitions=tuple(answer(*each) for each in topic.partitions))
        for topic in group.topics
    )
