"""DescribeConfigs (API 32): the settings in force of topics and of this broker. KIP-133, 226, 569.

v1      sources and synonyms (v0 is gone)
v2      as v1
v3      types and documentation on request
v4      flexible

A broker's settings are told by that broker only; clients send each broker resource to its broker. A name
that is no setting is left out, as with Kafka. Sensitive values are never told.
"""

from __future__ import annotations

from typing import Any

from raylog.broker.handlers.config_entries import TYPE_CODES, config_source, is_read_only, synonyms
from raylog.broker.handlers.context import CLUSTER_NAME, Operation, Ports, RequestContext, Resource
from raylog.broker.handlers.entities import failure, make, throttle, types_of
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

TOPIC_TYPE = 2
BROKER_TYPE = 4


def decide(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    results = []
    for resource in request.resources:
        try:
            settings = _settings(ctx, ports, resource)
        except Exception as error:  # noqa: BLE001 (whatever it is, the other resources go on)
            results.append(_failed(ctx, resource, failure(error, ctx, f"describing {resource.resource_name}")))
            continue
        asked = resource.configuration_keys
        entries = tuple(
            _entry(ctx, request, row, settings) for row in settings.table if asked is None or row.name in asked
        )
        results.append(_result(ctx, resource, ErrorCode.none, None, entries))
    return _response(ctx, results)


def refuse(ctx: RequestContext, request: Any, error: RaylogError) -> Any:
    return _response(ctx, [_failed(ctx, resource, error) for resource in request.resources])


def _settings(ctx: RequestContext, ports: Ports, resource: Any) -> Settings:
    allows = ports.authorizer.allows
    name = resource.resource_name
    match resource.resource_type:
        case 2:
            if not allows(ctx, Operation.DESCRIBE_CONFIGS, Resource.TOPIC, name):
                raise TopicAuthorizationFailed(f"{ctx.principal} may not describe the settings of topic {name}")
            return ports.configs.topic(TopicName(name))
        case 4:
            if not allows(ctx, Operation.DESCRIBE_CONFIGS, Resource.CLUSTER, CLUSTER_NAME):
                raise ClusterAuthorizationFailed(f"{ctx.principal} may not describe the settings of brokers")
            if name != str(ports.cluster.broker_id):
                raise InvalidRequest(f"this is broker {ports.cluster.broker_id}: ask broker {name!r} itself")
            return ports.configs.broker()
        case other:
            raise InvalidRequest(f"resource type {other}: only topics (2) and brokers (4) have settings here")


def _entry(ctx: RequestContext, request: Any, row: Setting[Any], settings: Settings) -> Any:
    types = types_of(ctx)
    with_synonyms = request.include_synonyms
    with_documentation = getattr(request, "include_documentation", False)
    return make(
        types.DescribeConfigsResourceResult,
        name=row.name,
        value=None if row.sensitive else row.format(settings[row]),
        read_only=is_read_only(row),
        config_source=config_source(row, settings),
        is_sensitive=row.sensitive,
        synonyms=tuple(
            make(types.DescribeConfigsSynonym, name=name, value=value, source=source)
            for name, value, source in (synonyms(row, settings) if with_synonyms else ())
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
