"""How slow this machine is beside the one on which the tests' deadlines were chosen.

A deadline bounds how long a test waits for what must happen; it is no promise of the product. So deadlines are
multiplied by :data:`SLOWNESS`, which is measured once when the tests begin; the processes that they start inherit it.
:func:`kit.waiting.wait_until` does so by itself, every other wait by :func:`scaled`. So are the sessions of tests in
which nothing is to end by them: they are a bound for ZooKeeper, brokers and members on a busy machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

VARIABLE = "RAYLOG_TEST_SLOWNESS"
COMPUTING_S = 0.030
"""What :func:`_compute` takes on the machine of the deadlines, with nothing beside it."""
STARTING_S = 0.025
"""What a Python process takes there."""
TRIES = 5
MOST = 8.0


def measured() -> float:
    """How many times longer than there a computation and the start of a process take; 1 to :data:`MOST`."""
    ratios = (_middle(_compute) / COMPUTING_S, _middle(_start) / STARTING_S)
    return round(min(max(1.0, *ratios), MOST), 1)


def _middle(act: Callable[[], object]) -> float:
    took = []
    for _ in range(TRIES):
        begun = time.perf_counter()
        act()
        took.append(time.perf_counter() - begun)
    return sorted(took)[TRIES // 2]


def _compute() -> int:
    return sum(number * number % 7 for number in range(400_000))


def _start() -> None:
    subprocess.run([sys.executable, "-I", "-S", "-c", ""], check=True)


def _slowness() -> float:
    given = os.environ.get(VARIABLE)
    if given is None:
        given = os.environ[VARIABLE] = str(measured())
    return float(given)


SLOWNESS = _slowness()
"""By what deadlines are multiplied in this process and those below it."""


def scaled(seconds: float) -> float:
    """So many seconds of the machine of the deadlines, on this one."""
    return seconds * SLOWNESS


def scaled_ms(milliseconds: int) -> int:
    """The same for settings in milliseconds."""
    return round(milliseconds * SLOWNESS)
