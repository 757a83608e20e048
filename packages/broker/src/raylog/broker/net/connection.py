"""One client's connection, served by a thread of its own (D4).

The thread takes requests in order and answers them in order. A reply may have to wait: that of a produce with acks=all
until the in-sync replicas have its records, that of a fetch until there is enough to read, that of a member of a group
until the others have joined. The produce
requests behind it are taken in meanwhile. A producer that sends several batches before it has the first answer, as most
do, so pays the way to the replicas and back once for all that are on their way, and not once for each.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from raylog.broker.config import CONNECTIONS_MAX_IDLE_MS, SOCKET_REQUEST_MAX_BYTES
from raylog.broker.events import EventLog
from raylog.broker.handlers import answer
from raylog.broker.handlers.context import CloseConnection, Connection, DelayedReply, Ports
from raylog.broker.net.acceptor import Address, end_orderly
from raylog.broker.net.request_memory import RequestMemory
from raylog.broker.net.transmit import limit_sends, timeval, transmit
from raylog.broker.storage.disk.files import FileSlice
from raylog.protocol.errors import InvalidRequest, UnsupportedVersion
from raylog.protocol.settings import Settings
from raylog.protocol.texts import host_port
from raylog.protocol.wire.frames import FrameBuffer

__all__ = ["ClientConnection", "address_text", "framed"]

log = EventLog(__name__)

SEND_TIMEOUT_S = 30.0
"""How long a client may take to read one reply: Kafka clients' own request timeout."""

QUIET_S = 1.0
"""A connection that says nothing for so long gives its large buffer back."""

PRODUCE = 0
MAX_HELD_REPLIES = 8
MAX_DELAYED_REPLIES = 64
"""Requests that are taken in while the first of them waits for the replicas. Enough to fill the way there and back."""

PEER_CHECK_S = 1.0
"""How often a thread whose reply waits looks whether its client is still there."""

MAX_POLL_MS = 2**31 - 1
_LENGTH = struct.Struct(">i")


def address_text(address: Address) -> str:
    """``host:port``, as log lines have it."""
    return host_port(address[0], address[1])


def framed(reply: Sequence[bytes | FileSlice]) -> list[bytes | FileSlice]:
    """The parts of a reply with their length before them, in as few parts as can be."""
    length = _LENGTH.pack(sum(map(len, reply)))
    first = reply[0]
    return [length + first, *reply[1:]] if isinstance(first, bytes) else [length, *reply]


class _Waiting(NamedTuple):
    """A reply that has its turn after those before it."""

    reply: bytes | DelayedReply
    api_key: int
    begun_ns: int

    def is_over(self) -> bool:
        return isinstance(self.reply, bytes) or self.reply.is_over()


class ClientConnection:
    """Used by its own thread; only :meth:`shutdown` may be called by others."""

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
        self.ip, self.name = address[0], address_text(address)
        self._names = {"listener": listener, "client": self.name}
        """What log lines say of this connection."""
        self._ports = ports
        self._max_idle_ms = settings[CONNECTIONS_MAX_IDLE_MS]
        self._frames = FrameBuffer(settings[SOCKET_REQUEST_MAX_BYTES])
        self._memory = memory.share(lambda: self.shutdown(socket.SHUT_RDWR))
        self._hang_up = select.poll()
        self._hang_up.register(sock, select.POLLRDHUP)
        self._waiting: deque[_Waiting] = deque()
        """Replies in order, the first of which waits for others."""
        self.connection = Connection(listener=listener, host=self.ip)

    def shutdown(self, how: int) -> None:
        """End one or both directions; the thread notices at once."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(how)

    def close(self) -> None:
        """End the connection in good order; nobody waits for what it was to be answered."""
        try:
            while self._waiting:
                reply = self._waiting.popleft().reply
                if not isinstance(reply, bytes):
                    reply.abandon()
        finally:
            end_orderly(self._sock)
            self._memory.resize(0)

    def serve(self, stopping: threading.Event) -> None:
        """Answer requests until the client leaves, breaks the rules or idles, or the server stops."""
        try:
            while not stopping.is_set():
                if self._answer_all():
                    self._memory.next_request()
                if not self._receive():
                    break
            self._send_ready()
        except (InvalidRequest, UnsupportedVersion, CloseConnection) as error:
            log.warning("connection closed", **self._names, reason=error)
        except OSError as error:
            log.info("connection lost", **self._names, reason=error)
        except Exception:
            log.exception("connection closed by a defect of the broker", **self._names)

    # --- answering

    def _answer_all(self) -> bool:
        """Answer the frames that are there; whether there were any.

        A producer that has several batches on the way gets the replies to a few of them by one system call: to wake
        it up for each costs more than to take the batches in. Before any other request, which may have to wait, what
        is held goes out.
        """
        held: list[bytes | FileSlice] = []
        is_any = False
        try:
            while (frame := self._frames.next_frame()) is not None:
                is_any = True
                api_key = int.from_bytes(frame[:2], "big")
                if self._waiting and (api_key != PRODUCE or len(self._waiting) >= MAX_DELAYED_REPLIES):
                    self._send_delayed(all_of_them=api_key != PRODUCE)
                if held and (api_key != PRODUCE or len(held) == MAX_HELD_REPLIES):
                    parts, held = held, []
                    self._send(parts)
                begun = time.perf_counter_ns()
                reply = answer(self.connection, frame, self._ports)
                if isinstance(reply, DelayedReply) or (self._waiting and isinstance(reply, bytes)):
                    self._waiting.append(_Waiting(reply, api_key, begun))
                    continue
                self.connection.counters.request(api_key, time.perf_counter_ns() - begun)
                if isinstance(reply, bytes):
                    held.append(_LENGTH.pack(len(reply)) + reply)
                elif reply is not None:
                    self._send(framed(reply))
        finally:
            if held:
                self._send(held)
        return is_any

    def _send_delayed(self, *, all_of_them: bool) -> None:
        """Wait for the first delayed reply and send it with those behind it that are ready, or wait for them, too.

        Raises ConnectionResetError when the client has gone meanwhile.
        """
        held: list[bytes | FileSlice] = []
        waiting, is_first = self._waiting, True
        while waiting and (all_of_them or is_first or waiting[0].is_over()):
            awaited, api_key, begun = waiting[0]
            if isinstance(awaited, bytes):
                reply: bytes | Sequence[bytes | FileSlice] = awaited
            else:
                while not awaited.wait(PEER_CHECK_S):
                    if self._has_left():
                        raise ConnectionResetError("the client left while its request waited")
                    if self._memory.is_wanted:
                        self._give_back()
                reply = awaited.finish()
            waiting.popleft()
            self.connection.counters.request(api_key, time.perf_counter_ns() - begun)
            if isinstance(reply, bytes):
                held.append(_LENGTH.pack(len(reply)) + reply)
            else:
                parts, held = [*held, *framed(reply)], []
                self._send(parts)
            is_first = False
        if held:
            self._send(held)

    def _send_ready(self) -> None:
        """The client sends nothing more: send what can be told it without waiting."""
        if self._waiting and self._waiting[0].is_over():
            self._send_delayed(all_of_them=False)

    def _send(self, parts: Sequence[bytes | FileSlice]) -> None:
        transmit(self._sock, parts, timeout=SEND_TIMEOUT_S)

    def _has_left(self) -> bool:
        """True when the client closed its end: nobody waits for the reply any more."""
        return bool(self._hang_up.poll(0))

    # --- receiving

    def _receive(self) -> bool:
        """Read what is there, waiting for it; False when the client left or was idle for too long.

        While a reply is delayed it takes in what is there already, and then waits for the reply, not for the client.
        """
        frames, memory = self._frames, self._memory
        quiet_ms = 0
        while True:
            memory.is_receiving = frames.pending > 0
            room = frames.writable()
            if frames.capacity != memory.capacity:
                memory.resize(frames.capacity)
            try:
                count = self._sock.recv_into(room, 0, socket.MSG_DONTWAIT if self._waiting else 0)
            except BlockingIOError:
                del room  # a view would keep the memory that is given back
                memory.is_receiving = False
                if self._waiting:
                    self._send_delayed(all_of_them=False)
                    memory.next_request()  # while the reply waited nothing was read
                    continue
                quiet_ms += int(QUIET_S * 1000)
                self._give_back()
                if quiet_ms >= self._max_idle_ms or not (frames.pending or self._wait(quiet_ms)):
                    log.info("connection closed", **self._names, reason="idle for connections.max.idle.ms")
                    return False
                continue
            frames.advance(count)
            if memory.counted:
                memory.came(count)
            memory.is_receiving = False
            return count > 0

    def _give_back(self) -> None:
        """Give the large buffer back, unless a request has begun to come in."""
        self._frames.trim()
        self._memory.resize(self._frames.capacity)

    def _wait(self, waited_ms: int) -> bool:
        """Wait for something to read; False when nothing comes within the idle limit."""
        readable = select.poll()
        readable.register(self._sock, select.POLLIN)
        return bool(readable.poll(min(self._max_idle_ms - waited_ms, MAX_POLL_MS)))
