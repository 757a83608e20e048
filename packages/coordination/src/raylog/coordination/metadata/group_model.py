"""◆ Consumer groups as values, as the registries hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from raylog.protocol.ids import (
    NO_EPOCH,
    NO_TIMESTAMP,
    Generation,
    InstanceId,
    LeaderEpoch,
    MemberId,
    Offset,
    TimestampMs,
    TopicName,
    TopicPartition,
)


class GroupKind(StrEnum):
    """Who the members of a group are; never both."""

    ACTORS = "actors"
    """Consumers of raylog, which coordinate by the registries."""
    CLIENTS = "clients"
    """Kafka's consumers, whose group a broker coordinates."""
    DELETED = "deleted"
    """Nobody's: there is no such group any more, and what is left of it goes (``groups.deletion``)."""


class CommittedOffset(NamedTuple):
    """How far a group has read one partition, as it was committed."""

    offset: Offset
    """The next record to read."""
    leader_epoch: LeaderEpoch = NO_EPOCH
    """That of the last record before it (KIP-320); -1: not known."""
    metadata: str = ""
    """What whoever committed wrote beside it."""
    committed_ms: TimestampMs = NO_TIMESTAMP
    """When; -1: not known."""


class Registered(NamedTuple):
    """A member of a group of actors, as it registered."""

    topics: frozenset[TopicName]
    """What it subscribes to; empty where ``pattern`` says that."""
    pattern: str | None
    """A regular expression over whole names of topics."""
    host: str = ""
    """Where it listens, so that others notice its death; "" where it does not say."""
    port: int = -1
    machine: str = ""
    """On which it runs (``liveness.machine_id``); "" where it does not say."""
    instance: InstanceId | None = None
    """The group.instance.id of a static member (KIP-345)."""


@dataclass(frozen=True, slots=True)
class Shares:
    """The value of /raylog/groups/G/assignment."""

    generation: Generation
    members: Mapping[MemberId, tuple[TopicPartition, ...]]
