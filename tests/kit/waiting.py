"""The one loop that polls: tests wait for what they need, with a deadline that scales with the machine's speed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from kit.machine import SLOWNESS

T = TypeVar("T")

MOST_SHARE = 0.2
"""Of a processor, for looking: the others, and what is waited for, want to get on."""
MOST_LATE = 0.02
"""By which share of the time waited so far a wait may be longer for that."""
LONGEST_PAUSE_S = 0.25


def wait_until(
    condition: Callable[[], T],
    timeout_s: float,
    what: str,
    *,
    interval_s: float = 0.01,
    instead: Callable[[], object] | None = None,
) -> T:
    """The first true answer of ``condition``; AssertionError naming ``what``, and what is ``instead``, after
    ``timeout_s`` seconds of the machine for which deadlines are chosen (``kit.machine``).

    It looks each ``interval_s``, and less often where to look takes long, or the wait has lasted.
    """
    timeout_s *= SLOWNESS
    begun = time.monotonic()
    while True:
        looked = time.monotonic()
        answer = condition()
        if answer:
            return answer
        now = time.monotonic()
        if now >= begun + timeout_s:
            found = "" if instead is None else f"; {instead()}"
            raise AssertionError(f"{what}: not within {timeout_s:g} s{found}")
        took = now - looked
        pause = max(took * (1 / MOST_SHARE - 1), (now - begun) * MOST_LATE)
        time.sleep(max(interval_s, min(pause, max(took, LONGEST_PAUSE_S))))
