"""◆ What of a classic group outlives its coordinator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from raylog.protocol.ids import NO_MEMBER, Generation, InstanceId, MemberId

__all__ = ["StoredGroup", "StoredMember"]

_FIRST = Generation(0)


class StoredMember(NamedTuple):
    """What of a member outlives its coordinator."""

    id: MemberId
    instance_id: InstanceId | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    metadata: bytes
    """Its subscription, in the words of the group's protocol."""
    assignment: bytes


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group between rebalances."""

    generation: Generation = _FIRST
    protocol_type: str = ""
    protocol: str = ""
    leader: MemberId = NO_MEMBER
    members: tuple[StoredMember, ...] = ()
