"""What time it is for the deletion of records: a wall clock that is set forward makes nothing older."""

from __future__ import annotations

from raylog.protocol.ids import TimestampMs


class RetentionClock:
    """The wall clock, but never ahead of what the monotonic one says has passed since this clock was made.

    Somebody sets the wall clock a day forward: by it, records would be a day older at once, and retention would delete
    what has a day to live. So the earlier of the two counts. A wall clock that was behind when the broker started and
    was set right later makes deletion late, until the broker starts anew: late is harmless, early is not.
    """

    def __init__(self, now_ms: TimestampMs, uptime_ms: int) -> None:
        """Both clocks at this moment. ``uptime_ms``: monotonic, from any beginning."""
        self._ahead = now_ms - uptime_ms

    def now_ms(self, now_ms: TimestampMs, uptime_ms: int) -> TimestampMs:
        """The time that counts when the clocks say these."""
        return TimestampMs(min(now_ms, uptime_ms + self._ahead))
