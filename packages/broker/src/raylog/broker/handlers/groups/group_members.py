"""Who sends a request as a member of a group."""

from __future__ import annotations

from typing import Any

from raylog.broker.groups.classic.messages import Identity
from raylog.protocol.ids import Generation, InstanceId, MemberId

__all__ = ["identity", "instance_of"]


def identity(request: Any, generation: int) -> Identity:
    """As the request says, which names ``generation`` by a field of its own."""
    return Identity(MemberId(request.member_id), Generation(generation), instance_of(request))


def instance_of(asked: Any) -> InstanceId | None:
    """The static member that a request, or a part of one, names; versions before these name none."""
    instance: InstanceId | None = getattr(asked, "group_instance_id", None)
    return instance
