"""Delayed fetches: requests that wait until enough new bytes can be read (Kafka's purgatory).

A fetch that finds less than ``fetch.min.bytes`` registers a :class:`DelayedFetch` under each of its partitions and
sleeps. Whoever moves a high watermark calls :meth:`DelayedFetches.advanced` with the bytes that became readable;
they are counted against what each waiter misses, and only a waiter that misses nothing more is woken.

No wake-up is lost, because a waiter registers first and counts what it can read afterwards
(:meth:`DelayedFetches.credit`): an advance is seen by the count, or finds the waiter registered, or both. In
the last case bytes are counted twice and the waiter wakes early, reads less than it wanted, and waits again.

A waiter that was woken, timed out or was abandoned is removed from all its partitions, idle ones too, so
that a partition without traffic collects none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

from raylog.protocol.ids import TopicPartition


class DelayedFetch:
    """One waiting fetch: the partitions it reads, the bytes it misses, and how to wake it."""

    __slots__ = ("missing", "partitions", "wake")

    def __init__(self, partitions: Iterable[TopicPartition], min_bytes: int, wake: Callable[[], None]) -> None:
        """``wake`` is called at most once, from any thread, and must not block."""
        self.partitions = tuple(partitions)
        self.missing = min_bytes
        self.wake = wake


class DelayedFetches:
    """All waiting fetches of one broker, by partition. Methods may be called from any thread."""

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        """``lock`` (not reentrant) guards the table; it is held for dictionary work only."""
        self._lock = lock
        self._waiting: dict[TopicPartition, set[DelayedFetch]] = {}

    def watch(self, fetch: DelayedFetch) -> None:
        """Count bytes that become readable from now on towards ``fetch``."""
        with self._lock:
            for tp in fetch.partitions:
                self._waiting.setdefault(tp, set()).add(fetch)

    def credit(self, fetch: DelayedFetch, readable: int) -> None:
        """Count ``readable`` bytes that were there already; wakes ``fetch`` when they are enough."""
        with self._lock:
            woken = self._count(fetch, readable)
        if woken:
            fetch.wake()

    def remove(self, fetch: DelayedFetch) -> None:
        """Forget ``fetch``, whether it was woken or not."""
        with self._lock:
            self._remove(fetch)

    def advanced(self, tp: TopicPartition, readable: int) -> None:
        """``readable`` more bytes of ``tp`` lie below its high watermark: wake the fetches that this satisfies."""
        if tp not in self._waiting:
            return
        with self._lock:
            woken = [fetch for fetch in tuple(self._waiting.get(tp, ())) if self._count(fetch, readable)]
        for fetch in woken:
            fetch.wake()

    def interrupt(self, tp: TopicPartition) -> None:
        """``tp`` changed its leader, was deleted or failed: wake all its fetches, which will find out."""
        with self._lock:
            woken = tuple(self._waiting.get(tp, ()))
            for fetch in woken:
                self._remove(fetch)
        for fetch in woken:
            fetch.wake()

    def interrupt_all(self) -> None:
        """The broker stops: wake every fetch."""
        for tp in tuple(self._waiting):
            self.interrupt(tp)

    def __len__(self) -> int:
        """How many (fetch, partition) pairs wait: what an idle broker must not pile up."""
        with self._lock:
            return sum(len(fetches) for fetches in self._waiting.values())

    def _count(self, fetch: DelayedFetch, readable: int) -> bool:
        if fetch.missing <= 0:
            return False
        fetch.missing -= readable
        if fetch.missing > 0:
            return False
        self._remove(fetch)
        return True

    def _remove(self, fetch: DelayedFetch) -> None:
        fetch.missing = 0
        for tp in fetch.partitions:
            fetches = self._waiting.get(tp)
            if fetches is not None:
                fetches.discard(fetch)
                if not fetches:
                    del self._waiting[tp]
