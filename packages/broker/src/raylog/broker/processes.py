"""Ending a group of processes that we started, and nothing else.

A *session* here is Unix's: all processes that one detached child and its descendants make belong to it,
whatever becomes of their parents, unless they leave it on purpose.
"""

from __future__ import annotations

import os
from pathlib import Path

import psutil

__all__ = ["end_session", "session_members", "sessions_at"]

MAX_ROUNDS = 10


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


def end_session(session: int, *, grace_s: float) -> None:
    """Ask the session's processes to end, and kill what still runs ``grace_s`` seconds later.

    Who is asked may start others meanwhile, as a supervisor does whose child ends first: so the session is looked
    through again until nobody is left in it, MAX_ROUNDS times at most.
    """
    asked = session_members(session)
    for process in asked:
        _signal(process, kill=False)
    psutil.wait_procs(asked, timeout=grace_s)
    for _ in range(MAX_ROUNDS):
        stubborn = session_members(session)
        if not stubborn:
            return
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
