"""Offset commits of many members, gathered for a moment and written at once.

What a group's members commit within ``raylog.offsets.commit.linger.ms`` becomes one multi, which costs the metadata
store one write to its log, however many partitions and members it is for. A few threads write, for one group one at a
time and in order: a write that takes long holds up no other group (``due``). Whether a member may
commit is asked right before: between that and the write nothing can change unnoticed, for what the answer rests on is
checked in the same multi. An offset that the store refuses is told to whom it concerns; the others are written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from raylog.broker.events import EventLog
from raylog.broker.groups.holding.due import DueGroups
from raylog.coordination.groups.offsets import CommittedOffset, OffsetStore
from raylog.coordination.host.loops import Loops
from raylog.coordination.metadata.topic_ids import TopicGone
from raylog.coordination.store.port import Op, StoreError, StoreUnavailable
from raylog.protocol.errors import CoordinatorNotAvailable, NotCoordinator, RaylogError, UnknownTopicOrPartition
from raylog.protocol.ids import GroupId, MonotonicMs, TopicId, TopicName, TopicPartition

__all__ = ["Commit", "OffsetCommitter"]

log = EventLog(__name__)

Results = Mapping[TopicPartition, RaylogError | None]

_ATTEMPTS = 5
"""How often a commit is tried whose group changes each time between question and write."""


@dataclass(frozen=True, slots=True, eq=False)
class Commit:
    """What one member wants to have committed."""

    group: GroupId
    offsets: Mapping[TopicPartition, CommittedOffset]
    topics: Mapping[TopicName, TopicId]
    """The topics that they are of, as they were known when it came."""
    fence: Callable[[], Sequence[Op]]
    """Asked in a committer's thread when the write is at hand, and again when the store refused it: operations that
    fail once this commit must not happen any more. Raises the error for the member when it must not already.
    """
    answer: Future[Results]
    """What became of each partition, or the error of all; set in a committer's thread."""


class OffsetCommitter:
    """Any thread submits; see the module's docstring."""

    def __init__(
        self,
        offsets: OffsetStore,
        linger_ms: Callable[[], int],
        lost: Callable[[GroupId], None],
        now_ms: Callable[[], MonotonicMs],
        loops: Loops,
    ) -> None:
        """``lost``: called when the store knows of another coordinator of the group, though we do not."""
        self._offsets = offsets
        self._linger_ms = linger_ms
        self._lost = lost
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._waiting: dict[GroupId, list[Commit]] = {}
        """What no thread has taken yet, in order."""
        self._is_closed = False
        """What comes now is refused."""
        self._due = DueGroups("offset-committer", self._write_waiting, now_ms, loops)

    def start(self) -> None:
        self._due.start()

    def close(self) -> None:
        """Write what was submitted, then end; what is submitted later hears CoordinatorNotAvailable."""
        with self._lock:
            self._is_closed = True
        self._due.stop(finish=True)
        for group in tuple(self._waiting):  # its threads were gone
            _refuse(self._taken(group), "the broker stops: ask for the group's coordinator anew")

    def submit(self, commit: Commit) -> None:
        with self._lock:
            is_refused = self._is_closed
            if not is_refused:
                self._waiting.setdefault(commit.group, []).append(commit)
        if is_refused:
            _refuse([commit], "the broker stops: ask for the group's coordinator anew")
        else:
            self._due.schedule(commit.group, MonotonicMs(self._now_ms() + self._linger_ms()))

    @property
    def next_ms(self) -> MonotonicMs | None:
        """When there is something to be written next."""
        return self._due.next_ms

    def _taken(self, group: GroupId) -> list[Commit]:
        with self._lock:
            return self._waiting.pop(group, [])

    def _write_waiting(self, group: GroupId) -> None:
        commits = self._taken(group)
        try:
            for part in _together(commits):
                self._write(group, part)
        finally:  # where this thread ends here, nobody knows which of them were written
            _refuse(commits, f"the offsets of group {group} may not have been committed: the broker stops")

    def _write(self, group: GroupId, commits: list[Commit]) -> None:
        try:
            self._write_fenced(group, commits)
        except Exception as error:  # whatever it is, members get an answer, and other groups go on
            if not isinstance(error, StoreError):
                log.exception("committing offsets met a defect of the broker", group=group)
            reason = CoordinatorNotAvailable(f"the offsets of group {group} may not have been committed: {error}")
            for commit in commits:
                commit.answer.set_exception(reason)

    def _write_fenced(self, group: GroupId, commits: list[Commit]) -> None:
        """Takes out of ``commits`` those that were answered."""
        before: list[Op] | None = None
        for _ in range(_ATTEMPTS):
            guards = self._guards(commits)
            if not commits:
                return
            if guards == before:  # nothing has changed that we know of, and yet the store refuses
                self._lost(group)
                break
            offsets = {tp: committed for commit in commits for tp, committed in commit.offsets.items()}
            try:
                topics = {name: topic for commit in commits for name, topic in commit.topics.items()}
                refused = self._offsets.write(group, offsets, guards, topics)
            except StoreUnavailable:
                raise
            except StoreError as error:
                log.info("an offset commit was fenced", group=group, reason=str(error))
                before = guards
                continue
            self._answer(commits, refused)
            return
        elsewhere = NotCoordinator(f"group {group} is in other hands: ask for its coordinator anew")
        while commits:
            commits.pop().answer.set_exception(elsewhere)

    def _guards(self, commits: list[Commit]) -> list[Op]:
        """All operations that must hold; answers those whose commit must not happen, and takes them out."""
        guards: dict[Op, None] = {}
        for commit in tuple(commits):
            try:
                guards |= dict.fromkeys(commit.fence())
            except RaylogError as error:
                commits.remove(commit)
                commit.answer.set_exception(error)
        return list(guards)

    def _answer(self, commits: list[Commit], refused: Mapping[TopicPartition, StoreError]) -> None:
        errors = {tp: _refusal(tp, error) for tp, error in refused.items()}
        for tp, error in errors.items():
            log.warning("an offset could not be committed", partition=str(tp), reason=str(error))
        while commits:
            commit = commits.pop()
            commit.answer.set_result({tp: errors.get(tp) for tp in commit.offsets})


def _together(commits: Sequence[Commit]) -> Iterator[list[Commit]]:
    """In order, those which can be one write: they mean the same topic by a name."""
    part: list[Commit] = []
    topics: dict[TopicName, TopicId] = {}
    for commit in commits:
        if any(topics.get(name, topic) != topic for name, topic in commit.topics.items()):
            yield part
            part, topics = [], {}
        topics.update(commit.topics)
        part.append(commit)
    yield part


def _refusal(tp: TopicPartition, error: StoreError) -> RaylogError:
    why = f"the offset of {tp} could not be committed: {error}"
    return UnknownTopicOrPartition(why) if isinstance(error, TopicGone) else RaylogError(why)


def _refuse(commits: Sequence[Commit], why: str) -> None:
    for commit in commits:
        if not commit.answer.done():
            commit.answer.set_exception(CoordinatorNotAvailable(why))
