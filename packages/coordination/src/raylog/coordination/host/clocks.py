"""The two clocks, in ms: for the shells. What decides is handed the time."""

from __future__ import annotations

import time

from raylog.protocol.ids import MonotonicMs, TimestampMs

__all__ = ["monotonic_ms", "wall_ms"]

_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Where there is one, the clock that goes on while the machine is suspended and its sessions end: Linux has it."""


def monotonic_ms() -> MonotonicMs:
    """Since some beginning; nobody can set it, and it counts what passes while the machine is suspended: for deadlines,
    leases and intervals. Not to be compared with time.monotonic().
    """
    return MonotonicMs(time.clock_gettime_ns(_SINCE_BOOT) // 1_000_000)


def wall_ms() -> TimestampMs:
    """Since 1970: for record timestamps, and what people read."""
    return TimestampMs(time.time_ns() // 1_000_000)
