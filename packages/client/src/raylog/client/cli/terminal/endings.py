"""SIGTERM and SIGHUP end a command as Ctrl-C does: what was read is sent, a group is left at once.

So a service manager, a container's stop or a closed terminal loses nothing.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Ended", "ended_by_signals"]

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class Ended(KeyboardInterrupt):
    """A signal is to end the command."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Have these signals raise Ended here; one that is ignored, as by nohup, stays so."""
    taken = []
    if threading.current_thread() is threading.main_thread():
        taken = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _end(number: int, _: object) -> None:
    raise Ended(number)
