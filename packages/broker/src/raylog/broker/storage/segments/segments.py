"""Looking segments up in a log's tuple of them, which is in the order of their offsets."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter

from raylog.broker.storage.segments.segment import Segment
from raylog.protocol.ids import Offset

_base = attrgetter("base_offset")


def number_at(segments: Sequence[Segment], offset: Offset) -> int:
    """The number of the segment in which ``offset`` lies, or would."""
    return max(bisect_right(segments, offset, key=_base) - 1, 0)
