"""◆ What of a classic group outlives its coordinator, and the rules that it is kept by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from raylog.protocol.errors import InvalidSessionTimeout
from raylog.protocol.ids import NO_MEMBER, Generation, InstanceId, MemberId

__all__ = ["GroupRules", "StoredGroup", "StoredMember"]

_FIRST = Generation(0)


@dataclass(frozen=True, slots=True)
class GroupRules:
    """What the broker's settings say about groups; times in ms."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2**31 - 1

    def check_session_timeout(self, session_timeout_ms: int) -> None:
        """Raises InvalidSessionTimeout."""
        if not self.min_session_timeout_ms <= session_timeout_ms <= self.max_session_timeout_ms:
            raise InvalidSessionTimeout(
                f"session.timeout.ms is {session_timeout_ms}; this cluster allows {self.min_session_timeout_ms} to "
                f"{self.max_session_timeout_ms} (group.min.session.timeout.ms, group.max.session.timeout.ms)"
            )


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
