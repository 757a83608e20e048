"""◆ Lines of the log that would repeat themselves."""

from __future__ import annotations

from collections.abc import Hashable

AGAIN_MS = 60_000
_ROOM = 1_000
"""Kinds to remember before those are forgotten that are due again."""


class Seldom:
    """Says which are due: each kind once, and again a minute later. One thread uses it."""

    def __init__(self) -> None:
        self._told: dict[Hashable, tuple[int, int]] = {}
        """When a kind was told last, and how often it was kept back since."""
        self._room = _ROOM

    def due(self, kind: Hashable, now_ms: int) -> int | None:
        """How often it was kept back since it was told last; None: keep it back now."""
        told_ms, kept_back = self._told.get(kind, (now_ms - AGAIN_MS, 0))
        if now_ms < told_ms + AGAIN_MS:
            self._told[kind] = (told_ms, kept_back + 1)
            return None
        self._told[kind] = (now_ms, 0)
        if len(self._told) > self._room:
            self._told = {kind: told for kind, told in self._told.items() if now_ms < told[0] + AGAIN_MS}
            self._room = max(_ROOM, 2 * len(self._told))
        return kept_back
