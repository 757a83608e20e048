"""A broker's right to serve, which ends by itself when ZooKeeper is out of reach (D9c)."""

from __future__ import annotations

from raylog.protocol.ids import MonotonicMs

_NEVER = MonotonicMs(-(1 << 62))


class Lease:
    """Held until ``fraction`` of the session timeout after the *send* time of the last acknowledged heartbeat.

    The server counts the session's timeout from when it heard of us, which is after the send: so the lease
    ends before the session can, however long the answer took. The fraction leaves room for the clocks'
    rates and for an ensemble's follower, which tells its leader of our sign of life up to half a tick late.

    Any thread may ask; one thread renews. Ask before working and again before replying.
    """

    def __init__(self, fraction: float = 0.6) -> None:
        self._fraction = fraction
        self._expires_ms = _NEVER

    def renew(self, sent_ms: MonotonicMs, session_timeout_ms: int) -> None:
        """A heartbeat sent at ``sent_ms`` was acknowledged in the session of the current registration."""
        self._expires_ms = MonotonicMs(sent_ms + int(self._fraction * session_timeout_ms))

    def revoke(self) -> None:
        """The session was lost, or the broker stops."""
        self._expires_ms = _NEVER

    def held(self, now_ms: MonotonicMs) -> bool:
        return now_ms < self._expires_ms

    @property
    def expires_ms(self) -> MonotonicMs:
        """When it ends; far in the past when it was never held or was revoked."""
        return self._expires_ms
