"""Accepting connections at one listening socket, in bursts, so that a storm of them hardly slows the others."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable

from raylog.broker.net.loop import EventLoop
from raylog.broker.net.sockets import Address
from raylog.broker.net.source import Source

__all__ = ["BURST", "Acceptor"]

BURST = 100
"""So many connections are taken as fast as they come."""

STORM_PER_S = 1_000
"""So many a second after that; the system holds the others for us. In a storm the other clients must come to their
turn, too."""

AT_ONCE = 10
"""So many are taken before others have their turn."""

STORM_PAUSE_S = 0.01

RETRY_S = 0.1
"""After an accept that failed, for want of descriptors or memory: the connection stays queued, so do not spin on it."""


class Acceptor(Source):
    """Used by the loop's thread."""

    def __init__(
        self,
        listening: socket.socket,
        loop: EventLoop,
        *,
        enter: Callable[[socket.socket, Address], None],
        failed: Callable[[OSError], None],
    ) -> None:
        """``enter`` takes a connection over, or closes it; ``failed`` hears why accepting failed."""
        listening.setblocking(False)
        self._listening = listening
        self._loop = loop
        self._enter = enter
        self._failed = failed
        self._credit = float(BURST)
        self._credited_s = loop.now_s

    def __str__(self) -> str:
        return "accepting"

    def fileno(self) -> int:
        return self._listening.fileno()

    def ready(self, events: int) -> None:
        self._pause(self._accept())

    def woken(self) -> None:
        self._loop.want(self, select.EPOLLIN)

    def end(self) -> None:
        """Accept no more; the socket may be closed then."""
        self._loop.remove(self)

    def _pause(self, pause_s: float) -> None:
        if pause_s:
            self._loop.want(self, 0)
            self._loop.look_at(self, self._loop.now_s + pause_s)

    def _accept(self) -> float:
        """Take in what is there; answers how many seconds to wait before the next."""
        now_s = self._loop.now_s
        self._credit = min(self._credit + (now_s - self._credited_s) * STORM_PER_S, BURST)
        self._credited_s = now_s
        for _ in range(AT_ONCE):
            if self._credit < 1:
                return STORM_PAUSE_S
            try:
                sock, address = self._listening.accept()
            except BlockingIOError:
                return 0.0
            except OSError as error:
                self._failed(error)
                return RETRY_S
            self._credit -= 1
            self._enter(sock, address[:2])
        return 0.0
