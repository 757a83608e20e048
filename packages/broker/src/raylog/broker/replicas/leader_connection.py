"""A broker's connection to another one, as its follower: Fetch and nothing else, over Kafka's protocol like any client.

One thread owns a connection; only :meth:`PeerConnection.interrupt` is for others. Blocking, one request at a time: the
answer is read greedily into a buffer that the next one reuses, and record data are views of it, which the log checks
and writes as they are.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time

from raylog.protocol.errors import CorruptMessage, InvalidRequest, NetworkException
from raylog.protocol.texts import host_port
from raylog.protocol.wire.fetch import FetchRequest, FetchResponse, encode_fetch_request, parse_fetch_response
from raylog.protocol.wire.frames import FrameBuffer

__all__ = ["FETCH_VERSION", "PeerConnection"]

FETCH_VERSION = 18
"""Topics by id, the follower's incarnation (KIP-903) and its high watermark (KIP-1166). Every release that replicates
speaks it, so that brokers of two releases need not negotiate.
"""

CONNECT_TIMEOUT_S = 5.0


class PeerConnection:
    """See the module."""

    def __init__(self, client_id: str, *, timeout_ms: int, max_answer_bytes: int) -> None:
        """Connects to nobody yet. ``timeout_ms``: how long an answer may take beyond what its request lets it wait."""
        self._client_id = client_id
        self._timeout_s = timeout_ms / 1000
        self._max_answer_bytes = max_answer_bytes
        self._frames = FrameBuffer(max_answer_bytes)
        self._sock: socket.socket | None = None
        self._correlation_id = 0
        self._interrupted = False

    def connect(self, host: str, port: int) -> None:
        """Raises NetworkException when nobody answers there."""
        try:
            sock = socket.create_connection((host, port), min(CONNECT_TIMEOUT_S, self._timeout_s))
        except OSError as error:
            raise NetworkException(f"connecting to {host_port(host, port)} failed: {error}") from error
        self._sock, self._frames = sock, FrameBuffer(self._max_answer_bytes)
        if self._interrupted:
            self.close()
            raise NetworkException("the connection was interrupted")
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(self._timeout_s))

    @property
    def is_connected(self) -> bool:
        return self._sock is not None

    def fetch(self, request: FetchRequest) -> FetchResponse[memoryview]:
        """Ask and wait for the answer; its records are valid until the next call.

        Raises NetworkException when the connection broke, when it was interrupted or when no answer came in time,
        CorruptMessage when the answer cannot be read. The connection is closed then.
        """
        try:
            return self._exchange(request)
        except (OSError, InvalidRequest) as error:
            self.close()
            raise NetworkException(f"fetching failed: {error}") from error
        except (NetworkException, CorruptMessage):
            self.close()
            raise

    def interrupt(self) -> None:
        """End the connection from another thread: who waits for an answer gets NetworkException at once."""
        self._interrupted = True
        sock = self._sock
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; :meth:`connect` makes another one."""
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()

    def _exchange(self, request: FetchRequest) -> FetchResponse[memoryview]:
        sock = self._sock
        if sock is None:
            raise NetworkException("not connected")
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        message = encode_fetch_request(
            FETCH_VERSION, request, correlation_id=self._correlation_id, client_id=self._client_id
        )
        sock.sendall(message)
        frame = self._receive(sock, self._timeout_s + request.max_wait_ms / 1000)
        correlation_id, response = parse_fetch_response(FETCH_VERSION, frame)
        if correlation_id != self._correlation_id:
            raise CorruptMessage(f"the answer is to request {correlation_id}, not to {self._correlation_id}")
        return response

    def _receive(self, sock: socket.socket, timeout_s: float) -> memoryview:
        frames = self._frames
        deadline = time.monotonic() + timeout_s
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(timeout_s))
        while (frame := frames.next_frame()) is None:
            try:
                count = sock.recv_into(frames.writable())
            except BlockingIOError:
                raise NetworkException(f"no answer within {timeout_s:g} s") from None
            if count == 0:
                raise NetworkException("the leader closed the connection")
            frames.advance(count)
            if time.monotonic() > deadline:
                raise NetworkException(f"no whole answer within {timeout_s:g} s")
        return frame


def _timeval(seconds: float) -> bytes:
    """C's ``struct timeval``, as SO_SNDTIMEO and SO_RCVTIMEO take it."""
    whole = int(seconds)
    return struct.pack("@ll", whole, int((seconds - whole) * 1e6))
