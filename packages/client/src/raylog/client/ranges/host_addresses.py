"""Addresses of brokers' hosts, by which schedulers know their nodes.

They are looked up in threads: a name server that is silent takes half a minute, and to read near a leader is only a
preference.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from ipaddress import ip_address

from raylog.coordination.host.loops import Loop, Loops

LOOK_UP_S = 1.0
"""How long a plan waits for name servers; an answer that comes later is there for the next plan."""


class HostAddresses:
    """``look_up``: as ``socket.gethostbyname``; it may block, and raise OSError or ValueError. For one thread at a
    time."""

    def __init__(self, look_up: Callable[[str], str] = socket.gethostbyname, wait_s: float = LOOK_UP_S) -> None:
        self._look_up = look_up
        self._wait_s = wait_s
        self._known: dict[str, str] = {}
        self._asking: dict[str, Loop] = {}

    def names(self, hosts: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Each host's name and, where that is known in time, its address."""
        wanted = set(hosts)
        begun = [loop for host in wanted if (loop := self._begin(host)) is not None]
        deadline = time.monotonic() + self._wait_s
        for loop in begun:
            loop.join(max(0.0, deadline - time.monotonic()))
        return {host: tuple(dict.fromkeys((host, self._known.get(host, host)))) for host in wanted}

    def _begin(self, host: str) -> Loop | None:
        """Look it up, unless that is done, or under way, or it is an address already."""
        with suppress(ValueError):
            ip_address(host)
            return None
        asking = self._asking.get(host)
        if host in self._known or (asking is not None and asking.is_alive):
            return None
        with suppress(RuntimeError):  # no more threads
            self._asking[host] = Loops().once(f"raylog-look-up-{host}", partial(self._ask, host))
            return self._asking[host]
        return None

    def _ask(self, host: str) -> None:
        with suppress(OSError, ValueError):  # ValueError: the name cannot be encoded
            self._known[host] = self._look_up(host)
