"""The socket server: one accept thread per listener, one blocking thread per connection that has spoken (D4).

A connection's thread runs one request after the other, so replies are in request order, and a slow disk or a long
poll holds up one client only. What a client can do wrong ends at its own connection: a frame that lost its framing,
an API or version that was never offered, or a body that does not parse closes it, with a log line that says why;
all else is an error code in a reply.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from raylog.broker.config import CONNECTIONS_MAX_IDLE_MS, SOCKET_REQUEST_MAX_BYTES
from raylog.broker.counters import Counters
from raylog.broker.events import EventLog
from raylog.broker.handlers import answer
from raylog.broker.handlers.context import CloseConnection, Connection, Ports, Reply
from raylog.broker.net.acceptor import Acceptor, Address
from raylog.broker.net.admission import Admission, Refusals
from raylog.broker.net.request_memory import RequestMemory
from raylog.broker.net.threads import Threads
from raylog.broker.net.transmit import limit_sends, timeval, transmit
from raylog.broker.storage.files import FileSlice
from raylog.protocol.errors import InvalidRequest, UnsupportedVersion
from raylog.protocol.frames import FrameBuffer
from raylog.protocol.settings import Settings

log = EventLog(__name__)

SEND_TIMEOUT_S = 30.0
"""How long a client may take to read one reply: Kafka clients' own request timeout."""

QUIET_S = 1.0
"""A connection that says nothing for so long gives its large buffer back."""

PRODUCE = 0
MAX_HELD_REPLIES = 8

MAX_POLL_MS = 2**31 - 1
BACKLOG = 4096
"""Connections that the system holds for us: with fewer, a client of a storm waits a second to try again."""

LINGER_BYTES = 1 << 20
"""How much of a bad client's further input is read and dropped, so that it sees an orderly end."""

_LENGTH = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Listener:
    """A named address to accept connections at; port 0 lets the system choose."""

    name: str
    host: str
    port: int


class SocketServer:
    """Serves the Kafka protocol at one or more listeners."""

    def __init__(self, listeners: Sequence[Listener], ports: Ports, settings: Settings) -> None:
        """``settings``: those that the broker was started with; what may change is read from ``ports``."""
        self._listeners = tuple(listeners)
        self._ports = ports
        self._settings = settings
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        """Notified when the last connection has ended."""
        self._sockets: list[socket.socket] = []
        self._acceptors: dict[str, Acceptor] = {}
        """By listener."""
        self._accepting: list[threading.Thread] = []
        self._threads = Threads("client")
        self._clients: set[_Client] = set()
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
            thread = threading.Thread(
                target=acceptor.run, args=(self._stopping,), name=f"accept-{listener.name}", daemon=True
            )
            self._accepting.append(thread)
            thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Stop accepting, let replies in progress finish for up to ``timeout`` seconds, close everything."""
        self._stopping.set()
        self._close_listeners()
        deadline = time.monotonic() + timeout
        for thread in self._accepting:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._shut_down(socket.SHUT_RD)
        self._ports.delayed.interrupt_all()
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
        with self._lock:
            sums.add(self._closed)
            for client in self._clients:
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
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # wakes its accept(), which close() does not
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
            log.info("connection closed", listener=listener.name, client=_text(address), reason=reason)
        self._admission.leave(address[0])

    def _begin(self, listener: Listener, sock: socket.socket, address: Address) -> None:
        try:
            self._start(_Client(sock, address, listener.name, self._ports, self._settings, self._memory))
        except (OSError, RuntimeError) as error:  # RuntimeError: no more threads
            sock.close()
            self._admission.leave(address[0])
            self._refused(listener, address, str(error))

    def _start(self, client: _Client) -> None:
        with self._lock:
            self._clients.add(client)
        try:
            self._threads.run(partial(self._run, client))
        except RuntimeError:
            with self._lock:
                self._clients.remove(client)
            raise

    def _refused(self, listener: Listener, address: Address, reason: str) -> None:
        count = self._refusals.count(reason, time.monotonic())
        if count:
            log.warning(
                "connections refused", listener=listener.name, count=count, last_client=_text(address), reason=reason
            )

    def _run(self, client: _Client) -> None:
        threading.current_thread().name = f"client-{client.name}"
        try:
            client.serve(self._stopping)
        finally:
            client.close()
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
            f"listener {listener.name} cannot use {listener.host}:{listener.port}: {error.strerror}",
        ) from error
    return sock


def _text(address: Address) -> str:
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"{host}:{address[1]}"


def framed(reply: Sequence[bytes | FileSlice]) -> list[bytes | FileSlice]:
    """The parts of a reply with their length before them, in as few parts as can be."""
    length = _LENGTH.pack(sum(map(len, reply)))
    first = reply[0]
    return [length + first, *reply[1:]] if isinstance(first, bytes) else [length, *reply]


class _Client:
    """One connection, used by its own thread; only :meth:`shutdown` may be called by others."""

    def __init__(
        self,
        sock: socket.socket,
        address: Address,
        listener: str,
        ports: Ports,
        settings: Settings,
        memory: RequestMemory,
    ) -> None:
        sock.setblocking(True)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY):
            raise OSError("TCP_NODELAY cannot be set: small replies would wait 40 ms")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval(QUIET_S))
        limit_sends(sock, SEND_TIMEOUT_S)
        self._sock = sock
        self.ip, self.name = address[0], _text(address)
        self._names = {"listener": listener, "client": self.name}
        """What log lines say of this connection."""
        self._ports = ports
        self._max_idle_ms = settings[CONNECTIONS_MAX_IDLE_MS]
        self._frames = FrameBuffer(settings[SOCKET_REQUEST_MAX_BYTES])
        self._memory = memory
        self._counted = self._frames.capacity
        self._hang_up = select.poll()
        self._hang_up.register(sock, select.POLLRDHUP)
        self.connection = Connection(listener=listener, peer=self)

    def gone(self) -> bool:
        """True when the client closed its end (Peer)."""
        return bool(self._hang_up.poll(0))

    def shutdown(self, how: int) -> None:
        """End one or both directions; the thread notices at once."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(how)

    def close(self) -> None:
        """End the connection so that the client sees its end, not a reset: read and drop what it sent already."""
        self.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            dropped = 0
            while dropped < LINGER_BYTES and (data := self._sock.recv(1 << 16, socket.MSG_DONTWAIT)):
                dropped += len(data)
        self._sock.close()
        self._memory.resize(self._counted, 0)

    def serve(self, stopping: threading.Event) -> None:
        """Answer requests until the client leaves, breaks the rules or idles, or the server stops."""
        try:
            while not stopping.is_set():
                self._answer_all()
                if not self._receive():
                    return
        except (InvalidRequest, UnsupportedVersion, CloseConnection) as error:
            log.warning("connection closed", **self._names, reason=error)
        except OSError as error:
            log.info("connection lost", **self._names, reason=error)
        except Exception:
            log.exception("connection closed by a defect of the broker", **self._names)

    def _answer_all(self) -> None:
        """Answer the frames that are there.

        A producer that has several batches on the way gets the replies to a few of them by one system call: to wake
        it up for each costs more than to take the batches in. Before any other request, which may have to wait, what
        is held goes out.
        """
        held: list[bytes | FileSlice] = []
        try:
            while (frame := self._frames.next_frame()) is not None:
                api_key = int.from_bytes(frame[:2], "big")
                if held and (api_key != PRODUCE or len(held) == MAX_HELD_REPLIES):
                    parts, held = held, []
                    self._send(parts)
                reply = self._answer(api_key, frame)
                if isinstance(reply, bytes):
                    held.append(_LENGTH.pack(len(reply)) + reply)
                elif reply is not None:
                    self._send(framed(reply))
        finally:
            if held:
                self._send(held)

    def _answer(self, api_key: int, frame: memoryview) -> Reply:
        begun = time.perf_counter_ns()
        reply = answer(self.connection, frame, self._ports)
        self.connection.counters.request(api_key, time.perf_counter_ns() - begun)
        return reply

    def _send(self, parts: Sequence[bytes | FileSlice]) -> None:
        transmit(self._sock, parts, timeout=SEND_TIMEOUT_S)

    def _receive(self) -> bool:
        """Read what is there, waiting for it; False when the client left or was idle for too long."""
        frames = self._frames
        quiet_ms = 0
        while True:
            room = frames.writable()
            if frames.capacity != self._counted:
                self._count_memory()
            try:
                count = self._sock.recv_into(room)
            except BlockingIOError:
                del room  # a view would keep the memory that is given back
                quiet_ms += int(QUIET_S * 1000)
                frames.trim()
                self._count_memory()
                if quiet_ms >= self._max_idle_ms or not (frames.pending or self._wait(quiet_ms)):
                    log.info("connection closed", **self._names, reason="idle for connections.max.idle.ms")
                    return False
                continue
            frames.advance(count)
            return count > 0

    def _count_memory(self) -> None:
        """Before a buffer that has grown is filled, and after it was given back."""
        capacity = self._frames.capacity
        self._memory.resize(self._counted, capacity)
        self._counted = capacity

    def _wait(self, waited_ms: int) -> bool:
        """Wait for something to read; False when nothing comes within the idle limit."""
        readable = select.poll()
        readable.register(self._sock, select.POLLIN)
        return bool(readable.poll(min(self._max_idle_ms - waited_ms, MAX_POLL_MS)))
