"""Marks of the last appends: the high watermark moves to one of them, as a rule, and then it needs no look-up."""

from __future__ import annotations

from collections import deque

from raylog.broker.storage.state.offsets import Mark
from raylog.protocol.ids import Offset

KEPT = 1000


class RecentMarks:
    """Rising ends of appends. The caller holds the log's lock."""

    def __init__(self) -> None:
        self._marks: deque[Mark] = deque(maxlen=KEPT)

    def note(self, mark: Mark) -> None:
        """The log ends at ``mark`` now."""
        self._marks.append(mark)

    def take(self, offset: Offset) -> Mark | None:
        """The mark at ``offset`` if it is known; those up to it are forgotten."""
        marks = self._marks
        found = None
        while marks and marks[0].offset <= offset:
            found = marks.popleft()
        return found if found is not None and found.offset == offset else None

    def clear(self) -> None:
        """The log was truncated."""
        self._marks.clear()
