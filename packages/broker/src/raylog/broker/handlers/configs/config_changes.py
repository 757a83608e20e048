"""What AlterConfigs and IncrementalAlterConfigs share: resources, one by one, and what may be set on them.

Any broker takes changes of any topic and of any broker's settings, for it writes them to the metadata store
itself. Topics are refused with INVALID_CONFIG, brokers with INVALID_REQUEST, as by Kafka (KAFKA-13609). What
is wrong with one resource does not keep the others from being changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from raylog.broker.config import BROKER_SETTINGS, TOPIC_SETTINGS
from raylog.broker.dynamic_config import check_broker_overrides, check_topic_overrides
from raylog.broker.handlers.configs.config_entries import ResourceType
from raylog.broker.handlers.context import CLUSTER_NAME, Operation, Ports, RequestContext, Resource
from raylog.broker.handlers.entities import failure, make, throttle, told, types_of
from raylog.coordination.metadata.configs import DEFAULT_BROKER, Change, check_overrides_size
from raylog.coordination.metadata.topic_names import check_topic_name
from raylog.protocol.errors import (
    ClusterAuthorizationFailed,
    InvalidConfig,
    InvalidRequest,
    RaylogError,
    TopicAuthorizationFailed,
)
from raylog.protocol.ids import TopicName
from raylog.protocol.settings import Setting, Settings

ChangeOf = Callable[[Any, "Target"], Change]
"""From a request's resource to the change that it asks for; raises InvalidRequest."""


class Target:
    """A topic, a broker, or all brokers (the empty name): what has settings that can be changed."""

    def __init__(self, ctx: RequestContext, ports: Ports, resource: Any) -> None:
        """Raises what is wrong with the resource as such, and when the principal may not change it."""
        self._ports = ports
        self._name: str = resource.resource_name
        self._is_topic = resource.resource_type == ResourceType.TOPIC
        if resource.resource_type not in list(ResourceType):
            raise InvalidRequest(
                f"resource type {resource.resource_type}: only topics (2) and brokers (4) have settings here"
            )
        allows = ports.authorizer.allows
        if self._is_topic and not allows(ctx, Operation.ALTER_CONFIGS, Resource.TOPIC, self._name):
            raise TopicAuthorizationFailed(f"{ctx.principal} may not change the settings of topic {self._name}")
        if not self._is_topic and not allows(ctx, Operation.ALTER_CONFIGS, Resource.CLUSTER, CLUSTER_NAME):
            raise ClusterAuthorizationFailed(f"{ctx.principal} may not change the settings of brokers")
        if self._is_topic and not self._name:
            raise InvalidRequest("settings of a topic without a name")
        if self._is_topic:
            check_topic_name(self._name)

    def __str__(self) -> str:
        if self._is_topic:
            return f"topic {self._name}"
        return f"broker {self._name}" if self._name else "all brokers"

    def row(self, name: str) -> Setting[Any]:
        """Raises InvalidConfig or InvalidRequest when there is no such setting."""
        if self._is_topic:
            return TOPIC_SETTINGS[name]
        try:
            return BROKER_SETTINGS[name]
        except InvalidConfig as error:
            raise InvalidRequest(str(error)) from error

    def in_force(self) -> Settings:
        """What holds where nothing is overridden, for a topic with its overrides."""
        return self._ports.configs.topic(TopicName(self._name)) if self._is_topic else self._ports.configs.broker()

    def check(self, overrides: Mapping[str, str]) -> None:
        """Raises InvalidConfig or InvalidRequest when these cannot be overridden so."""
        if self._is_topic:
            check_topic_overrides(overrides)
        else:
            check_broker_overrides(overrides)

    def check_size(self, overrides: Mapping[str, str]) -> None:
        """Raises InvalidConfig or InvalidRequest when these, which are all there are, cannot be stored together."""
        try:
            check_overrides_size(overrides)
        except InvalidConfig as error:
            if self._is_topic:
                raise
            raise InvalidRequest(str(error)) from error

    def alter(self, change: Change, *, validate_only: bool) -> None:
        """Raises UnknownTopicOrPartition, BrokerNotAvailable, RequestTimedOut."""
        admin = self._ports.config_admin
        if self._is_topic:
            admin.alter_topic(TopicName(self._name), change, validate_only=validate_only)
        else:
            admin.alter_broker(self._name or DEFAULT_BROKER, change, validate_only=validate_only)


def alter_each(ctx: RequestContext, request: Any, ports: Ports, change_of: ChangeOf) -> Any:
    """Change resource by resource, and the response."""
    times = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
    results: list[tuple[Any, RaylogError | None]] = []
    for resource in request.resources:
        name = resource.resource_name
        try:
            if times[resource.resource_type, name] > 1:
                raise InvalidRequest(f"resource {name!r} is in the request more than once")
            target = Target(ctx, ports, resource)
            _check_entries(resource.configs)
            target.alter(change_of(resource, target), validate_only=request.validate_only)
        except Exception as error:  # noqa: BLE001 (whatever it is, the other resources go on)
            results.append((resource, failure(error, ctx, f"changing the settings of {name!r}")))
        else:
            results.append((resource, None))
    return response(ctx, request, results)


def _check_entries(entries: Any) -> None:
    times = Counter(entry.name for entry in entries)
    if repeated := [name for name, count in times.items() if count > 1]:
        raise InvalidRequest(f"{', '.join(repeated)}: more than once in the request")


def refuse(ctx: RequestContext, request: Any, error: RaylogError) -> Any:
    return response(ctx, request, [(resource, error) for resource in request.resources])


def response(ctx: RequestContext, request: Any, results: list[tuple[Any, RaylogError | None]]) -> Any:
    types = types_of(ctx)
    kind = getattr(types, type(request).__name__.replace("Request", "Response"))
    return make(
        kind,
        throttle_time=throttle(ctx),
        responses=tuple(
            make(
                types.AlterConfigsResourceResponse,
                **told(error),
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource, error in results
        ),
    )


def text_of(entry: Any) -> str:
    """An entry's value; InvalidRequest when it has none."""
    if entry.value is None:
        raise InvalidRequest(f"{entry.name}: a value is missing; to fall back to the default, delete the override")
    text: str = entry.value
    return text


def not_a_list(name: str) -> InvalidConfig:
    return InvalidConfig(f"{name} is no list: it can be set or deleted, not added to or taken from")
