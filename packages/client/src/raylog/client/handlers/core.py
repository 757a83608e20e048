"""◆ What a consumer actor does next: poll, call the handler, commit, try again, put aside, stop.

:class:`HandlerCore` takes one decision after the other; its owner (``handlers.runner``) carries each out, in the same
thread, and tells what came of it before it asks for the next. A batch's way:

    polled ──► [committed: at_most_once] ──► handler ──► done ──► [committed: every so often, and before giving up]
                                              │   ▲
                                       raised │   │ a little later, until errors.retry.timeout
                                              ▼   │
                                             failed ──► the member stops; or what is refused is found, half by half,
                                                        and left out

While a batch waits for its next try, its partition is paused and the others go on. The consumer is polled every second
all the same: so partitions come and go, and so the group sees that its member lives.

If the process dies: with at_most_once, a batch whose offset was committed may never be handled. With at_least_once,
what was handled since the last commit is handled again, by whoever owns the partition next. With exactly_once the batch
is read again from where the handler's own store says, which has all of the batch or nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from raylog.client.handlers.batches import HandlerBatch
from raylog.client.handlers.config import Guarantee, HandlerOptions, OnError
from raylog.client.read_errors import RecordDeserializationError
from raylog.protocol.ids import MonotonicMs, Offset, TopicPartition

__all__ = ["Bury", "Commit", "Counts", "Decision", "Handle", "HandlerCore", "Poll", "Stop", "Verdict"]

POLL_MOST_MS = 200
"""The longest wait in one poll: so long does it take until a wish to stop is heard."""
POLL_EVERY_MS = 1_000
"""So often it is polled while there is still something to handle."""
RETRY_FIRST_MS = 100
COMMIT_RETRY_MS = 250


# --- decisions ---


@dataclass(frozen=True, slots=True)
class Poll:
    """Wait so long at most for records, of all assigned partitions without those ``paused``. Answer: polled."""

    timeout_ms: int
    paused: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Handle:
    """Call the handler. Answer: handled, or failed with what it raised."""

    batch: HandlerBatch


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit these offsets, and wait for it. Answer: committed, or commit_failed."""

    offsets: Mapping[TopicPartition, Offset]


@dataclass(frozen=True, slots=True)
class Bury:
    """Send the batch, refused for ``error``, to the dead-letter topic. Answer: buried, or bury_failed."""

    batch: HandlerBatch
    error: Exception


@dataclass(frozen=True, slots=True)
class Stop:
    """Leave the group; for ``error``, or as was wished."""

    error: Exception | None


Decision = Poll | Handle | Commit | Bury | Stop


class Verdict(Enum):
    """What follows from a failure."""

    RETRY = "it will be tried again"
    CUT = "the record that cannot be deserialized is parted from the others"
    HALVE = "it will be tried in halves, to find what is refused"
    SKIP = "it is left out"
    BURY = "it goes to the dead-letter topic"
    STOP = "the member stops"


@dataclass(frozen=True, slots=True)
class Counts:
    """Since the start; all in records, but for ``failures``, which counts calls that raised."""

    handled: int = 0
    failures: int = 0
    skipped: int = 0
    dead_lettered: int = 0


@dataclass(slots=True)
class _Work:
    batch: HandlerBatch
    due_ms: MonotonicMs
    committed: bool = False
    """Before the handler is called: at_most_once."""
    attempts: int = 0
    give_up_at_ms: MonotonicMs | None = None
    """When its retries are over; None: it has not failed, or they never are."""
    refused: Exception | None = None
    """It is to be buried for this."""


@dataclass(slots=True)
class _Place:
    """One partition."""

    queue: deque[_Work] = field(default_factory=deque)
    done: Offset | None = None
    """One past what was handled or left out."""
    committed: Offset | None = None
    """By us; ahead of ``done`` while an at_most_once batch is being handled."""


class HandlerCore:
    """One thread calls it; ``now_ms`` never goes back."""

    def __init__(self, options: HandlerOptions, now_ms: MonotonicMs, counts: Counts) -> None:
        self.counts = counts
        self._options = options
        self._places: dict[TopicPartition, _Place] = {}
        self._doing: _Work | None = None
        self._poll_due_ms = now_ms
        self._commit_due_ms = MonotonicMs(now_ms + options.commit_interval_ms)
        self._commit_retry_ms = now_ms
        """After a failed commit: none before this."""
        self._committing: Mapping[TopicPartition, Offset] = {}
        self._last_commit_failed = False
        self._stopping = False
        self._error: Exception | None = None

    def positions(self) -> dict[TopicPartition, Offset]:
        """Per partition that something came of, one past what was handled or left out."""
        return {tp: place.done for tp, place in self._places.items() if place.done is not None}

    # --- what is next ---

    def next(self, now_ms: MonotonicMs, may_deliver: Callable[[TopicPartition], bool]) -> Decision:
        """What to do now. ``may_deliver``: does this member own the partition, and does its lease hold?"""
        offsets = self._uncommitted()
        ending = self._stopping or self._error is not None
        if offsets and self._may_commit(now_ms, ending=ending):
            return self._commit(offsets)
        if ending:
            return Stop(self._error)
        work = self._first_ready(now_ms, may_deliver)
        if work is None or (now_ms >= self._poll_due_ms and not work.committed):
            return self._poll(now_ms, at_once=work is not None, uncommitted=bool(offsets))
        if self._options.guarantee is Guarantee.AT_MOST_ONCE and not work.committed:
            return self._commit({work.batch.tp: work.batch.next_offset})
        self._doing = work
        return Handle(work.batch) if work.refused is None else Bury(work.batch, work.refused)

    def _uncommitted(self) -> dict[TopicPartition, Offset]:
        return {
            tp: place.done
            for tp, place in self._places.items()
            if place.done is not None and (place.committed is None or place.done > place.committed)
        }

    def _may_commit(self, now_ms: MonotonicMs, *, ending: bool) -> bool:
        if ending:
            return not self._last_commit_failed
        return now_ms >= max(self._commit_due_ms, self._commit_retry_ms)

    def _commit(self, offsets: Mapping[TopicPartition, Offset]) -> Commit:
        self._committing = offsets
        return Commit(offsets)

    def _first_ready(self, now_ms: MonotonicMs, may_deliver: Callable[[TopicPartition], bool]) -> _Work | None:
        """The batch that has waited longest of those that may be handled now."""
        ready = [
            place.queue[0]
            for tp, place in self._places.items()
            if place.queue and now_ms >= self._due_ms(place.queue[0]) and may_deliver(tp)
        ]
        return min(ready, key=lambda work: work.due_ms, default=None)

    def _due_ms(self, work: _Work) -> MonotonicMs:
        if self._options.guarantee is Guarantee.AT_MOST_ONCE and not work.committed:
            return max(work.due_ms, self._commit_retry_ms)
        return work.due_ms

    def _poll(self, now_ms: MonotonicMs, *, at_once: bool, uncommitted: bool) -> Poll:
        waiting = {tp: place.queue[0] for tp, place in self._places.items() if place.queue}
        wake_ms = [due for work in waiting.values() if (due := self._due_ms(work)) > now_ms]
        if uncommitted:
            wake_ms.append(max(self._commit_due_ms, self._commit_retry_ms))
        timeout_ms = min([POLL_MOST_MS, *(wake - now_ms for wake in wake_ms)])
        return Poll(0 if at_once else timeout_ms, frozenset(waiting))

    # --- what came of it ---

    def polled(self, batches: Iterable[HandlerBatch], now_ms: MonotonicMs) -> None:
        """These came: nothing of a partition that was paused."""
        self._poll_due_ms = MonotonicMs(now_ms + POLL_EVERY_MS)
        for batch in batches:
            self._places.setdefault(batch.tp, _Place()).queue.append(_Work(batch, now_ms))

    def handled(self) -> None:
        """The handler has taken the batch."""
        self.counts = replace(self.counts, handled=self.counts.handled + len(self._finish()))

    def failed(self, error: Exception, now_ms: MonotonicMs) -> Verdict:
        """The handler has raised ``error``; what follows from it."""
        self.counts = replace(self.counts, failures=self.counts.failures + 1)
        work, options = self._current(), self._options
        queue = self._places[work.batch.tp].queue
        if len(work.batch) > 1 and (poison := _undecodable(work.batch, error)) is not None:
            queue.popleft()
            parts = work.batch.cut(poison or 1)
            queue.extendleft(_Work(part, now_ms, committed=work.committed) for part in reversed(parts))
            return Verdict.CUT
        work.attempts += 1
        if options.guarantee is not Guarantee.AT_MOST_ONCE:
            if self._tries_again(work, now_ms):
                return Verdict.RETRY
            if options.on_error is not OnError.STOP and len(work.batch) > 1:
                queue.popleft()
                queue.extendleft(_Work(half, now_ms, give_up_at_ms=now_ms) for half in reversed(_halves(work.batch)))
                return Verdict.HALVE
        match options.on_error:
            case OnError.STOP:
                self._error = error
                return Verdict.STOP
            case OnError.DEAD_LETTER:
                work.refused = error
                return Verdict.BURY
            case OnError.SKIP:
                self.counts = replace(self.counts, skipped=self.counts.skipped + len(self._finish()))
                return Verdict.SKIP

    def _tries_again(self, work: _Work, now_ms: MonotonicMs) -> bool:
        delay_ms = min(RETRY_FIRST_MS << min(work.attempts - 1, 32), self._options.retry_delay_max_ms)
        if self._options.retry_timeout_ms < 0:
            work.due_ms = MonotonicMs(now_ms + delay_ms)
            return True
        if work.give_up_at_ms is None:
            work.give_up_at_ms = MonotonicMs(now_ms + self._options.retry_timeout_ms)
        if now_ms >= work.give_up_at_ms:
            return False
        work.due_ms = MonotonicMs(min(now_ms + delay_ms, work.give_up_at_ms))
        return True

    def buried(self) -> None:
        """The batch is in the dead-letter topic."""
        self.counts = replace(self.counts, dead_lettered=self.counts.dead_lettered + len(self._finish()))

    def bury_failed(self, error: Exception) -> None:
        """It is not, or nobody knows: the member stops in front of the batch, which comes again."""
        self._error = error

    def committed(self, now_ms: MonotonicMs) -> None:
        """The offsets are committed."""
        for tp, offset in self._committing.items():
            place = self._places.get(tp)
            if place is None:
                continue
            place.committed = offset
            if place.queue and place.queue[0].batch.next_offset == offset:
                place.queue[0].committed = True
        self._commit_due_ms = MonotonicMs(now_ms + self._options.commit_interval_ms)

    def commit_failed(self, now_ms: MonotonicMs) -> None:
        """They are not, or nobody knows. It is tried again, behind a poll, which tells whether they are still ours."""
        self._commit_retry_ms = MonotonicMs(now_ms + COMMIT_RETRY_MS)
        self._poll_due_ms = now_ms
        self._last_commit_failed = self._stopping or self._error is not None

    def revoked(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Offset]:
        """They are given up; what is to be committed of them before."""
        uncommitted = self._uncommitted()
        given_up = set(partitions)
        self.lost(given_up)
        return {tp: offset for tp, offset in uncommitted.items() if tp in given_up}

    def lost(self, partitions: Iterable[TopicPartition]) -> None:
        """They are not ours any more: nothing of them counts."""
        for tp in partitions:
            self._places.pop(tp, None)

    def stop(self) -> None:
        """Commit what is done, and stop. What was polled and not handled is left to others."""
        self._stopping = True

    def fail(self, error: Exception) -> None:
        """Stop for ``error``, which was not the handler's."""
        self._error = self._error or error

    def _current(self) -> _Work:
        assert self._doing is not None, "nothing is being handled"
        return self._doing

    def _finish(self) -> HandlerBatch:
        """The batch is settled; go on behind it."""
        work, self._doing = self._current(), None
        place = self._places[work.batch.tp]
        place.queue.popleft()
        place.done = work.batch.next_offset
        return work.batch


def _undecodable(batch: HandlerBatch, error: Exception) -> int | None:
    """Which record of the batch cannot be deserialized, if that is the error."""
    if not isinstance(error, RecordDeserializationError) or error.tp != batch.tp:
        return None
    return next((index for index, raw in enumerate(batch.raw()) if raw.offset == error.offset), None)


def _halves(batch: HandlerBatch) -> tuple[HandlerBatch, HandlerBatch]:
    return batch.cut(len(batch) // 2)
