"""Groups of actors as Kafka's tools see them: put together from the registries, for no broker coordinates them.

What a member reads is what it owns now, not what it should: while these differ, the group is being rebalanced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from raylog.broker.groups.classic.described import DescribedGroup, DescribedMember
from raylog.broker.groups.classic.group import GroupState
from raylog.broker.groups.classic.messages import Leaver
from raylog.coordination.groups.deletion import is_registration
from raylog.coordination.groups.instances import removal
from raylog.coordination.metadata import group_paths
from raylog.coordination.metadata.group_model import Registered, Shares
from raylog.coordination.metadata.topic_patterns import matching_topics
from raylog.coordination.store.node_json import CorruptMetadata
from raylog.coordination.store.port import BadVersion, MetadataStore, NoNode, WriteTooLarge
from raylog.coordination.store.unreadable import readable, skipping
from raylog.protocol.errors import CoordinatorNotAvailable, InvalidConfig, RaylogError, UnknownMemberId
from raylog.protocol.ids import NO_GENERATION, GroupId, InstanceId, MemberId, TopicName, TopicPartition
from raylog.protocol.logs import Logger
from raylog.protocol.wire import consumer_protocol

__all__ = ["describe_actors", "describe_old", "list_actors", "registered_names", "remove_actors"]

log = Logger(__name__)

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
            instance_id=about.instance,
            client_id=member,
            client_host=f"/{about.host}",
            metadata=consumer_protocol.encode_subscription(_subscribed(about, topics)),
            assignment=consumer_protocol.encode_assignment(owned.get(member, ())),
        )
        for member, about in sorted(registered.items())
    )
    state = GroupState.STABLE if is_stable else GroupState.PREPARING_REBALANCE
    return DescribedGroup(state, consumer_protocol.PROTOCOL_TYPE, _PROTOCOL, members)


def remove_actors(store: MetadataStore, group: GroupId, leavers: Sequence[Leaver]) -> list[RaylogError | None]:
    """End members at once, with all that they own: for who knows that static ones will not come back (KIP-345). One
    that lives registers anew. A result for each leaver: UnknownMemberId; CoordinatorNotAvailable: try again.
    """
    registered = _registered(store, group)
    results: list[RaylogError | None] = []
    for leaver in leavers:
        named = [
            member
            for member, about in registered.items()
            if leaver.member_id in ("", member) and leaver.instance_id in (None, about.instance)
        ]
        if leaver == Leaver(MemberId("")) or not named:
            results.append(UnknownMemberId(f"group {group} has no member {leaver.instance_id or leaver.member_id!r}"))
        else:
            results.append(_removed(store, group, named[0], registered[named[0]].instance))
    return results


def _removed(store: MetadataStore, group: GroupId, member: MemberId, instance: InstanceId | None) -> RaylogError | None:
    try:
        store.multi(removal(store, group, member, instance))
    except (NoNode, BadVersion, WriteTooLarge) as error:
        return CoordinatorNotAvailable(f"member {member} of group {group} is not removed: {error}; try again")
    log.warning("group %s: member %s is removed on request", group, member)
    return None


def describe_old(store: MetadataStore, group: GroupId) -> DescribedGroup:
    """A group of Kafka's ZooKeeper era: its tools committed for it, or its consumers are registered. What those read,
    nobody but they know.
    """
    names = registered_names(store, [group])[group]
    if isinstance(names, CorruptMetadata):
        raise names
    members = tuple(DescribedMember(group_paths.member_of(name), None, "", "", b"", b"") for name in names)
    return DescribedGroup(GroupState.STABLE if members else GroupState.EMPTY, "", "", members)


def registered_names(store: MetadataStore, groups: Sequence[GroupId]) -> dict[GroupId, list[str] | CorruptMetadata]:
    """The names of the nodes of those that are registered in each of the groups, in two round trips."""
    registered: dict[GroupId, list[str]] = {}
    unreadable: dict[GroupId, CorruptMetadata] = {}
    nodes: list[tuple[GroupId, str, str]] = []
    for group, found in zip(groups, store.children_each([group_paths.members(each) for each in groups]), strict=True):
        try:
            nodes += ((group, name, f"{group_paths.members(group)}/{name}") for name in readable(found))
            registered[group] = []
        except CorruptMetadata as error:
            unreadable[group] = error
    stats = store.exists_many([node for *_, node in nodes]) if nodes else []
    for (group, name, node), stat in zip(nodes, stats, strict=True):
        if is_registration(node, stat):
            registered[group].append(name)
    names: dict[GroupId, list[str] | CorruptMetadata] = {**registered, **unreadable}
    return names


def list_actors(store: MetadataStore, groups: Sequence[GroupId]) -> dict[GroupId, GroupState | CorruptMetadata]:
    """The states of many groups in five round trips, or what cannot be read. Owners are counted, not compared: a group
    whose partitions change hands may be Stable here while its description tells that it is being rebalanced.
    """
    states: dict[GroupId, GroupState | CorruptMetadata] = dict.fromkeys(groups, GroupState.EMPTY)
    names: dict[GroupId, list[str]] = {}
    for group, listed in zip(groups, store.children_each([group_paths.members(g) for g in groups]), strict=True):
        try:
            names[group] = readable(listed)
        except CorruptMetadata as error:
            states[group] = error
    living = [group for group, listed in names.items() if listed]
    assigned: dict[GroupId, Shares] = {}
    for group, found in zip(living, store.get_each([group_paths.assignment(g) for g in living]), strict=True):
        try:
            node = readable(found)
            none = Shares(NO_GENERATION, {})
            assigned[group] = none if node is None else group_paths.decode_assignment(group, node.data)
        except CorruptMetadata as error:
            states[group] = error
    members = {group: _named(group, names[group]) for group in assigned}
    newcomers = {group: members[group] - shares.members.keys() for group, shares in assigned.items()}
    registered = _read_members(store, [(group, member) for group, each in newcomers.items() for member in each])
    for group, shares in assigned.copy().items():
        is_new = any((group, member) in registered for member in newcomers[group])
        known = members[group] & shares.members.keys()
        states[group] = GroupState.PREPARING_REBALANCE if known or is_new else GroupState.EMPTY
        if is_new or known != shares.members.keys():
            del assigned[group]
    topics = {group: _topics(shares) for group, shares in assigned.items()}
    asked = [(group, topic) for group, each in topics.items() for topic in each]
    owners = store.children_each([group_paths.owners_of_topic(group, topic) for group, topic in asked])
    counts = Counter[GroupId]()
    for (group, _), partitions in zip(asked, owners, strict=True):
        with skipping():
            counts[group] += len(readable(partitions))
    for group, shares in assigned.items():
        if shares.members and counts[group] == sum(map(len, shares.members.values())):
            states[group] = GroupState.STABLE
    return states


def _topics(shares: Shares) -> set[TopicName]:
    return {tp.topic for partitions in shares.members.values() for tp in partitions}


def _registered(store: MetadataStore, group: GroupId) -> dict[MemberId, Registered]:
    members = sorted(_named(group, store.children(group_paths.members(group))))
    return {member: about for (_, member), about in _read_members(store, [(group, m) for m in members]).items()}


def _named(group: GroupId, names: Iterable[str]) -> set[MemberId]:
    """Those of these names that a member's node can have."""
    members = set()
    for name in names:
        with skipping():
            members.add(group_paths.member_named(name, group_paths.members(group)))
    return members


def _read_members(
    store: MetadataStore, members: Sequence[tuple[GroupId, MemberId]]
) -> dict[tuple[GroupId, MemberId], Registered]:
    """What they registered; what stands there and cannot be read is no member."""
    nodes = [group_paths.member(group, member) for group, member in members]
    registered = {}
    found = (store.get_each(nodes), store.exists_many(nodes)) if nodes else ((), ())
    for member, node, each, stat in zip(members, nodes, *found, strict=True):
        with skipping():
            if (value := readable(each)) is not None and is_registration(node, stat):
                registered[member] = group_paths.decode_member(node, value.data)
    return registered


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
