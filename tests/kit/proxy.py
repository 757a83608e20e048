"""A proxy between clients and one broker that loses what a test wants lost.

It reads whole frames, so a test decides per request and per answer: let it pass, drop it, or cut the connection.
The broker is told to advertise the proxy's address.
"""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable
from enum import Enum, auto
from types import TracebackType
from typing import Self

from kit.machine import scaled
from raylog.coordination.host.free_ports import free_port


class Fate(Enum):
    PASS = auto()
    DROP = auto()
    CUT = auto()
    """The frame is lost, and the connection."""
    HALF = auto()
    """The connection is cut in the middle of the frame."""
    LAST = auto()
    """The frame passes, and the connection is cut behind it."""


Kinds = dict[int, tuple[int, int]]
"""API key and version of requests, by correlation id."""


class FrameProxy:
    """Frames pass to ``target`` and back unless ``on_request(api_key)`` or ``on_answer(api_key)`` says otherwise."""

    def __init__(self, port: int = 0) -> None:
        """It listens at ``port`` of this machine; 0: a free one."""
        self.target: tuple[str, int] = ("127.0.0.1", free_port("127.0.0.1"))
        """A free address, for the broker to listen at."""
        self.on_request: Callable[[int], Fate] = lambda _: Fate.PASS
        self.on_answer: Callable[[int], Fate] = lambda _: Fate.PASS
        self.edit_request: Callable[[bytes], bytes] = lambda frame: frame
        """What becomes of a request's frame (without its length) on its way."""
        self.edit_answer: Callable[[int, int, bytes], bytes] = lambda _key, _version, frame: frame
        """What becomes of an answer's frame, by API key and version, on its way; it sees those that are lost, too."""
        self._listener = socket.create_server(("127.0.0.1", port))
        self.requests: Counter[int] = Counter()
        """How many requests came, by API key."""
        self.last_bytes: dict[int, int] = {}
        """How long the last request was, by API key."""
        self.connections = 0
        """How many connections were made."""
        self.port: int = self._listener.getsockname()[1]
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closing = False

    @property
    def open_connections(self) -> int:
        """How many clients are connected now."""
        with self._lock:
            return len(self._sockets) // 2

    def __enter__(self) -> Self:
        self._spawn(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        for thread in self._threads:
            thread.join(scaled(10))

    def reopen(self) -> None:
        """Take connections again, at the same port, after :meth:`close`."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._closing = False
        self._spawn(self._accept)

    def close(self) -> None:
        """Cut all connections and refuse new ones."""
        if not self._closing:
            self._closing = True
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        self.cut()

    def cut(self) -> None:
        """Cut all connections."""
        with self._lock:
            sockets = list(self._sockets)
        for sock in sockets:
            _shut(sock)

    def _spawn(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(self.target)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._sockets |= {client, broker}
                self.connections += 1
            kinds: Kinds = {}
            self._spawn(lambda c=client, b=broker, k=kinds: self._requests(c, b, k))  # type: ignore[misc]
            self._spawn(lambda c=client, b=broker, k=kinds: self._answers(c, b, k))  # type: ignore[misc]

    def _requests(self, client: socket.socket, broker: socket.socket, kinds: Kinds) -> None:
        def decide(frame: bytes) -> Fate:
            api_key = int.from_bytes(frame[:2], "big")
            kinds[int.from_bytes(frame[4:8], "big")] = api_key, int.from_bytes(frame[2:4], "big")
            self.requests[api_key] += 1
            self.last_bytes[api_key] = len(frame)
            return self.on_request(api_key)

        self._pump(client, broker, decide, lambda frame: self.edit_request(frame))

    def _answers(self, client: socket.socket, broker: socket.socket, kinds: Kinds) -> None:
        def kind_of(frame: bytes) -> tuple[int, int]:
            return kinds.get(int.from_bytes(frame[:4], "big"), (-1, -1))

        self._pump(
            broker,
            client,
            lambda frame: self.on_answer(kind_of(frame)[0]),
            lambda frame: self.edit_answer(*kind_of(frame), frame),
        )

    def _pump(
        self,
        source: socket.socket,
        sink: socket.socket,
        decide: Callable[[bytes], Fate],
        edit: Callable[[bytes], bytes] = bytes,
    ) -> None:
        try:
            while True:
                length = _exactly(source, 4)
                frame = _exactly(source, int.from_bytes(length, "big"))
                sent = edit(frame)
                sent = len(sent).to_bytes(4, "big") + sent
                match decide(frame):
                    case Fate.PASS:
                        sink.sendall(sent)
                    case Fate.LAST:
                        return sink.sendall(sent)
                    case Fate.HALF:
                        return sink.sendall(sent[: len(sent) // 2])
                    case Fate.CUT:
                        return None
                    case Fate.DROP:
                        pass
        except OSError:
            pass
        finally:
            for sock in (source, sink):
                _shut(sock)
            with self._lock:
                self._sockets -= {source, sink}
            source.close()


def _exactly(sock: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        part = sock.recv(min(count, 1 << 20))
        if not part:
            raise ConnectionError("closed")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
