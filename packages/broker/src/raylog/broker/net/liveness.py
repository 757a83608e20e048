"""Liveness: hints that another broker's process is gone, faster than its session's end (D9).

A hint may be wrong and decides nothing: ownership rests on epochs and incarnations. The controller runtime
tells a :class:`Liveness` whom to watch; a hint lets it look at the registrations sooner.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from raylog.coordination.model import BrokerInfo

__all__ = ["Liveness", "SessionsOnly"]


class Liveness(Protocol):
    """Watches the processes of other brokers."""

    def watch(self, brokers: Iterable[BrokerInfo]) -> None:
        """Watch exactly these brokers, in these incarnations, from now on. Does not block."""


class SessionsOnly:
    """The trivial implementation: no hints, a broker is gone when its session is."""

    def watch(self, brokers: Iterable[BrokerInfo]) -> None:
        return
