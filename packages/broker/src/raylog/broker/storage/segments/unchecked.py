"""Which bytes of a log file still have to be checked before they are served (see first_read)."""

from __future__ import annotations

import threading
from bisect import bisect_right


class Unchecked:
    """Which bytes of a file were there before the start and have not been checked since. Any thread may ask."""

    __slots__ = ("_ends", "_lock", "_starts", "damaged")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._starts: list[int] = []
        """Stretches that were checked: disjoint, in order, each from a batch's beginning to another's."""
        self._ends: list[int] = []
        self.damaged: dict[int, str] = {}
        """Positions of batches that are not to be served, and why; offsets that no batch holds as -1 - offset."""

    def checked_to(self, position: int) -> int:
        """Where the checked stretch ends that holds ``position``; ``position`` itself when none does."""
        with self._lock:
            at = bisect_right(self._starts, position) - 1
            return max(self._ends[at], position) if at >= 0 else position

    @property
    def checked(self) -> int:
        """How many bytes were checked."""
        with self._lock:
            return sum(self._ends) - sum(self._starts)

    def add(self, start: int, end: int) -> None:
        """Note that a stretch was checked."""
        with self._lock:
            first = bisect_right(self._ends, start - 1)
            last = bisect_right(self._starts, end)
            if first < last:
                start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
            self._starts[first:last] = [start]
            self._ends[first:last] = [end]
