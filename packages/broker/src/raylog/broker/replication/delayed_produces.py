"""Delayed produces: appends with acks=all that wait until the in-sync replicas have them, too (Kafka's purgatory).

A :class:`DelayedProduce` names for each partition the high watermark that it waits for. Whoever moves a high watermark
calls :meth:`DelayedProduces.advanced`, and only who misses nothing more is woken. A change of leadership or of the
in-sync replicas wakes all that wait there: they find out what it means for them.

The protocol, in this order, loses no wake-up: :meth:`~DelayedProduces.arm`, then look at the partitions, then wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from raylog.protocol.ids import Offset, TopicPartition

__all__ = ["DelayedProduce", "DelayedProduces"]


class DelayedProduce:
    """One request's wait. Its fields belong to DelayedProduces, under its lock."""

    __slots__ = ("missing", "wake")

    def __init__(self, required: Mapping[TopicPartition, Offset], wake: Callable[[], None]) -> None:
        self.missing = dict(required)
        """The high watermarks that have not been seen yet."""
        self.wake = wake


class DelayedProduces:
    """All waits of one broker, by partition. Methods may be called from any thread."""

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        """``lock`` (not reentrant) guards the table; it is held for dictionary work only."""
        self._lock = lock
        self._waiting: dict[TopicPartition, dict[DelayedProduce, Offset]] = {}

    def arm(self, required: Mapping[TopicPartition, Offset], wake: Callable[[], None]) -> DelayedProduce:
        """Wait for these high watermarks from now on. ``wake`` is called at most once, from any thread, and must not
        block; it may come even after :meth:`remove`.
        """
        produce = DelayedProduce(required, wake)
        with self._lock:
            for tp, offset in required.items():
                self._waiting.setdefault(tp, {})[produce] = offset
        return produce

    def remove(self, produce: DelayedProduce) -> None:
        """Nobody waits any more."""
        with self._lock:
            self._unregister(produce)

    def advanced(self, tp: TopicPartition, high_watermark: Offset) -> None:
        """The high watermark of ``tp`` is at ``high_watermark`` now: wake those that miss nothing more."""
        if tp not in self._waiting:
            return
        woken = []
        with self._lock:
            waiting = self._waiting.get(tp, {})
            for produce in [produce for produce, offset in waiting.items() if offset <= high_watermark]:
                del waiting[produce]
                del produce.missing[tp]
                if not produce.missing:
                    woken.append(produce)
            if tp in self._waiting and not waiting:
                del self._waiting[tp]
        for produce in woken:
            produce.wake()

    def interrupt(self, tp: TopicPartition) -> None:
        """The leadership or the in-sync replicas of ``tp`` changed: wake all that wait there, for good."""
        if tp not in self._waiting:
            return
        with self._lock:
            woken = list(self._waiting.get(tp, ()))
            for produce in woken:
                self._unregister(produce)
        for produce in woken:
            produce.wake()

    def interrupt_all(self) -> None:
        """The broker stops: wake everybody."""
        for tp in tuple(self._waiting):
            self.interrupt(tp)

    @property
    def waiting(self) -> int:
        """How many requests wait now."""
        with self._lock:
            return len({produce for waiting in self._waiting.values() for produce in waiting})

    def _unregister(self, produce: DelayedProduce) -> None:
        for tp in produce.missing:
            waiting = self._waiting.get(tp)
            if waiting is not None:
                waiting.pop(produce, None)
                if not waiting:
                    del self._waiting[tp]
