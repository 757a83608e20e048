"""How a member of a group of actors is removed by others, and replaced by a new process of its instance (KIP-345).

A static member, one with a group.instance.id, also makes an ephemeral node with the name of its instance, in the multi
of its registration: so the two end together, and of one instance there is one member. Nobody evicts it because its
process is gone, and closing it leaves its session be. So ZooKeeper measures how long its partitions wait for it:
session.timeout.ms from its last sign of life.

A new process of the instance is another member. It takes over in one multi: the registration and the owners' nodes of
the former member go, and the share that the assignment gave to it is the new one's. Every write of the former checks
its registration, so from then on ZooKeeper refuses all of them. Nobody else's share changes.
"""

from __future__ import annotations

from collections.abc import Iterator

from raylog.coordination.groups.offset_nodes import partitions_below
from raylog.coordination.metadata import group_paths
from raylog.coordination.metadata.group_model import Shares
from raylog.coordination.store.port import Check, Create, Delete, MetadataStore, Op, Set, WriteTooLarge, size_of
from raylog.protocol.errors import FencedInstanceId
from raylog.protocol.ids import Generation, GroupId, InstanceId, MemberId, TopicPartition

__all__ = ["fencing", "instance_ops", "removal"]

_MOST_BYTES = 1_000_000
"""What ZooKeeper takes at once, and a little less."""


def removal(store: MetadataStore, group: GroupId, member: MemberId, instance: InstanceId | None = None) -> list[Op]:
    """Operations that end a member and all that it owns. As one multi they fail if it has claimed or committed anything
    since they were made: it lives.

    Its own node goes in the same multi: so none of what it owns can be claimed anew by it in between. Raises
    StoreError, WriteTooLarge where it owns too much for one multi, and CorruptMetadata.
    """
    owned = [tp for tp, owner in _owners(store, group) if owner == member]
    offsets = [group_paths.offset(group, tp) for tp in owned]
    versions = store.get_many(offsets)
    again = store.get_many([group_paths.owner(group, tp) for tp in owned])
    ops: list[Op] = [Delete(group_paths.member(group, member))]
    if instance is not None:
        ops.append(Delete(group_paths.instance(group, instance)))
    for tp, node, found, owner in zip(owned, offsets, versions, again, strict=True):
        if found is not None and owner is not None and owner.data == group_paths.encode_owner(member):
            ops += [Check(node, found.version), Delete(group_paths.owner(group, tp))]
    if sum(map(size_of, ops)) > _MOST_BYTES:
        raise WriteTooLarge(f"member {member} of group {group} owns too much to be removed at once")
    return ops


def _owners(store: MetadataStore, group: GroupId) -> Iterator[tuple[TopicPartition, MemberId]]:
    partitions = partitions_below(store, group_paths.owners(group))
    nodes = [group_paths.owner(group, tp) for tp in partitions]
    for tp, node, found in zip(partitions, nodes, store.get_many(nodes), strict=True):
        if found is not None:
            yield tp, group_paths.decode_owner(node, found.data)


def instance_ops(
    store: MetadataStore, group: GroupId, instance: InstanceId, member: MemberId, *, is_back: bool
) -> list[Op]:
    """What goes with the registration of a static member, in the same multi: see the module.

    ``is_back``: this member was registered before, so a member that has its instance now is a newer one. Raises
    FencedInstanceId then; StoreError, and WriteTooLarge where the former member owns too much for one multi.
    """
    node = group_paths.instance(group, instance)
    makes = Create(node, group_paths.encode_owner(member), ephemeral=True)
    found = store.get(node)
    if found is None:
        above = group_paths.instances(group)
        return [makes] if store.exists(above) is not None else [Create(above), makes]
    former = group_paths.decode_owner(node, found.data)
    if former == member:  # made by an earlier try
        return []
    if is_back:
        raise _fenced(group, instance, member)
    return [*removal(store, group, former, instance), makes, *_share_passes(store, group, former, member)]


def _share_passes(store: MetadataStore, group: GroupId, former: MemberId, member: MemberId) -> list[Op]:
    """The assignment, with the new member in the place of the former; nothing where that had no share."""
    node = group_paths.assignment(group)
    found = store.get(node)
    shares = None if found is None else group_paths.decode_assignment(group, found.data)
    if found is None or shares is None or former not in shares.members:
        return []
    generation, share = Generation(shares.generation + 1), shares.members[former]
    others = {name: partitions for name, partitions in shares.members.items() if name != former}
    ops: list[Op] = [
        Set(node, group_paths.encode_assignment(Shares(generation, {**others, member: share})), found.version)
    ]
    if store.exists(group_paths.share(group, former)) is not None:  # else members read the whole assignment
        ops.append(Delete(group_paths.share(group, former)))
        ops.append(Create(group_paths.share(group, member), group_paths.encode_share(generation, share)))
    return ops


def fencing(store: MetadataStore, group: GroupId, instance: InstanceId, member: MemberId) -> FencedInstanceId | None:
    """What to tell a member that a newer one of its instance has replaced; None where none has. Raises StoreError."""
    found = store.get(group_paths.instance(group, instance))
    replaced = found is not None and found.data != group_paths.encode_owner(member)
    return _fenced(group, instance, member) if replaced else None


def _fenced(group: GroupId, instance: InstanceId, member: MemberId) -> FencedInstanceId:
    return FencedInstanceId(
        f"group {group}: a newer consumer has joined with group.instance.id {instance!r}, so member {member} is out of "
        "the group and commits nothing any more: close it; of consumers that run at once, each needs an id of its own"
    )
