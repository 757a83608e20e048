"""Which connections are let in, so that no crowd takes what the others and the logs need.

A connection that is refused is closed at once. How many may be open says `max.connections`, how many from one address
`max.connections.per.ip`, both read anew for each; and descriptors are kept back for files: a broker that cannot open
its next segment would lose its log directory, which is worse than a client that has to try again.
"""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable

from raylog.broker.config import MAX_CONNECTIONS, MAX_CONNECTIONS_PER_IP
from raylog.protocol.settings import Settings

__all__ = ["Admission", "Refusals"]

KEPT_FOR_FILES = 1024
"""Descriptors that connections leave alone, or a quarter of all where there are few."""

SAY_EVERY_S = 1.0


class Admission:
    """Counts open connections by address. Methods may be called from any thread."""

    def __init__(self, settings: Callable[[], Settings]) -> None:
        """``settings``: the broker's, as they are now."""
        self._settings = settings
        self._lock = threading.Lock()
        self._by_ip: dict[str, int] = {}
        self._open = 0

    def enter(self, ip: str, descriptor: int) -> str:
        """Let a connection in, answering ""; or the reason why not, in words.

        ``descriptor`` is its file descriptor: the system gives the lowest free one, so it tells how many are in use.
        """
        settings = self._settings()
        most, most_per_ip = settings[MAX_CONNECTIONS], settings[MAX_CONNECTIONS_PER_IP]
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        with self._lock:
            from_ip = self._by_ip.get(ip, 0)
            if self._open >= most:
                return f"max.connections={most} are open"
            if from_ip >= most_per_ip:
                return f"max.connections.per.ip={most_per_ip} are open from there"
            if descriptor >= limit - min(KEPT_FOR_FILES, limit // 4):
                return f"the process may open {limit} files, and the rest is kept for the logs: raise the limit"
            self._by_ip[ip] = from_ip + 1
            self._open += 1
        return ""

    def leave(self, ip: str) -> None:
        """A connection that was let in has ended."""
        with self._lock:
            self._open -= 1
            left = self._by_ip[ip] - 1
            if left:
                self._by_ip[ip] = left
            else:
                del self._by_ip[ip]


class Refusals:
    """Keeps a storm out of the log: says of each kind of refusal at most once a second how many there were."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: dict[str, tuple[int, float]] = {}

    def count(self, kind: str, now_s: float) -> int:
        """Count one at the monotonic time ``now_s``; how many to tell of now, 0: none yet."""
        with self._lock:
            untold, told_at = self._kinds.get(kind, (0, float("-inf")))
            tell = now_s - told_at >= SAY_EVERY_S
            self._kinds[kind] = (0, now_s) if tell else (untold + 1, told_at)
            return untold + 1 if tell else 0
