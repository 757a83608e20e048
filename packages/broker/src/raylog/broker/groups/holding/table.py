"""The groups that a broker coordinates or is asked about, and for each one lock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from raylog.broker.groups.holding.held import Claimant, HeldGroup, IdleGroup
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import GroupId

__all__ = ["Entry", "GroupBusy", "GroupTable"]


class GroupBusy(RaylogError):
    """Somebody is in the group, and stays: its write hangs. For those who do not wait, but come again."""


@dataclass(slots=True)
class Entry:
    """One group; :attr:`held` is changed by whoever has entered it alone."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0
    """Who has entered or wants to; guarded by the table's lock."""
    is_awaited: bool = False
    """Somebody did not wait until it is free; guarded by the table's lock."""
    held: HeldGroup | None = None
    idle: IdleGroup | None = None
    """What is remembered of it while it is claimed and not held."""
    claimed_as: Claimant | None = None
    """The incarnation of this broker that has claimed the group, which need not be held for that."""
    was_let_go: bool = False
    """It was held, perhaps with members, and nobody has looked since whether its time has to pass."""

    def put_out(self, held: HeldGroup) -> None:
        """Out of memory, since it is idle."""
        self.idle, self.held = IdleGroup(held.basis, held.machine.protocol_type), None


class GroupTable:
    """An entry for each group that is claimed or that somebody is in: two who ask for one group never both hold it."""

    def __init__(self, freed: Callable[[GroupId], None]) -> None:
        """``freed``: called once a group is free that :meth:`try_enter` found taken."""
        self._freed = freed
        self._entries: dict[GroupId, Entry] = {}
        self._lock = threading.Lock()

    @contextmanager
    def enter(self, group: GroupId) -> Iterator[Entry]:
        """The group's entry, for one thread at a time; waits for the others."""
        entry = self._come(group)
        entry.lock.acquire()
        try:
            yield entry
        finally:
            self._go(group, entry)

    @contextmanager
    def try_enter(self, group: GroupId, wait_s: float) -> Iterator[Entry | None]:
        """As :meth:`enter`; None when the group is not free for so long: ``freed`` tells when it is.

        With a wait it gets its turn also where one thread after the other is in the group.
        """
        entry = self._come(group)
        if not entry.lock.acquire(timeout=wait_s) and self._is_taken(entry):
            yield None
            return
        try:
            yield entry
        finally:
            self._go(group, entry)

    def _come(self, group: GroupId) -> Entry:
        with self._lock:
            entry = self._entries.setdefault(group, Entry())
            entry.users += 1
        return entry

    def _is_taken(self, entry: Entry) -> bool:
        """A last try. If it fails, whoever is in the group sees the mark when it goes."""
        with self._lock:
            if entry.lock.acquire(blocking=False):
                return False
            entry.is_awaited = True
            entry.users -= 1
            return True

    def _go(self, group: GroupId, entry: Entry) -> None:
        entry.lock.release()
        with self._lock:
            entry.users -= 1
            was_awaited, entry.is_awaited = entry.is_awaited, False
            if not entry.users and entry.held is None and entry.claimed_as is None:
                del self._entries[group]
        if was_awaited:
            self._freed(group)

    @property
    def held_count(self) -> int:
        """How many of them are held."""
        with self._lock:
            return sum(entry.held is not None for entry in self._entries.values())

    def all_held(self) -> dict[GroupId, HeldGroup]:
        """Those that are held."""
        with self._lock:
            return {group: held for group, entry in self._entries.items() if (held := entry.held) is not None}

    def all_idle(self) -> dict[GroupId, IdleGroup]:
        """Those that are claimed, not held, and remembered."""
        with self._lock:
            found = {group: entry.idle for group, entry in self._entries.items() if entry.held is None}
        return {group: idle for group, idle in found.items() if idle is not None}

    def claimed(self) -> tuple[GroupId, ...]:
        """Those that this broker has claimed, in whichever incarnation, and not given away."""
        with self._lock:
            return tuple(group for group, entry in self._entries.items() if entry.claimed_as is not None)

    def let_go(self) -> tuple[GroupId, ...]:
        """Those that are claimed, were let go of, and were not adopted since."""
        with self._lock:
            return tuple(group for group, entry in self._entries.items() if entry.was_let_go)
