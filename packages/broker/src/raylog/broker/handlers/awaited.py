"""What a request waits for: whoever makes it happen says so, and nobody looks for it again and again.

An :class:`Awaited` tells its one waiter by :meth:`~Awaited.notify` that there may be something new to see. The waiter
then asks :meth:`~Awaited.is_over`, in its own thread, and goes on to wait where it is not.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from math import inf

__all__ = ["Awaited", "News", "Wake", "nobody"]

Wake = Callable[[], None]
"""Called from any thread, perhaps more than once; it must not block."""


def nobody() -> None:
    """A :data:`Wake` for which nobody waits."""


class Awaited(ABC):
    """Something to come. One thread uses it, and may give it up at any time."""

    __slots__ = ()

    @property
    def deadline_s(self) -> float:
        """The monotonic time at which its wait is over, whatever happens."""
        return inf

    @property
    def waits_for_disk(self) -> bool:
        """Whether it goes on by :meth:`read_disk` alone, which a thread calls that may wait for a disk."""
        return False

    def read_disk(self) -> None:
        """Do what may wait for a disk. Nothing else is called meanwhile."""
        return

    @abstractmethod
    def is_over(self) -> bool:
        """Whether it has come, or its time is over; does not wait."""

    @abstractmethod
    def notify(self, wake: Wake) -> None:
        """Have ``wake`` called when there may be something new to see: at once, where there is already."""

    @abstractmethod
    def abandon(self) -> None:
        """Nobody waits for it any more."""

    def wait(self, timeout_s: float) -> bool:
        """:meth:`is_over`, after waiting up to ``timeout_s`` for it."""
        until_s = time.monotonic() + timeout_s
        while not self.is_over():
            if self.waits_for_disk:
                self.read_disk()
                continue
            left_s = min(until_s, self.deadline_s) - time.monotonic()
            if left_s <= 0:
                return self.is_over()
            gate = threading.Lock()
            gate.acquire()
            self.notify(_opening(gate))
            gate.acquire(timeout=left_s)
        return True


def _opening(gate: threading.Lock) -> Wake:
    def wake() -> None:
        with suppress(RuntimeError):  # it was open
            gate.release()

    return wake


class News:
    """Whether something has happened since one looked last. :meth:`come` is called by any thread, the rest by one."""

    __slots__ = ("_has_come", "_wake")

    def __init__(self) -> None:
        self._has_come = False
        self._wake: Wake = nobody

    def come(self) -> None:
        """Something has happened."""
        self._has_come = True
        self._wake()

    def notify(self, wake: Wake) -> None:
        """See :meth:`Awaited.notify`."""
        self._wake = wake
        if self._has_come:
            wake()

    def take(self) -> bool:
        """Whether something has happened since this was asked last."""
        if not self._has_come:
            return False
        self._has_come = False  # what comes from here on is seen by the look that follows, or tells again
        return True
