"""Addresses of hosts, for a thread that must not wait for a name server.

Names are looked up on a thread of their own, one at a time, and again when they are asked for after REFRESH_S. Until
there is an answer the last one holds; before the first there is none. Numeric addresses need no look-up.
"""

from __future__ import annotations

import queue
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from raylog.coordination.host.loops import Loop, Loops

__all__ = ["Address", "Names"]

REFRESH_S = 30.0

LookUp: TypeAlias = Callable[[str, int], "Address"]


class Address(NamedTuple):
    """What a socket is made from and connected to."""

    family: int
    sockaddr: Any


def _look_up(host: str, port: int, flags: int = 0) -> Address:
    """Waits for a name server where ``host`` is a name. Raises OSError, UnicodeError for what is no name at all."""
    family, _, _, _, sockaddr = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)[0]
    return Address(family, sockaddr)


class Names:
    """See the module. One thread asks."""

    def __init__(self, loops: Loops, look_up: LookUp = _look_up) -> None:
        """``look_up`` may wait; it raises OSError for what it does not find."""
        self._loops = loops
        self._look_up = look_up
        self._known: dict[tuple[str, int], Address] = {}
        self._asked: dict[tuple[str, int], float] = {}
        """When a look-up was asked for last."""
        self._queue: queue.SimpleQueue[tuple[str, int] | None] = queue.SimpleQueue()
        self._loop: Loop | None = None

    def address(self, host: str, port: int) -> Address | None:
        """Where that is, as far as it is known by now. Does not block."""
        try:
            return _look_up(host, port, socket.AI_NUMERICHOST)
        except (OSError, UnicodeError):
            pass  # a name
        now, key = time.monotonic(), (host, port)
        if now - self._asked.get(key, -REFRESH_S) >= REFRESH_S:
            self._asked[key] = now
            self._queue.put(key)
        if not self._queue.empty() and (self._loop is None or not self._loop.is_alive):  # it may end at any moment
            loop = self._loops.loop("names", self._turn, vital=False)
            loop.start()
            self._loop = loop
        return self._known.get(key)

    def stop(self) -> None:
        """Look nothing up any more. A look-up that is under way is not waited for."""
        if self._loop is not None:
            self._loop.stop()
            self._queue.put(None)

    def _turn(self) -> bool:
        key = self._queue.get()
        if key is None:
            return False
        try:
            self._known[key] = self._look_up(*key)
        except (OSError, UnicodeError):
            pass  # unknown at the moment: what was known holds
        return True
