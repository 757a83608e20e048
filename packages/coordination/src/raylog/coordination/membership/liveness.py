"""Liveness: hints that another process is gone, faster than its session's end (D9).

Who watches a process holds one connection to where it listens, and sends nothing over it. The kernel closes it when the
process dies, within milliseconds. Then one attempt to connect tells more: who is refused finds nobody listening any
more, and that is the hint. Anything else is none: a connection that was closed for its idleness is made anew, a host
that does not answer is tried again (its session will tell), and so is one that was never reached, since its address may
be out of reach from here for ever: but not if it is this machine's. A hint is repeated while it holds: what was done
about the first may have failed.

A hint may be wrong and decides nothing: ownership rests on epochs, incarnations and claims. Whoever lives registers
anew.
"""

from __future__ import annotations

import os
import queue
import selectors
import socket
import time
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

from raylog.coordination.host.loops import Loops
from raylog.coordination.host.processes import machine_boot_id
from raylog.coordination.membership.host_names import Names

__all__ = ["LivenessConnections", "LivenessListener", "Peer", "address_towards", "machine_id"]

FIRST_RETRY_S, LAST_RETRY_S = 0.02, 1.0
CONNECT_TIMEOUT_S = 2.0
REPEAT_S = 0.5
"""Time between two hints about the same process."""
LASTED_S = 1.0
"""A connection that held so long is made anew at once when it ends; one that did not, after a pause."""
MOST_WATCHERS = 4_096
"""How many may watch one process of a group; a member that watches the elected one needs one connection."""


class Peer(NamedTuple):
    """A process that is watched: in one incarnation, for another one may listen at the same place."""

    key: Hashable
    """Tells one incarnation from all others."""
    host: str
    port: int
    greeting: bytes = b""
    """What it says first (:class:`LivenessListener`); only who has said it was reached. Empty: it says nothing."""
    is_here: bool = False
    """On this very machine (:func:`machine_id`): then it need not have been reached before."""


class _Watched:
    """One peer's connection: none (waiting for ``due``), under way, or made."""

    __slots__ = ("due", "heard", "is_connected", "is_told", "since", "sock", "wait_s", "was_reached", "who")

    def __init__(self, who: Peer) -> None:
        self.who = who
        self.sock: socket.socket | None = None
        self.is_connected = False
        self.was_reached = False
        """Only then does a refusal mean anything."""
        self.heard = b""
        """What it has said over this connection, up to the length of its greeting."""
        self.is_told = False
        """Whether a hint was given since it was reached last."""
        self.since = 0.0
        """When this attempt or connection began."""
        self.due = 0.0
        """When to try to connect, while there is no attempt under way."""
        self.wait_s = FIRST_RETRY_S


class LivenessConnections:
    """See the module. One thread holds all connections."""

    def __init__(self, on_gone: Callable[[Peer, bool], None], loops: Loops, names: Names | None = None) -> None:
        """``on_gone`` is called on the thread, every REPEAT_S while a peer seems dead, and must only take note; it is
        told whether this is the first hint since that peer was reached. ``names`` finds hosts, and is stopped with us.
        """
        self._on_gone = on_gone
        self._orders: queue.SimpleQueue[frozenset[Peer] | None] = queue.SimpleQueue()
        self._wanted: frozenset[Peer] = frozenset()
        """What the last order named."""
        self._watched: dict[Peer, _Watched] = {}
        self._selector = selectors.DefaultSelector()
        self._alarm, self._ring = socket.socketpair()
        self._ring.setblocking(False)
        self._names = names or Names(loops)
        self._selector.register(self._alarm, selectors.EVENT_READ)
        # Not vital: the sessions remain.
        self._loop = loops.loop("liveness", self._turn, vital=False, mend=self._begin_anew, finish=self._finish)
        self._loop.start()

    def watch(self, peers: Iterable[Peer]) -> None:
        """Watch exactly these from now on. Does not block."""
        self._order(frozenset(peers))

    def stop(self) -> None:
        """Watch nobody, and end the thread. May be called twice."""
        self._loop.stop()
        if self._loop.is_alive:
            self._order(None)
            self._loop.join()

    def _order(self, order: frozenset[Peer] | None) -> None:
        self._orders.put(order)
        try:
            self._ring.send(b"!")
        except OSError:
            pass  # it rings already, or the thread has ended

    # --- the thread

    def _turn(self) -> bool:
        if not self._take_orders():
            return False
        self._connect_those_due()
        for key, _ in self._selector.select(self._wait_s()):
            if key.data is None:
                self._alarm.recv(4096)
            else:
                self._happened(key.data)
        return True

    def _begin_anew(self, error: Exception) -> None:
        """Nobody knows which connection was at hand: make them all anew. Who was reached stays known as such."""
        self._selector.close()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._alarm, selectors.EVENT_READ)
        now = time.monotonic()
        for watched in self._watched.values():
            if watched.sock is not None:
                watched.sock.close()
            watched.sock, watched.is_connected, watched.due = None, False, now

    def _finish(self) -> None:
        for watched in self._watched.values():
            if watched.sock is not None:
                watched.sock.close()
        self._names.stop()
        self._selector.close()
        self._alarm.close()
        self._ring.close()

    def _take_orders(self) -> bool:
        """Watch whom the last order names; False when it was to stop."""
        while not self._orders.empty():
            order = self._orders.get()
            if order is None:
                return False
            self._wanted = order
        for who in self._watched.keys() - self._wanted:
            self._close(self._watched.pop(who))
        for who in self._wanted - self._watched.keys():
            self._watched[who] = _Watched(who)
        return True

    def _wait_s(self) -> float | None:
        """Until the next thing is due; None: nothing is."""
        moments = [
            watched.due if watched.sock is None else watched.since + CONNECT_TIMEOUT_S
            for watched in self._watched.values()
            if not watched.is_connected
        ]
        return max(min(moments) - time.monotonic(), 0) if moments else None

    def _connect_those_due(self) -> None:
        now = time.monotonic()
        for watched in list(self._watched.values()):
            if watched.is_connected:
                continue
            if watched.sock is None and watched.due <= now:
                self._connect(watched, now)
            elif watched.sock is not None and now - watched.since >= CONNECT_TIMEOUT_S:
                self._try_later(watched)

    def _connect(self, watched: _Watched, now: float) -> None:
        who = watched.who
        watched.since, watched.heard = now, b""
        address = self._names.address(who.host, who.port)
        if address is None:
            self._try_later(watched)
            return
        try:
            watched.sock = sock = socket.socket(address.family, socket.SOCK_STREAM)
            sock.setblocking(False)
            self._selector.register(sock, selectors.EVENT_WRITE, watched)
            sock.connect(address.sockaddr)
        except BlockingIOError:
            return  # under way
        except ConnectionRefusedError:
            self._refused(watched)
        except OSError:
            self._try_later(watched)
        else:
            self._connected(watched)

    def _happened(self, watched: _Watched) -> None:
        """A connection was made or refused, something came over it, or it has ended."""
        sock = watched.sock
        if sock is None:
            return  # closed meanwhile
        if not watched.is_connected:
            error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error == 0:
                self._connected(watched)
            elif isinstance(OSError(error, ""), ConnectionRefusedError):
                self._refused(watched)
            else:
                self._try_later(watched)
            return
        try:
            if said := sock.recv(4096):
                self._heard(watched, said)
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._ended(watched)

    def _connected(self, watched: _Watched) -> None:
        assert watched.sock is not None
        watched.is_connected = True
        watched.since = time.monotonic()
        self._selector.modify(watched.sock, selectors.EVENT_READ, watched)
        self._heard(watched, b"")

    def _heard(self, watched: _Watched, said: bytes) -> None:
        """Whoever has said his greeting is the one we look for; what comes after it says only that he is there."""
        greeting = watched.who.greeting
        watched.heard += said[: len(greeting) - len(watched.heard)]
        if watched.heard == greeting:
            watched.was_reached, watched.is_told = True, False
        elif not greeting.startswith(watched.heard):
            self._try_later(watched)  # somebody else listens there

    def _ended(self, watched: _Watched) -> None:
        self._close(watched)
        now = time.monotonic()
        if now - watched.since >= LASTED_S:
            watched.wait_s = FIRST_RETRY_S
            watched.due = now
        else:  # a server that takes no more connections: it would go round and round
            self._try_later(watched)

    def _refused(self, watched: _Watched) -> None:
        if not watched.was_reached and not (watched.who.is_here and _is_ours(watched.who.host)):
            self._try_later(watched)
            return
        is_first, watched.is_told = not watched.is_told, True
        self._close(watched)
        watched.due = time.monotonic() + REPEAT_S
        self._on_gone(watched.who, is_first)

    def _try_later(self, watched: _Watched) -> None:
        self._close(watched)
        watched.due = time.monotonic() + watched.wait_s
        watched.wait_s = min(2 * watched.wait_s, LAST_RETRY_S)

    def _close(self, watched: _Watched) -> None:
        if watched.sock is not None:
            self._selector.unregister(watched.sock)
            watched.sock.close()
            watched.sock, watched.is_connected = None, False


class LivenessListener:
    """Where a process that serves nobody listens, only so that others notice its death.

    It says ``greeting`` to whoever connects, holds the connection, and takes nothing. A port says little: after a
    process's death another one may listen there. One thread.
    """

    def __init__(self, host: str, greeting: bytes, loops: Loops) -> None:
        """Listens at ``host``, an address of this machine, on a free port. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._greeting = greeting
        self._listener = socket.create_server((host, 0), family=family)
        self._listener.setblocking(False)
        self.host, self.port = host, int(self._listener.getsockname()[1])
        self._alarm, self._ring = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._alarm, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._held: set[socket.socket] = set()
        # Not vital: the session remains.
        self._loop = loops.loop("liveness-listener", self._turn, vital=False, finish=self._finish)
        self._loop.start()

    def stop(self) -> None:
        """Listen no more. May be called twice."""
        self._loop.stop()
        if self._loop.is_alive:
            self._ring.close()
            self._loop.join()

    def _turn(self) -> bool:
        for key, _ in self._selector.select():
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            if sock is self._alarm:
                return False
            if sock is self._listener:
                self._accept()
            else:
                self._drain(sock)
        return True

    def _finish(self) -> None:
        for sock in (*self._held, self._alarm, self._listener):
            sock.close()
        self._selector.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:  # gone again, or out of descriptors: do not go round and round
            time.sleep(FIRST_RETRY_S)
            return
        sock.setblocking(False)
        try:
            if len(self._held) < MOST_WATCHERS and sock.send(self._greeting) == len(self._greeting):
                self._held.add(sock)
                self._selector.register(sock, selectors.EVENT_READ)
                return
        except OSError:
            pass
        sock.close()

    def _drain(self, sock: socket.socket) -> None:
        try:
            if sock.recv(4096):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._selector.unregister(sock)
        self._held.discard(sock)
        sock.close()


def machine_id() -> str:
    """The same for all processes on this machine, since its start, that share its network; "" where it is not known."""
    try:
        return f"{machine_boot_id()}/{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return ""


def _is_ours(host: str) -> bool:
    """Whether that is an address of this machine now: it may have moved to another network meanwhile."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as sock:
            sock.bind((host, 0))
    except OSError:
        return False
    return True


def address_towards(host: str, port: int) -> str:
    """This machine's address as ``host`` sees it: where to listen for who can be reached by the same way.

    Nothing is sent. Raises OSError when there is no way there.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as sock:
        sock.connect(address)
        return str(sock.getsockname()[0])
