"""The sockets of listeners and clients: how one begins, is told of, and ends."""

from __future__ import annotations

import socket

from raylog.protocol.texts import host_port

__all__ = ["Address", "address_text", "end_orderly", "listen", "make_ready"]

Address = tuple[str, int]

BACKLOG = 4096
"""Connections that the system holds for us: with fewer, a client of a storm waits a second to try again."""


LINGER_BYTES = 1 << 20
"""How much of a client's further input is read and dropped, so that it sees an orderly end."""


def listen(name: str, host: str, port: int) -> socket.socket:
    """A socket that connections queue at. Raises OSError, naming the address, when it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise OSError(
            error.errno,
            f"listener {name} cannot use {host_port(host, port)}: {error.strerror}",
        ) from error
    return sock


def address_text(address: Address) -> str:
    """``host:port``, as log lines have it."""
    return host_port(address[0], address[1])


def make_ready(sock: socket.socket) -> None:
    """A client's socket does not block, and sends at once. Raises OSError."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY):
        raise OSError("TCP_NODELAY cannot be set: small replies would wait 40 ms")


def end_orderly(sock: socket.socket) -> None:
    """Close a connection so that the client sees its end, not a reset: read and drop what it sent already."""
    try:
        sock.shutdown(socket.SHUT_WR)
        dropped = 0
        while dropped < LINGER_BYTES and (data := sock.recv(1 << 16, socket.MSG_DONTWAIT)):
            dropped += len(data)
    except OSError:
        pass
    sock.close()


class SendFailed(OSError):
    """The reply could not be sent whole, and the connection must be closed: its framing is lost."""
