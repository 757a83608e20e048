"""What is left to do once a group is marked as deleted (``groups.kinds``): its nodes go, in as many writes as it takes.

The mark is the kind in the group's node. From then on nobody sees the group, is in it, or commits for it. Whoever meets
the mark takes away what is left, and the mark at last: one that dies halfway leaves the rest to the next. Each write
checks the mark, so that none reaches a group that was made anew.

What others have put below a group's nodes goes with them, as Kafka's tools did it in its ZooKeeper era, and is told.
Only a registration that came after the mark, by a program that knows of none, stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from raylog.coordination.metadata import group_paths
from raylog.coordination.store.node_json import CorruptMetadata
from raylog.coordination.store.port import BadVersion, Check, Delete, MetadataStore, NoNode, NotEmpty, Stat
from raylog.coordination.store.trees import delete_tree, nodes_below
from raylog.coordination.store.unreadable import tell
from raylog.protocol.ids import GroupId

__all__ = ["finish_deletion", "is_registration", "read_registry"]

_OURS = re.compile(r"|/(ids|state|claim|(assignment|instances|owners|offsets)(/[^/]+)?|(owners|offsets)/[^/]+/\d+)")
"""Below the two nodes of a group; members are looked at apart."""
_ATTEMPTS = 3
"""A commit that was under way may leave nodes above its own."""


def is_registration(node: str, stat: Stat | None) -> bool:
    """Whether this node of a member says that it is registered. A registration ends with its session: what is
    persistent is another program's, and told.
    """
    if stat is not None and not stat.ephemeral_owner:
        tell(CorruptMetadata(node, "is persistent, so it registers no member"))
    return stat is not None and bool(stat.ephemeral_owner)


class Registry(NamedTuple):
    """The nodes below that of a group's members."""

    registrations: list[str]
    others: list[str]
    """Persistent ones, of other programs."""


def read_registry(store: MetadataStore, group: GroupId) -> Registry:
    """Two round trips, one where there is nothing."""
    nodes = [f"{group_paths.members(group)}/{name}" for name in store.children(group_paths.members(group))]
    found = Registry([], [])
    for node, stat in zip(nodes, store.exists_many(nodes) if nodes else (), strict=True):
        if stat is not None:
            (found.registrations if is_registration(node, stat) else found.others).append(node)
    return found


def finish_deletion(store: MetadataStore, group: GroupId, version: int) -> None:
    """Take away what is left of a group that is marked as deleted by this ``version`` of its node."""
    mark = Check(group_paths.group(group), version)
    try:
        for attempt in range(_ATTEMPTS):
            try:
                _clear(store, group, mark)
                return
            except NotEmpty:
                if attempt == _ATTEMPTS - 1:
                    raise
    except (BadVersion, NoNode) as error:
        if error.path != mark.path:
            raise  # else another has done it


def _clear(store: MetadataStore, group: GroupId, mark: Check) -> None:
    consumer, members, node = group_paths.consumer(group), group_paths.members(group), mark.path
    _tell_foreign(group, [*nodes_below(store, consumer), *nodes_below(store, node)])
    whole = [f"{consumer}/{name}" for name in store.children(consumer)]
    whole = [*filter(members.__ne__, whole), *read_registry(store, group).others]
    for path in [*whole, *(f"{node}/{name}" for name in store.children(node))]:
        delete_tree(store, path, [mark])
    for path in (members, consumer, group_paths.empty(group)):
        try:
            store.multi([mark, Delete(path)])
        except (NoNode, NotEmpty) as error:
            if not error.index:
                raise
    store.multi([Delete(node, mark.version)])


def _tell_foreign(group: GroupId, nodes: Iterable[str]) -> None:
    registry = f"{group_paths.members(group)}/"
    for path in nodes:
        below = path.removeprefix(group_paths.consumer(group)).removeprefix(group_paths.group(group))
        if not path.startswith(registry) and not _OURS.fullmatch(below):
            tell(CorruptMetadata(path, f"is foreign, and is deleted with group {group}"))
