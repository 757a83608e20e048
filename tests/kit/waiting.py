"""The one loop that polls: tests wait for what they need, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T],
    timeout_s: float,
    what: str,
    *,
    interval_s: float = 0.01,
    instead: Callable[[], object] | None = None,
) -> T:
    """The first true answer of ``condition``; AssertionError naming ``what`` after ``timeout_s`` seconds, and what is
    ``instead``.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() >= deadline:
            found = "" if instead is None else f"; {instead()}"
            raise AssertionError(f"{what}: not within {timeout_s} s{found}")
        time.sleep(interval_s)
