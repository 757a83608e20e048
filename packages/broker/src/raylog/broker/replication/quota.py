"""How fast replicas that catch up may be fed (KIP-73): a bucket that fills by the rate and may run into debt.

A whole answer of a fetch is taken before its size is known, so that a quota says only whether to ask for more now. On
average what is taken keeps to the rate; after a pause at most :data:`BURST_MS` of it comes at once.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from raylog.broker.config import FOREVER
from raylog.protocol.ids import MonotonicMs

__all__ = ["ReplicationQuota", "is_throttled"]

BURST_MS = 1_000


class ReplicationQuota:
    """Bytes per second, for one broker and one direction. Any thread may call anything."""

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        """``lock`` is held for arithmetic only."""
        self._lock = lock
        self._level = 0.0
        """Bytes that may be taken now; negative while those taken are being waited off."""
        self._filled_ms: MonotonicMs | None = None

    def take(self, count: int) -> None:
        """``count`` bytes have come."""
        with self._lock:
            self._level -= count

    def allows(self, rate: int, now_ms: MonotonicMs, pending: int = 0) -> bool:
        """Whether more may be asked for. ``rate``: bytes per second now; FOREVER is no limit. ``pending``: bytes that
        are about to be taken.
        """
        with self._lock:
            if rate == FOREVER:
                self._level, self._filled_ms = 0.0, now_ms
                return True
            passed_ms = 0 if self._filled_ms is None else now_ms - self._filled_ms
            self._filled_ms = now_ms
            self._level = min(self._level + rate * passed_ms / 1000, rate * BURST_MS / 1000)
            return self._level >= pending


def is_throttled(replicas: tuple[str, ...], partition: int, broker: int) -> bool:
    """Whether ``{leader,follower}.replication.throttled.replicas`` names this replica."""
    return bool(replicas) and ("*" in replicas or f"{partition}:{broker}" in replicas)
