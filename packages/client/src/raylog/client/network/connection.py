"""One connection to one broker: requests out in order, answers back in the same order. Never blocks.

States: CONNECTING → HANDSHAKE (ApiVersions is asked first, so that a broker that speaks other versions is
found out with a clear sentence) → READY → CLOSED. One thread owns it; the selector that it is registered with
is its pool's.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from collections.abc import Sequence
from enum import Enum, auto
from importlib.metadata import version as version_of
from typing import Any, NamedTuple, cast

from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.api_versions.v3.response import ApiVersionsResponse
from kio.schema.errors import ErrorCode

from raylog.protocol.errors import (
    CorruptMessage,
    InvalidRequest,
    NetworkException,
    RaylogError,
    RequestTimedOut,
    UnsupportedVersion,
    exception_for,
)
from raylog.protocol.texts import host_port
from raylog.protocol.wire.frames import FrameBuffer
from raylog.protocol.wire.messages import decode_response, encode_request

API_VERSIONS = 18
MAX_RESPONSE_BYTES = 1 << 30
"""An answer that claims to be longer is taken for a broken stream; the memory is only taken as bytes
arrive."""
_PARTS_PER_SEND = 64
_IN_PROGRESS = (errno.EINPROGRESS, errno.EWOULDBLOCK)

Part = bytes | bytearray | memoryview


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return host_port(self.host, self.port)


class State(Enum):
    CONNECTING = auto()
    HANDSHAKE = auto()
    READY = auto()
    CLOSED = auto()


class Request(NamedTuple):
    """A request that waits for its answer. ``context`` is whatever the sender wants back with it."""

    api_key: int
    version: int
    correlation_id: int
    context: Any
    deadline_ms: int
    timeout_ms: int

    def latency_ms(self, now_ms: int) -> int:
        """How long ago it was sent."""
        return now_ms - self.deadline_ms + self.timeout_ms


class Reply(NamedTuple):
    """An answer's frame (without its length, valid until the next poll), or why there will be none."""

    request: Request
    frame: memoryview
    error: RaylogError | None = None


class Connection:
    """A socket, what is still to be written to it, and the requests that wait for answers from it."""

    def __init__(
        self,
        address: Address,
        candidates: Sequence[tuple[int, Any]],
        client_id: str,
        now_ms: int,
        *,
        setup_timeout_ms: int,
        timeout_ms: int,
    ) -> None:
        """Begin to connect to the first of the host's ``candidates``, each a family and an address.

        Each has ``setup_timeout_ms`` to take the connection. Raises NetworkException when none can be tried.
        """
        self.address = address
        self.state = State.CONNECTING
        self.in_flight: deque[Request] = deque()
        self.error: RaylogError | None = None
        """Why it is closed, once it is."""
        self.begun_ms = self.used_ms = now_ms
        """Since when it is being made, and when it was last read from or written to."""
        self._client_id = client_id
        self._setup_timeout_ms = setup_timeout_ms
        self._timeout_ms = timeout_ms
        self._deadline_ms = now_ms
        self._frames = FrameBuffer(MAX_RESPONSE_BYTES)
        self._out: deque[memoryview] = deque()
        self._correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {}
        self._candidates = list(candidates)
        self.target: Any = None
        """The address that it connects, or is connected, to."""
        self.socket = self._begin(now_ms)

    def wants_write(self) -> bool:
        """True when the socket's becoming writable means something to do."""
        return self.state is State.CONNECTING or bool(self._out)

    @property
    def is_idle(self) -> bool:
        """True when nothing is to be written and no answer awaited."""
        return self.state is State.READY and not self._out and not self.in_flight

    def next_deadline_ms(self) -> int | None:
        """When :meth:`expired` becomes true; None while nothing is awaited."""
        if self.state in (State.CONNECTING, State.HANDSHAKE):
            return self._deadline_ms
        return self.in_flight[0].deadline_ms if self.in_flight else None

    def expired(self, now_ms: int) -> RaylogError | None:
        """Why the connection must be given up: an answer is overdue. None while it is fine."""
        deadline_ms = self.next_deadline_ms()
        if deadline_ms is None or now_ms < deadline_ms:
            return None
        if self.state is State.CONNECTING:
            return NetworkException(f"{self._place}: no connection within {self._setup_timeout_ms} ms")
        if self.state is State.HANDSHAKE:
            return NetworkException(f"{self._place}: no answer to the first request within {self._timeout_ms} ms")
        return RequestTimedOut(f"{self.address}: no answer within {self.in_flight[0].timeout_ms} ms")

    def check_version(self, api_key: int, version: int) -> None:
        """UnsupportedVersion when the broker does not speak ``version`` of the API."""
        low, high = self._versions.get(api_key, (0, -1))
        if not low <= version <= high:
            offered = f"versions {low} to {high}" if high >= 0 else "not at all"
            raise UnsupportedVersion(
                f"{self.address} speaks API {api_key} {offered}; this client needs version {version}"
            )

    def next_correlation_id(self) -> int:
        """The number for the request that is sent next."""
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        return self._correlation_id

    def send(
        self,
        api_key: int,
        version: int,
        frame: Sequence[Part],
        context: Any,
        *,
        now_ms: int,
        timeout_ms: int,
        expects_reply: bool = True,
    ) -> None:
        """Queue a whole frame, in parts, numbered by the last :meth:`next_correlation_id`; :meth:`flush` writes."""
        self.used_ms = now_ms
        self._out.extend(memoryview(part).cast("B") for part in frame if len(part))
        if expects_reply:
            deadline_ms = now_ms + timeout_ms
            request = Request(api_key, version, self._correlation_id, context, deadline_ms, timeout_ms)
            self.in_flight.append(request)

    def on_writable(self, now_ms: int) -> None:
        """Finish connecting, or write on. Raises what closed the connection."""
        if self.state is State.CONNECTING:
            code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise NetworkException(f"{self._place}: {os.strerror(code)}")
            self._shake_hands(now_ms)
        else:
            self.flush()

    def on_readable(self, replies: list[Reply]) -> None:
        """Read what is there, and add the first whole answers to ``replies``.

        Raises what closed the connection; answers that came before that are in ``replies`` all the same.
        """
        before = len(replies)
        while len(replies) == before:
            room = self._frames.writable()
            try:
                count = self.socket.recv_into(room)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                raise NetworkException(f"{self.address}: {error.strerror}") from error
            if count == 0:
                raise NetworkException(f"{self.address} closed the connection")
            self._frames.advance(count)
            self._take_frames(replies)
            if count < len(room):
                break

    def close(self, error: RaylogError) -> list[Reply]:
        """Close for the reason given; the requests that will get no answer."""
        self.state = State.CLOSED
        self.error = error
        self.socket.close()
        self._out.clear()
        lost = [Reply(request, memoryview(b""), error) for request in self.in_flight if request.context is not None]
        self.in_flight.clear()
        return lost

    def next_candidate(self, now_ms: int) -> bool:
        """While it is being made: try the host's next address, with a new socket. False when there is none."""
        if self.state is not State.CONNECTING:
            return False
        self.socket.close()
        try:
            self.socket = self._begin(now_ms)
        except NetworkException:
            return False
        return True

    @property
    def _place(self) -> str:
        """The host, and which of its addresses."""
        host = self.target[0]
        return str(self.address) if host == self.address.host else f"{self.address} ({host})"

    def _begin(self, now_ms: int) -> socket.socket:
        problem = NetworkException(f"{self.address}: the host has no address left to try")
        while self._candidates:
            family, self.target = self._candidates.pop(0)
            try:
                return self._socket_to(family, now_ms)
            except (OSError, OverflowError) as error:  # OverflowError: a broker names a port that cannot be
                problem = NetworkException(f"{self._place}: {getattr(error, 'strerror', None) or error}")
        raise problem

    def _socket_to(self, family: int, now_ms: int) -> socket.socket:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            code = sock.connect_ex(self.target)
            if code and code not in _IN_PROGRESS:
                raise OSError(code, os.strerror(code))
        except BaseException:
            sock.close()
            raise
        self._deadline_ms = now_ms + self._setup_timeout_ms
        return sock

    def _shake_hands(self, now_ms: int) -> None:
        self.state = State.HANDSHAKE
        self._deadline_ms = now_ms + self._timeout_ms
        hello = ApiVersionsRequest(client_software_name="raylog", client_software_version=version_of("raylog-client"))
        frame = encode_request(hello, self.next_correlation_id(), self._client_id)
        self.send(API_VERSIONS, 3, (frame,), None, now_ms=now_ms, timeout_ms=self._timeout_ms)
        self.flush()

    def flush(self) -> None:
        """Write as much as the socket takes. Raises what closed the connection."""
        out = self._out
        while out:
            parts = [out[i] for i in range(min(len(out), _PARTS_PER_SEND))]
            try:
                sent = self.socket.sendmsg(parts)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                raise NetworkException(f"{self.address}: {error.strerror}") from error
            while out and sent >= len(out[0]):
                sent -= len(out.popleft())
            if sent:
                out[0] = out[0][sent:]

    def _take_frames(self, replies: list[Reply]) -> None:
        while True:
            try:
                frame = self._frames.next_frame()
            except InvalidRequest as error:
                raise CorruptMessage(f"{self.address}: {error}") from error
            if frame is None:
                return
            if not self.in_flight or len(frame) < 4:
                raise CorruptMessage(f"{self.address} sent an answer that nobody asked for")
            request = self.in_flight[0]
            correlation_id = int.from_bytes(frame[:4], "big")
            if correlation_id != request.correlation_id:
                raise CorruptMessage(
                    f"{self.address} answered request {correlation_id} in place of {request.correlation_id}"
                )
            self.in_flight.popleft()
            if self.state is State.HANDSHAKE:
                self._learn_versions(frame)
            else:
                replies.append(Reply(request, frame))

    def _learn_versions(self, frame: memoryview) -> None:
        code = int.from_bytes(frame[4:6], "big", signed=True)
        if code != ErrorCode.none.value:
            raise exception_for(code, f"{self.address} refused ApiVersions 3")
        _, entity = decode_response(API_VERSIONS, 3, frame)
        response = cast(ApiVersionsResponse, entity)
        self._versions = {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys}
        self.state = State.READY
