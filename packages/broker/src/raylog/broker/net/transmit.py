"""Sending replies: bytes by send, file slices by sendfile, uncopied unless they are small.

The socket is blocking and carries its send timeout in the kernel (:func:`limit_sends`), so that a reply costs
no ``poll``. A header is sent with MSG_MORE and leaves in one packet with the data that follows it.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Sequence

from raylog.broker.storage.disk.files import FileSlice

COPY_BYTES = 16 * 1024
"""Replies with less file data than this are copied and leave by one system call, which is cheaper than three."""


class SendFailed(OSError):
    """The reply could not be sent whole, and the connection must be closed: its framing is lost."""


def limit_sends(sock: socket.socket, seconds: float) -> None:
    """Make the kernel give up on one send that makes no progress for ``seconds``."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval(seconds))


def timeval(seconds: float) -> bytes:
    """C's ``struct timeval``, as SO_SNDTIMEO and SO_RCVTIMEO take it."""
    whole = int(seconds)
    return struct.pack("@ll", whole, int((seconds - whole) * 1e6))


def transmit(sock: socket.socket, parts: Sequence[bytes | FileSlice], *, timeout: float) -> int:
    """Send ``parts`` in order and return how many bytes of file slices went out.

    ``timeout`` is in seconds, for the whole reply; ``limit_sends`` bounds each step. Every slice is
    released, whatever happens. Raises SendFailed when the peer is gone or does not read in time, or when a
    slice's file has become shorter than the slice.
    """
    deadline = time.monotonic() + timeout
    sliced = sum(part.length for part in parts if not isinstance(part, bytes))
    last = len(parts) - 1
    try:
        if sliced <= COPY_BYTES and last:
            _send(sock, b"".join(map(_content, parts)), 0, deadline)
            return sliced
        for index, part in enumerate(parts):
            if isinstance(part, bytes):
                _send(sock, part, socket.MSG_MORE if index < last else 0, deadline)
            else:
                _sendfile(sock.fileno(), part, deadline)
    except BlockingIOError:
        raise SendFailed("the client took no byte of a reply within the send timeout") from None
    except OSError as error:
        raise SendFailed(f"sending a reply failed: {error}") from error
    finally:
        for part in parts:
            if not isinstance(part, bytes):
                part.release()
    return sliced


def _content(part: bytes | FileSlice) -> bytes:
    if isinstance(part, bytes):
        return part
    data = part.read()
    if len(data) != part.length:
        raise _lost_end(part, part.length - len(data))
    return data


def _lost_end(part: FileSlice, missing: int) -> OSError:
    return OSError(f"the file lost the last {missing} bytes of a slice of {part.length} at {part.position}")


def _send(sock: socket.socket, data: bytes, flags: int, deadline: float) -> None:
    sent = sock.send(data, flags)
    while sent < len(data):
        _check(deadline)
        sent += sock.send(memoryview(data)[sent:], flags)


def _sendfile(out: int, part: FileSlice, deadline: float) -> None:
    source, left = part.fileno(), part.length
    position: int = part.position
    while left:
        sent = os.sendfile(out, source, position, left)
        if not sent:  # the end of the file: waiting for progress would never end
            raise _lost_end(part, left)
        position += sent
        left -= sent
        if left:
            _check(deadline)


def _check(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise OSError("the client reads too slowly to take the reply within the send timeout")
