"""The two clocks, in ms: for the shells. What decides is handed the time."""

from __future__ import annotations

import time

from raylog.protocol.ids import MonotonicMs, TimestampMs

__all__ = ["monotonic_ms", "wall_ms"]


def monotonic_ms() -> MonotonicMs:
    """Since some beginning; nobody can set it: for deadlines, leases and intervals."""
    return MonotonicMs(time.monotonic_ns() // 1_000_000)


def wall_ms() -> TimestampMs:
    """Since 1970: for record timestamps, and what people read."""
    return TimestampMs(time.time_ns() // 1_000_000)
