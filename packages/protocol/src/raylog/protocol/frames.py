"""A stream of bytes to frames of bounded size: a 32-bit length, then as many bytes.

The owner of a socket reads greedily into :meth:`FrameBuffer.writable` and takes out all frames that are whole; nothing is
copied but the incomplete rest of a frame when the buffer is full. An idle connection holds no buffer at all.
"""

from __future__ import annotations

from raylog.protocol.compression import Buffer
from raylog.protocol.errors import InvalidRequest


class FrameBuffer:
    """Bytes in, frames out. Not thread-safe: one connection, one owner."""

    def __init__(self, max_frame_bytes: int) -> None:
        """``max_frame_bytes`` bounds a frame without its length (``socket.request.max.bytes``)."""
        raise NotImplementedError

    def writable(self) -> memoryview:
        """Room for the next bytes of the stream, never empty. Frames handed out before are invalid from here on."""
        raise NotImplementedError

    def advance(self, count: int) -> None:
        """``count`` bytes were written into the start of :meth:`writable`."""
        raise NotImplementedError

    def next_frame(self) -> memoryview | None:
        """The next whole frame without its length, writable, valid until the next :meth:`writable`; None if there is none.

        Raises InvalidRequest when the length is not between 1 and the maximum: the stream cannot be read on.
        """
        raise NotImplementedError

    def idle(self) -> bool:
        """True when no part of a frame is waiting for its rest; gives the memory back as a side effect."""
        raise NotImplementedError


def encode_frame(message: Buffer) -> bytes:
    """``message`` with its length before it."""
    return len(message).to_bytes(4, "big") + message


def frame_length(parts: list[Buffer]) -> bytes:
    """The length to send before ``parts``."""
    return sum(map(len, parts)).to_bytes(4, "big")
