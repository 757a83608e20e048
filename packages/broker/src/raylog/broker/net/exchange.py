"""One connection's requests and replies, in order: no socket, no clock, no thread (D10).

Requests are taken in order and answered in order. A reply may have to wait: that of a produce with acks=all until the
in-sync replicas have its records, that of a fetch until there is enough to read, that of a member of a group until the
others have joined. The produce requests behind it are taken in meanwhile. A producer that sends several batches before
it has the first answer, as most do, so pays the way to the replicas and back once for all that are on their way, and
not once for each. Any other request waits until all before it are answered.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

from raylog.broker.handlers.awaited import Wake, nobody
from raylog.broker.handlers.context import DelayedReply, Reply
from raylog.broker.storage.disk.slices import FileSlice
from raylog.protocol.wire.frames import FrameBuffer

__all__ = ["MAX_DELAYED_REPLIES", "PRODUCE", "Exchange", "Request"]

PRODUCE = 0
MAX_DELAYED_REPLIES = 64
"""Requests that are taken in while the first of them waits for the replicas. Enough to fill the way there and back."""

_LENGTH = struct.Struct(">i")

Parts = Sequence[bytes | FileSlice]


class Request:
    """A request whose turn it is."""

    __slots__ = ("api_key", "frame")

    def __init__(self, frame: memoryview, api_key: int) -> None:
        """``frame``: valid until the frames' next ``writable``."""
        self.frame = frame
        self.api_key = api_key


class _Waiting(NamedTuple):
    """A reply that has its turn after those before it."""

    reply: bytes | DelayedReply
    api_key: int
    begun_ns: int


class Exchange:
    """Frames come in by :attr:`frames`, replies go out by ``send``, framed and in order."""

    def __init__(
        self, max_frame_bytes: int, *, send: Callable[[Parts], None], answered: Callable[[int, int], None], wake: Wake
    ) -> None:
        """``answered``: hears the API and when the request began, once its reply is on its way; ``wake``: called from
        any thread when a reply may be ready, whose owner then calls :meth:`settle`.
        """
        self.frames = FrameBuffer(max_frame_bytes)
        self._send = send
        self._answered = answered
        self._wake = wake
        self._held: Request | None = None
        """The next request, which has to wait for its turn."""
        self._waiting: deque[_Waiting] = deque()

    @property
    def is_waiting(self) -> bool:
        """Whether a reply is delayed."""
        return bool(self._waiting)

    @property
    def is_held(self) -> bool:
        """Whether the next request waits until the delayed replies have gone; its frame lies in the buffer."""
        return self._held is not None

    @property
    def deadline_s(self) -> float:
        """The monotonic time at which the first delayed reply is ready whatever happens."""
        first = self._waiting[0].reply
        return inf if isinstance(first, bytes) else first.deadline_s

    @property
    def reads_disk(self) -> DelayedReply | None:
        """The first delayed reply, if it waits for a disk."""
        first = self._waiting[0].reply if self._waiting else None
        return first if isinstance(first, DelayedReply) and first.waits_for_disk else None

    def next_request(self) -> Request | None:
        """The next whole request, unless it has to wait. Raises InvalidRequest when the stream cannot be read on."""
        request, self._held = self._held, None
        if request is None:
            frame = self.frames.next_frame()
            if frame is None:
                return None
            request = Request(frame, int.from_bytes(frame[:2], "big"))
        waiting = len(self._waiting)
        if waiting and (request.api_key != PRODUCE or waiting >= MAX_DELAYED_REPLIES):
            self._held = request
            return None
        return request

    def hold(self, request: Request) -> None:
        """The request that was given out last cannot be handled yet: it is the next one again."""
        self._held = request

    def took(self, reply: Reply, api_key: int, begun_ns: int) -> None:
        """The request that was given out last has this reply."""
        if isinstance(reply, DelayedReply):
            self._waiting.append(_Waiting(reply, api_key, begun_ns))
            reply.notify(self._wake)
        elif self._waiting and isinstance(reply, bytes):
            self._waiting.append(_Waiting(reply, api_key, begun_ns))
        else:
            self._answer(reply, api_key, begun_ns)

    def settle(self) -> None:
        """Send the delayed replies that are ready, as far as none before them waits."""
        waiting = self._waiting
        while waiting:
            reply, api_key, begun_ns = waiting[0]
            if not isinstance(reply, bytes) and not reply.is_over():
                return
            done = reply if isinstance(reply, bytes) else reply.finish()
            waiting.popleft()
            self._answer(done, api_key, begun_ns)

    def abandon(self) -> None:
        """Nobody waits for what is not answered yet, nor for anything else."""
        self._send, self._answered, self._wake = _drop, _uncounted, nobody  # its owner goes with it, without a cycle
        self._held = None
        while self._waiting:
            reply = self._waiting.popleft().reply
            if not isinstance(reply, bytes):
                reply.abandon()

    def _answer(self, reply: bytes | Parts | None, api_key: int, begun_ns: int) -> None:
        self._answered(api_key, begun_ns)
        if isinstance(reply, bytes):
            self._send((_LENGTH.pack(len(reply)) + reply,))
        elif reply is not None:
            self._send(_framed(reply))


def _drop(parts: Parts) -> None:
    for part in parts:
        if not isinstance(part, bytes):
            part.release()


def _uncounted(api_key: int, begun_ns: int) -> None: ...


def _framed(reply: Parts) -> Parts:
    """The parts of a reply with their length before them, in as few parts as can be."""
    length = _LENGTH.pack(sum(map(len, reply)))
    first = reply[0]
    return [length + first, *reply[1:]] if isinstance(first, bytes) else [length, *reply]
