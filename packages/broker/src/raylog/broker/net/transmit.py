"""Sending replies: bytes by send, file slices by sendfile, never copied through Python."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from raylog.broker.storage.files import FileSlice


class SendFailed(OSError):
    """The reply could not be sent whole, and the connection must be closed: its framing is lost."""


def transmit(sock: socket.socket, parts: Sequence[bytes | FileSlice], *, timeout: float) -> int:
    """Send ``parts`` in order over the blocking socket and return how many bytes of file slices went out.

    ``timeout`` is in seconds, for the whole reply. Every slice is released, whatever happens. Raises SendFailed when
    the peer is gone or does not read in time, or when a slice's file has become shorter than the slice.
    """
    raise NotImplementedError
