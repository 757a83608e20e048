"""Delayed operations: requests that wait for the in-sync replicas (Kafka's purgatory).

Appends with acks=all wait until the high watermark has passed them, deletions of records until the low watermark is
where they put it; each kind has a table of its own. A :class:`DelayedOperation` names for each partition the watermark
that it waits for. Whoever moves one calls :meth:`~DelayedOperations.advanced`, and only who misses nothing more is
woken. A change of leadership or of the in-sync replicas wakes all that wait there: they find out what it means to them.

The protocol, in this order, loses no wake-up: :meth:`~DelayedOperations.arm`, then look at the partitions, then wait.
What came before :meth:`~DelayedOperations.arm` comes no more, so who finds some done there waits anew for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from raylog.protocol.ids import Offset, TopicPartition

__all__ = ["DelayedOperation", "DelayedOperations"]


class DelayedOperation:
    """One request's wait. Its fields belong to DelayedOperations, under its lock."""

    __slots__ = ("missing", "wake")

    def __init__(self, required: Mapping[TopicPartition, Offset], wake: Callable[[], None]) -> None:
        self.missing = dict(required)
        """The watermarks that have not been seen yet."""
        self.wake = wake


class DelayedOperations:
    """All waits of one broker, by partition. Methods may be called from any thread."""

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        """``lock`` (not reentrant) guards the table; it is held for dictionary work only."""
        self._lock = lock
        self._waiting: dict[TopicPartition, dict[DelayedOperation, Offset]] = {}

    def arm(self, required: Mapping[TopicPartition, Offset], wake: Callable[[], None]) -> DelayedOperation:
        """Wait for these watermarks from now on. ``wake`` is called at most once, from any thread, and must not
        block; it may come even after :meth:`remove`.
        """
        operation = DelayedOperation(required, wake)
        with self._lock:
            for tp, offset in required.items():
                self._waiting.setdefault(tp, {})[operation] = offset
        return operation

    def remove(self, operation: DelayedOperation) -> None:
        """Nobody waits any more."""
        with self._lock:
            self._unregister(operation)

    def advanced(self, tp: TopicPartition, watermark: Offset) -> None:
        """The watermark of ``tp`` is at ``watermark`` now: wake those that miss nothing more."""
        if tp not in self._waiting:
            return
        woken = []
        with self._lock:
            waiting = self._waiting.get(tp, {})
            for operation in [operation for operation, offset in waiting.items() if offset <= watermark]:
                del waiting[operation]
                del operation.missing[tp]
                if not operation.missing:
                    woken.append(operation)
            if tp in self._waiting and not waiting:
                del self._waiting[tp]
        for operation in woken:
            operation.wake()

    def interrupt(self, tp: TopicPartition) -> None:
        """The leadership or the in-sync replicas of ``tp`` changed: wake all that wait there, for good."""
        if tp not in self._waiting:
            return
        with self._lock:
            woken = list(self._waiting.get(tp, ()))
            for operation in woken:
                self._unregister(operation)
        for operation in woken:
            operation.wake()

    def interrupt_all(self) -> None:
        """The broker stops: wake everybody."""
        for tp in tuple(self._waiting):
            self.interrupt(tp)

    @property
    def waiting(self) -> int:
        """How many requests wait now."""
        with self._lock:
            return len({operation for waiting in self._waiting.values() for operation in waiting})

    def _unregister(self, operation: DelayedOperation) -> None:
        for tp in operation.missing:
            waiting = self._waiting.get(tp)
            if waiting is not None:
                waiting.pop(operation, None)
                if not waiting:
                    del self._waiting[tp]
