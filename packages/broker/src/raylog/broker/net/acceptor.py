"""Accepting connections, and keeping them until they say something.

A connection gets its thread with its first byte. Those of a storm that ask nothing, of a port scan or of a health check
come and go in the accept thread alone, for a fraction of what a thread costs, and hardly slow anyone.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Acceptor", "Address", "end_orderly"]

Address = tuple[str, int]

BURST = 100
"""So many connections are taken as fast as they come."""

STORM_PER_S = 500
"""So many a second after that; the system holds the others for us. In a storm the other clients must come to their
turn, too, and what takes the interpreter should do so seldom: 0.8 ms ten times a second is met by one request in a
hundred, a connection every 2 ms by ten."""

STORM_PAUSE_S = 0.1

RETRY_S = 0.1
"""After an accept that failed, for want of descriptors or memory: the connection stays queued, so do not spin on it."""

LINGER_BYTES = 1 << 20
"""How much of a client's further input is read and dropped, so that it sees an orderly end."""

LOOK_S = 1.0
"""How often silent connections are looked through for those that were so for too long."""


def end_orderly(sock: socket.socket) -> None:
    """Close a connection so that the client sees its end, not a reset: read and drop what it sent already."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
        dropped = 0
        while dropped < LINGER_BYTES and (data := sock.recv(1 << 16, socket.MSG_DONTWAIT)):
            dropped += len(data)
    sock.close()


@dataclass(frozen=True, slots=True)
class _Silent:
    """A connection that said nothing yet."""

    sock: socket.socket
    address: Address
    since: float


class Acceptor:
    """Accepts at one listening socket, in the thread that calls :meth:`turn` again and again."""

    def __init__(
        self,
        listening: socket.socket,
        *,
        enter: Callable[[socket.socket, Address], bool],
        begin: Callable[[socket.socket, Address], None],
        leave: Callable[[Address, str], None],
        failed: Callable[[OSError], None],
        max_idle_s: float,
    ) -> None:
        """What it calls: ``enter`` lets a connection in or closes it; ``begin`` takes over one that has said something;
        ``leave`` hears of one that was let in and is over, with the reason where it was closed by us; ``failed``
        hears why accepting failed. None of them may block, and what they raise ends the connection it is about.
        """
        self._listening = listening
        self._enter = enter
        self._begin = begin
        self._leave = leave
        self._failed = failed
        self._max_idle_s = max_idle_s
        self._silent: dict[int, _Silent] = {}
        """By descriptor, the longest silent first."""
        self._credit: float = BURST
        self._credited_at = 0.0
        listening.setblocking(False)
        self._epoll = select.epoll()
        self._epoll.register(listening, select.EPOLLIN)
        self._look_at = time.monotonic() + LOOK_S

    @property
    def silent(self) -> int:
        """Open connections that said nothing yet."""
        return len(self._silent)

    def turn(self, stopping: threading.Event) -> bool:
        """Accept what comes next, or wait for it; False once ``stopping`` is set and the listening socket was shut
        down, which wakes this thread.

        Nobody may close that socket earlier: with it goes the news that it was shut down.
        """
        if stopping.is_set():
            return False
        for descriptor, _ in self._epoll.poll(LOOK_S if self._silent else None):
            if descriptor in self._silent:
                self._hear(descriptor)
            else:
                stopping.wait(self._accept())
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self._end_idle(now - self._max_idle_s)
        return not stopping.is_set()

    def finish(self) -> None:
        """The last turn is over: end those that said nothing yet."""
        while self._silent:
            _, silent = self._silent.popitem()
            end_orderly(silent.sock)  # it may have said something just now
            self._leave(silent.address, "")
        self._epoll.close()

    def _accept(self) -> float:
        """Take one connection in; answers how many seconds to wait before the next."""
        try:
            sock, address = self._listening.accept()
        except BlockingIOError:
            return 0.0  # it was there and has gone
        except OSError as error:
            self._failed(error)
            return RETRY_S
        now = time.monotonic()
        if self._let_in(sock, address[:2]):
            try:
                self._epoll.register(sock, select.EPOLLIN | select.EPOLLRDHUP)
                self._silent[sock.fileno()] = _Silent(sock, address[:2], now)
            except BaseException:
                sock.close()
                self._leave(address[:2], "it could not be listened to")
                raise
        self._credit = min(BURST, self._credit + (now - self._credited_at) * STORM_PER_S) - 1
        self._credited_at = now
        return STORM_PAUSE_S if self._credit < 0 else 0.0

    def _let_in(self, sock: socket.socket, address: Address) -> bool:
        try:
            return self._enter(sock, address)
        except BaseException:
            sock.close()
            raise

    def _hear(self, descriptor: int) -> None:
        """The connection has something to read, or its end."""
        self._epoll.unregister(descriptor)
        silent = self._silent.pop(descriptor)
        try:
            spoke = bool(silent.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:
            spoke = False
        if spoke:
            self._begin(silent.sock, silent.address)
        else:
            silent.sock.close()
            self._leave(silent.address, "")

    def _end_idle(self, silent_since: float) -> None:
        for descriptor, silent in self._silent.copy().items():
            if silent.since > silent_since:
                return
            del self._silent[descriptor]
            silent.sock.close()
            self._leave(silent.address, "idle for connections.max.idle.ms")
