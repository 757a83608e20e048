"""Sending by an output as a connection does, in the thread that calls."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Sequence

from kit.machine import scaled
from raylog.broker.net.output import Output, Sent, warm
from raylog.broker.storage.disk.slices import FileSlice


def send_all(sock: socket.socket, parts: Sequence[bytes | FileSlice], timeout_s: float = 10) -> None:
    """Send ``parts``, waiting for the peer and for the disk. Raises SendFailed; the slices are given back."""
    sock.setblocking(False)
    writable = select.poll()
    writable.register(sock, select.POLLOUT)
    deadline_s = time.monotonic() + scaled(timeout_s)
    output = Output()
    try:
        output.add(parts)
        while (sent := output.send(sock)) is not Sent.ALL:
            assert time.monotonic() < deadline_s, "the peer does not read"
            if sent is Sent.COLD:
                part, position, end = output.cold()
                warm(part, position, end)
                output.warmed(end)
            elif sent is Sent.FULL:
                writable.poll(1000)
    finally:
        output.release()
