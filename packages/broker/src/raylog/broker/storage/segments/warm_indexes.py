"""Which closed segments of a log have their indexes in memory."""

from __future__ import annotations

from raylog.broker.storage.segments.segment import Segment

KEPT = 4
"""Closed segments per log whose indexes stay in memory once they were needed."""


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
