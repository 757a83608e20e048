"""All nodes of all groups, read once for what of them makes a group unusable (`raylog doctor`).

Each step reads one kind of node of many groups at once: some twenty round trips for each GROUPS_AT_ONCE groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from raylog.broker.groups.classic.claims import Claim, decode_claim, decode_group
from raylog.coordination.groups.nodes import group_ids
from raylog.coordination.groups.offset_nodes import decode_all, read_nodes
from raylog.coordination.metadata import group_paths, snapshot
from raylog.coordination.store.node_json import CorruptMetadata
from raylog.coordination.store.port import MetadataStore
from raylog.coordination.store.unreadable import readable, skipping
from raylog.protocol.ids import GroupId, TopicPartition

__all__ = ["examine_groups"]

GROUPS_AT_ONCE = 500

Node = tuple[str, Callable[[bytes], object]]
"""Its path, and what raises CorruptMetadata for a value that it must not have."""


def examine_groups(store: MetadataStore) -> None:
    """What is unreadable is told (see ``unreadable.collecting``)."""
    noted = [f"{group_paths.EMPTY_GROUPS}/{name}" for name in store.children(group_paths.EMPTY_GROUPS)]
    _read(store, [(path, partial(group_paths.decode_empty, path)) for path in noted])
    groups = group_ids(store)
    for start in range(0, len(groups), GROUPS_AT_ONCE):
        part = groups[start : start + GROUPS_AT_ONCE]
        _examine_groups(store, part)
        _examine_claims(store, part)
        _examine_members(store, part)
        _examine_partitions(store, part)


def _examine_groups(store: MetadataStore, groups: Sequence[GroupId]) -> None:
    """Of which kind each is, what its coordinator stored, and what its members are to read."""
    nodes: list[Node] = []
    for group in groups:
        state = group_paths.state(group)
        nodes.append((group_paths.group(group), partial(group_paths.decode_kind, group)))
        nodes.append((state, partial(decode_group, state)))
        nodes.append((group_paths.assignment(group), partial(group_paths.decode_assignment, group)))
    _read(store, nodes)
    above = [path for group in groups for path in (group_paths.group(group), group_paths.consumer(group))]
    for path, stat in zip(above, store.exists_many(above), strict=True):
        with skipping():
            if stat is not None and stat.ephemeral_owner:
                raise CorruptMetadata(path, "is kept by a session: nothing can be stored below it")


def _examine_claims(store: MetadataStore, groups: Sequence[GroupId]) -> None:
    claims = _read(store, [(path, partial(decode_claim, path)) for path in map(group_paths.claim, groups)])
    brokers = snapshot.load_brokers(store)  # later than the claims: one may register anew meanwhile
    for path, claim in claims:
        assert isinstance(claim, Claim)
        broker = brokers.get(claim.broker)
        with skipping():
            if broker is not None and claim.epoch > broker.epoch:
                what = f"names broker {broker.id} at epoch {claim.epoch}, and it has {broker.epoch}"
                raise CorruptMetadata(path, what)


def _examine_members(store: MetadataStore, groups: Sequence[GroupId]) -> None:
    """Those of actors, and the share of each."""
    nodes: list[Node] = []
    for below, name in _below(store, list(map(group_paths.members, groups))):
        with skipping():
            group_paths.member_named(name, below)
            nodes.append((path := f"{below}/{name}", partial(group_paths.decode_member, path)))
    for below, name in _below(store, list(map(group_paths.assignment, groups))):
        with skipping():
            member = group_paths.member_named(name, below)
            nodes.append((path := f"{below}/{name}", partial(group_paths.decode_share, path, member)))
    _read(store, nodes)


def _examine_partitions(store: MetadataStore, groups: Sequence[GroupId]) -> None:
    """Owners and offsets."""
    owners = [group_paths.owner(*each) for each in _partitions(store, groups, group_paths.owners)]
    _read(store, [(path, partial(group_paths.decode_owner, path)) for path in owners])
    committed = _partitions(store, groups, group_paths.offsets)
    nodes = read_nodes(store, committed)
    for group, tp in committed:
        decode_all(group, [tp], nodes)


def _read(store: MetadataStore, nodes: Sequence[Node]) -> list[tuple[str, object]]:
    """Those that there are, with their values."""
    found = []
    for (path, decode), answer in zip(nodes, store.get_each([path for path, _ in nodes]), strict=True):
        with skipping():
            if (node := readable(answer)) is not None:
                found.append((path, decode(node.data)))
    return found


def _below(store: MetadataStore, paths: Sequence[str]) -> list[tuple[str, str]]:
    """Each with the name of each of its children."""
    found: list[tuple[str, str]] = []
    for path, names in zip(paths, store.children_each(paths), strict=True):
        with skipping():
            found += ((path, name) for name in readable(names))
    return found


def _partitions(
    store: MetadataStore, groups: Sequence[GroupId], above: Callable[[GroupId], str]
) -> list[tuple[GroupId, TopicPartition]]:
    """Those that have a node, each below that of its topic."""
    group_of = {above(group): group for group in groups}
    topics = [f"{path}/{topic}" for path, topic in _below(store, list(group_of))]
    found = []
    for topic_node, index in _below(store, topics):
        path, _, topic = topic_node.rpartition("/")
        with skipping():
            found.append((group_of[path], group_paths.partition_named(topic, index, path)))
    return found
