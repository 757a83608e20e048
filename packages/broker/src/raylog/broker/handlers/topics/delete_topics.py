"""DeleteTopics (API 20): delete topics. KIP-4.

v1      the throttle time (v0 is gone)
v4      flexible
v5      a message beside the error code (KIP-599)
v6      topics by name or by id (KIP-516); one that is named by both is refused, and answered once

Only the controller deletes topics; another broker answers NOT_CONTROLLER for each.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from raylog.broker.handlers.context import Operation, Ports, RequestContext, Resource
from raylog.broker.handlers.entities import make, throttle, timeout_ms, told, types_of
from raylog.protocol.errors import (
    InvalidRequest,
    RaylogError,
    TopicAuthorizationFailed,
    UnknownTopicId,
)
from raylog.protocol.ids import NO_TOPIC_ID, TopicId, TopicName

Result = TopicName | RaylogError


def decide(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    times = Counter(_asked(ctx, request))
    state = ports.cluster.state()
    ids = {name: known.id for name, _ in times if name is not None and (known := state.topic(name)) is not None}
    named, by_id = set(ids.values()), {topic_id for name, topic_id in times if name is None}
    asked = [(name, topic_id) for name, topic_id in times if name is not None or topic_id not in named]
    results: list[Result | None] = []
    for at, (name, topic_id) in enumerate(asked):
        known = state.topic_by_id(topic_id) if name is None else None
        subject = name if known is None else known.name
        if name is not None and topic_id != NO_TOPIC_ID:
            results.append(InvalidRequest(f"topic {name} is named by its id, too"))
        elif name is not None and ids.get(name) in by_id:
            asked[at] = name, ids[name]
            results.append(InvalidRequest(f"topic {name} is named by its id, too, in another place"))
        elif times[name, topic_id] > 1:
            results.append(InvalidRequest(f"topic {name or topic_id} is in the request more than once"))
        elif name is None and topic_id == NO_TOPIC_ID:
            results.append(InvalidRequest("a topic has neither a name nor an id"))
        elif subject is None:
            results.append(UnknownTopicId(f"no topic has the id {topic_id}"))
        elif not ports.authorizer.allows(ctx, Operation.DELETE, Resource.TOPIC, subject):
            results.append(TopicAuthorizationFailed(f"{ctx.principal} may not delete topic {subject}"))
        else:
            results.append(None)
    todo = [at for at, result in enumerate(results) if result is None]
    deleted = ports.topics.delete_topics([_name_or_id(asked[at]) for at in todo], timeout_ms=timeout_ms(request))
    for at, result in zip(todo, deleted, strict=True):
        results[at] = result
        if isinstance(result, str) and (known := state.topic(result)) is not None:
            asked[at] = result, known.id
    return _response(ctx, list(zip(asked, results, strict=True)))


def refuse(ctx: RequestContext, request: Any, error: RaylogError) -> Any:
    return _response(ctx, [(topic, error) for topic in dict.fromkeys(_asked(ctx, request))])


def _asked(ctx: RequestContext, request: Any) -> list[tuple[TopicName | None, TopicId]]:
    if ctx.version < 6:
        return [(name, NO_TOPIC_ID) for name in request.topic_names]
    return [(topic.name, TopicId(topic.topic_id or NO_TOPIC_ID)) for topic in request.topics]


def _name_or_id(topic: tuple[TopicName | None, TopicId]) -> TopicName | TopicId:
    name, topic_id = topic
    return topic_id if name is None else name


def _response(ctx: RequestContext, results: list[Any]) -> Any:
    types = types_of(ctx)
    return make(
        types.DeleteTopicsResponse,
        throttle_time=throttle(ctx),
        responses=tuple(
            make(
                types.DeletableTopicResult,
                name=name if isinstance(result, RaylogError) else result,
                topic_id=topic_id,
                **told(result),
            )
            for (name, topic_id), result in results
        ),
    )
