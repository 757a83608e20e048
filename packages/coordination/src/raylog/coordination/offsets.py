"""Where consumer groups keep their offsets: staged, then committed or aborted; fenced by versions (D9b).

An ephemeral owner node fences nothing by its version, for a node made anew starts at version 0 again. So
who claims a partition also writes its persistent offset node, in the same multi, and commits with the
version that this gave: the commit of an owner that lost its claim meanwhile gets BadVersion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from raylog.coordination import paths
from raylog.coordination.store import Check, Create, Delete, MetadataStore, NoNode, Set
from raylog.protocol.ids import (
    NO_EPOCH,
    NO_OFFSET,
    NO_TIMESTAMP,
    GroupId,
    LeaderEpoch,
    Offset,
    TimestampMs,
    TopicPartition,
)


class CommittedOffset(NamedTuple):
    """How far a group has read one partition, as it was committed."""

    offset: Offset
    """The next record to read."""
    leader_epoch: LeaderEpoch = NO_EPOCH
    """That of the last record before it (KIP-320); -1: not known."""
    metadata: str = ""
    """What whoever committed wrote beside it."""
    committed_ms: TimestampMs = NO_TIMESTAMP
    """When; -1: not known."""


class Claim(NamedTuple):
    """An owner's right to commit; every commit makes a new one."""

    group: GroupId
    tp: TopicPartition
    offset: Offset
    """The committed offset: the next record to read; NO_OFFSET when none was committed."""
    version: int
    """The version of the offset node that the next commit names."""


class Staged(NamedTuple):
    """Offsets that a transaction, or a single commit, will make visible all at once."""

    offsets: tuple[tuple[Claim, Offset], ...]


class OffsetStore(Protocol):
    """Committed offsets of consumer groups."""

    def fetch(self, group: GroupId, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Offset]:
        """The committed offsets of these partitions, without those that have none."""

    def claim(self, group: GroupId, tp: TopicPartition, owner: str) -> Claim:
        """Become the partition's owner in the group; NodeExists while another one is."""

    def release(self, claim: Claim) -> None:
        """Give the ownership up; BadVersion when the claim is stale."""

    def stage(self, offsets: Sequence[tuple[Claim, Offset]]) -> Staged:
        """Prepare a commit; nothing is visible yet."""

    def commit(self, staged: Staged) -> tuple[Claim, ...]:
        """Make all of them visible, or none: BadVersion when a claim is stale. Answers the claims to go on with."""

    def abort(self, staged: Staged) -> None:
        """Forget what was staged."""


class RegistryOffsetStore:
    """The OffsetStore over /consumers/G/offsets and /consumers/G/owners; staged offsets are the caller's memory."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def fetch(self, group: GroupId, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Offset]:
        nodes = [paths.offset(group, tp) for tp in partitions]
        return {
            tp: paths.decode_offset(node, found.data)
            for tp, node, found in zip(partitions, nodes, self._store.get_many(nodes), strict=True)
            if found is not None and found.data
        }

    def claim(self, group: GroupId, tp: TopicPartition, owner: str) -> Claim:
        node, owner_node = paths.offset(group, tp), paths.owner(group, tp)
        self._store.ensure(node)
        self._store.ensure(owner_node.rpartition("/")[0])
        found = self._store.get(node)
        if found is None:
            raise NoNode(f"{node} vanished", node)
        offset = paths.decode_offset(node, found.data) if found.data else NO_OFFSET
        _, version = self._store.multi(
            [Create(owner_node, owner.encode(), ephemeral=True), Set(node, found.data, found.version)]
        )
        assert isinstance(version, int)
        return Claim(group, tp, offset, version)

    def release(self, claim: Claim) -> None:
        self._store.multi(
            [
                Check(paths.offset(claim.group, claim.tp), claim.version),
                Delete(paths.owner(claim.group, claim.tp)),
            ]
        )

    def stage(self, offsets: Sequence[tuple[Claim, Offset]]) -> Staged:
        return Staged(tuple(offsets))

    def commit(self, staged: Staged) -> tuple[Claim, ...]:
        versions = self._store.multi(
            [
                Set(paths.offset(claim.group, claim.tp), paths.encode_number(offset), claim.version)
                for claim, offset in staged.offsets
            ]
        )
        return tuple(
            claim._replace(offset=offset, version=int(version or 0))
            for (claim, offset), version in zip(staged.offsets, versions, strict=True)
        )

    def abort(self, staged: Staged) -> None:
        """Nothing to undo: nothing was written."""
