"""◆ Lines of the log that would repeat themselves."""

from __future__ import annotations

from collections.abc import Hashable

AGAIN_MS = 60_000


class Seldom:
    """Says which are due: each kind once, and again a minute later. One thread uses it."""

    def __init__(self) -> None:
        self._told: dict[Hashable, tuple[int, int]] = {}
        """When a kind was told last, and how often it was kept back since."""

    def due(self, kind: Hashable, now_ms: int) -> int | None:
        """How often it was kept back since it was told last; None: keep it back now."""
        told_ms, kept_back = self._told.get(kind, (now_ms - AGAIN_MS, 0))
        if now_ms < told_ms + AGAIN_MS:
            self._told[kind] = (told_ms, kept_back + 1)
            return None
        self._told[kind] = (now_ms, 0)
        return kept_back
