"""Ports for servers that keep theirs: chosen once, at random, and still free when the server comes back."""

from __future__ import annotations

import random
import socket

FREE_PORTS = range(20_000, 32_768)
"""Below those that the system takes for outgoing connections, which could hold a port while its server restarts."""

TRIES = 50


def free_port(host: str) -> int:
    """A port at which nobody listens on ``host`` now; somebody may be faster. OSError when none is found."""
    for _ in range(TRIES):
        port = random.choice(FREE_PORTS)
        try:
            check_port(host, port)
        except OSError:
            continue
        return port
    raise OSError(f"found no free port on {host} from {FREE_PORTS.start} to {FREE_PORTS.stop - 1}")


def check_port(host: str, port: int) -> None:
    """Raises OSError when a server on ``host`` could not listen at ``port`` now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
