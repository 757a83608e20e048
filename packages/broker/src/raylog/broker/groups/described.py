"""◆ Groups as those see them who ask about them."""

from __future__ import annotations

from typing import NamedTuple

from raylog.protocol.ids import GroupId, InstanceId, MemberId

__all__ = ["DescribedGroup", "DescribedMember", "ListedGroup"]


class DescribedMember(NamedTuple):
    """A member as DescribeGroups shows it."""

    member_id: MemberId
    instance_id: InstanceId | None
    client_id: str
    client_host: str
    metadata: bytes
    """Its subscription, in the words of the group's protocol; empty until that is elected."""
    assignment: bytes
    """What it was assigned last; during a rebalance, in the generation before."""


class DescribedGroup(NamedTuple):
    """A group as DescribeGroups shows it."""

    state: str
    """In Kafka's words: Empty, PreparingRebalance, CompletingRebalance or Stable."""
    protocol_type: str
    protocol: str
    """Empty until it is elected."""
    members: tuple[DescribedMember, ...]


class ListedGroup(NamedTuple):
    """A group as ListGroups shows it."""

    group: GroupId
    protocol_type: str
    state: str
    """As :attr:`DescribedGroup.state`."""
