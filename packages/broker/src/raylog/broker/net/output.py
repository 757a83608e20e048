"""What goes out on a connection: bytes by send, file slices by sendfile, uncopied unless they are small.

Nothing here waits. A socket that takes no more leaves the rest for later; a slice whose bytes are not in the page cache
is told of as such, for whoever may wait for a disk to read it first (:func:`warm`). That a read would have to wait is
known from ``preadv`` with RWF_NOWAIT, which answers at once.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Sequence
from enum import Enum

from raylog.broker.net.sockets import SendFailed
from raylog.broker.storage.disk.files import NO_ANSWER
from raylog.broker.storage.disk.slices import FileSlice

__all__ = ["COPY_BYTES", "Output", "SendFailed", "Sent", "warm"]

COPY_BYTES = 16 * 1024
"""Slices up to this are copied and leave with what is around them by one system call, which is cheaper than three."""

WARM_BYTES = 1 << 20
"""So much of a slice is read at once, where it is not in the page cache."""

SAMPLE_BYTES = 128 * 1024
"""One look at each stretch of this tells whether it is cached: the kernel's read-ahead, in which files come and go."""

JOINED_BYTES = 64 * 1024
"""Bytes up to this are joined for one system call."""


class Sent(Enum):
    """How far sending came."""

    ALL = "all"
    FULL = "full"
    """The socket takes no more now."""
    MORE = "more"
    """There is more, and the socket may take it: others have their turn first."""
    COLD = "cold"
    """What comes next is not in the page cache: see :meth:`Output.cold`."""


class Output:
    """The bytes and slices that are still to be sent, in order. One thread at a time uses it."""

    __slots__ = ("_parts", "_position", "_warmed", "gone")

    def __init__(self) -> None:
        self._parts: deque[bytes | FileSlice] = deque()
        self._position = 0
        """How much of the first part has gone out."""
        self.gone = 0
        """Bytes that have gone out since this was made."""
        self._warmed = -1
        """Up to where the first part was read into the page cache just now: it is sent even if that has lost it."""

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, parts: Sequence[bytes | FileSlice]) -> None:
        """Put ``parts`` behind what there is; their slices belong to this from here on, also when this raises."""
        added = 0
        try:
            for part in parts:
                self._parts.append(part if isinstance(part, bytes) or part.length > COPY_BYTES else _copied(part))
                added += 1
        except BaseException:
            self._parts.extend(parts[added:])  # for release
            raise

    def send(self, sock: socket.socket, most_bytes: int = WARM_BYTES) -> Sent:
        """Send what the socket takes, of a slice ``most_bytes`` at once.

        Raises SendFailed when the peer is gone, or a slice's file has become shorter.
        """
        parts = self._parts
        try:
            while parts:
                first = parts[0]
                if isinstance(first, bytes):
                    self._send_bytes(sock)
                elif not self._send_slice(sock, first, most_bytes):
                    return Sent.COLD
                elif parts and parts[0] is first:
                    return Sent.MORE
        except BlockingIOError:
            return Sent.FULL
        except OSError as error:
            raise SendFailed(f"sending a reply failed: {error}") from error
        return Sent.ALL

    def cold(self) -> tuple[FileSlice, int, int]:
        """The slice that comes next, and from where to where it has to be read before it can be sent."""
        part = self._parts[0]
        assert isinstance(part, FileSlice)
        return part, self._position, min(self._position + WARM_BYTES, part.length)

    def warmed(self, end: int) -> None:
        """The slice that comes next was read up to there."""
        self._warmed = end

    def release(self) -> None:
        """Nothing more is sent: give all slices back."""
        while self._parts:
            part = self._parts.popleft()
            if not isinstance(part, bytes):
                part.release()

    def _send_bytes(self, sock: socket.socket) -> None:
        parts = self._parts
        first = parts[0]
        assert isinstance(first, bytes)
        if len(parts) > 1 and isinstance(parts[1], bytes) and len(first) + len(parts[1]) <= JOINED_BYTES:
            self._join()
            first = parts[0]
            assert isinstance(first, bytes)
        flags = socket.MSG_MORE if len(parts) > 1 else 0
        position = self._position
        sent = sock.send(memoryview(first)[position:] if position else first, flags)
        self._went(sent, len(first))

    def _join(self) -> None:
        """Make the bytes at the beginning one part, as far as they are small."""
        parts = self._parts
        joined: list[bytes] = []
        size = 0
        while parts and isinstance(part := parts[0], bytes) and size + len(part) <= JOINED_BYTES:
            joined.append(part)
            size += len(part)
            parts.popleft()
        parts.appendleft(b"".join(joined))

    def _send_slice(self, sock: socket.socket, part: FileSlice, most_bytes: int) -> bool:
        """Send a chunk of it; False when that would wait for the disk."""
        position = self._position
        end = min(position + most_bytes, part.length)
        if position >= self._warmed and not _is_cached(part, position, end):
            return False
        sent = os.sendfile(sock.fileno(), part.fileno(), part.position + position, end - position)
        if not sent:  # the end of the file: waiting for progress would never end
            raise _lost_end(part, part.length - position)
        if position + sent == part.length:
            self._warmed = -1
            part.release()
        self._went(sent, part.length)
        return True

    def _went(self, sent: int, length: int) -> None:
        self._position += sent
        self.gone += sent
        if self._position == length:
            self._position = 0
            self._parts.popleft()


def warm(part: FileSlice, position: int, end: int) -> None:
    """Read that part of the slice into the page cache, however long it takes."""
    while position < end:
        got = len(part.file.pread(min(end - position, 1 << 18), part.position + position))
        if not got:
            raise _lost_end(part, part.length - position)
        position += got


def _lost_end(part: FileSlice, missing: int) -> OSError:
    return OSError(f"the file lost the last {missing} bytes of a slice of {part.length} at {part.position}")


def _copied(part: FileSlice) -> bytes | FileSlice:
    """Its bytes, and it is given back; or itself, when its bytes are not all in the page cache."""
    data = bytearray(part.length)
    try:
        got = os.preadv(part.fileno(), [data], part.position, os.RWF_NOWAIT)
    except OSError as error:
        if error.errno not in NO_ANSWER:
            return part  # it would wait, or it fails: so it will when it is sent
        got = os.preadv(part.fileno(), [data], part.position)
    if got != part.length:
        return part
    part.release()
    return bytes(data)


def _is_cached(part: FileSlice, position: int, end: int) -> bool:
    """Whether it lies in the page cache, as a sample says, or the file is shorter, which sending finds out.

    To look at each page would cost as much as to send them. What is missing between two looks is one read of the disk.
    """
    byte, descriptor = bytearray(1), part.fileno()
    try:
        for at in (*range(position, end - 1, SAMPLE_BYTES), end - 1):
            os.preadv(descriptor, [byte], part.position + at, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_ANSWER:
            raise
    return True
