"""The OffsetStore port: committed offsets of consumer groups, with claims or with guards (``offsets`` says how)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

from raylog.coordination.groups.offset_nodes import Nodes
from raylog.coordination.metadata.group_model import CommittedOffset
from raylog.coordination.store.node_json import CorruptMetadata
from raylog.coordination.store.port import Op, StoreError
from raylog.protocol.ids import GroupId, MemberId, TopicId, TopicName, TopicPartition

Topics = Mapping[TopicName, TopicId]
"""Topics as whoever commits knows them; of one that is not there only the name counts."""
BY_NAME: Topics = MappingProxyType({})


class Claim(NamedTuple):
    """An owner's right to commit; every commit makes a new one."""

    group: GroupId
    tp: TopicPartition
    owner: MemberId
    topic_id: TopicId
    """The topic that is read; NO_TOPIC_ID when it has none."""
    committed: CommittedOffset | None
    """Where to begin; None when nothing was committed for this topic."""
    version: int
    """The version of the offset node that the next commit names."""
    guards: tuple[Op, ...] = ()
    """What was checked when it was made, and is again with every write by it."""


class Staged(NamedTuple):
    """Offsets that a transaction, or a single commit, will make visible all at once."""

    offsets: tuple[tuple[Claim, CommittedOffset], ...]


class Found(NamedTuple):
    """Committed offsets as they were read."""

    committed: Mapping[TopicPartition, CommittedOffset]
    unreadable: Mapping[TopicPartition, CorruptMetadata]
    """What their own nodes hold, or those of their topics."""


class Seen(NamedTuple):
    """Nodes of a group's offsets as they were read, to be deleted only as they are."""

    partitions: tuple[TopicPartition, ...]
    nodes: Nodes
    deletions: int | None
    """The version of the node above the details before that; None: it was not there."""


class OffsetStore(Protocol):
    """Committed offsets of consumer groups.

    ``guards`` are operations that come first in the same multi: one that fails raises its error, and nothing was done.
    Every method raises StoreUnavailable when the store does not answer: then it may have been done or not.
    """

    def fetch(
        self, group: GroupId, partitions: Sequence[TopicPartition] | None = None, topics: Topics = BY_NAME
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """What was committed for these partitions, or for all, of the topics that there are now. Where ``topics`` names
        another topic than there is, nothing was.

        It is no older than what any commit that was answered before has written. Raises CorruptMetadata where one of
        them cannot be read.
        """

    def read(
        self, group: GroupId, partitions: Sequence[TopicPartition] | None = None, topics: Topics = BY_NAME
    ) -> Found:
        """As :meth:`fetch`, with those that cannot be read beside the others."""

    def claim(self, group: GroupId, tp: TopicPartition, owner: MemberId, guards: Sequence[Op] = ()) -> Claim:
        """Become the partition's owner in the group; also where this very owner's node is left from an earlier claim.

        Raises NodeExists while another is the owner, TopicGone when there is no such topic, BadVersion when a commit
        came between: try again.
        """

    def renew(self, claim: Claim) -> Claim:
        """The claim with the version of now, when this session owns the partition still; else BadVersion.

        For an owner that has not heard what became of its commit: the offset node's version is read before the owner's
        session, so nobody else claimed before that version. What was committed is not looked at. An offset node that
        was deleted is made anew. Raises TopicGone when that is for another topic.
        """

    def release(self, claim: Claim, position: CommittedOffset | None = None) -> None:
        """Give the ownership up, committing ``position`` if there is one.

        Raises BadVersion when the claim is stale, TopicGone when the topic of ``position`` is deleted.
        """

    def disown(self, group: GroupId, tp: TopicPartition, owner: MemberId, guards: Sequence[Op] = ()) -> bool:
        """Give up what is left of an ownership, whatever became of the claim and of the offset's node.

        False when this session is not the owner.
        """

    def stage(self, offsets: Sequence[tuple[Claim, CommittedOffset]]) -> Staged:
        """Prepare a commit; nothing is visible yet."""

    def commit(self, staged: Staged) -> tuple[Claim, ...]:
        """Make all of them visible, or none. Answers the claims to go on with.

        Raises BadVersion when a claim is stale, TopicGone when a topic is deleted.
        """

    def abort(self, staged: Staged) -> None:
        """Forget what was staged."""

    def write(
        self,
        group: GroupId,
        offsets: Mapping[TopicPartition, CommittedOffset],
        guards: Sequence[Op],
        topics: Topics = BY_NAME,
    ) -> Mapping[TopicPartition, StoreError]:
        """Commit without claims; answers those that could not be, with the reason: they hold up no others.

        The reason is TopicGone where the topic that ``topics`` names is deleted.
        """

    def look(self, group: GroupId, partitions: Sequence[TopicPartition] | None = None) -> Seen:
        """What can be deleted by :meth:`forget`: these partitions, or all."""

    def forget(self, group: GroupId, seen: Seen, partitions: Iterable[TopicPartition], guards: Sequence[Op]) -> None:
        """Forget what was seen of these; BadVersion when anything of it has changed, or another deleted, meanwhile."""

    def forget_deleted_topics(self, group: GroupId, guards: Sequence[Op]) -> Sequence[TopicPartition]:
        """Forget the offsets of topics that are deleted; answers their partitions. Raises as :meth:`forget`.

        What cannot be read stays while there is a topic of that name.
        """
