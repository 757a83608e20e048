"""◆ What members of a classic group ask of its coordinator, and what they are answered.

Kafka's names and meanings: the JoinGroup, SyncGroup, LeaveGroup, Heartbeat and OffsetCommit APIs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from raylog.broker.groups.classic.stored import StoredGroup
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import NO_GENERATION, NO_MEMBER, Generation, InstanceId, MemberId

__all__ = [
    "NOBODY",
    "Identity",
    "Join",
    "Joined",
    "JoinedMember",
    "Leaver",
    "MemberIdIs",
    "Outcome",
    "Protocol",
    "Reply",
    "Sync",
    "Synced",
    "Token",
]

Token = object
"""Stands for a request that waits for its answer; the coordinator's shell knows whose it is."""


class Protocol(NamedTuple):
    """A way of assigning that a member supports, and its subscription in that way's words, which only members read."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Identity:
    """Who says so, in every request but the first: the group refuses those that are out of date."""

    member_id: MemberId
    generation: Generation
    instance_id: InstanceId | None = None

    @property
    def is_outside(self) -> bool:
        """True when the request claims no part in a generation: it comes from a tool, or from a consumer that assigns
        partitions by hand. Such a consumer may name a member or an instance all the same (KAFKA-14201).
        """
        return self.generation < 0


NOBODY = Identity(NO_MEMBER, NO_GENERATION)
"""A request from outside that names neither member nor instance."""


@dataclass(frozen=True, slots=True)
class Join:
    """JoinGroup: take part in the next generation."""

    member_id: MemberId
    """Empty for one that has none yet."""
    instance_id: InstanceId | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    """How long the group waits for this member to come again when it is rebalanced."""
    protocol_type: str
    protocols: tuple[Protocol, ...]
    """The best first."""
    needs_id: bool = True
    """Versions from 4 on: a dynamic member gets its id first, and then joins with it (KIP-394)."""
    can_skip_assignment: bool = True
    """Versions from 9 on: a leader can be told that the assignment stands (KIP-814)."""


class JoinedMember(NamedTuple):
    """A member as the group's leader sees it."""

    member_id: MemberId
    instance_id: InstanceId | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Joined:
    """The answer to a join: the generation has begun."""

    member_id: MemberId
    generation: Generation
    protocol_type: str
    protocol: str
    leader: MemberId
    members: tuple[JoinedMember, ...] = ()
    """All of them, for the leader alone, who assigns."""
    skip_assignment: bool = False


class MemberIdIs(NamedTuple):
    """The answer to a first join (MEMBER_ID_REQUIRED): join again, as this."""

    member_id: MemberId


@dataclass(frozen=True, slots=True)
class Sync:
    """SyncGroup: learn what one was assigned; the leader says what all were."""

    who: Identity
    assignments: tuple[tuple[MemberId, bytes], ...] = ()
    protocol_type: str | None = None
    """Versions from 5 on; None before, as ``protocol``: then neither is checked."""
    protocol: str | None = None


@dataclass(frozen=True, slots=True)
class Synced:
    """The answer to a sync."""

    protocol_type: str
    protocol: str
    assignment: bytes


class Leaver(NamedTuple):
    """Who leaves: by its id, or by its instance id with an empty one."""

    member_id: MemberId
    instance_id: InstanceId | None = None


Reply = Joined | MemberIdIs | Synced | RaylogError


class Outcome(NamedTuple):
    """What follows from one event."""

    replies: tuple[tuple[Token, Reply], ...] = ()
    store: StoredGroup | None = None
    """To be written before any of ``replies`` is sent."""
