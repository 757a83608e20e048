"""Who sends a request as a member of a group."""

from __future__ import annotations

from typing import Any

from raylog.broker.groups.classic_messages import Identity
from raylog.protocol.ids import Generation, InstanceId, MemberId

__all__ = ["identity"]


def identity(request: Any) -> Identity:
    """As the request says; versions before static members name no instance."""
    instance = getattr(request, "group_instance_id", None)
    return Identity(
        MemberId(request.member_id),
        Generation(request.generation_id),
        None if instance is None else InstanceId(instance),
    )
