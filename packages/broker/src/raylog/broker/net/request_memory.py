"""A bound for the memory of requests that are being received.

A connection's buffer grows with what it was really sent, up to `socket.request.max.bytes`; a thousand clients that each
send most of a large request and then stop would so take any machine's memory. Here all large buffers are counted
together. Small ones are not: whatever large requests do, small requests go on.

Nobody keeps what others need. While a connection waits for memory, one in the midst of a request whose client has sent
nothing for STALL_S, or less than MIN_BYTES_PER_S on the average, is cut off. One that is idle, or whose reply waits for
others, gives its memory back by itself (``connection``). Where all that have memory wait for more, the one that began
to wait last gives up what it has, so that the first goes on.

No call waits: a connection that gets no memory does not read, and asks again when it is woken, and each LOOK_S.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from raylog.broker.config import QUEUED_MAX_REQUEST_BYTES
from raylog.broker.handlers.awaited import nobody
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
    """One connection's part. The connection calls it, whatever thread serves that."""

    __slots__ = (
        "_began_s",
        "_last_s",
        "_memory",
        "_received",
        "capacity",
        "counted",
        "is_receiving",
        "is_waiting",
        "wake",
        "was_cut",
    )

    def __init__(self, memory: RequestMemory, wake: Callable[[], None]) -> None:
        self._memory = memory
        self.wake = wake
        """Has the connection look at its share: it may get memory now, or it was cut off."""
        self.was_cut = False
        self.capacity = 0
        """As it was told last."""
        self.counted = 0
        """Bytes that count; 0 for a small buffer."""
        self.is_receiving = False
        """Whether the connection is at its client's mercy: it reads, and waits for the rest of a request."""
        self.is_waiting = False
        """Whether it has asked for memory and not got it yet."""
        self._began_s = self._last_s = 0.0
        """When the request that is coming in began, and when something of it came last."""
        self._received = 0

    @property
    def is_wanted(self) -> bool:
        """Whether this one has memory that another waits for."""
        return self.counted > 0 and self._memory.is_short

    def resize(self, capacity: int) -> bool:
        """The connection's buffer is to have another capacity. False when there is no room: ask again.

        Raises CloseConnection when there was none for WAIT_S; then the capacity before is what still counts. A buffer
        may always grow when it is the only large one.
        """
        counted = capacity if capacity > GREEDY_BYTES else 0
        if (counted != self.counted or self.is_waiting) and not self._memory.resize(self, counted):
            return False
        self.capacity = capacity
        return True

    def close(self) -> None:
        """The connection is over."""
        self.resize(0)
        self.wake = nobody

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
        return self.is_receiving and not self.is_waiting and (is_slow or now_s - self._last_s > STALL_S)


class RequestMemory:
    """Counts the bytes of all buffers that are larger than GREEDY_BYTES. Methods may be called from any thread."""

    def __init__(
        self, settings: Callable[[], Settings], wait_s: float = WAIT_S, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """``settings``: the broker's, as they are now."""
        self._settings = settings
        self._wait_s = wait_s
        self.now_s = now_s
        self._lock = threading.Lock()
        self._used = 0
        self._shares: set[Share] = set()
        """Those that count."""
        self._waiting: dict[Share, float] = {}
        """Since when, in the order in which they came."""

    @property
    def used(self) -> int:
        """Bytes of large buffers now."""
        return self._used

    @property
    def is_short(self) -> bool:
        """Whether a connection waits for memory."""
        return bool(self._waiting)

    def share(self, wake: Callable[[], None]) -> Share:
        """The part of a new connection; ``wake`` may be called by any thread."""
        return Share(self, wake)

    def resize(self, share: Share, counted: int) -> bool:
        """See :meth:`Share.resize`."""
        woken: list[Share] = []
        with self._lock:
            granted = counted <= share.counted or self._fits(share, counted)
            if granted:
                self._leave(share)
                if counted < share.counted:
                    woken += self._waiting
                self._take(share, counted)
            else:
                woken += self._wait(share)
        for each in woken:
            each.wake()
        return granted

    def _take(self, share: Share, counted: int) -> None:
        is_first = not share.counted
        self._used += counted - share.counted
        share.counted = counted
        if is_first:
            share.next_request()
        if counted:
            self._shares.add(share)
        else:
            self._shares.discard(share)

    def _wait(self, share: Share) -> Iterable[Share]:
        """Begin to wait, or go on; answers those that must hear of it: who may have memory to give back, and who is
        cut off. Raises CloseConnection when it is to end.
        """
        now_s = self.now_s()
        is_new = share not in self._waiting
        since_s = self._waiting.setdefault(share, now_s)
        share.is_waiting = True
        if now_s >= since_s + self._wait_s or share.was_cut or self._must_give_up(share):
            self._leave(share)
            raise self._refusal()
        slowest = self._slowest(now_s)
        if is_new:
            return tuple(self._shares - {share})
        return () if slowest is None else (slowest,)

    def _leave(self, share: Share) -> None:
        """It waits no longer, and that it did was not its client's fault."""
        since_s = self._waiting.pop(share, None)
        share.is_waiting = False
        if since_s is not None:
            share.waited(self.now_s() - since_s)

    def _must_give_up(self, share: Share) -> bool:
        """Whether all that have memory wait for each other, and this is the last of them."""
        holders = [each for each in self._waiting if each.counted]
        return len(holders) > 1 and len(holders) == len(self._shares) and share is holders[-1]

    def _slowest(self, now_s: float) -> Share | None:
        """The connection that has the most memory for a request that does not come: it is cut off. It tells when it has
        given that back.
        """
        slow = [share for share in self._shares if share.is_too_slow(now_s)]
        if not slow or any(share.was_cut for share in self._shares):
            return None  # one that was cut off before will give its memory back
        slowest = max(slow, key=lambda share: share.counted)
        slowest.was_cut = True
        return slowest

    def _refusal(self) -> CloseConnection:
        limit = self._settings()[QUEUED_MAX_REQUEST_BYTES]
        return CloseConnection(f"queued.max.request.bytes={limit} are taken by requests that are being received")

    def _fits(self, share: Share, counted: int) -> bool:
        limit = self._settings()[QUEUED_MAX_REQUEST_BYTES]
        others = self._used - share.counted
        return limit < 0 or others == 0 or others + counted <= limit
