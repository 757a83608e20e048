"""Where consumer groups keep their offsets, whoever commits them (D9b).

A member of a group of actors claims a partition, commits with its claim, and gives it up. An ephemeral owner node
fences nothing by its version, for a node made anew starts at version 0 again. So who claims also writes the persistent
offset node, in the same multi, and commits with the version that this gave: the commit of an owner that lost its claim
meanwhile gets BadVersion. Transactions stage such commits, then commit or abort them.

A broker commits for the members of a group of clients, whom it knows: without claims, but each write is guarded by
operations that fail when it is not the group's coordinator any more (``guards``). A member's claims are guarded, too,
by the node of its registration: an offset's node that was deleted and made anew has old versions again.

The offset stands in Kafka's node as a bare number, what was committed beside it in a node of ours. Both are written at
once; where only the number changed, an old tool wrote it, and nothing else is known of that commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from raylog.coordination import group_paths
from raylog.coordination.group_model import CommittedOffset as CommittedOffset
from raylog.coordination.store import (
    BadVersion,
    Create,
    Delete,
    MetadataStore,
    NoNode,
    NotEmpty,
    Op,
    Set,
    StoreError,
    StoreUnavailable,
    Versioned,
)
from raylog.coordination.unreadable import skipping
from raylog.protocol.ids import NO_OFFSET, GroupId, MemberId, PartitionIndex, TopicName, TopicPartition

MULTI_BYTES = 512 << 10
"""How much one multi may hold: half of what ZooKeeper takes (jute.maxbuffer), for there are the guards, too."""
OP_BYTES = 64
"""What an operation takes beside its path and data, at most."""
_PAIR_BYTES = 400
"""What the two operations of one offset take beside their paths and the metadata."""
_MULTI_OPS = 2_000
"""More in one multi keep ZooKeeper from serving others for tens of milliseconds."""

_CLAIMED_BYTES = 900_000
_CLAIMED_AT_ONCE = 500
"""So many partitions an owner commits all or none; with metadata of 1 KB each they stay below the bytes."""

_Item = TypeVar("_Item")


class Claim(NamedTuple):
    """An owner's right to commit; every commit makes a new one."""

    group: GroupId
    tp: TopicPartition
    committed: CommittedOffset | None
    """Where to begin; None when nothing was committed."""
    version: int
    """The version of the offset node that the next commit names."""
    guards: tuple[Op, ...] = ()
    """What was checked when it was made, and is again with every write by it."""


class Staged(NamedTuple):
    """Offsets that a transaction, or a single commit, will make visible all at once."""

    offsets: tuple[tuple[Claim, CommittedOffset], ...]


class OffsetStore(Protocol):
    """Committed offsets of consumer groups.

    ``guards`` are operations that come first in the same multi: one that fails raises its error, and nothing was done.
    Every method raises StoreUnavailable when the store does not answer: then it may have been done or not.
    """

    def fetch(
        self, group: GroupId, partitions: Sequence[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """The committed offsets of these partitions, or of all, without those that have none."""

    def claim(self, group: GroupId, tp: TopicPartition, owner: MemberId, guards: Sequence[Op] = ()) -> Claim:
        """Become the partition's owner in the group.

        Raises NodeExists while another one is, BadVersion when a commit came between: try again.
        """

    def renew(self, claim: Claim) -> Claim:
        """The claim with the version of now, when this session owns the partition still; else BadVersion.

        For an owner that has not heard what became of its commit: the offset node's version is read before the owner's
        session, so nobody else claimed before that version. What was committed is not looked at.
        """

    def release(self, claim: Claim, position: CommittedOffset | None = None) -> None:
        """Give the ownership up, committing ``position`` if there is one; BadVersion when the claim is stale."""

    def stage(self, offsets: Sequence[tuple[Claim, CommittedOffset]]) -> Staged:
        """Prepare a commit; nothing is visible yet."""

    def commit(self, staged: Staged) -> tuple[Claim, ...]:
        """Make all of them visible, or none: BadVersion when a claim is stale. Answers the claims to go on with."""

    def abort(self, staged: Staged) -> None:
        """Forget what was staged."""

    def write(
        self, group: GroupId, offsets: Mapping[TopicPartition, CommittedOffset], guards: Sequence[Op]
    ) -> Mapping[TopicPartition, StoreError]:
        """Commit without claims; answers those that could not be, with the reason: they hold up no others."""

    def delete(self, group: GroupId, partitions: Iterable[TopicPartition], guards: Sequence[Op]) -> None:
        """Forget what was committed for these; a partition without an offset is none the worse for it."""

    def forget(self, group: GroupId, commits: Mapping[TopicPartition, CommittedOffset], guards: Sequence[Op]) -> None:
        """Forget these very commits: a newer one of a partition stays, be it made at this moment (BadVersion)."""


class RegistryOffsetStore:
    """The OffsetStore over /consumers and /raylog/groups; staged offsets are the caller's memory."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    # --- reading ---

    def fetch(
        self, group: GroupId, partitions: Sequence[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, CommittedOffset]:
        tps = self.partitions(group) if partitions is None else partitions
        nodes = self._nodes(group, tps)
        committed = {tp: found for tp in tps if (found := _decode(group, tp, nodes)) is not None}
        torn = [tp for tp, found in committed.items() if found == CommittedOffset(found.offset)]
        if torn:  # perhaps a commit came between the reads of the two nodes
            nodes = self._nodes(group, torn)
            committed |= {tp: found for tp in torn if (found := _decode(group, tp, nodes)) is not None}
        return committed

    def partitions(self, group: GroupId) -> list[TopicPartition]:
        """Those that have a node for their offset, in order."""
        return partitions_below(self._store, group_paths.offsets(group))

    # --- with claims ---

    def claim(self, group: GroupId, tp: TopicPartition, owner: MemberId, guards: Sequence[Op] = ()) -> Claim:
        node, detail_node = _pair(group, tp)
        needed = (node, detail_node, group_paths.owners_of_topic(group, tp.topic))
        found, detail, owners = self._store.get_many(needed)
        if found is None or detail is None or owners is None:
            for path in needed:
                self._store.ensure(path)
            found, detail = self._store.get_many([node, detail_node])
        if found is None or detail is None:
            raise BadVersion(f"{node} was deleted while {owner} claimed it: try again", node)
        *_, version = self._store.multi(
            [
                *guards,
                Create(group_paths.owner(group, tp), group_paths.encode_owner(owner), ephemeral=True),
                Set(node, found.data or group_paths.encode_offset(NO_OFFSET), found.version),
            ]
        )
        committed = group_paths.decode_committed(node, found.data, detail.data)
        return Claim(group, tp, committed, _version(version), tuple(guards))

    def renew(self, claim: Claim) -> Claim:
        node = group_paths.offset(claim.group, claim.tp)
        found = self._store.get(node)
        owner = self._store.exists(group_paths.owner(claim.group, claim.tp))
        if found is None or owner is None or owner.ephemeral_owner != self._store.session.id:
            raise BadVersion(f"{claim.tp} of group {claim.group} is owned by another now, or by nobody", node)
        return claim._replace(version=found.version)

    def release(self, claim: Claim, position: CommittedOffset | None = None) -> None:
        ops = self._as_it_is(claim) if position is None else _commit(claim, position)
        self._multi_of_claims([*claim.guards, *ops, Delete(group_paths.owner(claim.group, claim.tp))])

    def _as_it_is(self, claim: Claim) -> Sequence[Op]:
        """A write that changes nothing but the version: the claim must end with it, or it could commit still."""
        node = group_paths.offset(claim.group, claim.tp)
        found = self._store.get(node)
        if found is None or found.version != claim.version:
            raise BadVersion(f"{claim.tp} of group {claim.group} has changed since it was claimed", node)
        return [Set(node, found.data, claim.version)]

    def stage(self, offsets: Sequence[tuple[Claim, CommittedOffset]]) -> Staged:
        return Staged(tuple(offsets))

    def commit(self, staged: Staged) -> tuple[Claim, ...]:
        guards = dict.fromkeys(guard for claim, _ in staged.offsets for guard in claim.guards)
        results = self._multi_of_claims(
            [*guards, *(op for claim, committed in staged.offsets for op in _commit(claim, committed))]
        )
        return tuple(
            claim._replace(committed=committed, version=_version(version))
            for (claim, committed), version in zip(staged.offsets, results[len(guards) :: 2], strict=True)
        )

    def abort(self, staged: Staged) -> None:
        """Nothing to undo: nothing was written."""

    def _multi_of_claims(self, ops: Sequence[Op]) -> list[str | int | None]:
        try:
            return self._store.multi(ops)
        except NoNode as error:
            raise BadVersion(f"{error}: the group's offsets were deleted", error.path, error.index) from error

    # --- with guards ---

    def write(
        self, group: GroupId, offsets: Mapping[TopicPartition, CommittedOffset], guards: Sequence[Op]
    ) -> Mapping[TopicPartition, StoreError]:
        refused: dict[TopicPartition, StoreError] = {}
        path_bytes = len(group_paths.detail(group, TopicPartition(TopicName(""), PartitionIndex(0))))
        for part in _packed(
            offsets.items(),
            lambda item: 2 * (path_bytes + len(item[0].topic)) + 12 * len(item[1].metadata) + _PAIR_BYTES,
        ):
            refused |= self._write_part(group, dict(part), guards)
        return refused

    def _write_part(
        self, group: GroupId, part: dict[TopicPartition, CommittedOffset], guards: Sequence[Op]
    ) -> dict[TopicPartition, StoreError]:
        """As one multi, and nearly always at once: the nodes are there, but for a partition's first commit."""
        try:
            self._store.multi([*guards, *(Set(node, data) for node, data in _values(group, part).items())])
        except NoNode as error:
            if error.index < len(guards):
                raise
            return self._write_looking(group, part, guards)
        return {}

    def _write_looking(
        self, group: GroupId, left: dict[TopicPartition, CommittedOffset], guards: Sequence[Op]
    ) -> dict[TopicPartition, StoreError]:
        """As one multi without those that it fails by: one that fails for the second time is left out.

        The first time its nodes may have been made or deleted since they were looked at.
        """
        refused = self._make_room(group, left)
        failed: set[TopicPartition] = set()
        while left:
            values = _values(group, left)
            there = zip(values.items(), self._store.get_many(list(values)), strict=True)
            ops = [Create(node, data) if found is None else Set(node, data) for (node, data), found in there]
            try:
                self._store.multi([*guards, *ops])
            except StoreUnavailable:
                raise
            except StoreError as error:
                if error.index < len(guards):
                    raise
                tp = list(left)[(error.index - len(guards)) // 2]
                if tp in failed:
                    refused[tp] = error
                    del left[tp]
                failed.add(tp)
            else:
                break
        return refused

    def _make_room(
        self, group: GroupId, offsets: dict[TopicPartition, CommittedOffset]
    ) -> dict[TopicPartition, StoreError]:
        """See that the nodes above those of the offsets exist; takes out of ``offsets`` those that can have none."""
        refused: dict[TopicPartition, StoreError] = {}
        topics = sorted({tp.topic for tp in offsets})
        above = [node for topic in topics for node in _pair_above(group, topic)]
        found = self._store.get_many(above)
        for topic, node, there in zip((t for t in topics for _ in range(2)), above, found, strict=True):
            if there is None:
                try:
                    self._store.ensure(node)
                except StoreUnavailable:
                    raise
                except StoreError as error:
                    refused |= {tp: error for tp in offsets if tp.topic == topic}
        for tp in refused:
            del offsets[tp]
        return refused

    def delete(self, group: GroupId, partitions: Iterable[TopicPartition], guards: Sequence[Op]) -> None:
        tps = list(partitions)
        nodes = self._nodes(group, tps)
        ops = {node: Delete(node) for node, found in nodes.items() if found is not None}
        topics = {tp.topic for tp in tps if any(node in ops for node in _pair(group, tp))}
        self._delete(group, topics, list(ops.values()), guards)

    def forget(self, group: GroupId, commits: Mapping[TopicPartition, CommittedOffset], guards: Sequence[Op]) -> None:
        nodes, ops = self._nodes(group, list(commits)), []
        for tp, committed in commits.items():
            if _decode(group, tp, nodes) == committed:
                ops += [Delete(path, found.version) for path in _pair(group, tp) if (found := nodes[path]) is not None]
        self._delete(group, {tp.topic for tp in commits}, ops, guards)

    def _nodes(self, group: GroupId, partitions: Sequence[TopicPartition]) -> dict[str, Versioned | None]:
        """The two nodes of each, in order."""
        paths = [node for tp in partitions for node in _pair(group, tp)]
        return dict(zip(paths, self._store.get_many(paths), strict=True))

    def _delete(self, group: GroupId, topics: Iterable[TopicName], ops: Sequence[Delete], guards: Sequence[Op]) -> None:
        for part in _packed(ops, lambda op: len(op.path) + OP_BYTES):
            self._store.multi([*guards, *part])
        for topic in sorted(topics):
            for node in _pair_above(group, topic):
                try:
                    self._store.delete(node)
                except (NoNode, NotEmpty):
                    pass


def partitions_below(store: MetadataStore, path: str) -> list[TopicPartition]:
    """Those that have a node there, each below that of its topic, in order."""
    partitions = []
    for topic in store.children(path):
        for index in store.children(f"{path}/{topic}"):
            with skipping():
                partitions.append(group_paths.partition_named(topic, index, path))
    return sorted(partitions)


def _pair(group: GroupId, tp: TopicPartition) -> tuple[str, str]:
    """Where one offset stands: Kafka's node and ours."""
    return group_paths.offset(group, tp), group_paths.detail(group, tp)


def _pair_above(group: GroupId, topic: TopicName) -> tuple[str, str]:
    """The two nodes above those of a topic's offsets."""
    return group_paths.offsets_of_topic(group, topic), group_paths.details_of_topic(group, topic)


def _decode(group: GroupId, tp: TopicPartition, nodes: Mapping[str, Versioned | None]) -> CommittedOffset | None:
    path, detail_path = _pair(group, tp)
    number, detail = nodes[path], nodes[detail_path]
    if number is None:
        return None
    return group_paths.decode_committed(path, number.data, b"" if detail is None else detail.data)


def _values(group: GroupId, offsets: Mapping[TopicPartition, CommittedOffset]) -> dict[str, bytes]:
    """What each node is to hold, two for each offset, in order."""
    values: dict[str, bytes] = {}
    for tp, committed in offsets.items():
        node, detail_node = _pair(group, tp)
        values[node] = group_paths.encode_offset(committed.offset)
        values[detail_node] = group_paths.encode_detail(committed)
    return values


def parts_of_claimed(
    group: GroupId, offsets: Mapping[TopicPartition, CommittedOffset]
) -> Iterator[dict[TopicPartition, CommittedOffset]]:
    """What an owner commits, in order, each part for one multi."""

    def size(item: tuple[TopicPartition, CommittedOffset]) -> int:
        return sum(len(node) + len(data) + OP_BYTES for node, data in _values(group, dict([item])).items())

    return map(dict, _packed(offsets.items(), size, _CLAIMED_BYTES, _CLAIMED_AT_ONCE))


def _packed(
    items: Iterable[_Item],
    size: Callable[[_Item], int],
    most_bytes: int = MULTI_BYTES,
    most: int = _MULTI_OPS // 2,
) -> Iterator[list[_Item]]:
    """In order, each part small enough for one multi."""
    part: list[_Item] = []
    total = 0
    for item in items:
        item_bytes = size(item)
        if part and (total + item_bytes > most_bytes or len(part) >= most):
            yield part
            part, total = [], 0
        part.append(item)
        total += item_bytes
    if part:
        yield part


def _commit(claim: Claim, committed: CommittedOffset) -> tuple[Op, Op]:
    (node, number), (detail_node, detail) = _values(claim.group, {claim.tp: committed}).items()
    return Set(node, number, claim.version), Set(detail_node, detail)


def _version(result: str | int | None) -> int:
    assert isinstance(result, int)
    return result
