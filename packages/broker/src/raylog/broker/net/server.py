"""The socket server: listeners, and the connections that came by them, all served by one loop (D4).

What a client can do wrong ends at its own connection: a frame that lost its framing, an API or version that was never
offered, or a body that does not parse closes it, with a log line that says why; all else is an error code in a reply.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from raylog.broker.counters import Counters
from raylog.broker.events import EventLog
from raylog.broker.handlers.context import Ports
from raylog.broker.net.acceptor import Acceptor
from raylog.broker.net.admission import Admission, Refusals
from raylog.broker.net.connection import ClientConnection
from raylog.broker.net.loop import EventLoop
from raylog.broker.net.request_memory import RequestMemory
from raylog.broker.net.slow_apis import SlowApis
from raylog.broker.net.sockets import Address, address_text, listen
from raylog.broker.net.source import Source
from raylog.broker.net.threads import Threads
from raylog.coordination.host.loops import Loops
from raylog.protocol.settings import Settings

log = EventLog(__name__)


@dataclass(frozen=True, slots=True)
class Listener:
    """A named address to accept connections at; port 0 lets the system choose."""

    name: str
    host: str
    port: int


class SocketServer:
    """Serves the Kafka protocol at one or more listeners."""

    def __init__(self, listeners: Sequence[Listener], ports: Ports, settings: Settings, loops: Loops) -> None:
        """``settings``: those that the broker was started with; what may change is read from ``ports``."""
        self._listeners = tuple(listeners)
        self._ports = ports
        self._settings = settings
        self._loops = loops
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        """Notified when the last connection has ended."""
        self._sockets: list[socket.socket] = []
        self._acceptors: list[Acceptor] = []
        self._loop: EventLoop | None = None
        self._threads = Threads("request", loops)
        self._slow_apis = SlowApis()
        self._clients: set[ClientConnection] = set()
        self._closed = Counters()
        self._admission = Admission(ports.configs.broker)
        self._refusals = Refusals()
        self._memory = RequestMemory(ports.configs.broker)

    @property
    def endpoints(self) -> Sequence[Listener]:
        """The listeners, with their actual ports once bound."""
        return self._listeners

    def bind(self) -> Sequence[Listener]:
        """Bind all listeners and return them with their actual ports; connections queue but get no answer yet.

        Raises OSError, naming the address, when a port is taken.
        """
        bound = []
        try:
            for listener in self._listeners:
                sock = listen(listener.name, listener.host, listener.port)
                self._sockets.append(sock)
                bound.append(replace(listener, port=sock.getsockname()[1]))
        except OSError:
            self._close_listeners()
            raise
        self._listeners = tuple(bound)
        return self._listeners

    def start(self) -> None:
        """Begin to accept; binds first when :meth:`bind` was not called."""
        if not self._sockets:
            self.bind()
        self._loop = loop = EventLoop(self._loops)
        for listener, sock in zip(self._listeners, self._sockets, strict=True):
            acceptor = Acceptor(
                sock,
                loop,
                enter=partial(self._enter, loop, listener),
                failed=partial(self._accept_failed, listener),
            )
            loop.add(acceptor, select.EPOLLIN)
            self._acceptors.append(acceptor)
        loop.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Stop accepting, let replies in progress finish for up to ``timeout`` seconds, close everything."""
        deadline_s = time.monotonic() + timeout
        loop, self._loop = self._loop, None
        if loop is None:
            self._close_listeners()
            return
        _Errand.run(loop, self._stop_accepting, timeout)
        self._ports.delayed.interrupt_all()
        self._ports.produces.interrupt_all()
        self._ports.deletes.interrupt_all()
        if not self._wait_ended(deadline_s - time.monotonic()):
            _Errand.run(loop, self._end_all, 1.0)
            self._wait_ended(1.0)
        loop.stop(1.0)  # who is still there ends with it, or with the thread that works for it
        self._close_listeners()  # if the loop did not come to that in time

    def _wait_ended(self, timeout: float) -> bool:
        with self._ended:
            return self._ended.wait_for(lambda: not self._clients, max(0.0, timeout))

    def counters(self) -> Counters:
        """Sums over all connections since the start, closed ones included."""
        sums = Counters()
        with self._lock:  # a connection that ends after this is among the open ones here
            sums.add(self._closed)
            clients = tuple(self._clients)
        for client in clients:
            sums.add(client.connection.counters)
        return sums

    @property
    def connection_count(self) -> int:
        """Open connections."""
        return len(self._clients)

    def connections(self) -> dict[str, int]:
        """Open connections by listener, those without any included."""
        counts = dict.fromkeys((listener.name for listener in self._listeners), 0)
        with self._lock:
            for client in self._clients:
                counts[client.connection.listener] += 1
        return counts

    def _close_listeners(self) -> None:
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()

    # --- in the loop

    def _stop_accepting(self) -> None:
        assert self._acceptors
        for acceptor in self._acceptors:
            acceptor.end()
        self._close_listeners()
        for client in self._all_clients():
            client.end_soon()

    def _end_all(self) -> None:
        for client in self._all_clients():
            client.end_now()

    def _all_clients(self) -> Sequence[ClientConnection]:
        with self._lock:
            return tuple(self._clients)

    def _accept_failed(self, listener: Listener, error: OSError) -> None:
        if count := self._refusals.count(f"accepting at {listener.name}", time.monotonic()):
            log.warning("accepting failed", listener=listener.name, port=listener.port, count=count, reason=error)

    def _enter(self, loop: EventLoop, listener: Listener, sock: socket.socket, address: Address) -> None:
        refusal = self._admission.enter(address[0], sock.fileno())
        if refusal:
            sock.close()
            self._refused(listener, address, refusal)
            return
        try:
            client = ClientConnection(
                sock,
                address,
                listener.name,
                loop=loop,
                threads=self._threads,
                slow_apis=self._slow_apis,
                ports=self._ports,
                settings=self._settings,
                memory=self._memory,
                ended=self._left,
            )
        except OSError as error:  # the client has gone already
            sock.close()
            self._admission.leave(address[0])
            self._refused(listener, address, str(error))
            return
        with self._lock:
            self._clients.add(client)  # before it begins: another thread may serve it, and end it, from then on
        try:
            client.begin()
        except OSError as error:  # the system can watch no more, or the server has stopped
            client.end()
            self._refused(listener, address, str(error))

    def _left(self, client: ClientConnection) -> None:
        with self._ended:
            if client not in self._clients:
                return
            self._clients.remove(client)
            self._admission.leave(client.ip)
            self._closed.add(client.connection.counters)
            if not self._clients:
                self._ended.notify_all()

    def _refused(self, listener: Listener, address: Address, reason: str) -> None:
        count = self._refusals.count(reason, time.monotonic())
        if count:
            log.warning(
                "connections refused",
                listener=listener.name,
                count=count,
                last_client=address_text(address),
                reason=reason,
            )


class _Errand(Source):
    """Something that another thread has the loop do."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._done = threading.Event()

    def fileno(self) -> int:
        return -1

    def ready(self, events: int) -> None: ...

    def woken(self) -> None:
        try:
            self._act()
        finally:
            self._done.set()

    @classmethod
    def run(cls, loop: EventLoop, act: Callable[[], None], timeout_s: float) -> bool:
        """Have it done, and wait for that; False when the time was over first."""
        errand = cls(act)
        loop.wake(errand)
        return errand._done.wait(timeout_s)
