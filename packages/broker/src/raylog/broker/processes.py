"""Processes that we started, known by pid and start time, so that nothing else is ever ended.

A pid alone is reused by the system; a pid with the moment its process began is not. A *session* here is
Unix's: all processes that one detached child and its descendants make belong to it, whatever their parents
do.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

__all__ = ["ProcessRecord", "end", "session_members"]

START_TIME_TOLERANCE_S = 0.05
"""Start times are read in clock ticks of 10 ms."""


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """One process, also across restarts of whoever wrote this down."""

    pid: int
    start_time: float
    """Seconds since the Unix epoch."""

    @classmethod
    def of(cls, pid: int) -> ProcessRecord:
        """The running process ``pid``. Raises psutil.NoSuchProcess."""
        return cls(pid, psutil.Process(pid).create_time())

    def process(self) -> psutil.Process | None:
        """The process while it runs (a zombie does not), else None."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.start_time) < START_TIME_TOLERANCE_S
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None

    @property
    def alive(self) -> bool:
        return self.process() is not None


def session_members(session: int) -> list[psutil.Process]:
    """The running processes of the Unix session ``session``."""
    members = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return members


def end(processes: Iterable[psutil.Process], *, grace_s: float) -> None:
    """Ask the processes to end, and kill those that still run ``grace_s`` seconds later."""
    asked = list(processes)
    for process in asked:
        _signal(process, kill=False)
    _, stubborn = psutil.wait_procs(asked, timeout=grace_s)
    for process in stubborn:
        _signal(process, kill=True)
    psutil.wait_procs(stubborn, timeout=grace_s)


def _signal(process: psutil.Process, *, kill: bool) -> None:
    try:
        if kill:
            process.kill()
        else:
            process.terminate()
    except psutil.NoSuchProcess:
        pass
