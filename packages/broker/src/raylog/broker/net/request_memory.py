"""A bound for the memory of requests that are being received.

A connection's buffer grows with what it was really sent, up to `socket.request.max.bytes`; a thousand clients that each
send most of a large request and then stop would so take any machine's memory. Here all large buffers are counted
together. Small ones are not: whatever large requests do, small requests go on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from raylog.broker.config import QUEUED_MAX_REQUEST_BYTES
from raylog.broker.handlers.context import CloseConnection
from raylog.protocol.frames import GREEDY_BYTES
from raylog.protocol.settings import Settings

__all__ = ["RequestMemory"]

WAIT_S = 5.0
"""How long a connection waits for others' requests to be done before it is closed: its client will try again. Waiting
for ever could be for each other.
"""


class RequestMemory:
    """Counts the bytes of all buffers that are larger than GREEDY_BYTES. Methods may be called from any thread."""

    def __init__(self, settings: Callable[[], Settings], wait_s: float = WAIT_S) -> None:
        """``settings``: the broker's, as they are now."""
        self._settings = settings
        self._wait_s = wait_s
        self._fewer = threading.Condition()
        self._used = 0

    @property
    def used(self) -> int:
        """Bytes of large buffers now."""
        return self._used

    def resize(self, before: int, after: int) -> None:
        """A connection's buffer has another capacity; waits for room where it grew.

        Raises CloseConnection when there is none in time; then ``before`` is what still counts. A buffer may always
        grow when it is the only large one.
        """
        before, after = _counted(before), _counted(after)
        if before == after:
            return
        with self._fewer:
            if after > before and not self._fewer.wait_for(lambda: self._fits(before, after), self._wait_s):
                limit = self._settings()[QUEUED_MAX_REQUEST_BYTES]
                raise CloseConnection(f"queued.max.request.bytes={limit} are taken by requests that are being received")
            self._used += after - before
            if after < before:
                self._fewer.notify_all()

    def _fits(self, before: int, after: int) -> bool:
        limit = self._settings()[QUEUED_MAX_REQUEST_BYTES]
        others = self._used - before
        return limit < 0 or others == 0 or others + after <= limit


def _counted(capacity: int) -> int:
    return capacity if capacity > GREEDY_BYTES else 0
