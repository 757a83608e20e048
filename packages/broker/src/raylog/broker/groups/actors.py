"""Groups of actors as Kafka's tools see them: put together from the registries, for no broker coordinates them.

What a member reads is what it owns now, not what it should: while these differ, the group is being rebalanced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from raylog.broker.groups.classic import GroupState
from raylog.broker.groups.described import DescribedGroup, DescribedMember
from raylog.coordination import group_paths
from raylog.coordination.group_events import Shares
from raylog.coordination.group_model import Registered
from raylog.coordination.node_json import CorruptMetadata
from raylog.coordination.store import MetadataStore
from raylog.coordination.topic_patterns import matching_topics
from raylog.protocol import consumer_protocol
from raylog.protocol.errors import InvalidConfig
from raylog.protocol.ids import NO_GENERATION, GroupId, MemberId, TopicName, TopicPartition

__all__ = ["describe_actors", "describe_old", "list_actors"]

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


def describe_old(store: MetadataStore, group: GroupId) -> DescribedGroup:
    """A group of Kafka's ZooKeeper era: its tools committed for it, or its consumers are registered. What those read,
    nobody but they know.
    """
    members = tuple(
        DescribedMember(group_paths.member_of(name), None, "", "", b"", b"")
        for name in store.children(group_paths.members(group))
    )
    return DescribedGroup(GroupState.STABLE if members else GroupState.EMPTY, "", "", members)


def list_actors(store: MetadataStore, groups: Sequence[GroupId]) -> dict[GroupId, GroupState | CorruptMetadata]:
    """The states of many groups in four round trips, or what cannot be read. Owners are counted, not compared: a group
    whose partitions change hands may be Stable here while its description tells that it is being rebalanced.
    """
    members = dict(zip(groups, store.children_many([group_paths.members(group) for group in groups]), strict=True))
    states: dict[GroupId, GroupState | CorruptMetadata] = {
        group: GroupState.PREPARING_REBALANCE if names else GroupState.EMPTY for group, names in members.items()
    }
    living = [group for group, names in members.items() if names]
    assigned: dict[GroupId, Shares] = {}
    found_of = zip(living, store.get_many([group_paths.assignment(group) for group in living]), strict=True)
    for group, found in found_of:
        try:
            shares = Shares(NO_GENERATION, {}) if found is None else group_paths.decode_assignment(group, found.data)
        except CorruptMetadata as error:
            states[group] = error
            continue
        if shares.members.keys() == {group_paths.member_of(name) for name in members[group]}:
            assigned[group] = shares
    topics = {group: _topics(shares) for group, shares in assigned.items()}
    asked = [(group, topic) for group, each in topics.items() for topic in each]
    owners = store.children_many([group_paths.owners_of_topic(group, topic) for group, topic in asked])
    counts = Counter[GroupId]()
    for (group, _), names in zip(asked, owners, strict=True):
        counts[group] += len(names)
    for group, shares in assigned.items():
        if counts[group] == sum(map(len, shares.members.values())):
            states[group] = GroupState.STABLE
    return states


def _topics(shares: Shares) -> set[TopicName]:
    return {tp.topic for partitions in shares.members.values() for tp in partitions}


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
