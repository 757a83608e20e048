"""Delayed fetches: requests that wait until enough new bytes can be read (Kafka's purgatory), and what fetch
sessions must look at again.

A :class:`FetchWatch` stands for one fetch or one session. It has an :class:`Interest` for each of its partitions, which
is registered under the partition's name. Consumers wait for the high watermark, followers for the log's end
(:class:`Level`). Whatever moves one calls :meth:`DelayedFetches.advanced` or :meth:`DelayedFetches.appended` with the
bytes that became readable: the interest is noted in the watch's ``changed``, and while a request waits, the bytes are
counted against what is missing, and only a request that misses nothing more is woken. A moved high watermark is noted
for followers, too, and wakes none: the next answer tells it.

A fetch without a session makes a watch when it has to wait, and removes it at the end. A session keeps one for its
whole life, so that a request costs by the partitions that changed and not by those that it watches. Between two
requests an interest is noted once and then no longer registered, until the session reads the partition again: a session
whose client has left costs an append nothing.

The table owns all of that state: where an interest is registered and whether it is noted. What is unwatched is neither,
so :meth:`~DelayedFetches.arm` never answers what its caller has given up.

The protocol of a fetch, in this order, loses no wake-up:

1. :meth:`~DelayedFetches.arm`: counting begins, and what changed before is handed over;
2. :meth:`~DelayedFetches.watch` what is about to be read;
3. read;
4. :meth:`~DelayedFetches.credit` what was found, and wait. An advance between 2 and 3 is counted twice: it
   wakes the fetch early, which reads less than it wanted and begins again at 1.

All fetches and all appends share the lock, so no call holds it for longer than AT_ONCE partitions take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from enum import Enum
from itertools import islice
from typing import TypeVar

from raylog.protocol.ids import TopicPartition

AT_ONCE = 500
"""So many registrations are changed before others get the lock: some 0.3 ms."""

_T = TypeVar("_T")


def _nobody() -> None:
    """Wakes nobody."""


class Level(Enum):
    """What has to move before there is more to read."""

    HIGH_WATERMARK = "high_watermark"  # consumers
    LOG_END = "log_end"  # followers


class FetchWatch:
    """A standing interest in partitions. Its fields belong to DelayedFetches, under its lock."""

    __slots__ = ("changed", "closed", "level", "missing", "registered", "wake")

    def __init__(self, level: Level = Level.HIGH_WATERMARK) -> None:
        self.level = level
        self.registered: set[Interest] = set()
        self.changed: set[Interest] = set()
        """What to look at again, since the last :meth:`DelayedFetches.arm`."""
        self.missing = 0
        """The bytes that a waiting fetch still misses; 0 when nobody waits, or no longer."""
        self.wake: Callable[[], None] = _nobody
        self.closed = False


class Interest:
    """A watch's interest in one partition."""

    __slots__ = ("at", "watch")

    def __init__(self, watch: FetchWatch) -> None:
        self.watch = watch
        self.at: TopicPartition | None = None
        """Where it is registered now. DelayedFetches writes it, under its lock."""


class DelayedFetches:
    """All watches of one broker, by partition. Methods may be called from any thread."""

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        """``lock`` (not reentrant) guards the table; it is held for dictionary work only."""
        self._lock = lock
        self._watching: dict[TopicPartition, set[Interest]] = {}
        self._registered = 0
        self._waiting = 0

    # --- who fetches -----------------------------------------------------------------------------------------

    def arm(self, watch: FetchWatch, min_bytes: int, wake: Callable[[], None]) -> set[Interest]:
        """Count towards ``min_bytes`` from now on; answers what changed since it was last armed.

        ``wake`` is called at most once, from any thread, and must not block.
        """
        with self._lock:
            self._await(watch, min_bytes)
            watch.wake = wake
            changed, watch.changed = watch.changed, set()
        return changed

    def disarm(self, watch: FetchWatch) -> None:
        """Nobody waits any more; the watch stays where it is registered."""
        with self._lock:
            self._await(watch, 0)
            watch.wake = _nobody

    def watch(self, places: Iterable[tuple[Interest, TopicPartition | None]]) -> None:
        """Register each interest there and nowhere else; None: nowhere. Nothing happens once its watch was removed."""
        for some in _batches(places):
            with self._lock:
                for interest, tp in some:
                    if interest.at != tp:
                        self._unregister(interest)
                        self._register(interest, tp)

    def unwatch(self, interests: Iterable[Interest]) -> None:
        """Take the registrations back, and what was noted of them."""
        for some in _batches(interests):
            with self._lock:
                for interest in some:
                    self._unregister(interest)
                    interest.watch.changed.discard(interest)

    def credit(self, watch: FetchWatch, readable: int) -> None:
        """Count ``readable`` bytes that were found; wakes the fetch when they are enough."""
        with self._lock:
            wake = self._count(watch, readable)
        wake()

    def rouse(self, watch: FetchWatch) -> None:
        """Wake who waits with ``watch``, whatever is missing."""
        with self._lock:
            wake = self._count(watch, watch.missing)
        wake()

    def remove(self, watch: FetchWatch) -> None:
        """Forget ``watch`` for good; who still waits for it runs into its own deadline."""
        with self._lock:
            watch.closed = True
            self._await(watch, 0)
        while True:
            with self._lock:  # a closed watch gets no more registrations, so this ends
                some = tuple(islice(watch.registered, AT_ONCE))
                for interest in some:
                    self._unregister(interest)
            if len(some) < AT_ONCE:
                return

    # --- who moves a partition on ----------------------------------------------------------------------------

    def advanced(self, tp: TopicPartition, readable: int) -> None:
        """``readable`` more bytes of ``tp`` lie below its high watermark: wake the fetches that this satisfies."""
        self._moved(tp, readable, Level.HIGH_WATERMARK)

    def appended(self, tp: TopicPartition, size: int) -> None:
        """``size`` more bytes of ``tp`` are in the log, and not committed yet: wake the followers' fetches."""
        self._moved(tp, size, Level.LOG_END)

    def _moved(self, tp: TopicPartition, size: int, level: Level) -> None:
        if tp not in self._watching:
            return
        with self._lock:
            wakes = [
                self._note(interest, size if interest.watch.level is level else 0)
                for interest in tuple(self._watching.get(tp, ()))
                if interest.watch.level is level or level is Level.HIGH_WATERMARK
            ]
        for wake in wakes:
            wake()

    def changed(self, tp: TopicPartition) -> None:
        """Something else about ``tp`` changed that sessions tell: its log's start. Wakes nobody."""
        self.advanced(tp, 0)

    def interrupt(self, tp: TopicPartition) -> None:
        """``tp`` changed its leader, was deleted or failed: wake all that watch it, who will find out."""
        with self._lock:
            wakes = [self._note(interest, interest.watch.missing) for interest in tuple(self._watching.get(tp, ()))]
        for wake in wakes:
            wake()

    def interrupt_all(self) -> None:
        """The broker stops: wake every fetch."""
        for tp in tuple(self._watching):
            self.interrupt(tp)

    def __len__(self) -> int:
        """How many interests are registered: what an idle broker must not pile up."""
        return self._registered

    @property
    def waiting(self) -> int:
        """How many fetches wait now."""
        return self._waiting

    # --- under the lock --------------------------------------------------------------------------------------

    def _note(self, interest: Interest, readable: int) -> Callable[[], None]:
        watch = interest.watch
        watch.changed.add(interest)
        wake = self._count(watch, readable)
        if watch.missing <= 0:
            self._unregister(interest)
        return wake

    def _count(self, watch: FetchWatch, readable: int) -> Callable[[], None]:
        """What to call, outside the lock: by then the watch may be armed anew, with another ``wake``."""
        if watch.missing <= 0:
            return _nobody
        self._await(watch, watch.missing - readable)
        return _nobody if watch.missing > 0 else watch.wake

    def _await(self, watch: FetchWatch, missing: int) -> None:
        """The one place that says how much a watch misses. What waits is counted here, too."""
        missing = 0 if watch.closed else max(missing, 0)
        self._waiting += (missing > 0) - (watch.missing > 0)
        watch.missing = missing

    def _register(self, interest: Interest, tp: TopicPartition | None) -> None:
        if tp is None or interest.watch.closed:
            return
        interest.at = tp
        interest.watch.registered.add(interest)
        self._watching.setdefault(tp, set()).add(interest)
        self._registered += 1

    def _unregister(self, interest: Interest) -> None:
        tp = interest.at
        if tp is None:
            return
        interest.at = None
        interest.watch.registered.remove(interest)
        interests = self._watching[tp]
        interests.remove(interest)
        if not interests:
            del self._watching[tp]
        self._registered -= 1


def _batches(items: Iterable[_T]) -> Iterator[list[_T]]:
    """In order, AT_ONCE at a time."""
    left = iter(items)
    while some := list(islice(left, AT_ONCE)):
        yield some
