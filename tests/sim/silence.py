"""Who has not answered a controller for long, told by somebody who only counts."""

from __future__ import annotations

from raylog.protocol.ids import BrokerId

from .zookeeper import SESSION_TIMEOUT_MS

SILENCE_MS = SESSION_TIMEOUT_MS
"""After which time without an answer a controller takes a broker for silent: the product takes the session's, too."""
NOT_HEARD_SHARE = 4
"""A controller that did not tick for this part of that time hears nobody by its own fault."""


class Silence:
    """Of one mandate. Who it calls silent must be silent for any controller: it is never earlier than these."""

    def __init__(self, tick_ms: int) -> None:
        self._late_ms = SILENCE_MS + 2 * tick_ms
        self._now = 0
        """At the last tick."""
        self._heard: dict[BrokerId, int] = {}
        self._known: frozenset[BrokerId] = frozenset()

    def asked(self, broker: BrokerId, now: int) -> None:
        """A message went out to it; an answer to any in this mandate counts, in whichever incarnation."""
        self._heard.setdefault(broker, now)

    def answered(self, broker: BrokerId, now: int) -> None:
        self._heard[broker] = now

    def tick(self, now: int) -> None:
        if now - self._now > SILENCE_MS // NOT_HEARD_SHARE:
            self._heard = dict.fromkeys(self._heard, now)
        self._now = now

    def silent(self) -> frozenset[BrokerId]:
        return frozenset(broker for broker, heard in self._heard.items() if self._now - heard >= self._late_ms)

    def news(self) -> frozenset[BrokerId]:
        """Those that are silent since the last call."""
        before, self._known = self._known, self.silent()
        return self._known - before
