"""Which kind of group a group is: of actors or of Kafka's clients, never both, and how an empty one changes.

/raylog/groups/G says so, and its version changes only with the kind. Whoever acts for a group of one kind checks that
version in the multi of every write that makes or keeps somebody a member: then no change comes between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from raylog.coordination import group_paths
from raylog.coordination.group_model import GroupKind as GroupKind
from raylog.coordination.node_json import Reading, load
from raylog.coordination.store import (
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
from raylog.protocol.errors import InconsistentGroupProtocol, InvalidGroupId, UnknownMemberId
from raylog.protocol.ids import GroupId

_ATTEMPTS = 10
"""Another who settles the kind at the same time wins each time, or is done."""


class SettledKind(NamedTuple):
    """A group's kind as it was read."""

    kind: GroupKind
    version: int
    """Of the group's node, for :meth:`check`."""

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
    """None while nobody has joined the group or committed for it."""
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
            settled = read_kind(store, group)
            if settled is None:
                _make(store, group, kind)
            elif settled.kind is kind:
                if kind is GroupKind.ACTORS:
                    _mend_registry(store, group, settled)
                return settled
            elif settled.kind is GroupKind.ACTORS:
                _from_actors(store, group, settled)
            else:
                _from_clients(store, group, settled)
        except (BadVersion, NoNode, NodeExists):
            pass  # somebody else was at it: look again
    raise InconsistentGroupProtocol(
        f"whether group {group} is one of actors or of Kafka's clients has changed {_ATTEMPTS} times while a member "
        "of one kind wanted to join: give the others a group.id of their own"
    )


def vacancy(store: MetadataStore, group: GroupId, settled: SettledKind) -> Sequence[Op]:
    """Operations that fail in a multi while a member of this group of actors is registered, and change nothing.

    For whoever wants to commit offsets of the group without being in it: raises UnknownMemberId when members are.
    """
    if store.children(group_paths.members(group)):
        raise UnknownMemberId(f"group {group} has members, which are actors: only they commit its offsets")
    return settled.check(group), *no_members(group)


def no_members(group: GroupId) -> tuple[Op, Op]:
    """Operations that fail while an actor is registered.

    A node's version does not tell whether it has children; but a node that has some cannot be deleted.
    """
    registry = group_paths.members(group)
    return Delete(registry), Create(registry)


def _make(store: MetadataStore, group: GroupId, kind: GroupKind) -> None:
    """A group that is made anew has old versions again: so even ones are always of actors, odd ones of clients."""
    store.ensure(group_paths.members(group))
    store.ensure(group_paths.GROUPS)
    node, data = group_paths.group(group), group_paths.encode_kind(kind)
    made: list[Op] = [Check(group_paths.members(group), ANY_VERSION), Create(node, data)]
    store.multi([*made, Set(node, data)] if kind is GroupKind.CLIENTS else made)


def _mend_registry(store: MetadataStore, group: GroupId, settled: SettledKind) -> None:
    """Members register below this node, and whatever deleted it left the group."""
    nodes = [group_paths.consumer(group), group_paths.members(group)]
    missing = [Create(node) for node, found in zip(nodes, store.exists_many(nodes), strict=True) if found is None]
    if missing:
        store.multi([settled.check(group), *missing])


def _from_actors(store: MetadataStore, group: GroupId, settled: SettledKind) -> None:
    store.ensure(group_paths.members(group))
    becomes = Set(group_paths.group(group), group_paths.encode_kind(GroupKind.CLIENTS), settled.version)
    try:
        store.multi([becomes, *no_members(group)])
    except NotEmpty as error:
        raise InconsistentGroupProtocol(
            f"group {group} is one of actors (Consumer(group_id=…), raylog.client.group), and some are in it: a Kafka "
            "client needs another group.id"
        ) from error


def _from_clients(store: MetadataStore, group: GroupId, settled: SettledKind) -> None:
    """The coordinator's state is written as it is: its next write, by the version that it knows, is refused."""
    store.ensure(group_paths.members(group))
    node = group_paths.state(group)
    state = store.get(node)
    if state is not None and _has_members(node, state):
        raise InconsistentGroupProtocol(
            f"group {group} is one of Kafka's clients, and some are in it: actors need another group.id"
        )
    becomes = Set(group_paths.group(group), group_paths.encode_kind(GroupKind.ACTORS), settled.version)
    registry = Check(group_paths.members(group), ANY_VERSION)
    store.multi([becomes, registry, Create(node) if state is None else Set(node, state.data, state.version)])


def _has_members(path: str, state: Versioned) -> bool:
    """Whatever else the coordinator stores (``broker/groups``), it has this field."""
    if not state.data:
        return False
    value = load(path, state.data)
    with Reading(path):
        return bool(value["members"])
