"""Where consumer groups keep their offsets, whoever commits them (D9b).

A member of a group of actors claims a partition, commits with its claim, and gives it up. An ephemeral owner node
fences nothing by its version, for a node made anew starts at version 0 again. So who claims also writes the persistent
offset node, in the same multi, and commits with the version that this gave: the commit of an owner that lost its claim
meanwhile gets BadVersion. Transactions stage such commits, then commit or abort them.

A broker commits for the members of a group of clients, whom it knows: without claims, but each write is guarded by
operations that fail when it is not the group's coordinator any more (``guards``). A member's claims are guarded, too,
by the node of its registration: an offset's node that was deleted and made anew has old versions again.

The offset stands in Kafka's node as a bare number, what was committed beside it in a node of ours, with the id of the
topic. Both are written at once; where only the number changed, an old tool wrote it, and nothing else is known of that
commit. A topic that is deleted and made anew is another topic:

* An offset counts only for the topic whose id stands beside it. A number without an id counts for the topic of that
  name if it was written after that topic was made; old tools know topics by name alone. Who claims it writes the id.
* A claim is for one topic, and a commit names one. Both check in their multi that this topic is there still
  (``topic_ids``): after its deletion they get TopicGone, also when another has its name already.
* Offsets are forgotten by the versions that were read. Each deletion also raises the version of the node above the
  details: between two reads of it no node was deleted, so none has an old version again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from raylog.coordination.groups.offset_nodes import (
    MULTI_BYTES,
    MULTI_ITEMS,
    Stored,
    counting,
    decode,
    decode_all,
    missing_nodes,
    pair,
    pair_above,
    partitions_below,
    read_nodes,
    read_stored,
    values,
)
from raylog.coordination.groups.offset_store import BY_NAME, Topics
from raylog.coordination.groups.offset_store import Claim as Claim
from raylog.coordination.groups.offset_store import Found as Found
from raylog.coordination.groups.offset_store import OffsetStore as OffsetStore
from raylog.coordination.groups.offset_store import Seen as Seen
from raylog.coordination.groups.offset_store import Staged as Staged
from raylog.coordination.metadata import group_paths, paths
from raylog.coordination.metadata.group_model import CommittedOffset as CommittedOffset
from raylog.coordination.metadata.topic_ids import TopicGone, check_topic, present_topics
from raylog.coordination.metadata.topic_names import is_topic_name
from raylog.coordination.store.port import (
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
    OpResult,
    Set,
    StoreError,
    StoreUnauthorized,
    StoreUnavailable,
    Versioned,
    packed,
    size_of,
)
from raylog.protocol.ids import (
    NO_OFFSET,
    NO_TOPIC_ID,
    GroupId,
    MemberId,
    PartitionIndex,
    TopicId,
    TopicName,
    TopicPartition,
)

_PAIR_BYTES = 400
"""What the two operations of one offset take beside their paths and the metadata, with the check of its topic."""
_ATTEMPTS = 3
"""As often a write, or the end of a claim, is tried while others make and delete the nodes that it needs."""


class RegistryOffsetStore:
    """The OffsetStore over /consumers and /raylog/groups; staged offsets are the caller's memory."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    # --- reading ---

    def fetch(
        self, group: GroupId, partitions: Sequence[TopicPartition] | None = None, topics: Topics = BY_NAME
    ) -> Mapping[TopicPartition, CommittedOffset]:
        found = self.read(group, partitions, topics)
        for error in found.unreadable.values():
            raise error
        return found.committed

    def read(
        self, group: GroupId, partitions: Sequence[TopicPartition] | None = None, topics: Topics = BY_NAME
    ) -> Found:
        self._store.heartbeat()  # the server that answers may lag behind the one that took a commit
        stored, unreadable = read_stored(
            self._store, group, self.partitions(group) if partitions is None else partitions
        )
        there = present_topics(self._store, {tp.topic for tp in stored})
        ids = {name: topic for name, topic in there.ids.items() if topics.get(name, topic) == topic}
        unreadable |= {tp: there.unreadable[tp.topic] for tp in stored if tp.topic in there.unreadable}
        committed = {tp: stored[tp].committed for tp in self._counting(group, stored, ids)}
        return Found(committed, unreadable)

    def _counting(
        self, group: GroupId, stored: Mapping[TopicPartition, Stored], topics: Topics
    ) -> Sequence[TopicPartition]:
        """Those offsets that are of the topics that there are now (see the module)."""
        return counting(self._store, group, stored, topics)

    def partitions(self, group: GroupId) -> list[TopicPartition]:
        """Those that have a node for their offset, in order."""
        return partitions_below(self._store, group_paths.offsets(group))

    # --- with claims ---

    def claim(self, group: GroupId, tp: TopicPartition, owner: MemberId, guards: Sequence[Op] = ()) -> Claim:
        topic_node = paths.topic(tp.topic)
        needed = (*pair(group, tp), group_paths.owners_of_topic(group, tp.topic))
        topic, *found = self._store.get_many((topic_node, *needed)) if is_topic_name(tp.topic) else [None]
        if topic is None:
            raise TopicGone(f"{owner} cannot claim {tp}: there is no topic {tp.topic}", topic_node)
        if None in found:
            self._make_room(group, needed, guards)
            found = self._store.get_many(needed)
        nodes = dict(zip(needed, found, strict=True))
        number = found[0]
        if number is None:
            raise BadVersion(f"{needed[0]} was deleted while {owner} claimed it: try again", needed[0])
        topic_id = paths.decode_topic(tp.topic, topic.data).topic_id
        stored = decode(group, tp, nodes)
        if stored is not None and not self._counting(group, {tp: stored}, {tp.topic: topic_id}):
            stored = None
        data = number.data if stored is not None else group_paths.encode_offset(NO_OFFSET)
        writes = [Set(needed[0], data, number.version)]
        if stored is not None and stored.topic_id == NO_TOPIC_ID != topic_id:
            # a number alone: with the next write it would be of whichever topic has the name then
            writes.append(_detail(group, tp, stored.committed, topic_id, found[1]))
        owner_node = group_paths.owner(group, tp)
        takes: Op = Create(owner_node, group_paths.encode_owner(owner), ephemeral=True)
        for attempt in range(2):
            try:
                _, version, *_ = self._multi(guards, check_topic(topic_id), [takes, *writes])
            except NodeExists:
                if attempt or not self._owns(group, tp, owner):
                    raise
                takes = Check(owner_node, 0)  # the version of the offset is older than this look at the owner
            else:
                break
        committed = None if stored is None else stored.committed
        return Claim(group, tp, owner, topic_id, committed, _version(version), tuple(guards))

    def _owns(self, group: GroupId, tp: TopicPartition, owner: MemberId) -> bool:
        node = group_paths.owner(group, tp)
        found, stat = self._store.get(node), self._store.exists(node)
        is_ours = stat is not None and stat.ephemeral_owner == self._store.session.id
        return is_ours and found is not None and found.data == group_paths.encode_owner(owner)

    def renew(self, claim: Claim) -> Claim:
        node = group_paths.offset(claim.group, claim.tp)
        found = self._store.get(node)
        if not self._owns(claim.group, claim.tp, claim.owner):
            raise BadVersion(f"{claim.tp} of group {claim.group} is owned by another now, or by nobody", node)
        if found is not None:
            return claim._replace(version=found.version)
        again = self.claim(claim.group, claim.tp, claim.owner, claim.guards)
        if again.topic_id != claim.topic_id:
            raise TopicGone(f"{claim.tp} of group {claim.group} was claimed of a topic that is deleted", node)
        return again

    def release(self, claim: Claim, position: CommittedOffset | None = None) -> None:
        ops = self._as_it_is(claim) if position is None else _commit(claim, position)
        topic = () if position is None else check_topic(claim.topic_id)
        self._multi_of_claims(claim.guards, topic, [*ops, Delete(group_paths.owner(claim.group, claim.tp))])

    def _as_it_is(self, claim: Claim) -> Sequence[Op]:
        """A write that changes nothing but the version: the claim must end with it, or it could commit still."""
        node = group_paths.offset(claim.group, claim.tp)
        found = self._store.get(node)
        if found is None or found.version != claim.version:
            raise BadVersion(f"{claim.tp} of group {claim.group} has changed since it was claimed", node)
        return [Set(node, found.data, claim.version)]

    def disown(self, group: GroupId, tp: TopicPartition, owner: MemberId, guards: Sequence[Op] = ()) -> bool:
        node, owner_node = group_paths.offset(group, tp), group_paths.owner(group, tp)
        for attempt in range(_ATTEMPTS):
            found = self._store.get(node)
            if not self._owns(group, tp, owner):
                return False
            ends = [] if found is None else [Set(node, found.data, found.version)]
            try:
                self._store.multi([*guards, *ends, Delete(owner_node)])
            except (BadVersion, NoNode) as error:
                if error.index < len(guards) or attempt == _ATTEMPTS - 1:
                    raise
            else:
                break
        self._delete_unless_in_use([group_paths.owners_of_topic(group, tp.topic)])
        return True

    def stage(self, offsets: Sequence[tuple[Claim, CommittedOffset]]) -> Staged:
        return Staged(tuple(offsets))

    def commit(self, staged: Staged) -> tuple[Claim, ...]:
        guards = dict.fromkeys(guard for claim, _ in staged.offsets for guard in claim.guards)
        topics = dict.fromkeys(check for claim, _ in staged.offsets for check in check_topic(claim.topic_id))
        ops = [op for claim, committed in staged.offsets for op in _commit(claim, committed)]
        results = self._multi_of_claims(tuple(guards), tuple(topics), ops)
        return tuple(
            claim._replace(committed=committed, version=_version(version))
            for (claim, committed), version in zip(staged.offsets, results[::2], strict=True)
        )

    def abort(self, staged: Staged) -> None:
        """Nothing to undo: nothing was written."""

    def _multi_of_claims(self, guards: Sequence[Op], topics: Sequence[Check], ops: Sequence[Op]) -> list[OpResult]:
        try:
            return self._multi(guards, topics, ops)
        except NoNode as error:
            raise BadVersion(f"{error}: the group's offsets were deleted", error.path, error.index) from error

    def _multi(self, guards: Sequence[Op], topics: Sequence[Check], ops: Sequence[Op]) -> list[OpResult]:
        """The results of ``ops``, done only while these topics are there. Raises TopicGone."""
        try:
            return self._store.multi([*guards, *topics, *ops])[len(guards) + len(topics) :]
        except NoNode as error:
            if 0 <= error.index - len(guards) < len(topics):
                raise TopicGone(f"the topic is deleted: {error}", error.path, error.index) from error
            raise

    # --- with guards ---

    def write(
        self,
        group: GroupId,
        offsets: Mapping[TopicPartition, CommittedOffset],
        guards: Sequence[Op],
        topics: Topics = BY_NAME,
    ) -> Mapping[TopicPartition, StoreError]:
        refused: dict[TopicPartition, StoreError] = {}
        path_bytes = len(group_paths.detail(group, TopicPartition(TopicName(""), PartitionIndex(0))))
        for part in packed(
            offsets.items(),
            lambda item: 2 * (path_bytes + len(item[0].topic)) + 12 * len(item[1].metadata) + _PAIR_BYTES,
            MULTI_BYTES,
            MULTI_ITEMS,
        ):
            refused |= self._write_part(group, dict(part), guards, topics)
        return refused

    def _write_part(
        self, group: GroupId, left: dict[TopicPartition, CommittedOffset], guards: Sequence[Op], topics: Topics
    ) -> dict[TopicPartition, StoreError]:
        """As one multi, and nearly always at once: the nodes are there, but for a partition's first commit.

        What the multi fails by again and again is left out: before, its nodes, or those above, may have been made or
        deleted since they were looked at.
        """
        refused: dict[TopicPartition, StoreError] = {}
        failed: Counter[TopicPartition] = Counter()
        is_looking = False
        while left:
            checks = {tp.topic: check for tp in left for check in check_topic(topics.get(tp.topic, NO_TOPIC_ID))}
            nodes = values(group, left, topics)
            ops: list[Op] = [Set(node, data) for node, data in nodes.items()]
            if is_looking:
                there = zip(ops, self._store.get_each(list(nodes)), strict=True)
                above = [node for topic in {tp.topic for tp in left} for node in pair_above(group, topic)]
                ops = [
                    *missing_nodes(self._store, group, above),
                    *(Create(op.path, nodes[op.path]) if found is None else op for op, found in there),
                ]
            try:
                self._multi(guards, list(checks.values()), ops)
            except StoreUnavailable:
                raise
            except TopicGone as error:
                gone = next(topic for topic, check in checks.items() if check.path == error.path)
                refused |= _taken_out(left, error, [tp for tp in left if tp.topic == gone])
            except StoreError as error:
                if error.index < len(guards):
                    raise
                node = ops[error.index - len(guards) - len(checks)].path
                concerned = [tp for tp in left if any(f"{each}/".startswith(f"{node}/") for each in pair(group, tp))]
                failed.update(concerned if is_looking or not isinstance(error, NoNode) else ())
                refused |= _taken_out(left, error, [tp for tp in concerned if failed[tp] == _ATTEMPTS])
                is_looking = True
            else:
                break
        return refused

    def _make_room(self, group: GroupId, nodes: Sequence[str], guards: Sequence[Op]) -> None:
        """See that these nodes exist. Raises BadVersion when the group is deleted, and what the guards raise."""
        while missing := missing_nodes(self._store, group, nodes):
            try:
                self._store.multi([*guards, *missing])
            except (NodeExists, NoNode) as error:
                if error.index < len(guards):
                    raise
                if isinstance(error, NoNode) and self._store.exists(group_paths.group(group)) is None:
                    raise BadVersion(f"group {group} was deleted: {error}", error.path, error.index) from error

    # --- forgetting ---

    def look(self, group: GroupId, partitions: Sequence[TopicPartition] | None = None) -> Seen:
        above = self._store.exists(group_paths.details(group))
        tps = tuple(self.partitions(group) if partitions is None else partitions)
        return Seen(tps, read_nodes(self._store, ((group, tp) for tp in tps)), None if above is None else above.version)

    def forget(self, group: GroupId, seen: Seen, partitions: Iterable[TopicPartition], guards: Sequence[Op]) -> None:
        tps = set(partitions)
        ops = [
            Delete(path, ANY_VERSION if isinstance(found, StoreUnauthorized) else found.version)
            for tp in sorted(tps)
            for path in pair(group, tp)
            if (found := seen.nodes[path]) is not None
        ]
        deletions = seen.deletions
        for part in packed(ops, size_of, MULTI_BYTES, MULTI_ITEMS):
            counted = [] if deletions is None else [Set(group_paths.details(group), b"", deletions)]
            self._store.multi([*guards, *counted, *part])
            deletions = None if deletions is None else deletions + 1
        topics = sorted({tp.topic for tp in tps})
        owners = [group_paths.owners_of_topic(group, topic) for topic in topics]
        self._delete_empty([*(node for topic in topics for node in pair_above(group, topic)), *owners])

    def _delete_empty(self, nodes: Sequence[str]) -> None:
        """Those of these nodes that are there and have no children."""
        stats, names = self._store.exists_many(nodes), self._store.children_many(nodes)
        found = zip(nodes, stats, names, strict=True)
        self._delete_unless_in_use([node for node, stat, below in found if stat is not None and not below])

    def _delete_unless_in_use(self, nodes: Sequence[str]) -> None:
        """What is gone already, or has children, stays as it is."""
        for part in packed(map(Delete, nodes), size_of, MULTI_BYTES, MULTI_ITEMS):
            while part:
                try:
                    self._store.multi(part)
                except (NoNode, NotEmpty) as error:
                    del part[error.index]
                else:
                    break

    def forget_deleted_topics(self, group: GroupId, guards: Sequence[Op]) -> Sequence[TopicPartition]:
        self._store.heartbeat()
        seen = self.look(group)
        owned = set(map(group_paths.topic_of, self._store.children(group_paths.owners(group))))
        topics = present_topics(self._store, {tp.topic for tp in seen.partitions} | owned)  # later than the offsets
        there = topics.ids.keys() | topics.unreadable.keys()
        stored, _ = decode_all(group, (tp for tp in seen.partitions if tp.topic in topics.ids), seen.nodes)
        gone = sorted(
            {tp for tp in seen.partitions if tp.topic not in there}
            | (stored.keys() - set(self._counting(group, stored, topics.ids)))
        )
        self.forget(group, seen, gone, guards)
        self._delete_empty([group_paths.owners_of_topic(group, topic) for topic in sorted(owned - there)])
        return gone


def _taken_out(
    offsets: dict[TopicPartition, CommittedOffset], error: StoreError, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, StoreError]:
    for tp in partitions:
        del offsets[tp]
    return dict.fromkeys(partitions, error)


def _commit(claim: Claim, committed: CommittedOffset) -> tuple[Op, Op]:
    topics = {claim.tp.topic: claim.topic_id}
    (node, number), (detail_node, detail) = values(claim.group, {claim.tp: committed}, topics).items()
    return Set(node, number, claim.version), Set(detail_node, detail)


def _detail(
    group: GroupId, tp: TopicPartition, committed: CommittedOffset, topic_id: TopicId, found: Versioned | None
) -> Set:
    """What makes a number the offset of this topic, beside what was found there."""
    node, data = group_paths.detail(group, tp), group_paths.encode_detail(committed, topic_id)
    return Set(node, data, ANY_VERSION if found is None else found.version)


def _version(result: OpResult) -> int:
    assert isinstance(result, int)
    return result
