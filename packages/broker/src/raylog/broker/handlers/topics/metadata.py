"""Metadata (API 3): the brokers, and which of them lead the partitions of which topics.

v0      topics by name; an empty list asks for all
v1      controller id, racks, internal topics; a null list asks for all, an empty one for none
v2      cluster id
v4      the client says whether unknown topics may be created (until then it always may)
v5      offline replicas
v7      leader epochs (KIP-320)
v8      authorized operations on request (KIP-430); those of the cluster until v10
v9      flexible
v10     topic ids beside the names (KIP-516)
v12     topics by id, where one is given; before, an id or a missing name is an INVALID_REQUEST
v13     an error code for the whole response

Endpoints are those of the listener that the request came through. A topic that is unknown is asked of the
controller when ``auto.create.topics.enable`` and the client allow it, and is reported as
UNKNOWN_TOPIC_OR_PARTITION until the controller has made it, which makes clients ask again. A broker without its lease
names no leader for what it led (see leaders).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raylog.broker.config import AUTO_CREATE_TOPICS_ENABLE
from raylog.broker.handlers.context import Operation, Ports, RequestContext, Resource
from raylog.broker.handlers.entities import make, throttle, types_of
from raylog.broker.handlers.leaders import reachable_brokers, state_to_tell
from raylog.broker.handlers.operations import OPERATIONS_UNKNOWN, cluster_operations, topic_operations
from raylog.coordination.metadata.model import ClusterState, PartitionState, TopicState
from raylog.coordination.metadata.topic_names import check_topic_name
from raylog.protocol.errors import (
    ErrorCode,
    InvalidRequest,
    RaylogError,
    TopicAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
    code_of,
)
from raylog.protocol.ids import NO_LEADER, NO_TOPIC_ID, TopicId, TopicName

Answer = TopicState | tuple[TopicName | None, TopicId, RaylogError]


def decide(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    state = state_to_tell(ports)
    answers = _answers(ctx, request, ports, state)
    with_topics = getattr(request, "include_topic_authorized_operations", False)
    with_cluster = getattr(request, "include_cluster_authorized_operations", False)
    return _response(
        ctx,
        state,
        [
            _topic(ctx, state, answer, _allowed(ctx, ports, answer) if with_topics else OPERATIONS_UNKNOWN)
            for answer in answers
        ],
        cluster_operations(ctx, ports) if with_cluster else OPERATIONS_UNKNOWN,
    )


def refuse(ctx: RequestContext, request: Any, error: RaylogError) -> Any:
    asked = [(topic.name, _id_of(topic), error) for topic in request.topics or ()]
    topics = [_topic(ctx, ClusterState(), each) for each in asked]
    return _response(ctx, ClusterState(), topics, error=error)


def _answers(ctx: RequestContext, request: Any, ports: Ports, state: ClusterState) -> list[Answer]:
    may_see = ports.authorizer.allows
    if request.topics is None or (ctx.version == 0 and not request.topics):
        return [
            topic for topic in state.topics.values() if may_see(ctx, Operation.DESCRIBE, Resource.TOPIC, topic.name)
        ]
    if ctx.version < 12 and any(topic.name is None or _id_of(topic) != NO_TOPIC_ID for topic in request.topics):
        raise InvalidRequest(f"version {ctx.version} of Metadata knows topics by their names only: name each")
    asked = dict.fromkeys((topic.name, _id_of(topic)) for topic in request.topics)  # each is told of once
    answers = [_answer(ctx, ports, state, name, topic_id) for name, topic_id in asked]
    missing = [
        answer[0]
        for answer in answers
        if isinstance(answer, tuple) and isinstance(answer[2], UnknownTopicOrPartition) and answer[0] is not None
    ]
    may_create = getattr(request, "allow_auto_topic_creation", True)
    if missing and may_create and ports.configs.broker()[AUTO_CREATE_TOPICS_ENABLE]:
        ports.topics.auto_create(
            [name for name in missing if ports.authorizer.allows(ctx, Operation.CREATE, Resource.TOPIC, name)]
        )
    return answers


def _answer(
    ctx: RequestContext, ports: Ports, state: ClusterState, name: TopicName | None, topic_id: TopicId
) -> Answer:
    if name is not None and topic_id == NO_TOPIC_ID:
        try:
            return find_topic(ctx, ports, state, name)
        except RaylogError as error:
            return name, NO_TOPIC_ID, error
    topic = state.topic_by_id(topic_id)
    if topic is None:
        return None, topic_id, UnknownTopicId(f"no topic has the id {topic_id}")
    try:
        return find_topic(ctx, ports, state, topic.name)
    except RaylogError as error:
        return None, topic_id, error


def _allowed(ctx: RequestContext, ports: Ports, answer: Answer) -> int:
    if not isinstance(answer, tuple):
        return topic_operations(ctx, ports, answer.name)
    name, _, error = answer
    return topic_operations(ctx, ports, name, error)


def find_topic(ctx: RequestContext, ports: Ports, state: ClusterState, name: TopicName) -> TopicState:
    """The topic that a client asks about by name.

    Raises TopicAuthorizationFailed, InvalidTopic when no topic can have that name, UnknownTopicOrPartition.
    """
    if not ports.authorizer.allows(ctx, Operation.DESCRIBE, Resource.TOPIC, name):
        raise TopicAuthorizationFailed(f"{ctx.principal} may not describe topic {name}")
    topic = state.topic(name)
    if topic is None:
        check_topic_name(name)
        raise UnknownTopicOrPartition(f"there is no topic {name}")
    return topic


def _id_of(topic: Any) -> TopicId:
    """The id that a request's topic carries from v10 on."""
    return TopicId(getattr(topic, "topic_id", None) or NO_TOPIC_ID)


def _response(
    ctx: RequestContext,
    state: ClusterState,
    topics: Sequence[Any],
    allowed: int = OPERATIONS_UNKNOWN,
    error: RaylogError | None = None,
) -> Any:
    types = types_of(ctx)
    brokers = [
        make(types.MetadataResponseBroker, node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
        for node in reachable_brokers(ctx, state)
    ]
    return make(
        types.MetadataResponse,
        throttle_time=throttle(ctx),
        brokers=tuple(brokers),
        cluster_id=state.cluster_id,
        controller_id=state.controller_id,
        topics=tuple(topics),
        cluster_authorized_operations=allowed,
        error_code=ErrorCode.none if error is None else code_of(error),
    )


def _topic(ctx: RequestContext, state: ClusterState, answer: Answer, allowed: int = OPERATIONS_UNKNOWN) -> Any:
    types = types_of(ctx)
    if isinstance(answer, tuple):
        name, topic_id, error = answer
        return make(
            types.MetadataResponseTopic,
            error_code=code_of(error),
            name=name if ctx.version >= 12 else name or "",  # it could not be null before
            topic_id=topic_id,
            partitions=(),
            topic_authorized_operations=allowed,
        )
    return make(
        types.MetadataResponseTopic,
        error_code=ErrorCode.none,
        name=answer.name,
        topic_id=answer.id,
        is_internal=answer.is_internal,
        partitions=tuple(
            make(types.MetadataResponsePartition, **partition_fields(ctx, state, index, partition))
            for index, partition in enumerate(answer.partitions)
        ),
        topic_authorized_operations=allowed,
    )


def partition_fields(ctx: RequestContext, state: ClusterState, index: int, partition: PartitionState) -> dict[str, Any]:
    """How a partition is told, to a client of the request's listener, here and in DescribeTopicPartitions."""
    leader = state.brokers.get(partition.leader)
    if partition.leader == NO_LEADER or leader is None:
        code = ErrorCode.leader_not_available
    elif leader.endpoint(ctx.listener) is None:
        code = ErrorCode.listener_not_found
    else:
        code = ErrorCode.none
    return {
        "error_code": code,
        "partition_index": index,
        "leader_id": NO_LEADER if leader is None else partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": partition.isr,
        "offline_replicas": tuple(broker for broker in partition.replicas if broker not in state.reachable),
    }
