"""The socket server: one accept thread per listener, one blocking thread per connection that has spoken (D4).

A connection's thread runs one request after the other, so replies are in request order, and a slow disk or a long
poll holds up one client only. What a client can do wrong ends at its own connection: a frame that lost its framing,
an API or version that was never offered, or a body that does not parse closes it, with a log line that says why;
all else is an error code in a reply.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from raylog.broker.config import CONNECTIONS_MAX_IDLE_MS
from raylog.broker.counters import Counters
from raylog.broker.events import EventLog
from raylog.broker.handlers.context import Ports
from raylog.broker.net.acceptor import Acceptor, Address
from raylog.broker.net.admission import Admission, Refusals
from raylog.broker.net.connection import ClientConnection, address_text
from raylog.broker.net.request_memory import RequestMemory
from raylog.broker.net.threads import Threads
from raylog.coordination.host.loops import Loop, Loops
from raylog.protocol.settings import Settings
from raylog.protocol.texts import host_port

log = EventLog(__name__)

BACKLOG = 4096
"""Connections that the system holds for us: with fewer, a client of a storm waits a second to try again."""


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
        self._acceptors: dict[str, Acceptor] = {}
        """By listener."""
        self._accepting: list[Loop] = []
        self._threads = Threads("client", loops)
        self._clients: set[ClientConnection] = set()
        self._closed = Counters()
        self._admission = Admission(ports.configs.broker)
        self._refusals = Refusals()
        self._memory = RequestMemory(ports.configs.broker)
        self._stopping = threading.Event()

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
                sock = _listen(listener)
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
        for listener, sock in zip(self._listeners, self._sockets, strict=True):
            acceptor = Acceptor(
                sock,
                enter=partial(self._enter, listener),
                begin=partial(self._begin, listener),
                leave=partial(self._leave, listener),
                failed=partial(self._accept_failed, listener),
                max_idle_s=self._settings[CONNECTIONS_MAX_IDLE_MS] / 1000,
            )
            self._acceptors[listener.name] = acceptor
            loop = self._loops.loop(
                f"accept-{listener.name}", partial(acceptor.turn, self._stopping), finish=acceptor.finish
            )
            self._accepting.append(loop)
            loop.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Stop accepting, let replies in progress finish for up to ``timeout`` seconds, close everything."""
        self._stopping.set()
        for loop in self._accepting:
            loop.stop()
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # wakes its accept thread, which close() does not
        deadline = time.monotonic() + timeout
        for loop in self._accepting:
            loop.join(max(0.0, deadline - time.monotonic()))
        self._close_listeners()
        self._shut_down(socket.SHUT_RD)
        self._ports.delayed.interrupt_all()
        self._ports.produces.interrupt_all()
        self._ports.deletes.interrupt_all()
        if not self._wait_ended(deadline - time.monotonic()):
            self._shut_down(socket.SHUT_RDWR)
            self._wait_ended(1.0)

    def _shut_down(self, how: int) -> None:
        with self._lock:
            clients = tuple(self._clients)
        for client in clients:
            client.shutdown(how)

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
        return sum(self.connections().values())

    def connections(self) -> dict[str, int]:
        """Open connections by listener, those without any included."""
        counts = {name: acceptor.silent for name, acceptor in self._acceptors.items()}
        with self._lock:
            for client in self._clients:
                counts[client.connection.listener] += 1
        return counts

    def _close_listeners(self) -> None:
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()

    # --- what the accept threads call

    def _accept_failed(self, listener: Listener, error: OSError) -> None:
        if not self._stopping.is_set():
            log.warning("accepting failed", listener=listener.name, port=listener.port, reason=error)

    def _enter(self, listener: Listener, sock: socket.socket, address: Address) -> bool:
        refusal = self._admission.enter(address[0], sock.fileno())
        if refusal:
            sock.close()
            self._refused(listener, address, refusal)
        return not refusal

    def _leave(self, listener: Listener, address: Address, reason: str) -> None:
        if reason:
            log.info("connection closed", listener=listener.name, client=address_text(address), reason=reason)
        self._admission.leave(address[0])

    def _begin(self, listener: Listener, sock: socket.socket, address: Address) -> None:
        try:
            self._start(ClientConnection(sock, address, listener.name, self._ports, self._settings, self._memory))
        except Exception as error:  # noqa: BLE001 (RuntimeError: no more threads; whatever it is, it ends this one alone)
            sock.close()
            self._admission.leave(address[0])
            self._refused(listener, address, str(error))

    def _start(self, client: ClientConnection) -> None:
        with self._lock:
            self._clients.add(client)
        try:
            self._threads.run(partial(self._run, client))
        except BaseException:
            with self._lock:
                self._clients.remove(client)
            raise

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

    def _run(self, client: ClientConnection) -> None:
        threading.current_thread().name = f"client-{client.name}"
        try:
            client.serve(self._stopping)
        finally:
            try:
                client.close()
            finally:
                self._admission.leave(client.ip)
                with self._ended:
                    self._clients.remove(client)
                    self._closed.add(client.connection.counters)
                    if not self._clients:
                        self._ended.notify_all()


def _listen(listener: Listener) -> socket.socket:
    family = socket.AF_INET6 if ":" in listener.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((listener.host, listener.port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise OSError(
            error.errno,
            f"listener {listener.name} cannot use {host_port(listener.host, listener.port)}: {error.strerror}",
        ) from error
    return sock
