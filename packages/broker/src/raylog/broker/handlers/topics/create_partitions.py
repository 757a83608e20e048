"""CreatePartitions (API 37): give topics more partitions. KIP-195.

v0, v1  the number wanted in all, and replicas of the new ones when they are chosen by hand; validate only
v2      flexible
v3      a quota may refuse (we have none)

Only the controller makes partitions; another broker answers NOT_CONTROLLER for each topic, and clients go to the
controller that Metadata names. Records that are there stay where they are, so keys may go to other partitions
from now on.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from raylog.broker.handlers.context import Operation, Ports, RequestContext, Resource
from raylog.broker.handlers.entities import make, throttle, timeout_ms, told, types_of
from raylog.coordination.controller.controller import NewPartitions
from raylog.protocol.errors import InvalidRequest, RaylogError, TopicAuthorizationFailed
from raylog.protocol.ids import TopicName


def decide(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    times = Counter(topic.name for topic in request.topics)
    results: dict[TopicName, TopicName | RaylogError] = {}
    wanted: list[NewPartitions] = []
    for topic in request.topics:
        name = topic.name
        if times[name] > 1:
            results[name] = InvalidRequest(f"topic {name} is in the request more than once")
        elif not ports.authorizer.allows(ctx, Operation.ALTER, Resource.TOPIC, name):
            results[name] = TopicAuthorizationFailed(f"{ctx.principal} may not give topic {name} more partitions")
        else:
            wanted.append(_new_partitions(topic))
    made = ports.topics.create_partitions(
        wanted,
        timeout_ms=timeout_ms(request),
        validate_only=request.validate_only,
    )
    results.update({topic.name: result for topic, result in zip(wanted, made, strict=True)})
    return _response(ctx, [(name, results[name]) for name in times])


def refuse(ctx: RequestContext, request: Any, error: RaylogError) -> Any:
    return _response(ctx, [(name, error) for name in dict.fromkeys(topic.name for topic in request.topics)])


def _new_partitions(topic: Any) -> NewPartitions:
    by_hand = topic.assignments
    return NewPartitions(
        topic.name, topic.count, None if by_hand is None else tuple(tuple(each.broker_ids) for each in by_hand)
    )


def _response(ctx: RequestContext, results: list[tuple[TopicName, TopicName | RaylogError]]) -> Any:
    types = types_of(ctx)
    return make(
        types.CreatePartitionsResponse,
        throttle_time=throttle(ctx),
        results=tuple(
            make(
                types.CreatePartitionsTopicResult,
                name=name,
                **told(result),
            )
            for name, result in results
        ),
    )
