"""Who sends a request as a member of a group."""

from __future__ import annotations

from typing import Any

from raylog.broker.groups.classic_messages import Identity
from raylog.protocol.ids import Generation, InstanceId, MemberId

__all__ = ["identity"]


def identity(request: Any, generation: int) -> Identity:
    """As the request says, which names ``generation`` by a field of its own; versions before static members name no
    instance.
    """
    instance = getattr(request, "group_instance_id", None)
    return Identity(
        MemberId(request.member_id),
        Generation(generation),
        None if instance is None else InstanceId(instance),
    )
