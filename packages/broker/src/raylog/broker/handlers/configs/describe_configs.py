"""DescribeConfigs (API 32): the settings in force of topics and of brokers. KIP-133, 226, 569.

v1      sources and synonyms (v0 is gone)
v2      as v1
v3      types and documentation on request
v4      flexible

A broker's settings are told by that broker only, for the others do not know what it was started with; clients
send each broker resource to its broker. The broker of the empty name stands for all brokers: any broker tells
the overrides that were set for all. A name that is no setting is left out, as with Kafka. Sensitive values are
never told.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from raylog.broker.handlers.configs.config_entries import (
    DYNAMIC_DEFAULT_BROKER,
    TYPE_CODES,
    ResourceType,
    Synonym,
    config_source,
    is_read_only,
    synonyms,
    value_text,
)
from raylog.broker.handlers.context import CLUSTER_NAME, Operation, Ports, RequestContext, Resource
from raylog.broker.handlers.entities import failure, make, throttle, types_of
from raylog.coordination.metadata.topic_names import check_topic_name
from raylog.protocol.errors import (
    ClusterAuthorizationFailed,
    ErrorCode,
    InvalidRequest,
    RaylogError,
    TopicAuthorizationFailed,
    code_of,
)
from raylog.protocol.ids import TopicName
from raylog.protocol.settings import Setting, Settings


def decide(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    results = []
    for resource in _distinct(request):
        try:
            settings = _settings(ctx, ports, resource)
            entries = _entries(ctx, request, resource, settings)
        except Exception as error:  # noqa: BLE001 (whatever it is, the other resources go on)
            results.append(_failed(ctx, resource, failure(error, ctx, f"describing {resource.resource_name}")))
            continue
        results.append(_result(ctx, resource, ErrorCode.none, None, entries))
    return _response(ctx, results)


def refuse(ctx: RequestContext, request: Any, error: RaylogError) -> Any:
    return _response(ctx, [_failed(ctx, resource, error) for resource in _distinct(request)])


def _distinct(request: Any) -> Iterable[Any]:
    """Each resource once, however often it is asked for: an answer may be a thousand times as long as a question."""
    return {
        (each.resource_type, each.resource_name, frozenset(each.configuration_keys or ())): each
        for each in request.resources
    }.values()


def _settings(ctx: RequestContext, ports: Ports, resource: Any) -> Settings:
    allows = ports.authorizer.allows
    name = resource.resource_name
    match resource.resource_type:
        case ResourceType.TOPIC:
            if not allows(ctx, Operation.DESCRIBE_CONFIGS, Resource.TOPIC, name):
                raise TopicAuthorizationFailed(f"{ctx.principal} may not describe the settings of topic {name}")
            check_topic_name(name)
            return ports.configs.topic(TopicName(name))
        case ResourceType.BROKER:
            if not allows(ctx, Operation.DESCRIBE_CONFIGS, Resource.CLUSTER, CLUSTER_NAME):
                raise ClusterAuthorizationFailed(f"{ctx.principal} may not describe the settings of brokers")
            if name not in ("", str(ports.cluster.broker_id)):
                raise InvalidRequest(f"this is broker {ports.cluster.broker_id}: ask broker {name!r} itself")
            return ports.configs.broker()
        case other:
            raise InvalidRequest(f"resource type {other}: only topics (2) and brokers (4) have settings here")


def _entries(ctx: RequestContext, request: Any, resource: Any, settings: Settings) -> tuple[Any, ...]:
    of_all_brokers = resource.resource_type == ResourceType.BROKER and not resource.resource_name
    asked = frozenset(resource.configuration_keys or ())  # none asks for all
    entries = []
    for row in settings.table:
        if asked and row.name not in asked:
            continue
        found = synonyms(row, settings)
        value = value_text(row, settings[row])
        if of_all_brokers:
            found = [synonym for synonym in found if synonym.source == DYNAMIC_DEFAULT_BROKER]
            if not found:
                continue
            value = found[0].value
        entries.append(_entry(ctx, request, row, value, found))
    return tuple(entries)


def _entry(ctx: RequestContext, request: Any, row: Setting[Any], value: str | None, found: list[Synonym]) -> Any:
    types = types_of(ctx)
    with_documentation = getattr(request, "include_documentation", False)
    return make(
        types.DescribeConfigsResourceResult,
        name=row.name,
        value=value,
        read_only=is_read_only(row),
        config_source=config_source(found),
        is_sensitive=row.sensitive,
        synonyms=tuple(
            make(types.DescribeConfigsSynonym, name=name, value=value, source=source)
            for name, value, source in (found if request.include_synonyms else ())
        ),
        config_type=TYPE_CODES[row.type],
        documentation=row.doc if with_documentation else None,
    )


def _response(ctx: RequestContext, results: list[Any]) -> Any:
    return make(types_of(ctx).DescribeConfigsResponse, throttle_time=throttle(ctx), results=tuple(results))


def _failed(ctx: RequestContext, resource: Any, error: RaylogError) -> Any:
    return _result(ctx, resource, code_of(error), str(error), ())


def _result(ctx: RequestContext, resource: Any, code: ErrorCode, message: str | None, configs: tuple[Any, ...]) -> Any:
    return make(
        types_of(ctx).DescribeConfigsResult,
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=configs,
    )
