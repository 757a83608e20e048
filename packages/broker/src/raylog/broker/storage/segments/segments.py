"""A log's segments together: which one holds an offset, and which have their indexes in memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter

from raylog.broker.storage.segments.segment import Segment
from raylog.protocol.ids import Offset

KEPT = 4
"""Closed segments per log whose indexes stay in memory once they were needed."""
_base = attrgetter("base_offset")


def number_at(segments: Sequence[Segment], offset: Offset) -> int:
    """The number of the segment in which ``offset`` lies, or would. They are in the order of their offsets."""
    return max(bisect_right(segments, offset, key=_base) - 1, 0)


class WarmIndexes:
    """One log's. Readers take no lock: two at once may give back one index too many, which is read again."""

    def __init__(self) -> None:
        self._warm: tuple[Segment, ...] = ()

    def needed(self, segment: Segment) -> None:
        """Count a closed segment's indexes as needed, and give back those of others."""
        warm = self._warm
        if not segment.sealed or (warm and warm[0] is segment):
            return
        kept = (segment, *(other for other in warm if other is not segment))
        for other in kept[KEPT:]:
            other.index.unload()
            other.time_index.unload()
        self._warm = kept[:KEPT]
