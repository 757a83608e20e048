"""All groups that the registries know, and how one is forgotten."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from raylog.coordination import group_paths
from raylog.coordination.group_kinds import no_members
from raylog.coordination.offsets import RegistryOffsetStore
from raylog.coordination.store import BadVersion, Delete, MetadataStore, NoNode, NotEmpty, Op, size_of
from raylog.coordination.unreadable import skipping
from raylog.protocol.errors import NonEmptyGroup
from raylog.protocol.ids import GroupId

_ATTEMPTS = 3
"""Commits may come between."""
_BYTES_AT_ONCE = 900_000
"""What one multi deletes at most: some 3,000 nodes. A group is rarely deleted, so it may hold up others a moment."""


def group_ids(store: MetadataStore) -> list[GroupId]:
    """Every group that somebody joined or committed for, also by tools of Kafka's ZooKeeper era, in order."""
    found = set()
    for below in (group_paths.GROUPS, group_paths.CONSUMERS):
        for name in store.children(below):
            with skipping():
                found.add(group_paths.group_named(name, below))
    return sorted(found)


def exists(store: MetadataStore, group: GroupId) -> bool:
    """True when :func:`group_ids` has it."""
    return any(found is not None for found in store.get_many([group_paths.group(group), group_paths.consumer(group)]))


def delete_group(store: MetadataStore, group: GroupId, guards: Sequence[Op]) -> None:
    """Forget the group, its kind, state and offsets; nothing happens to a group that there is not.

    All of it is one multi, which fails while an actor is registered: then nothing is deleted. Only the offsets of more
    than a thousand partitions go before, in parts that fail alike. ``guards`` come first in every multi. Raises
    NonEmptyGroup.
    """
    offsets = RegistryOffsetStore(store)
    for attempt in range(_ATTEMPTS):
        seen = offsets.look(group)
        skeleton = _skeleton(store, group)
        nodes = [*(path for path, found in seen.nodes.items() if found is not None), *skeleton]
        try:
            if sum(size_of(Delete(node)) for node in nodes) > _BYTES_AT_ONCE:
                offsets.forget(group, seen, seen.partitions, [*guards, *_vacancy(skeleton, group)])
                nodes = _skeleton(store, group)
            store.multi([*guards, *map(Delete, nodes)])
            return
        except (NotEmpty, NoNode, BadVersion) as error:
            if error.index < len(guards):
                raise
            in_use = error.path.startswith((group_paths.members(group), group_paths.owners(group)))
            if in_use or attempt == _ATTEMPTS - 1:
                raise NonEmptyGroup(f"group {group} is in use ({error}): stop its consumers first") from error


def _vacancy(skeleton: Sequence[str], group: GroupId) -> Sequence[Op]:
    """Nobody is registered, or this fails."""
    return no_members(group) if group_paths.members(group) in skeleton else ()


def delete_if_bare(store: MetadataStore, group: GroupId, guards: Sequence[Op]) -> bool:
    """Forget a group without members and offsets; False when it has some."""
    return _delete_skeleton(store, group, guards) is None


def _delete_skeleton(store: MetadataStore, group: GroupId, guards: Sequence[Op]) -> NotEmpty | NoNode | None:
    """All of it at once; answers what was in the way, if anything was."""
    try:
        store.multi([*guards, *map(Delete, _skeleton(store, group))])
    except (NotEmpty, NoNode) as error:
        if error.index < len(guards):
            raise
        return error
    return None


def _skeleton(store: MetadataStore, group: GroupId) -> list[str]:
    """What is left of a group without offsets, children first; members and owners keep what is above them."""

    def with_children(path: str) -> Iterator[str]:
        yield from (f"{path}/{name}" for name in store.children(path))
        yield path

    nodes = [
        *with_children(group_paths.offsets(group)),
        *with_children(group_paths.owners(group)),
        group_paths.members(group),
        group_paths.consumer(group),
        *with_children(group_paths.details(group)),
        *with_children(group_paths.assignment(group)),
        group_paths.state(group),
        group_paths.claim(group),
        group_paths.group(group),
        group_paths.empty(group),
    ]
    return [node for node, found in zip(nodes, store.get_many(nodes), strict=True) if found is not None]
