"""Delayed fetches: requests that wait until enough new bytes can be read (Kafka's purgatory), and what fetch
sessions must look at again.

A :class:`FetchWatch` is registered under the partitions that it is interested in, at a :class:`Level`: consumers wait
for the high watermark, followers for the log's end. Whoever moves one calls :meth:`DelayedFetches.advanced` or
:meth:`DelayedFetches.appended` with the bytes that became readable: the partition is noted in the watch's ``changed``,
and while somebody waits, the bytes are counted against what is missing, and only who misses nothing more is woken. A
moved high watermark is noted for followers, too, and wakes none: the next answer tells it.

A fetch without a session makes a watch of its own when it has to wait, and removes it at the end. A session keeps one
for its whole life, so that a request costs by the partitions that changed and not by those that it watches. Between two
requests a partition is noted once and then no longer watched, until the session reads it again: a session whose client
has left costs an append nothing.

The protocol of a fetch, in this order, loses no wake-up:

1. :meth:`~DelayedFetches.arm`: counting begins, and what changed before is handed over;
2. :meth:`~DelayedFetches.watch` what is about to be read;
3. read;
4. :meth:`~DelayedFetches.credit` what was found, and wait. An advance between 2 and 3 is counted twice: it
   wakes the fetch early, which reads less than it wanted and begins again at 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from enum import Enum

from raylog.protocol.ids import TopicPartition


def _nobody() -> None:
    """Wakes nobody."""


class Level(Enum):
    """What has to move before there is more to read."""

    HIGH_WATERMARK = "high_watermark"  # consumers
    LOG_END = "log_end"  # followers


class FetchWatch:
    """A standing interest in partitions. Its fields belong to DelayedFetches, under its lock."""

    __slots__ = ("changed", "closed", "level", "missing", "partitions", "wake")

    def __init__(self, level: Level = Level.HIGH_WATERMARK) -> None:
        self.level = level
        self.partitions: set[TopicPartition] = set()
        """Where it is registered now."""
        self.changed: set[TopicPartition] = set()
        """What to look at again, since the last :meth:`DelayedFetches.arm`."""
        self.missing = 0
        """The bytes that a waiting fetch still misses; 0 when nobody waits, or no longer."""
        self.wake: Callable[[], None] = _nobody
        self.closed = False


class DelayedFetches:
    """All watches of one broker, by partition. Methods may be called from any thread."""

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        """``lock`` (not reentrant) guards the table; it is held for dictionary work only."""
        self._lock = lock
        self._watching: dict[TopicPartition, set[FetchWatch]] = {}

    # --- who fetches -----------------------------------------------------------------------------------------

    def arm(self, watch: FetchWatch, min_bytes: int, wake: Callable[[], None]) -> set[TopicPartition]:
        """Count towards ``min_bytes`` from now on; answers what changed since it was last armed.

        ``wake`` is called at most once, from any thread, and must not block.
        """
        with self._lock:
            watch.missing = min_bytes
            watch.wake = wake
            changed, watch.changed = watch.changed, set()
        return changed

    def disarm(self, watch: FetchWatch) -> None:
        """Nobody waits any more; the watch stays where it is registered."""
        with self._lock:
            watch.missing = 0
            watch.wake = _nobody

    def watch(self, watch: FetchWatch, partitions: Iterable[TopicPartition]) -> None:
        """Register ``watch`` there, too. Nothing happens once it was removed."""
        with self._lock:
            if watch.closed:
                return
            for tp in partitions:
                watch.partitions.add(tp)
                self._watching.setdefault(tp, set()).add(watch)

    def unwatch(self, watch: FetchWatch, partitions: Iterable[TopicPartition]) -> None:
        """Take the registrations back."""
        with self._lock:
            for tp in partitions:
                self._unregister(watch, tp)

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
            watch.missing = 0
            for tp in tuple(watch.partitions):
                self._unregister(watch, tp)

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
                self._note(watch, tp, size if watch.level is level else 0)
                for watch in tuple(self._watching.get(tp, ()))
                if watch.level is level or level is Level.HIGH_WATERMARK
            ]
        for wake in wakes:
            wake()

    def changed(self, tp: TopicPartition) -> None:
        """Something else about ``tp`` changed that sessions tell: its log's start. Wakes nobody."""
        self.advanced(tp, 0)

    def interrupt(self, tp: TopicPartition) -> None:
        """``tp`` changed its leader, was deleted or failed: wake all that watch it, who will find out."""
        with self._lock:
            wakes = [self._note(watch, tp, watch.missing) for watch in tuple(self._watching.get(tp, ()))]
        for wake in wakes:
            wake()

    def interrupt_all(self) -> None:
        """The broker stops: wake every fetch."""
        for tp in tuple(self._watching):
            self.interrupt(tp)

    def __len__(self) -> int:
        """How many (watch, partition) pairs are registered: what an idle broker must not pile up."""
        with self._lock:
            return sum(len(watches) for watches in self._watching.values())

    @property
    def waiting(self) -> int:
        """How many fetches wait now."""
        with self._lock:
            return len({watch for watches in self._watching.values() for watch in watches if watch.missing > 0})

    def _note(self, watch: FetchWatch, tp: TopicPartition, readable: int) -> Callable[[], None]:
        watch.changed.add(tp)
        wake = self._count(watch, readable)
        if watch.missing <= 0:
            self._unregister(watch, tp)
        return wake

    def _count(self, watch: FetchWatch, readable: int) -> Callable[[], None]:
        """What to call, outside the lock: by then the watch may be armed anew, with another ``wake``."""
        if watch.missing <= 0:
            return _nobody
        watch.missing -= readable
        if watch.missing > 0:
            return _nobody
        watch.missing = 0
        return watch.wake

    def _unregister(self, watch: FetchWatch, tp: TopicPartition) -> None:
        watch.partitions.discard(tp)
        watches = self._watching.get(tp)
        if watches is not None:
            watches.discard(watch)
            if not watches:
                del self._watching[tp]
