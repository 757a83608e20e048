"""A bound for the memory of requests that are being received.

A connection's buffer grows with what it was really sent, up to `socket.request.max.bytes`; a thousand clients that each
send most of a large request and then stop would so take any machine's memory. Here all large buffers are counted
together. Small ones are not: whatever large requests do, small requests go on.

Nobody keeps what others need. While a connection waits for memory, one in the midst of a request whose client has sent
nothing for STALL_S, or less than MIN_BYTES_PER_S on the average, is cut off. One that is idle, or whose reply waits for
others, gives its memory back by itself (``connection``). Where all that have memory wait for more, the one that began
to wait last gives up what it has, so that the first goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from raylog.broker.config import QUEUED_MAX_REQUEST_BYTES
from raylog.broker.handlers.context import CloseConnection
from raylog.protocol.settings import Settings
from raylog.protocol.wire.frames import GREEDY_BYTES

__all__ = ["STALL_S", "RequestMemory", "Share"]

WAIT_S = 5.0
"""How long a connection waits for others' requests to be done before it is closed: its client will try again."""

STALL_S = 1.0
MIN_BYTES_PER_S = 1 << 20
"""How fast a large request must come in while others wait: 8 MB within 9 seconds, and something each second."""

LOOK_S = 0.1
"""How often a waiting connection looks for one that is too slow."""


class Share:
    """One connection's part. The connection's thread calls it; ``cut`` alone is for others."""

    __slots__ = ("_began_s", "_last_s", "_memory", "_received", "capacity", "counted", "cut", "is_receiving", "was_cut")

    def __init__(self, memory: RequestMemory, cut: Callable[[], None]) -> None:
        self._memory = memory
        self.cut = cut
        """Ends the connection, whose thread then gives its memory back."""
        self.was_cut = False
        self.capacity = 0
        """As it was told last."""
        self.counted = 0
        """Bytes that count; 0 for a small buffer."""
        self.is_receiving = False
        """Whether the connection is at its client's mercy: it reads, and waits for the rest of a request."""
        self._began_s = self._last_s = 0.0
        """When the request that is coming in began, and when something of it came last."""
        self._received = 0

    @property
    def is_wanted(self) -> bool:
        """Whether this one has memory that another waits for."""
        return self.counted > 0 and self._memory.is_short

    def resize(self, capacity: int) -> None:
        """The connection's buffer is to have another capacity; waits for room where it grows.

        Raises CloseConnection when there is none in time; then the capacity before is what still counts. A buffer may
        always grow when it is the only large one.
        """
        counted = capacity if capacity > GREEDY_BYTES else 0
        if counted != self.counted:
            self._memory.resize(self, counted)
        self.capacity = capacity

    def next_request(self) -> None:
        """What came before is answered: the next request has its own time."""
        if self.counted:
            self._began_s = self._last_s = self._memory.now_s()
            self._received = 0

    def came(self, count: int) -> None:
        """So many more bytes have come. Raises CloseConnection when they came too late."""
        if self.was_cut:
            raise CloseConnection("a large request came too slowly while others waited for its memory")
        self._received += count
        self._last_s = self._memory.now_s()

    def waited(self, for_s: float) -> None:
        """The connection did not read for so long, which is not its client's fault."""
        self._began_s += for_s
        self._last_s += for_s

    def is_too_slow(self, now_s: float) -> bool:
        """Whether its client has not sent what it had time for."""
        is_slow = now_s - self._began_s > STALL_S + self._received / MIN_BYTES_PER_S
        return self.is_receiving and (is_slow or now_s - self._last_s > STALL_S)


class RequestMemory:
    """Counts the bytes of all buffers that are larger than GREEDY_BYTES. Methods may be called from any thread."""

    def __init__(
        self, settings: Callable[[], Settings], wait_s: float = WAIT_S, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """``settings``: the broker's, as they are now."""
        self._settings = settings
        self._wait_s = wait_s
        self.now_s = now_s
        self._fewer = threading.Condition()
        self._used = 0
        self._shares: set[Share] = set()
        """Those that count."""
        self._waiting: dict[Share, None] = {}
        """In the order in which they came."""

    @property
    def used(self) -> int:
        """Bytes of large buffers now."""
        return self._used

    @property
    def is_short(self) -> bool:
        """Whether a connection waits for memory."""
        return bool(self._waiting)

    def share(self, cut: Callable[[], None]) -> Share:
        """The part of a new connection; ``cut`` ends it, from any thread, without waiting."""
        return Share(self, cut)

    def resize(self, share: Share, counted: int) -> None:
        """See :meth:`Share.resize`."""
        with self._fewer:
            if counted > share.counted and not self._fits(share, counted):
                self._wait_for_room(share, counted)
            is_first, is_less = not share.counted, counted < share.counted
            self._used += counted - share.counted
            share.counted = counted
            if is_first:
                share.next_request()
            if counted:
                self._shares.add(share)
            else:
                self._shares.discard(share)
            if is_less:
                self._fewer.notify_all()

    def _wait_for_room(self, share: Share, counted: int) -> None:
        began_s = self.now_s()
        until_s = began_s + self._wait_s
        self._waiting[share] = None
        is_receiving, share.is_receiving = share.is_receiving, False
        try:
            while not self._fits(share, counted):
                now_s = self.now_s()
                if now_s >= until_s or share.was_cut:
                    raise self._refusal()
                if self._must_give_up(share):
                    raise self._refusal()
                self._cut_slowest(now_s)
                self._fewer.wait(min(until_s - now_s, LOOK_S))
        finally:
            del self._waiting[share]
            share.is_receiving = is_receiving
            share.waited(self.now_s() - began_s)
            self._fewer.notify_all()

    def _must_give_up(self, share: Share) -> bool:
        """Whether all that have memory wait for each other, and this is the last of them."""
        holders = [each for each in self._waiting if each.counted]
        return len(holders) > 1 and len(holders) == len(self._shares) and share is holders[-1]

    def _cut_slowest(self, now_s: float) -> None:
        """End the connection that has the most memory for a request that does not come; its thread tells when it has
        given that back.
        """
        slow = [share for share in self._shares if not share.was_cut and share.is_too_slow(now_s)]
        if slow:
            slowest = max(slow, key=lambda share: share.counted)
            slowest.was_cut = True
            slowest.cut()

    def _refusal(self) -> CloseConnection:
        limit = self._settings()[QUEUED_MAX_REQUEST_BYTES]
        return CloseConnection(f"queued.max.request.bytes={limit} are taken by requests that are being received")

    def _fits(self, share: Share, counted: int) -> bool:
        limit = self._settings()[QUEUED_MAX_REQUEST_BYTES]
        others = self._used - share.counted
        return limit < 0 or others == 0 or others + counted <= limit
