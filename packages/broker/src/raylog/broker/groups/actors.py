"""Groups of actors as Kafka's tools see them: put together from the registries, for no broker coordinates them.

What a member reads is what it owns now, not what it should: while these differ, the group is being rebalanced.
"""

from __future__ import annotations

from collections.abc import Collection

from raylog.broker.groups.classic import GroupState
from raylog.broker.groups.described import DescribedGroup, DescribedMember
from raylog.coordination import group_paths
from raylog.coordination.group_model import Registered
from raylog.coordination.store import MetadataStore
from raylog.coordination.topic_patterns import matching_topics
from raylog.protocol import consumer_protocol
from raylog.protocol.errors import InvalidConfig
from raylog.protocol.ids import GroupId, MemberId, TopicName, TopicPartition

__all__ = ["describe_actors"]

_PROTOCOL = "raylog"
"""In the place of a client's partition.assignment.strategy."""


def describe_actors(store: MetadataStore, group: GroupId, topics: Collection[TopicName]) -> DescribedGroup:
    """The group as its registries show it, read one after the other. ``topics``: those that there are, for patterns."""
    registered = _registered(store, group)
    if not registered:
        return DescribedGroup(GroupState.EMPTY, consumer_protocol.PROTOCOL_TYPE, "", ())
    shares = _shares(store, group)
    owned = _owned(store, group, sorted({tp for share in shares.values() for tp in share}))
    is_stable = shares.keys() == registered.keys() and all(owned.get(m, set()) == {*shares[m]} for m in registered)
    members = tuple(
        DescribedMember(
            member_id=member,
            instance_id=None,
            client_id=member,
            client_host=f"/{about.host}",
            metadata=consumer_protocol.encode_subscription(_subscribed(about, topics)),
            assignment=consumer_protocol.encode_assignment(owned.get(member, ())),
        )
        for member, about in sorted(registered.items())
    )
    state = GroupState.STABLE if is_stable else GroupState.PREPARING_REBALANCE
    return DescribedGroup(state, consumer_protocol.PROTOCOL_TYPE, _PROTOCOL, members)


def _registered(store: MetadataStore, group: GroupId) -> dict[MemberId, Registered]:
    members = [group_paths.member_of(name) for name in store.children(group_paths.members(group))]
    nodes = [group_paths.member(group, member) for member in members]
    return {
        member: group_paths.decode_member(node, found.data)
        for member, node, found in zip(members, nodes, store.get_many(nodes), strict=True)
        if found is not None
    }


def _shares(store: MetadataStore, group: GroupId) -> dict[MemberId, tuple[TopicPartition, ...]]:
    found = store.get(group_paths.assignment(group))
    return {} if found is None else dict(group_paths.decode_assignment(group, found.data).members)


def _owned(
    store: MetadataStore, group: GroupId, partitions: Collection[TopicPartition]
) -> dict[MemberId, set[TopicPartition]]:
    nodes = [group_paths.owner(group, tp) for tp in partitions]
    owned: dict[MemberId, set[TopicPartition]] = {}
    for tp, node, found in zip(partitions, nodes, store.get_many(nodes), strict=True):
        if found is not None:
            owned.setdefault(group_paths.decode_owner(node, found.data), set()).add(tp)
    return owned


def _subscribed(about: Registered, topics: Collection[TopicName]) -> Collection[TopicName]:
    if about.pattern is None:
        return about.topics
    try:
        return matching_topics(about.pattern, topics)
    except InvalidConfig:  # an old tool's, in another language's words
        return ()
