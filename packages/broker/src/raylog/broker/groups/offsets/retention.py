"""Which committed offsets nobody needs any more: those of groups without members, of topics that a group does not read
any more, and of topics that were deleted.

As in Kafka (KIP-211) an offset goes ``offsets.retention.minutes`` after its commit if it is not needed; of a group that
has no members, so long after the group was found so first, too. What an old tool wrote carries no time: it goes so long
after its newest write was found, and only when the group has no members. A group with neither members nor offsets goes
with the next check. All times are in the metadata store: they count on when brokers start again, or a group moves. They
are the wall clock's; the one that is handed in must not jump ahead (storage/clock).

The offsets of a deleted topic count for nothing, for they carry its id (``offsets``). What is left of them is cleared
away within a second or so, and with every check: a deletion may have gone unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from math import inf
from typing import Protocol, TypeVar

from raylog.broker.events import EventLog
from raylog.broker.groups.classic.described import ListedGroup
from raylog.broker.groups.classic.group import GroupState
from raylog.broker.groups.holding.table import GroupBusy
from raylog.coordination.groups.offsets import CommittedOffset
from raylog.coordination.metadata.model import ClusterState
from raylog.coordination.store.node_json import CorruptMetadata
from raylog.coordination.store.unreadable import tell
from raylog.protocol.errors import CoordinatorNotAvailable, NotCoordinator, RaylogError
from raylog.protocol.ids import NO_TIMESTAMP, GroupId, TimestampMs, TopicName, TopicPartition

__all__ = ["OffsetRetention", "RetainedGroups"]

log = EventLog(__name__)

Commits = Mapping[TopicPartition, CommittedOffset]
T = TypeVar("T")

LOOKS = (0, 3, 15, 60)
"""So many passes after a topic was deleted it is looked which groups have nodes of it. An owner that dies then, or a
claim that was under way, leaves some after the first time.
"""


class RetainedGroups(Protocol):
    """The groups that this broker coordinates. Every call raises RaylogError when it does not any more, and GroupBusy
    when the group's write hangs."""

    def list_groups(self) -> Sequence[ListedGroup]: ...

    def unneeded(self, group: GroupId) -> Commits:
        """Commits for partitions of topics that no member reads."""

    def forget(self, group: GroupId, commits: Commits) -> None:
        """Forget those of them that stand still and are not needed now, either."""

    def groups_with(self, topics: Collection[TopicName]) -> Collection[GroupId]:
        """Those that have committed for topics of these names, or whose members own some of them."""

    def forget_deleted_topics(self, group: GroupId) -> Sequence[TopicPartition]:
        """Forget what the group committed for topics that are deleted; answers which."""

    def noted_empty(self) -> Collection[GroupId]:
        """Groups for which :meth:`empty_since` has noted a time."""

    def empty_since(self, group: GroupId, untimed: Iterable[TopicPartition], now_ms: TimestampMs) -> TimestampMs | None:
        """When the group was found first without members, and ``untimed`` as they are; None when it has members, which
        is noted: the time begins anew when it has none.
        """

    def forget_bare(self, group: GroupId) -> bool:
        """Forget the group if it has neither members nor offsets."""

    def finish_deletions(self) -> None:
        """Remove what is left of deleted groups."""


class OffsetRetention:
    """One thread calls it."""

    def __init__(
        self,
        groups: RetainedGroups,
        *,
        retention_ms: Callable[[], int],
        state: Callable[[], ClusterState],
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """``is_stopping``: once it is True, a pass over all groups ends at the next one."""
        self._groups = groups
        self._retention_ms = retention_ms
        self._state = state
        self._is_stopping = is_stopping
        self._seen = state()
        self._gone: dict[TopicName, int] = {}
        """Topics that were deleted, and how many passes ago; others may have the names."""
        self._behind: set[GroupId] = set()
        """Groups to be looked through for deleted topics: the store did not answer before, or they were busy."""
        self._busy: list[tuple[ListedGroup, bool]] = []
        """Groups that the last check has still to look through, and whether it is noted since when they are empty."""

    def check(self, now_ms: TimestampMs) -> None:
        """Forget what was not needed for long enough; where that fails, the next check does."""
        self._groups.finish_deletions()
        listed_groups, noted = self._groups.list_groups(), self._groups.noted_empty()
        self._check([(listed, listed.group in noted) for listed in listed_groups], now_ms)

    def check_again(self, now_ms: TimestampMs) -> None:
        """The groups that were busy in the last check."""
        self._check(self._busy, now_ms)

    def _check(self, groups: Sequence[tuple[ListedGroup, bool]], now_ms: TimestampMs) -> None:
        failed = _Failed()
        for listed, is_noted in self._until_stopped(groups):
            with failed.noting(listed.group):
                self._check_group(listed, is_noted, now_ms)
        self._busy = [(listed, is_noted) for listed, is_noted in groups if failed.was_busy(listed.group)]
        failed.log("offsets were not looked through")

    def _until_stopped(self, groups: Iterable[T]) -> Iterator[T]:
        return takewhile(lambda _: not self._is_stopping(), groups)

    def _check_group(self, listed: ListedGroup, is_noted: bool, now_ms: TimestampMs) -> None:
        group, last_ms = listed.group, now_ms - self._retention_ms()
        self._forget_deleted_topics_of(group)
        unneeded = self._groups.unneeded(group)
        untimed = [tp for tp, committed in unneeded.items() if committed.committed_ms == NO_TIMESTAMP]
        is_asked = is_noted or listed.state == GroupState.EMPTY
        empty_ms = self._groups.empty_since(group, untimed, now_ms) if is_asked else None
        due = {tp: committed for tp, committed in unneeded.items() if _unneeded_since(committed, empty_ms) <= last_ms}
        if due:
            self._groups.forget(group, due)
            log.info("offsets forgotten", group=group, partitions=len(due))
        if empty_ms is not None and len(due) == len(unneeded) and self._groups.forget_bare(group):
            log.info("group forgotten", group=group)

    def forget_deleted_topics(self) -> None:
        """One pass: clear away what is left of topics that are gone since the last one, or not long ago.

        Where the store does not answer, the next pass does; where a group has moved, its coordinator; where it cannot
        be read, a check once it can.
        """
        state, before = self._state(), self._seen
        if state is not before:
            deleted = before.topics_by_id.keys() - state.topics_by_id.keys()
            self._gone |= dict.fromkeys((before.topics_by_id[topic].name for topic in deleted), 0)
            self._seen = state
        due = {topic for topic, passes in self._gone.items() if passes in LOOKS}
        if due:
            self._behind |= set(self._groups.groups_with(due))
        still = ((topic, passes) for topic, passes in self._gone.items() if topic not in state.topics)
        self._gone = {topic: passes + 1 for topic, passes in still if passes < LOOKS[-1]}
        failed = _Failed()
        for group in self._until_stopped(sorted(self._behind)):
            with failed.noting(group):
                self._forget_deleted_topics_of(group)
            if not failed.was_unanswered(group) and not failed.was_busy(group):
                self._behind.discard(group)
        failed.log("offsets of deleted topics were not forgotten")

    def _forget_deleted_topics_of(self, group: GroupId) -> None:
        forgotten = self._groups.forget_deleted_topics(group)
        if forgotten:
            log.info("offsets of deleted topics forgotten", group=group, partitions=len(forgotten))


class _Failed:
    """Groups that a pass could not look through: a line for each kind of error, not for each group."""

    def __init__(self) -> None:
        self._errors: dict[type[RaylogError], dict[GroupId, RaylogError]] = {}

    @contextmanager
    def noting(self, group: GroupId) -> Iterator[None]:
        """What fails inside harms this group alone."""
        try:
            yield
        except CorruptMetadata as error:
            tell(error)
        except RaylogError as error:
            self._errors.setdefault(type(error), {})[group] = error

    def was_unanswered(self, group: GroupId) -> bool:
        """By the store."""
        return group in self._errors.get(CoordinatorNotAvailable, ())

    def was_busy(self, group: GroupId) -> bool:
        """Nobody waits for one group: it is looked through with the next pass."""
        return group in self._errors.get(GroupBusy, ())

    def log(self, event: str) -> None:
        for kind, errors in self._errors.items():
            first, error = next(iter(errors.items()))
            told = log.info if kind in (NotCoordinator, GroupBusy) else log.warning  # these are seen to, or will be
            told(event, groups=len(errors), first=first, reason=error)


def _unneeded_since(committed: CommittedOffset, empty_ms: TimestampMs | None) -> float:
    """For ever not where neither time is known: an old tool committed it, for a group that has members."""
    if empty_ms is None:
        return committed.committed_ms if committed.committed_ms != NO_TIMESTAMP else inf
    return max(empty_ms, committed.committed_ms)
