"""What is answered in the loop as a rule, and is slow at the moment: a disk hangs, say.

One request that is stuck in the loop costs the others a moment (``loop``); many, one after the other, would cost them
seconds. So once one was, the requests of its API are answered by other threads for a while, and longer where those
find that they are slow still.
"""

from __future__ import annotations

__all__ = ["SLOW_FOR_S", "SlowApis"]

SLOW_FOR_S = 10.0


class SlowApis:
    """Any thread may call it."""

    def __init__(self) -> None:
        self._until_s: dict[int, float] = {}

    def note(self, api_key: int, now_s: float) -> None:
        """A request of it was slow at this monotonic time."""
        self._until_s[api_key] = now_s + SLOW_FOR_S

    def is_slow(self, api_key: int, now_s: float) -> bool:
        """Whether its requests are not to be answered in the loop."""
        until_s = self._until_s.get(api_key)
        if until_s is None or now_s < until_s:
            return until_s is not None
        self._until_s.pop(api_key, None)
        return False
