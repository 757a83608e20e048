"""CreateTopics (API 19): make topics. KIP-4.

v2      the throttle time (older versions are gone); a message beside the error code; validate only
v4      -1 for partitions or replication factor: the broker's default (KIP-464)
v5      flexible; the answer tells partitions, replication factor and configs (KIP-525)
v6      a quota may refuse (we have none)
v7      topic ids (KIP-516)

Only the controller creates topics; another broker answers NOT_CONTROLLER for each, and clients go to the
controller that Metadata names.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from raylog.broker.config import NUM_PARTITIONS, topic_settings
from raylog.broker.handlers.configs.config_entries import config_source, is_read_only, synonyms, value_text
from raylog.broker.handlers.context import CLUSTER_NAME, Operation, Ports, RequestContext, Resource
from raylog.broker.handlers.entities import make, throttle, timeout_ms, types_of
from raylog.coordination.controller.controller import CreatedTopic, NewTopic
from raylog.protocol.errors import (
    ErrorCode,
    InvalidConfig,
    InvalidReplicaAssignment,
    InvalidRequest,
    PolicyViolation,
    RaylogError,
    TopicAuthorizationFailed,
    code_of,
)
from raylog.protocol.ids import NO_TOPIC_ID, BrokerId, TopicName

MAX_PARTITIONS = 10_000
"""That one request may make, as in Kafka: the controller does nothing else meanwhile."""


def decide(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    _check_size(request, ports.configs.broker()[NUM_PARTITIONS])
    results: dict[TopicName, CreatedTopic | RaylogError] = {}
    times = Counter(topic.name for topic in request.topics)
    wanted: list[NewTopic] = []
    for topic in request.topics:
        name = topic.name
        if times[name] > 1:
            results[name] = InvalidRequest(f"topic {name} is in the request more than once")
        elif not _may_create(ctx, ports, name):
            results[name] = TopicAuthorizationFailed(f"{ctx.principal} may not create topic {name}")
        else:
            try:
                wanted.append(_new_topic(topic))
            except RaylogError as error:
                results[name] = error
    created = ports.topics.create_topics(
        wanted,
        timeout_ms=timeout_ms(request),
        validate_only=request.validate_only,
    )
    results.update({topic.name: result for topic, result in zip(wanted, created, strict=True)})
    return _response(ctx, [_result(ctx, ports, name, results[name]) for name in times])


def refuse(ctx: RequestContext, request: Any, error: RaylogError) -> Any:
    names = dict.fromkeys(topic.name for topic in request.topics)
    return _response(ctx, [_failed(ctx, name, error) for name in names])


def _check_size(request: Any, default: int) -> None:
    """Raises PolicyViolation; ``default``: partitions of a topic that names no number."""
    count = sum(len(topic.assignments) or max(topic.num_partitions, 0) or default for topic in request.topics)
    if count > MAX_PARTITIONS:
        raise PolicyViolation(
            f"{len(request.topics)} topics with {count} partitions asked for at once: make at most {MAX_PARTITIONS}"
        )


def _may_create(ctx: RequestContext, ports: Ports, name: TopicName) -> bool:
    allows = ports.authorizer.allows
    return allows(ctx, Operation.CREATE, Resource.CLUSTER, CLUSTER_NAME) or allows(
        ctx, Operation.CREATE, Resource.TOPIC, name
    )


def _new_topic(topic: Any) -> NewTopic:
    if topic.assignments and (topic.num_partitions != -1 or topic.replication_factor != -1):
        raise InvalidRequest(
            f"topic {topic.name}: replicas assigned by hand need -1 as partitions and replication factor"
        )
    assignments: dict[int, tuple[BrokerId, ...]] = {}
    for assignment in topic.assignments:
        if assignment.partition_index in assignments:
            raise InvalidReplicaAssignment(
                f"topic {topic.name}: partition {assignment.partition_index} is assigned twice"
            )
        assignments[assignment.partition_index] = tuple(assignment.broker_ids)
    if nulls := [config.name for config in topic.configs if config.value is None]:
        raise InvalidConfig(
            f"topic {topic.name}: {', '.join(nulls)} without a value; leave out what is to be as always"
        )
    configs = {config.name: config.value for config in topic.configs}
    return NewTopic(topic.name, topic.num_partitions, topic.replication_factor, assignments or None, configs)


def _response(ctx: RequestContext, results: list[Any]) -> Any:
    return make(types_of(ctx).CreateTopicsResponse, throttle_time=throttle(ctx), topics=tuple(results))


def _failed(ctx: RequestContext, name: TopicName, error: RaylogError) -> Any:
    return make(
        types_of(ctx).CreatableTopicResult,
        name=name,
        topic_id=NO_TOPIC_ID,
        error_code=code_of(error),
        error_message=str(error),
        configs=(),
    )


def _result(ctx: RequestContext, ports: Ports, name: TopicName, result: CreatedTopic | RaylogError) -> Any:
    if isinstance(result, RaylogError):
        return _failed(ctx, name, result)
    types = types_of(ctx)
    configs = ()
    if ctx.version >= 5:
        settings = topic_settings(ports.configs.broker(), result.configs)
        configs = tuple(
            make(
                types.CreatableTopicConfigs,
                name=row.name,
                value=value_text(row, settings[row]),
                read_only=is_read_only(row),
                config_source=config_source(synonyms(row, settings)),
                is_sensitive=row.sensitive,
            )
            for row in settings.table
        )
    return make(
        types.CreatableTopicResult,
        name=name,
        topic_id=result.id,
        error_code=ErrorCode.none,
        error_message=None,
        num_partitions=result.partitions,
        replication_factor=result.replication_factor,
        configs=configs,
    )
