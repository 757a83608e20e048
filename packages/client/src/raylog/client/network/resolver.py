"""Host names to addresses, looked up in threads of their own: a name server that is silent takes half a minute.
At the end of the process, where Python starts no more threads, they are looked up in place.

Owned by one pool, whose thread asks again until there is an answer; nothing is called back.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from raylog.client.network.connection import Address
from raylog.coordination.host.loops import Loops
from raylog.protocol.errors import NetworkException


class Candidate(NamedTuple):
    """One of a host's addresses, as the socket module takes it."""

    family: int
    target: Any


LookUp = Callable[[str, int, int, int], Sequence[Candidate]]
"""``look_up(host, port, family, flags)``, which may block, or raise OSError."""
Start = Callable[[str, Callable[[], object]], object]
"""``start(name, task)``: begin the task in a thread; RuntimeError when there can be none."""

_ENDING = "interpreter shutdown"
"""In Python's error for a thread that is started at the end of the process (3.12 and newer)."""


def system_look_up(host: str, port: int, family: int, flags: int) -> Sequence[Candidate]:
    """All addresses that the system knows for the host, the preferred first."""
    found = socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM, flags=flags)
    return [Candidate(family, target) for family, _, _, _, target in found]


class _Asked:
    """A look-up under way; its thread writes the answer."""

    __slots__ = ("answer", "begun_ms")

    def __init__(self, begun_ms: int) -> None:
        self.begun_ms = begun_ms
        self.answer: Sequence[Candidate] | NetworkException | None = None


class Resolver:
    """``family``: the only kind of addresses wanted (AF_UNSPEC: any). ``wake`` is called, in another thread, when an
    answer has come. ``look_up`` and ``start``, of a thread, are the outside world."""

    def __init__(
        self,
        family: int,
        wake: Callable[[], None],
        look_up: LookUp = system_look_up,
        start: Start | None = None,
    ) -> None:
        self._family = family
        self._wake = wake
        self._look_up = look_up
        self._asked: dict[Address, _Asked] = {}
        self._start = start or Loops().once

    def candidates(self, address: Address, now_ms: int) -> Sequence[Candidate] | None:
        """The addresses of the host; None while they are looked up. Raises NetworkException when there are none."""
        asked = self._asked.get(address)
        if asked is None:
            try:  # what is an address already needs no look-up
                return system_look_up(*address, self._family, socket.AI_NUMERICHOST)
            except (OSError, ValueError):
                self._begin(address, now_ms)
            return None
        if asked.answer is None:
            return None
        del self._asked[address]
        if isinstance(asked.answer, NetworkException):
            raise asked.answer
        return asked.answer

    def pending_ms(self, address: Address, now_ms: int) -> int | None:
        """For how long the host is being looked up; None when it is not."""
        asked = self._asked.get(address)
        return None if asked is None or asked.answer is not None else now_ms - asked.begun_ms

    def _begin(self, address: Address, now_ms: int) -> None:
        asked = self._asked[address] = _Asked(now_ms)
        try:
            self._start(f"raylog-look-up-{address.host}", partial(self._ask, address, asked))
        except RuntimeError as error:  # no more threads
            if _ENDING in str(error):  # the last records are being flushed: nothing else has to go on meanwhile
                self._ask(address, asked)
                return
            asked.answer = NetworkException(f"{address}: the host name could not be looked up: {error}")

    def _ask(self, address: Address, asked: _Asked) -> None:
        try:
            asked.answer = self._look_up(*address, self._family, 0)
        except (OSError, ValueError) as error:  # ValueError: the name cannot be encoded
            why = getattr(error, "strerror", None) or error
            asked.answer = NetworkException(f"{address}: {why}; check the host name")
        finally:
            if asked.answer is None:
                asked.answer = NetworkException(f"{address}: the look-up of the host name failed, as the log says")
            self._wake()
