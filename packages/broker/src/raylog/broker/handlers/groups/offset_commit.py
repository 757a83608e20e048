"""OffsetCommit (API 8): how far a group has read.

v2-v4   a retention time, which is not kept: offsets.retention.minutes holds for all
v5      without it
v6      leader epochs (KIP-320)
v7      group.instance.id (KIP-345)
v8      flexible
v9      GROUP_ID_NOT_FOUND for a group that there is not, which was ILLEGAL_GENERATION before; STALE_MEMBER_EPOCH, for
        which groups of the classic protocol have no use
v10     topics by id

Members commit with their generation; without one, an offset can be set while the group has no members. The answer comes
once the offsets are in the metadata store. What is wrong with one partition is no reason to refuse the others. As in
Kafka, of a partition that is not there the group is not asked, and what is wrong with the member comes before what is
wrong with its offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from raylog.broker.config import OFFSET_METADATA_MAX_BYTES
from raylog.broker.handlers.context import Operation, Ports, RequestContext
from raylog.broker.handlers.entities import InFuture, Later, make, throttle, types_of
from raylog.broker.handlers.groups.group_members import identity
from raylog.broker.handlers.groups.group_offsets import (
    AskedTopic,
    Results,
    answers,
    asked_topic,
    check_exists,
    check_group,
)
from raylog.coordination.groups.offsets import CommittedOffset
from raylog.coordination.metadata.model import ClusterState
from raylog.protocol.errors import (
    GroupIdNotFound,
    IllegalGeneration,
    InvalidRequest,
    OffsetMetadataTooLarge,
    RaylogError,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from raylog.protocol.ids import (
    NO_EPOCH,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    TimestampMs,
    TopicName,
    TopicPartition,
)

_FIRST_GROUP_ID_NOT_FOUND = 9


class _Asked(NamedTuple):
    """The partitions of a request, each in one of these."""

    offsets: dict[TopicPartition, CommittedOffset]
    wrong: dict[TopicPartition, RaylogError]
    """They are there, but what is to be committed cannot be."""
    absent: dict[TopicPartition, RaylogError]


def decide(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    group = check_group(ctx, ports, Operation.READ, request.group_id)
    state = ports.cluster.state()
    topics = [asked_topic(ctx, ports, state, Operation.READ, topic) for topic in request.topics]
    offsets, wrong, absent = _asked(topics, state, ports)
    if not offsets and not wrong:
        return _response(ctx, topics, absent)

    def refused(error: RaylogError) -> Any:
        return _response(ctx, topics, dict.fromkeys((*offsets, *wrong), _in_words_of_version(ctx, error)) | absent)

    def finished(committed: InFuture) -> Any:
        try:
            results = committed.result()
        except RaylogError as error:
            return refused(error)
        return _response(ctx, topics, {**_in_words_of(topics, results), **wrong, **absent})

    who = identity(request, request.generation_id_or_member_epoch)
    ids = {name: state.topics[name].id for name in {tp.topic for tp in offsets}}
    try:
        return Later(InFuture(ports.groups.commit_offsets(group, who, offsets, ids)), finished)
    except RaylogError as error:
        return refused(error)


def refuse(ctx: RequestContext, request: Any, error: RaylogError) -> Any:
    error = _in_words_of_version(ctx, error)
    topics = [AskedTopic(topic, TopicName(getattr(topic, "name", "")), error) for topic in request.topics]
    return _response(ctx, topics, {})


def _in_words_of_version(ctx: RequestContext, error: RaylogError) -> RaylogError:
    if isinstance(error, GroupIdNotFound) and ctx.version < _FIRST_GROUP_ID_NOT_FOUND:
        return IllegalGeneration(str(error))
    return error


def _asked(topics: Sequence[AskedTopic], state: ClusterState, ports: Ports) -> _Asked:
    asked = _Asked({}, {}, {})
    limit, now_ms = ports.configs.broker()[OFFSET_METADATA_MAX_BYTES], ports.wall_ms()
    for topic in topics:
        for part in topic.asked.partitions if topic.wrong is None else ():
            tp = TopicPartition(topic.name, PartitionIndex(part.partition_index))
            try:
                check_exists(state, tp)
            except UnknownTopicOrPartition as error:
                asked.absent[tp] = error
                continue
            try:
                asked.offsets[tp] = _committed(tp, part, limit, now_ms)
            except RaylogError as error:
                asked.wrong[tp] = error
    return asked


def _committed(tp: TopicPartition, part: Any, limit: int, now_ms: TimestampMs) -> CommittedOffset:
    if part.committed_offset < 0:
        raise InvalidRequest(f"{part.committed_offset} is no offset to commit for {tp}: use OffsetDelete to forget one")
    metadata = part.committed_metadata or ""
    if len(metadata.encode()) > limit:
        raise OffsetMetadataTooLarge(
            f"the text beside the offset of {tp} has {len(metadata.encode())} bytes, {limit} are allowed "
            "(offset.metadata.max.bytes)"
        )
    epoch = LeaderEpoch(max(NO_EPOCH, getattr(part, "committed_leader_epoch", NO_EPOCH)))
    return CommittedOffset(Offset(part.committed_offset), epoch, metadata, now_ms)


def _in_words_of(topics: list[AskedTopic], results: Results) -> Results:
    """A topic that was deleted in that moment, perhaps for another of its name: who named an id hears of the id."""
    by_id = {topic.name for topic in topics if hasattr(topic.asked, "topic_id")}
    return {
        tp: UnknownTopicId(str(error)) if tp.topic in by_id and isinstance(error, UnknownTopicOrPartition) else error
        for tp, error in results.items()
    }


def _response(ctx: RequestContext, topics: list[AskedTopic], results: Results) -> Any:
    types = types_of(ctx)
    return make(
        types.OffsetCommitResponse,
        throttle_time=throttle(ctx),
        topics=answers(topics, results, types.OffsetCommitResponseTopic, types.OffsetCommitResponsePartition),
    )
