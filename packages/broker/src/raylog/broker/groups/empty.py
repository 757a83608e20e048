"""Since when a group has no members: kept in the metadata store, for brokers may start again more often than it counts.

Nobody hears of the end of the last actor in a group, and an old tool tells nobody what it does. So whoever looks after
retention notes when a group was found without members for the first time, together with its generation: if members came
and went between two looks, that is another one.
"""

from __future__ import annotations

from collections.abc import Sequence

from raylog.broker.groups.held import read_group
from raylog.coordination import group_paths
from raylog.coordination.group_kinds import GroupKind, SettledKind
from raylog.coordination.store import Create, MetadataStore, Op, Set
from raylog.protocol.ids import Generation, GroupId, TimestampMs

__all__ = ["empty_since", "generation_of"]


def generation_of(store: MetadataStore, group: GroupId, kind: SettledKind | None) -> Generation:
    """As it is stored; 0 where there was none."""
    if kind is None:
        return Generation(0)
    if kind.kind is GroupKind.CLIENTS:
        return read_group(store, group).generation
    found = store.get(group_paths.assignment(group))
    return Generation(0) if found is None else group_paths.decode_assignment(group, found.data).generation


def empty_since(
    store: MetadataStore, group: GroupId, generation: Generation, now_ms: TimestampMs, guards: Sequence[Op]
) -> TimestampMs:
    """When the group was found without members first in this generation: by this call at the latest.

    ``guards`` come first in the multi of a write. Raises StoreError, CorruptMetadata.
    """
    node, data = group_paths.empty(group), group_paths.encode_empty(generation, now_ms)
    found = store.get(node)
    if found is None:
        store.ensure(group_paths.EMPTY_GROUPS)
        store.multi([*guards, Create(node, data)])
        return now_ms
    before, since_ms = group_paths.decode_empty(node, found.data)
    if before != generation:
        store.multi([*guards, Set(node, data, found.version)])
        return now_ms
    return since_ms
