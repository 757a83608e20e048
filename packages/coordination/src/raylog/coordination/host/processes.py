"""Processes that outlive the one that started them. What was recorded of one decides whether it is ended.

A pid is given again once its process is gone: so a process is told apart by its pid, its start time and the boot of the
machine, and compared with the record at the moment of the signal. Neither its name nor its arguments say whose it is.
Linux only, from 5.3 on: it takes pidfds and /proc.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

__all__ = ["ProcessRef", "Running", "machine_boot_id", "running", "wait_for_end"]

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_POLL_S = 0.01


def machine_boot_id() -> str:
    """Another one after each start of the machine: what was not synced before is gone then."""
    return _BOOT_ID.read_text().strip()


class ProcessRef(NamedTuple):
    """A process, as recorded in a file; another one with the same pid is not it."""

    pid: int
    start_time: int
    """In clock ticks since the machine booted, as /proc has it."""
    boot_id: str = ""
    """Of the machine's start (:func:`machine_boot_id`): start times begin anew with it."""

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """The process that now has this pid; None when there is none, or only a dead one not yet waited for.

        A process of many threads is dead when the last of them is: until then it holds its ports and locks, though
        its first thread, and so its state, may be a zombie already.
        """
        found = _look_at(pid, machine_boot_id())
        return None if found is None else cls(*found.ref)

    @property
    def is_alive(self) -> bool:
        return ProcessRef.of(self.pid) == self

    def signal(self, number: int) -> bool:
        """Send it a signal; False, without having signalled any process, when it is not alive.

        The pidfd holds on to the process that had the pid when it was opened: the start time that is read after that is
        its own, or it is dead and the signal reaches nobody.
        """
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.is_alive:
                return False
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True

    def end(self, timeout_s: float) -> None:
        """SIGTERM, then SIGKILL when it is not gone after ``timeout_s``. Does nothing to a process not alive."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not self.signal(number):
                return
            wait_for_end([self], timeout_s)


class Running(NamedTuple):
    """A process as /proc shows it at one moment."""

    ref: ProcessRef
    name: str
    """Of its program, 15 bytes at most."""
    session: int
    """The Unix session that it belongs to: the pid of the process that made it."""


def running() -> Iterator[Running]:
    """All processes of this machine, read one after the other: what starts or ends meanwhile may be among them."""
    boot_id = machine_boot_id()
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and (found := _look_at(int(entry), boot_id)) is not None:
            yield found


def wait_for_end(processes: list[ProcessRef], timeout_s: float) -> None:
    """Until none of ``processes`` is alive, at most ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while any(process.is_alive for process in processes) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _look_at(pid: int, boot_id: str) -> Running | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    before, _, after = text.rpartition(")")  # the name may hold spaces and parentheses
    state, *fields = after.split()
    if state in "ZX" and int(fields[16]) <= 1:  # the number of threads
        return None
    return Running(ProcessRef(pid, int(fields[18]), boot_id), before.partition("(")[2], int(fields[2]))
