"""Which kind of group a group is: of actors or of Kafka's clients, never both, and how an empty one changes or goes.

/raylog/groups/G says so, and its version changes only with the kind. Whoever acts for a group of one kind checks that
version in the multi of every write that makes or keeps somebody a member: then no change comes between.

A group is deleted by making it one of kind DELETED, in one write: it fails while members are registered, and those who
come later find that there is no such group. Whatever time it takes to remove its nodes, nobody sees half of a group.

A coordinator remembers the groups that it has claimed. What others do to one, its kind included, sets /raylog/groups in
the same multi (:data:`TOLD`): as long as the version of that node stays, what a coordinator remembers is so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from raylog.coordination.groups.deletion import finish_deletion, read_registry
from raylog.coordination.groups.offset_nodes import partitions_below
from raylog.coordination.metadata import group_paths
from raylog.coordination.metadata.group_model import GroupKind as GroupKind
from raylog.coordination.store.node_json import Reading, load
from raylog.coordination.store.port import (
    ANY_VERSION,
    BadVersion,
    Check,
    Create,
    Delete,
    MetadataStore,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    Set,
    Versioned,
)
from raylog.protocol.errors import InconsistentGroupProtocol, InvalidGroupId, NonEmptyGroup, UnknownMemberId
from raylog.protocol.ids import GroupId

TOLD = Set(group_paths.GROUPS, b"")
"""Part of a multi that changes a group which a broker may have claimed, by somebody else than that broker; and of one
that deletes a group, where that broker may not hear of it, either.
"""

_ATTEMPTS = 10
"""Another who settles the kind at the same time wins each time, or is done."""


class SettledKind(NamedTuple):
    """A group's kind as it was read."""

    kind: GroupKind
    version: int
    """Of the group's node, for :meth:`check`."""

    @property
    def is_deleted(self) -> bool:
        """There is no such group any more."""
        return self.kind is GroupKind.DELETED

    def check(self, group: GroupId) -> Check:
        """Fails with BadVersion or NoNode once the group is of another kind, or deleted."""
        return Check(group_paths.group(group), self.version)


def check_group_id(group: GroupId) -> None:
    """Raises InvalidGroupId."""
    if not group:
        raise InvalidGroupId("group.id is empty: give the group a name")
    most = group_paths.MAX_NODE_NAME
    if (length := len(group_paths.node_name(group))) > most:
        raise InvalidGroupId(
            f"group.id {group[:40]!r}… takes {length} bytes in the metadata store, where {most} are allowed "
            "(other than ASCII takes three for each byte): give the group a shorter name"
        )


def read_kind(store: MetadataStore, group: GroupId) -> SettledKind | None:
    """None while nobody has joined the group or committed for it, or since it is deleted and nothing of it left."""
    return decode_settled(group, store.get(group_paths.group(group)))


def decode_settled(group: GroupId, found: Versioned | None) -> SettledKind | None:
    """:func:`read_kind` of what was read of the group's node."""
    return None if found is None else SettledKind(group_paths.decode_kind(group, found.data), found.version)


def settle_kind(store: MetadataStore, group: GroupId, kind: GroupKind) -> SettledKind:
    """See that the group is of this kind, making it, or changing an empty one.

    Raises InvalidGroupId, InconsistentGroupProtocol when it has members of the other kind, StoreUnavailable.
    """
    check_group_id(group)
    for _ in range(_ATTEMPTS):
        try:
            found = store.get(group_paths.group(group))
            settled = decode_settled(group, found)
            if settled is None:
                _make(store, group, kind)
            elif settled.kind is kind:
                if kind is GroupKind.ACTORS:
                    _mend_registry(store, group, settled)
                return settled
            elif settled.is_deleted:
                finish_deletion(store, group, settled.version)
            elif settled.kind is GroupKind.ACTORS:
                _from_actors(store, group, found)
            else:
                _from_clients(store, group, found)
        except (BadVersion, NoNode, NodeExists):
            pass  # somebody else was at it: look again
    raise InconsistentGroupProtocol(
        f"whether group {group} is one of actors or of Kafka's clients has changed {_ATTEMPTS} times while a member "
        "of one kind wanted to join: give the others a group.id of their own"
    )


def mark_deleted(store: MetadataStore, group: GroupId, guards: Sequence[Op]) -> SettledKind:
    """From now on there is no such group; what of it is stored is still to be removed.

    ``guards`` come first in the multi. Raises NonEmptyGroup while a member is registered or owns something.
    """
    store.ensure(group_paths.members(group))
    store.ensure(group_paths.GROUPS)
    node, in_use = group_paths.group(group), ""
    for _ in range(_ATTEMPTS):
        if owner := _owner_that_lives(store, group):
            in_use = owner
            break
        found = store.get(node)
        settled = decode_settled(group, found)
        if settled is not None and settled.is_deleted:
            return settled
        becomes = _becomes(group, found, GroupKind.DELETED)
        try:
            nobody = _no_members(store, group, read_registry(store, group).others)
            store.multi([*guards, *becomes, *nobody, TOLD])
            return SettledKind(GroupKind.DELETED, len(becomes) - 1 if found is None else found.version + len(becomes))
        except (BadVersion, NoNode, NodeExists, NotEmpty) as error:
            if error.index < len(guards):
                raise
            in_use = str(error)
            if isinstance(error, NotEmpty):
                break
    raise NonEmptyGroup(f"group {group} is in use ({in_use}): stop its consumers first")


def _owner_that_lives(store: MetadataStore, group: GroupId) -> str:
    """The node of one, if there is any."""
    partitions = partitions_below(store, group_paths.owners(group))
    nodes = [group_paths.owner(group, tp) for tp in partitions]
    stats = store.exists_many(nodes) if nodes else []
    return next((node for node, stat in zip(nodes, stats, strict=True) if stat and stat.ephemeral_owner), "")


def vacancy(store: MetadataStore, group: GroupId, settled: SettledKind) -> Sequence[Op]:
    """Operations that fail in a multi while a member of this group of actors is registered, and change nothing.

    For whoever wants to commit offsets of the group without being in it: raises UnknownMemberId when members are.
    """
    registry = read_registry(store, group)
    if registry.registrations:
        raise UnknownMemberId(f"group {group} has members, which are actors: only they commit its offsets")
    return settled.check(group), *_no_members(store, group, registry.others)


def _no_members(store: MetadataStore, group: GroupId, others: Sequence[str]) -> Sequence[Op]:
    """Operations that fail while an actor is registered, and change nothing.

    A node's version does not tell whether it has children; but a node that has some cannot be deleted. ``others``, what
    is no registration, are made anew with it.
    """
    registry = group_paths.members(group)
    found = zip(others, store.get_many(others) if others else (), strict=True)
    there = [(node, each) for node, each in found if each is not None]
    return (
        *(Delete(node, each.version) for node, each in there),
        *(Delete(registry), Create(registry)),
        *(Create(node, each.data) for node, each in there),
    )


_ORDER = (GroupKind.ACTORS, GroupKind.CLIENTS, GroupKind.DELETED)


def _becomes(group: GroupId, found: Versioned | None, kind: GroupKind) -> Sequence[Op]:
    """A group that is made anew has old versions again: so what is left over when a version is divided by three tells
    the kind, and a check of one kind fails on every other.
    """
    node, data = group_paths.group(group), group_paths.encode_kind(kind)
    becomes: list[Op] = [Create(node, data) if found is None else Set(node, data, found.version)]
    version = 0 if found is None else found.version + 1
    return becomes + [Set(node, data)] * ((_ORDER.index(kind) - version) % len(_ORDER))


def _make(store: MetadataStore, group: GroupId, kind: GroupKind) -> None:
    store.ensure(group_paths.members(group))
    store.ensure(group_paths.GROUPS)
    registry = Check(group_paths.members(group), ANY_VERSION)
    told = [TOLD] if kind is GroupKind.ACTORS else []  # clients' groups are made by who is to claim them
    store.multi([registry, *_becomes(group, None, kind), *told])


def _mend_registry(store: MetadataStore, group: GroupId, settled: SettledKind) -> None:
    """Members register below this node, and whatever deleted it left the group."""
    nodes = [group_paths.consumer(group), group_paths.members(group)]
    missing = [Create(node) for node, found in zip(nodes, store.exists_many(nodes), strict=True) if found is None]
    if missing:
        store.multi([settled.check(group), *missing])


def _from_actors(store: MetadataStore, group: GroupId, found: Versioned | None) -> None:
    store.ensure(group_paths.members(group))
    try:
        store.multi(
            [*_becomes(group, found, GroupKind.CLIENTS), *_no_members(store, group, read_registry(store, group).others)]
        )
    except NotEmpty as error:
        raise InconsistentGroupProtocol(
            f"group {group} is one of actors (Consumer(group_id=…), raylog.client.group), and some are in it: a Kafka "
            "client needs another group.id"
        ) from error


def _from_clients(store: MetadataStore, group: GroupId, found: Versioned | None) -> None:
    """The coordinator's state is written as it is: its next write, by the version that it knows, is refused."""
    store.ensure(group_paths.members(group))
    node = group_paths.state(group)
    state = store.get(node)
    if state is not None and _has_members(node, state):
        raise InconsistentGroupProtocol(
            f"group {group} is one of Kafka's clients, and some are in it: actors need another group.id"
        )
    registry = Check(group_paths.members(group), ANY_VERSION)
    as_it_is = Create(node) if state is None else Set(node, state.data, state.version)
    store.multi([*_becomes(group, found, GroupKind.ACTORS), registry, as_it_is, TOLD])


def _has_members(path: str, state: Versioned) -> bool:
    """Whatever else the coordinator stores (``broker/groups``), it has this field."""
    if not state.data:
        return False
    value = load(path, state.data)
    with Reading(path):
        return bool(value["members"])
