"""Offset commits of many members, gathered for a moment and written at once.

One thread writes. What a group's members commit within ``raylog.offsets.commit.linger.ms`` becomes one multi, which
costs the metadata store one write to its log, however many partitions and members it is for. Whether a member may
commit is asked right before: between that and the write nothing can change unnoticed, for what the answer rests on is
checked in the same multi. An offset that the store refuses is told to whom it concerns; the others are written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from raylog.broker.events import EventLog
from raylog.coordination.loops import Loops
from raylog.coordination.offsets import CommittedOffset, OffsetStore
from raylog.coordination.store import Op, StoreError, StoreUnavailable
from raylog.coordination.topic_ids import TopicGone
from raylog.protocol.errors import CoordinatorNotAvailable, NotCoordinator, RaylogError, UnknownTopicOrPartition
from raylog.protocol.ids import GroupId, TopicId, TopicName, TopicPartition

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
    """Asked in the committer's thread when the write is at hand, and again when the store refused it: operations that
    fail once this commit must not happen any more. Raises the error for the member when it must not already.
    """
    answer: Future[Results]
    """What became of each partition, or the error of all; set in the committer's thread."""


class OffsetCommitter:
    """Any thread submits; see the module's docstring."""

    def __init__(
        self, offsets: OffsetStore, linger_s: Callable[[], float], lost: Callable[[GroupId], None], loops: Loops
    ) -> None:
        """``lost``: called when the store knows of another coordinator of the group, though we do not."""
        self._offsets = offsets
        self._linger_s = linger_s
        self._lost = lost
        self._queue: SimpleQueue[Commit | None] = SimpleQueue()
        self._closing = threading.Event()
        self._at_hand: list[Commit] = []
        """Taken from the queue, not all answered yet; the thread's."""
        self._has_ended = False
        """Nobody takes anything from the queue any more: who put something there refuses it."""
        self._loop = loops.loop("offset-committer", self._turn, mend=self._refuse_at_hand, finish=self._finish)

    def start(self) -> None:
        self._loop.start()

    def close(self) -> None:
        """Write what was submitted, then end; what is submitted later hears CoordinatorNotAvailable."""
        self._closing.set()
        self._loop.stop()
        self._queue.put(None)
        self._loop.join()
        self._has_ended = True
        self._refuse_rest()

    def submit(self, commit: Commit) -> None:
        self._queue.put(commit)
        if self._has_ended:
            self._refuse_rest()

    def _refuse_rest(self) -> None:
        _refuse(self._waiting(), "the broker stops: ask for the group's coordinator anew")

    def _finish(self) -> None:
        self._has_ended = True
        self._refuse_at_hand(None)
        self._refuse_rest()

    def _refuse_at_hand(self, error: Exception | None) -> None:
        """Nobody knows which of them were written."""
        at_hand, self._at_hand = self._at_hand, []
        _refuse(at_hand, f"the offsets may not have been committed: {error or 'the broker stops'}")

    def _waiting(self) -> list[Commit]:
        commits: list[Commit] = []
        while True:
            try:
                commit = self._queue.get_nowait()
            except Empty:
                return commits
            if commit is not None:
                commits.append(commit)

    def _turn(self) -> bool:
        """Write what comes next, or wait for it; False once all is written that was submitted before the end."""
        first = self._queue.get()
        self._at_hand = [] if first is None else [first]
        self._closing.wait(self._linger_s())
        self._at_hand += self._waiting()
        for commits in _together(self._at_hand):
            self._write(commits[0].group, commits)
        self._at_hand = []
        return not (self._closing.is_set() and self._queue.empty())

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
    """Those of one group, in order, which can be one write: they mean the same topic by a name."""
    writes: dict[GroupId, list[Commit]] = {}
    topics: dict[GroupId, dict[TopicName, TopicId]] = {}
    for commit in commits:
        known = topics.setdefault(commit.group, {})
        if any(known.get(name, topic) != topic for name, topic in commit.topics.items()):
            yield writes.pop(commit.group)
            known.clear()
        known.update(commit.topics)
        writes.setdefault(commit.group, []).append(commit)
    yield from writes.values()


def _refusal(tp: TopicPartition, error: StoreError) -> RaylogError:
    why = f"the offset of {tp} could not be committed: {error}"
    return UnknownTopicOrPartition(why) if isinstance(error, TopicGone) else RaylogError(why)


def _refuse(commits: Sequence[Commit], why: str) -> None:
    for commit in commits:
        if not commit.answer.done():
            commit.answer.set_exception(CoordinatorNotAvailable(why))
