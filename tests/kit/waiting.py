"""The one loop that polls: tests wait for what they need, with a deadline that scales with the machine's speed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from kit.machine import SLOWNESS

T = TypeVar("T")


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
    """
    timeout_s *= SLOWNESS
    deadline = time.monotonic() + timeout_s
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() >= deadline:
            found = "" if instead is None else f"; {instead()}"
            raise AssertionError(f"{what}: not within {timeout_s:g} s{found}")
        time.sleep(interval_s)
