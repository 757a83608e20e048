"""◆ An event that no interrupt of who waits for it can keep from being set.

``threading.Event`` is left locked where Ctrl-C comes between the lines of its wait, and then :meth:`set` never returns.
"""

from __future__ import annotations

from threading import Lock

__all__ = ["Latch"]


class Latch:
    """Set once. Any thread may call it."""

    def __init__(self) -> None:
        self.is_set = False
        self._lock = Lock()
        self._waiting: list[Lock] = []
        """One for each wait, held until it is over."""

    def set(self) -> None:
        """Let all go on that wait, and those that will."""
        with self._lock:
            self.is_set = True
            waiting, self._waiting = self._waiting, []
        for wait in waiting:
            wait.release()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return when it is set; False when it is not within ``timeout_s``."""
        mine = Lock()
        mine.acquire()
        with self._lock:
            if self.is_set:
                return True
            self._waiting.append(mine)
        try:
            return mine.acquire(timeout=-1 if timeout_s is None else timeout_s) or self.is_set
        finally:
            with self._lock:
                if mine in self._waiting:
                    self._waiting.remove(mine)
