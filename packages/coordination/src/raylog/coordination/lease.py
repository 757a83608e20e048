"""A broker's right to serve, which ends by itself when ZooKeeper is out of reach (D9c)."""

from __future__ import annotations

from raylog.protocol.ids import MonotonicMs


class Lease:
    """Held until ``fraction`` of the session timeout after the *send* time of the last acknowledged
    heartbeat.

    Any thread may ask; one thread renews. Ask before working and again before replying.
    """

    def __init__(self, fraction: float = 0.6) -> None: ...

    def renew(self, sent_ms: MonotonicMs, session_timeout_ms: int) -> None:
        raise NotImplementedError

    def revoke(self) -> None:
        """The session was lost, or the broker stops."""
        raise NotImplementedError

    def held(self, now_ms: MonotonicMs) -> bool:
        raise NotImplementedError
