"""◆ Groups as those see them who ask about them."""

from __future__ import annotations

from typing import NamedTuple

from raylog.broker.groups.classic.group import ClassicGroup, GroupState
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import GroupId, InstanceId, MemberId, TopicName
from raylog.protocol.wire import consumer_protocol

__all__ = ["DescribedGroup", "DescribedMember", "ListedGroup", "describe_machine", "subscribed_topics"]


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


def subscribed_topics(described: DescribedGroup) -> frozenset[TopicName] | None:
    """The topics that the group's members read; None: nobody but they know."""
    if described.members and described.protocol_type != consumer_protocol.PROTOCOL_TYPE:
        return None
    topics: set[TopicName] = set()
    for member in described.members:
        try:
            topics |= consumer_protocol.subscribed_topics(member.metadata)
        except RaylogError:
            return None
    return frozenset(topics)


def describe_machine(machine: ClassicGroup) -> DescribedGroup:
    """A group of Kafka clients as its coordinator has it in memory."""
    has_elected = machine.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE)
    members = tuple(
        DescribedMember(
            member.id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.metadata(machine.protocol) if has_elected else b"",
            member.assignment,
        )
        for member in machine.members
    )
    return DescribedGroup(machine.state, machine.protocol_type, machine.protocol if has_elected else "", members)
