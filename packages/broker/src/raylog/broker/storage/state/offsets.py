"""The offsets of a log, as values."""

from __future__ import annotations

from typing import NamedTuple

from raylog.protocol.ids import FilePosition, Offset


class Mark(NamedTuple):
    """An offset and where it lies, so that a read up to it needs no look-up."""

    offset: Offset
    segment_base: Offset
    position: FilePosition


class LogOffsets(NamedTuple):
    """The four offsets of a log at one moment: start ≤ stable ≤ high watermark ≤ end."""

    start: Offset
    stable: Mark
    high_watermark: Mark
    end: Mark
