"""Ending a group of processes that we started, and nothing else.

A *session* here is Unix's: all processes that one detached child and its descendants make belong to it,
whatever becomes of their parents, unless they leave it on purpose.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import psutil

__all__ = ["end", "session_members", "sessions_at"]


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


def sessions_at(directory: Path) -> set[int]:
    """The Unix sessions of running processes that were given a path below ``directory`` as an argument."""
    below = f"{directory}/"
    sessions = set()
    for process in psutil.process_iter():
        try:
            if any(below in argument for argument in process.cmdline()):
                sessions.add(os.getsid(process.pid))
        except (ProcessLookupError, psutil.Error):
            continue
    return sessions


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
