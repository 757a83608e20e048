"""All groups that the registries know, and how one is forgotten."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from raylog.coordination.groups.deletion import finish_deletion
from raylog.coordination.groups.kinds import TOLD, decode_settled, mark_deleted
from raylog.coordination.metadata import group_paths
from raylog.coordination.store.port import Delete, MetadataStore, NoNode, NotEmpty, Op, StoreError
from raylog.coordination.store.unreadable import readable, skipping
from raylog.protocol.ids import GroupId, TopicName
from raylog.protocol.logs import Logger

log = Logger(__name__)


def group_ids(store: MetadataStore) -> list[GroupId]:
    """Every group that somebody joined or committed for, also by tools of Kafka's ZooKeeper era, in order."""
    names = {name: below for below in (group_paths.CONSUMERS, group_paths.GROUPS) for name in store.children(below)}
    found = []
    for name, below in names.items():
        with skipping():
            found.append(group_paths.group_named(name, below))
    return sorted(found)


def exists(store: MetadataStore, group: GroupId) -> bool:
    """True when :func:`group_ids` has it."""
    return any(found is not None for found in store.get_many([group_paths.group(group), group_paths.consumer(group)]))


def groups_with(store: MetadataStore, groups: Sequence[GroupId], topics: Collection[TopicName]) -> list[GroupId]:
    """Those of the groups that have nodes of offsets or owners below one of these names, in two round trips."""
    store.heartbeat()  # the server that answers may lag behind the one that took a commit
    names = set(map(group_paths.node_name, topics))
    below = [node for group in groups for node in (group_paths.offsets(group), group_paths.owners(group))]
    listed = store.children_each(below)
    found = []
    for group, read, owned in zip(groups, listed[::2], listed[1::2], strict=True):
        with skipping():
            if not names.isdisjoint([*readable(read), *readable(owned)]):
                found.append(group)
    return found


def delete_group(store: MetadataStore, group: GroupId, guards: Sequence[Op]) -> None:
    """Forget the group, its kind, state and offsets; nothing happens to a group that there is not.

    One write decides it, guarded by ``guards``; what is left then and cannot be removed now is removed later. Raises
    NonEmptyGroup.
    """
    if not exists(store, group):
        return
    mark = mark_deleted(store, group, guards)
    try:
        finish_deletion(store, group, mark.version)
    except StoreError as error:
        log.warning("group %s is deleted, and some of its nodes are left for later: %s", group, error)


def deleted_groups(store: MetadataStore) -> list[GroupId]:
    """Those that are deleted and not removed to the end."""
    groups = group_ids(store)
    found = zip(groups, store.get_each([group_paths.group(group) for group in groups]), strict=True)
    deleted = []
    for group, node in found:
        with skipping():
            settled = decode_settled(group, readable(node))
            if settled is not None and settled.is_deleted:
                deleted.append(group)
    return deleted


def delete_if_bare(store: MetadataStore, group: GroupId, guards: Sequence[Op]) -> bool:
    """Forget a group without members and offsets; False when it has some."""
    return _delete_skeleton(store, group, guards) is None


def _delete_skeleton(store: MetadataStore, group: GroupId, guards: Sequence[Op]) -> NotEmpty | NoNode | None:
    """All of it at once; answers what was in the way, if anything was."""
    try:
        store.ensure(group_paths.GROUPS)
        store.multi([*guards, *map(Delete, _skeleton(store, group)), TOLD])
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
        group_paths.instances(group),
        group_paths.state(group),
        group_paths.claim(group),
        group_paths.group(group),
        group_paths.empty(group),
    ]
    return [node for node, found in zip(nodes, store.get_many(nodes), strict=True) if found is not None]
