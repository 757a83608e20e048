"""Liveness: hints that another broker's process is gone, faster than its session's end (D9).

Each broker holds one connection to the first listener of each other broker, and sends nothing over it. The kernel
closes it when the far process dies, within milliseconds. Then one attempt to connect tells more: who is refused finds
nobody listening any more, and that is the hint. Anything else is none: a connection that was closed for its idleness is
made anew, a host that does not answer is tried again (its session will tell), and so is one that was never reached in
this incarnation, since its address may be out of reach from here for ever. A hint is repeated while it holds: what was
done about the first one may have failed.

A hint may be wrong and decides nothing: ownership rests on epochs and incarnations. Whoever lives registers anew.
"""

from __future__ import annotations

import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from raylog.broker.events import EventLog
from raylog.broker.net.names import Names
from raylog.coordination.model import BrokerInfo
from raylog.protocol.ids import BrokerEpoch, BrokerId

__all__ = ["Liveness", "LivenessConnections", "SessionsOnly"]

logger = EventLog(__name__)

FIRST_RETRY_S, LAST_RETRY_S = 0.02, 1.0
CONNECT_TIMEOUT_S = 2.0
REPEAT_S = 0.5
"""Time between two hints about the same incarnation."""
LASTED_S = 1.0
"""A connection that held so long is made anew at once when it ends; one that did not, after a pause."""


class Liveness(Protocol):
    """Watches the processes of other brokers."""

    def watch(self, brokers: Iterable[BrokerInfo]) -> None:
        """Watch exactly these brokers, in these incarnations, from now on. Does not block."""

    def stop(self) -> None:
        """Watch nobody, and end the thread."""


class SessionsOnly:
    """The trivial implementation: no hints, a broker is gone when its session is."""

    def watch(self, brokers: Iterable[BrokerInfo]) -> None:
        return

    def stop(self) -> None:
        return


class _Incarnation(NamedTuple):
    """Who is watched, and where."""

    id: BrokerId
    epoch: BrokerEpoch
    host: str
    port: int


class _Watched:
    """One incarnation's connection: none (waiting for ``due``), under way, or made."""

    __slots__ = ("due", "is_connected", "is_told", "since", "sock", "wait_s", "was_connected", "who")

    def __init__(self, who: _Incarnation) -> None:
        self.who = who
        self.sock: socket.socket | None = None
        self.is_connected = False
        self.was_connected = False
        """Whether it was ever reached: only then does a refusal mean anything."""
        self.is_told = False
        """Whether a hint was given since it was reached last."""
        self.since = 0.0
        """When this attempt or connection began."""
        self.due = 0.0
        """When to try to connect, while there is no attempt under way."""
        self.wait_s = FIRST_RETRY_S


class LivenessConnections:
    """See the module. One thread holds all connections."""

    def __init__(
        self, broker_id: BrokerId, on_gone: Callable[[BrokerId, BrokerEpoch], None], names: Names | None = None
    ) -> None:
        """``broker_id`` is our own, which is not watched. ``on_gone`` is called on the thread, every REPEAT_S while an
        incarnation seems dead, and must only take note. ``names``: finds hosts, and is stopped with us.
        """
        self._broker_id = broker_id
        self._on_gone = on_gone
        self._orders: queue.SimpleQueue[frozenset[_Incarnation] | None] = queue.SimpleQueue()
        self._watched: dict[_Incarnation, _Watched] = {}
        self._selector = selectors.DefaultSelector()
        self._alarm, self._ring = socket.socketpair()
        self._ring.setblocking(False)
        self._names = names or Names()
        self._selector.register(self._alarm, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="liveness", daemon=True)
        self._thread.start()

    def watch(self, brokers: Iterable[BrokerInfo]) -> None:
        """See Liveness."""
        endpoints = ((broker, broker.endpoint()) for broker in brokers if broker.id != self._broker_id)
        self._order(frozenset(_Incarnation(b.id, b.epoch, at.host, at.port) for b, at in endpoints if at is not None))

    def stop(self) -> None:
        """See Liveness. May be called twice."""
        if self._thread.is_alive():
            self._order(None)
            self._thread.join()

    def _order(self, order: frozenset[_Incarnation] | None) -> None:
        self._orders.put(order)
        try:
            self._ring.send(b"!")
        except OSError:
            pass  # it rings already, or the thread has ended

    # --- the thread

    def _run(self) -> None:
        try:
            while self._take_orders():
                self._connect_those_due()
                for key, _ in self._selector.select(self._wait_s()):
                    if key.data is None:
                        self._alarm.recv(4096)
                    else:
                        self._happened(key.data)
        except Exception:
            logger.exception("no more hints: a defect")  # the sessions remain
        finally:
            for watched in self._watched.values():
                self._close(watched)
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
            for who in [who for who in self._watched if who not in order]:
                self._close(self._watched.pop(who))
            for who in order - self._watched.keys():
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
        watched.since = now
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
        """A connection was made or refused, or has ended."""
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
            if sock.recv(4096):
                return  # brokers say nothing unasked: whatever it is, somebody is there
        except BlockingIOError:
            return
        except OSError:
            pass
        self._ended(watched)

    def _connected(self, watched: _Watched) -> None:
        assert watched.sock is not None
        watched.is_connected = watched.was_connected = True
        watched.is_told = False
        watched.since = time.monotonic()
        self._selector.modify(watched.sock, selectors.EVENT_READ, watched)

    def _ended(self, watched: _Watched) -> None:
        self._close(watched)
        now = time.monotonic()
        if now - watched.since >= LASTED_S:
            watched.wait_s = FIRST_RETRY_S
            watched.due = now
        else:  # a server that takes no more connections: it would go round and round
            self._try_later(watched)

    def _refused(self, watched: _Watched) -> None:
        if not watched.was_connected:
            self._try_later(watched)
            return
        who = watched.who
        if not watched.is_told:
            watched.is_told = True
            logger.warning(
                "broker seems dead: it dropped its connection, and nobody listens there",
                other=who.id, broker_epoch=who.epoch, at=f"{who.host}:{who.port}",
            )  # fmt: skip
        self._close(watched)
        watched.due = time.monotonic() + REPEAT_S
        self._on_gone(who.id, who.epoch)

    def _try_later(self, watched: _Watched) -> None:
        self._close(watched)
        watched.due = time.monotonic() + watched.wait_s
        watched.wait_s = min(2 * watched.wait_s, LAST_RETRY_S)

    def _close(self, watched: _Watched) -> None:
        if watched.sock is not None:
            self._selector.unregister(watched.sock)
            watched.sock.close()
            watched.sock, watched.is_connected = None, False
