"""The lease of a member of a group, renewed while the session that its claims are of is known to live (D9c)."""

from __future__ import annotations

from collections.abc import Callable

from raylog.coordination.membership.lease import Lease
from raylog.coordination.store.port import MetadataStore, StoreError
from raylog.protocol.ids import MonotonicMs

__all__ = ["LeaseRenewal"]

RENEWALS_PER_SESSION = 10


class LeaseRenewal:
    """The member's thread calls it; any thread may ask the lease."""

    def __init__(self, store: MetadataStore, lease: Lease, now_ms: Callable[[], MonotonicMs]) -> None:
        self.due_ms = MonotonicMs(0)
        self._store = store
        self._lease = lease
        self._now_ms = now_ms

    def if_due(self, session_id: int) -> None:
        """``session_id``: of the registration; 0 while there is none."""
        if self.due_ms <= self._now_ms():
            self.now(session_id)

    def now(self, session_id: int) -> None:
        self.due_ms = MonotonicMs(self._now_ms() + self._store.session_timeout_ms // RENEWALS_PER_SESSION)
        if not session_id:
            return
        try:
            sent = self._store.heartbeat()
            if self._store.session.id == session_id:  # else it proves nothing about our claims
                self._lease.renew(sent, self._store.session_timeout_ms)
        except StoreError:
            pass  # it runs out by itself; the next round tries again
