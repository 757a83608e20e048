"""A stream of bytes to frames of bounded size: a 32-bit length, then as many bytes.

The owner of a socket reads greedily into :meth:`FrameBuffer.writable` and takes out all frames that are
whole:

    while frame := buffer.next_frame():
        handle(frame)
    buffer.advance(sock.recv_into(buffer.writable()))

Nothing is copied but the beginning of a frame whose rest is still to come, and that once. The buffer begins
small and grows by what was really received (a length alone reserves nothing: whoever claims 2 GB must send
it); it shrinks by itself when less is used for a while, and at once by :meth:`FrameBuffer.trim`.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable

from raylog.protocol.batches.compression import Buffer
from raylog.protocol.errors import InvalidRequest

_LENGTH = struct.Struct(">i")

SMALL_BYTES = 4 << 10
"""What a connection holds while it has little to say; one that is silent holds nothing."""

GREEDY_BYTES = 256 << 10
"""How far the buffer grows to read more at once; only a larger frame makes it larger."""

_GROWTH = 4
_QUIET_ROUNDS = 32
"""After so many reads that each used less than a quarter, the buffer becomes a quarter."""


_NOTHING = memoryview(bytearray())


def _memory(size: int) -> memoryview:
    """Memory that goes back to the system when it is dropped.

    The allocator would keep blocks as large as these, and hundreds of connections that were busy once and are idle now
    would hold 100 MB (measured; 13 MB this way).
    """
    if size <= SMALL_BYTES:
        return memoryview(bytearray(size))
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


class FrameBuffer:
    """Bytes in, frames out. Not thread-safe: one connection, one owner.

    What was received and not yet handed out lies from ``_start`` to ``_end`` in the buffer.
    """

    __slots__ = ("_end", "_max_frame_bytes", "_quiet_rounds", "_start", "_view", "_wanted")

    def __init__(self, max_frame_bytes: int) -> None:
        """``max_frame_bytes`` bounds a frame without its length (``socket.request.max.bytes``)."""
        self._max_frame_bytes = max_frame_bytes
        self._view = _NOTHING
        self._start = self._end = 0
        self._wanted = _LENGTH.size  # what must lie from _start on before the next frame can be whole
        self._quiet_rounds = 0

    @property
    def capacity(self) -> int:
        """Bytes of memory that the buffer holds."""
        return len(self._view)

    @property
    def is_trimmed(self) -> bool:
        """Whether there is nothing to give back by :meth:`trim`."""
        return not self._view

    @property
    def pending(self) -> int:
        """Bytes that were received and not yet handed out."""
        return self._end - self._start

    def writable(self) -> memoryview:
        """Room for the next bytes of the stream, never empty.

        Frames handed out before are invalid from here on.
        """
        view, start, end = self._view, self._start, self._end
        held = end - start
        size = self._fitting_size(held)
        if size != len(view):
            self._view = _memory(size)
            self._view[:held] = view[start:end]
        elif held and start:
            view[:held] = view[start:end]
        self._start, self._end = 0, held
        return self._view[held:]

    def advance(self, count: int) -> None:
        """``count`` bytes were written into the start of :meth:`writable`."""
        self._end += count

    def next_frame(self) -> memoryview | None:
        """The next whole frame without its length, writable, valid until the next :meth:`writable`; or None.

        Raises InvalidRequest when the length is not between 1 and the maximum: the stream cannot be read on.
        """
        start = self._start
        held = self._end - start
        if held < _LENGTH.size:
            self._wanted = _LENGTH.size
            return None
        (length,) = _LENGTH.unpack_from(self._view, start)
        if not 0 < length <= self._max_frame_bytes:
            raise InvalidRequest(f"a frame claims {length} bytes; allowed are 1 to {self._max_frame_bytes}")
        size = _LENGTH.size + length
        if held < size:
            self._wanted = size
            return None
        self._start = start + size
        return self._view[start + _LENGTH.size : start + size]

    def trim(self) -> None:
        """Give the memory back when no frame has begun: for a connection that has been quiet for a while."""
        if self.pending == 0:
            self._view = _NOTHING
            self._start = self._end = 0
            self._quiet_rounds = 0

    def _fitting_size(self, held: int) -> int:
        """How large the buffer should be after a round in which it was filled up to ``_end``."""
        size, used = len(self._view), self._end
        if not size:
            return SMALL_BYTES
        if used == size:  # there may be more to read at once
            self._quiet_rounds = 0
            if size < GREEDY_BYTES:
                return size * _GROWTH
            return min(size * _GROWTH, max(self._wanted, size + 1)) if held == size else size
        if held or size <= SMALL_BYTES or used * _GROWTH >= size:
            self._quiet_rounds = 0
            return size
        self._quiet_rounds += 1
        if self._quiet_rounds < _QUIET_ROUNDS:
            return size
        self._quiet_rounds = 0
        return max(size // _GROWTH, SMALL_BYTES)


def frame_length(parts: Iterable[Buffer]) -> bytes:
    """The length that goes before a frame that is made of ``parts``. Raises InvalidRequest above 2 GiB."""
    length = sum(map(len, parts))
    try:
        return _LENGTH.pack(length)
    except struct.error:
        raise InvalidRequest(f"a frame of {length} bytes is larger than Kafka's protocol allows") from None


def encode_frame(message: Buffer) -> bytes:
    """``message`` with its length before it."""
    return b"".join((frame_length((message,)), message))
