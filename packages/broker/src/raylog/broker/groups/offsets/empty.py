"""Since when a group has no members: kept in the metadata store, for brokers may start again more often than it counts.

Nobody hears of the end of the last actor in a group, and an old tool tells nobody what it does. So whoever looks after
retention notes when a group was found without members for the first time, together with its generation: if members came
and went between two looks, that is another one. Where some come back as they were, the generation stays: so the note
goes once members are found.

An old tool writes a number, without a time, and may be no member of anything: so the time begins anew with each such
write.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raylog.broker.groups.holding.held import read_group
from raylog.coordination.groups.kinds import GroupKind, SettledKind
from raylog.coordination.metadata import group_paths
from raylog.coordination.store.port import Create, Delete, MetadataStore, Op, Set
from raylog.protocol.ids import Generation, GroupId, TimestampMs, TopicPartition

__all__ = ["empty_since", "forget_note", "generation_of", "newest_write", "noted_groups"]


def generation_of(store: MetadataStore, group: GroupId, kind: SettledKind | None) -> Generation:
    """As it is stored; 0 where there was none."""
    if kind is None:
        return Generation(0)
    if kind.kind is GroupKind.CLIENTS:
        return read_group(store, group).generation
    found = store.get(group_paths.assignment(group))
    return Generation(0) if found is None else group_paths.decode_assignment(group, found.data).generation


def newest_write(store: MetadataStore, group: GroupId, partitions: Iterable[TopicPartition]) -> int:
    """The number of the newest write of these offsets; 0 where there are none."""
    stats = store.exists_many([group_paths.offset(group, tp) for tp in partitions])
    return max((stat.changed for stat in stats if stat is not None), default=0)


def noted_groups(store: MetadataStore) -> frozenset[GroupId]:
    """Those of which it is noted since when they have no members, whether or not they have some now."""
    return frozenset(map(group_paths.group_of, store.children(group_paths.EMPTY_GROUPS)))


def forget_note(store: MetadataStore, group: GroupId, guards: Sequence[Op]) -> None:
    """Members were found: when the group has none again, the time begins anew."""
    node = group_paths.empty(group)
    found = store.get(node)
    if found is not None:
        store.multi([*guards, Delete(node, found.version)])


def empty_since(
    store: MetadataStore,
    group: GroupId,
    generation: Generation,
    written: int,
    now_ms: TimestampMs,
    guards: Sequence[Op],
) -> TimestampMs:
    """When the group was found first without members in this generation, and with no newer write (:func:`newest_write`)
    than ``written``: by this call at the latest.

    ``guards`` come first in the multi of a write. Raises StoreError, CorruptMetadata.
    """
    node, data = group_paths.empty(group), group_paths.encode_empty(generation, written, now_ms)
    found = store.get(node)
    if found is None:
        store.ensure(group_paths.EMPTY_GROUPS)
        store.multi([*guards, Create(node, data)])
        return now_ms
    *before, since_ms = group_paths.decode_empty(node, found.data)
    if before != [generation, written]:
        store.multi([*guards, Set(node, data, found.version)])
        return now_ms
    return since_ms
