"""AlterConfigs (API 33): replace all overrides of topics and brokers at once. KIP-133, superseded by KIP-339.

v0, v1  the throttle time
v2      flexible

What the request does not name falls back to its default, which is why clients prefer IncrementalAlterConfigs.
"""

from __future__ import annotations

from typing import Any

from raylog.broker.handlers.configs import config_changes
from raylog.broker.handlers.configs.config_changes import Target, text_of
from raylog.broker.handlers.context import Ports, RequestContext
from raylog.coordination.metadata.configs import Change

refuse = config_changes.refuse


def decide(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    return config_changes.alter_each(ctx, request, ports, _change)


def _change(resource: Any, target: Target) -> Change:
    wanted = {entry.name: text_of(entry) for entry in resource.configs}
    target.check(wanted)
    return lambda overrides: wanted
