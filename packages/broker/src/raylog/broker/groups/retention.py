"""Which committed offsets nobody needs any more: those of groups without members, of topics that a group does not read
any more, and of topics that were deleted.

As in Kafka (KIP-211) an offset goes ``offsets.retention.minutes`` after its commit if it is not needed; of a group that
has no members, so long after the group was found so first, too. A group with neither members nor offsets goes with the
next check. Both times are in the metadata store: they count on when brokers start again, or a group moves. They are the
wall clock's; the one that is handed in must not jump ahead (storage/clock).

Of a topic that was deleted everything goes within a second or so, for it means nothing in a new topic of that name; so
may what was committed for that one by then, which its consumers commit again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from typing import Protocol

from raylog.broker.events import EventLog
from raylog.broker.groups.classic import GroupState
from raylog.broker.groups.described import ListedGroup
from raylog.coordination.model import ClusterState
from raylog.coordination.offsets import CommittedOffset
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import NO_TIMESTAMP, GroupId, TimestampMs, TopicId, TopicName, TopicPartition

__all__ = ["OffsetRetention", "RetainedGroups"]

log = EventLog(__name__)

Commits = Mapping[TopicPartition, CommittedOffset]


class RetainedGroups(Protocol):
    """The groups that this broker coordinates. Every call raises RaylogError when it does not any more."""

    def list_groups(self) -> Sequence[ListedGroup]: ...

    def fetch_offsets(self, group: GroupId, partitions: None) -> Commits: ...

    def unneeded(self, group: GroupId) -> Commits:
        """Commits for partitions of topics that no member reads."""

    def forget(self, group: GroupId, commits: Commits, *, even_if_needed: bool) -> None:
        """Forget those of them that stand still."""

    def empty_since(self, group: GroupId, now_ms: TimestampMs) -> TimestampMs | None:
        """When the group was found without members first; None when it has some."""

    def forget_bare(self, group: GroupId) -> bool:
        """Forget the group if it has neither members nor offsets."""


class OffsetRetention:
    """One thread calls it."""

    def __init__(
        self,
        groups: RetainedGroups,
        *,
        retention_ms: Callable[[], int],
        state: Callable[[], ClusterState],
        is_deleted: Callable[[TopicName, TopicId], bool],
    ) -> None:
        """``is_deleted``: whether the metadata store has no such topic, which is asked about those that ``state`` has
        no more.
        """
        self._groups = groups
        self._retention_ms = retention_ms
        self._state = state
        self._is_deleted = is_deleted
        self._seen = state()
        self._deleted: set[TopicName] = set()
        """Topics whose offsets are still to be forgotten, by all groups."""
        self._behind: dict[GroupId, set[TopicName]] = {}
        """Those whose offsets single groups have still to forget: others must not forget them again, which may have
        committed for new topics of those names since.
        """

    def check(self, now_ms: TimestampMs) -> None:
        """Forget what was not needed for long enough; where that fails, the next check does."""
        for listed in self._groups.list_groups():
            try:
                self._check_group(listed, now_ms)
            except RaylogError as error:
                log.warning("offsets were not looked through", group=listed.group, reason=error)

    def _check_group(self, listed: ListedGroup, now_ms: TimestampMs) -> None:
        group, last_ms = listed.group, now_ms - self._retention_ms()
        empty_ms = self._groups.empty_since(group, now_ms) if listed.state == GroupState.EMPTY else None
        unneeded = self._groups.unneeded(group)
        due = {tp: committed for tp, committed in unneeded.items() if _unneeded_since(committed, empty_ms) <= last_ms}
        if due:
            self._groups.forget(group, due, even_if_needed=False)
            log.info("offsets forgotten", group=group, partitions=len(due))
        if empty_ms is not None and len(due) == len(unneeded) and self._groups.forget_bare(group):
            log.info("group forgotten", group=group)

    def forget_deleted_topics(self) -> None:
        """Forget the offsets of topics that are gone since the last call; where that fails, the next call does."""
        state, before = self._state(), self._seen
        if state is not before:
            self._deleted |= {
                name
                for name, topic in before.topics.items()
                if ((now := state.topic(name)) is None or now.id != topic.id) and self._is_deleted(name, topic.id)
            }
            self._seen = state
        if not self._deleted and not self._behind:
            return
        groups = [listed.group for listed in self._groups.list_groups()]
        topics_of = {group: self._behind.get(group, set()) | self._deleted for group in groups}
        self._deleted = set()
        self._behind = {group: topics for group, topics in topics_of.items() if not self._forgot(group, topics)}

    def _forgot(self, group: GroupId, topics: Collection[TopicName]) -> bool:
        if not topics:
            return True
        try:
            found = self._groups.fetch_offsets(group, None)
            commits = {tp: committed for tp, committed in found.items() if tp.topic in topics}
            if commits:
                self._groups.forget(group, commits, even_if_needed=True)
                log.info("offsets of deleted topics forgotten", group=group, partitions=len(commits))
        except RaylogError as error:
            log.warning("offsets of deleted topics were not forgotten", group=group, reason=error)
            return False
        return True


def _unneeded_since(committed: CommittedOffset, empty_ms: TimestampMs | None) -> float:
    """For ever not where neither time is known: an old tool committed it, for a group that has members."""
    if empty_ms is None:
        return committed.committed_ms if committed.committed_ms != NO_TIMESTAMP else inf
    return max(empty_ms, committed.committed_ms)
