"""Ctrl-C while Spark starts."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_heeded() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end when one came in between and was lost.

    Ray's calls turn an interrupt into a status, and not every caller looks at it: who presses Ctrl-C would have to
    press it again. In other threads than the main one this does nothing, as Python interrupts only that.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came = False

    def note(_signum: int, _frame: FrameType | None) -> None:
        nonlocal came
        came = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is note:  # else Spark has its own by now
            signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt
