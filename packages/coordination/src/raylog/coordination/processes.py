"""Processes that outlive the one that started them, told apart by pid *and* start time: pids are used again."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import NamedTuple, Self


class ProcessRef(NamedTuple):
    """A process, as recorded in a file; another one with the same pid is not it."""

    pid: int
    start_time: int
    """In clock ticks since the machine booted, as /proc has it."""

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """The process that now has this pid; None when there is none, or only a dead one not yet waited for.

        A process of many threads is dead when the last of them is: until then it holds its ports and locks, though
        its first thread, and so its state, may be a zombie already.
        """
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        state, *fields = text.rpartition(")")[2].split()  # the name before may hold spaces and parentheses
        threads = int(fields[16])
        return None if state in "ZX" and threads <= 1 else cls(pid, int(fields[18]))

    @property
    def is_alive(self) -> bool:
        return ProcessRef.of(self.pid) == self

    def end(self, timeout_s: float) -> None:
        """SIGTERM, then SIGKILL when it is not gone after ``timeout_s``. Does nothing to a process not alive."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not self.is_alive:
                return
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return
            deadline = time.monotonic() + timeout_s
            while self.is_alive and time.monotonic() < deadline:
                time.sleep(0.01)
