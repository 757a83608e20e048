"""Ending a group of processes that we started, and nothing else.

A *session* here is Unix's: all processes that one detached child and its descendants make belong to it, whatever
becomes of their parents, unless they leave it on purpose. The system does not give its number again while a member
lives: so a session is ours while a member is alive that was recorded, with its start time.

``python -m raylog.coordination.host.own_session RECORD COMMAND…`` runs COMMAND in the session that it leads. It writes
RECORD before COMMAND starts anything, and again with all that COMMAND left running: so both are known also when the
process that started it dies meanwhile.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from raylog.coordination.host.private_files import write_private
from raylog.coordination.host.processes import ProcessRef, Running, running, wait_for_end

__all__ = ["OwnSession", "run_in_session"]

MAX_ROUNDS = 10


class OwnSession:
    """A session that we made."""

    def __init__(self, number: int, recorded: Iterable[ProcessRef]) -> None:
        self.number = number
        """The pid of the process that made it; that one need not live any more."""
        self._recorded = set(recorded)

    @classmethod
    def of_child(cls, pid: int) -> OwnSession:
        """The session that our child ``pid`` leads, which was not waited for: so nobody else can have its number."""
        return cls(pid, (member.ref for member in _in_session(pid)))

    @classmethod
    def load(cls, record: Path) -> OwnSession | None:
        """The session that ``record`` names; None when there is no readable record."""
        try:
            value = json.loads(record.read_text())
            return cls(int(value["session"]), [ProcessRef(*process) for process in value["processes"]])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def save(self, record: Path) -> None:
        """Record it with all its processes that are known."""
        write_private(record, json.dumps({"session": self.number, "processes": sorted(self._recorded)}) + "\n")

    def members(self) -> list[Running]:
        """Its running processes; none when no recorded one is among them, for then it may be somebody else's."""
        found = _in_session(self.number)
        known = {member.ref for member in found if member.ref in self._recorded}
        if known.isdisjoint(member.ref for member in _in_session(self.number)):  # read again, after all others were
            return []
        self._recorded.update(member.ref for member in found)
        return found

    def member(self, name: str) -> Running | None:
        """A member whose program is called ``name``."""
        return next((member for member in self.members() if member.name == name), None)

    def end(self, grace_s: float) -> None:
        """Ask its processes to end, and kill what still runs ``grace_s`` seconds later.

        One that is asked may start others meanwhile, as a supervisor does whose child ends first: so the session is
        looked through again until nobody is left in it, MAX_ROUNDS times at most.
        """
        members = self.members()
        number = signal.SIGTERM
        for _ in range(1 + MAX_ROUNDS):
            if not members:
                return
            for member in members:
                member.ref.signal(number)
            wait_for_end([member.ref for member in members], grace_s)
            members, number = self._left(), signal.SIGKILL

    def _left(self) -> list[Running]:
        """What still runs of a session that was ours a moment ago: its number is not given again so soon, and would
        be to a new leader."""
        found = _in_session(self.number)
        if any(member.ref.pid == self.number and member.ref not in self._recorded for member in found):
            return []
        return found


def run_in_session(record: Path, command: Sequence[str]) -> list[str]:
    """The command line that runs ``command`` and keeps ``record``; to be started in a new session."""
    return [sys.executable, "-m", "raylog.coordination.host.own_session", str(record), *command]


def _in_session(number: int) -> list[Running]:
    return [process for process in running() if process.session == number]


def _main(record: Path, command: Sequence[str]) -> int:
    OwnSession.of_child(os.getpid()).save(record)
    code = subprocess.call(command)
    OwnSession.of_child(os.getpid()).save(record)
    return code


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1]), sys.argv[2:]))
