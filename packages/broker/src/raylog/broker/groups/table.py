"""The groups that a broker coordinates or is asked about: for each one lock, and a thread that lets their time pass."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from raylog.broker.events import EventLog
from raylog.broker.groups.held import Claimant, HeldGroup
from raylog.coordination.loops import Loops
from raylog.protocol.ids import GroupId, MonotonicMs

__all__ = ["Entry", "GroupTable", "Ticker"]

logger = EventLog(__name__)

RETRY_MS = 1_000
"""How long after a tick that failed the next is due."""


@dataclass(slots=True)
class Entry:
    """One group; :attr:`held` belongs to whoever has entered it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0
    """Who has entered or wants to; guarded by the table's lock."""
    held: HeldGroup | None = None
    claimed_as: Claimant | None = None
    """The incarnation of this broker that has claimed the group, which need not be held for that."""
    was_let_go: bool = False
    """It was held, perhaps with members, and nobody has looked since whether its time has to pass."""


class GroupTable:
    """An entry for each group that is claimed or that somebody is in: two who ask for one group never both hold it."""

    def __init__(self) -> None:
        self._entries: dict[GroupId, Entry] = {}
        self._lock = threading.Lock()

    @contextmanager
    def enter(self, group: GroupId) -> Iterator[Entry]:
        """The group's entry, for one thread at a time; waits for the others."""
        with self._lock:
            entry = self._entries.setdefault(group, Entry())
            entry.users += 1
        try:
            with entry.lock:
                yield entry
        finally:
            with self._lock:
                entry.users -= 1
                if not entry.users and entry.held is None and entry.claimed_as is None:
                    del self._entries[group]

    @property
    def held_count(self) -> int:
        """How many of them are held."""
        with self._lock:
            return sum(entry.held is not None for entry in self._entries.values())

    def held(self) -> tuple[GroupId, ...]:
        """Those that are held."""
        with self._lock:
            return tuple(group for group, entry in self._entries.items() if entry.held is not None)

    def claimed(self) -> tuple[GroupId, ...]:
        """Those that this broker has claimed, in whichever incarnation, and not given away."""
        with self._lock:
            return tuple(group for group, entry in self._entries.items() if entry.claimed_as is not None)

    def let_go(self) -> tuple[GroupId, ...]:
        """Those that are claimed, were let go of, and were not adopted since."""
        with self._lock:
            return tuple(group for group, entry in self._entries.items() if entry.was_let_go)


class Ticker:
    """A thread that calls ``tick`` for a group once its time has come, and ``beat`` again and again."""

    def __init__(
        self,
        tick: Callable[[GroupId], None],
        beat: Callable[[], None],
        now_ms: Callable[[], MonotonicMs],
        beat_ms: int,
        loops: Loops,
    ) -> None:
        self._tick = tick
        self._beat = beat
        self._now_ms = now_ms
        self._beat_ms = beat_ms
        self._changed = threading.Condition()
        self._due: dict[GroupId, MonotonicMs] = {}
        """When each group's tick is due: the earliest that was asked for."""
        self._heap: list[tuple[MonotonicMs, GroupId]] = []
        """The same in order, and what was asked for before an earlier one."""
        self._stopping = False
        self._next_beat_ms = now_ms()
        self._loops = loops
        self._loop = loops.loop("group-ticker", self._turn, last_pause_s=RETRY_MS / 1000)

    def start(self) -> None:
        self._loop.start()

    def stop(self) -> None:
        """No tick is under way any more once this returns. Not to be called from one."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._loop.stop()
        self._loop.join()

    def schedule(self, group: GroupId, due_ms: MonotonicMs | None) -> None:
        """Have the group ticked then, or earlier if that was asked for; None: it has nothing to wait for."""
        if due_ms is None:
            return
        with self._changed:
            known = self._due.get(group)
            if known is not None and known <= due_ms:
                return
            self._due[group] = due_ms
            heapq.heappush(self._heap, (due_ms, group))
            self._changed.notify()

    @property
    def next_ms(self) -> MonotonicMs:
        """When a tick or the beat is due next."""
        with self._changed:
            return min(self._next_beat_ms, self._heap[0][0]) if self._heap else self._next_beat_ms

    def _turn(self) -> bool:
        with self._changed:
            wait_ms = self.next_ms - self._now_ms()
            if wait_ms > 0 and not self._stopping:
                self._changed.wait(wait_ms / 1000)
            if self._stopping:
                return False
            due = self._take_due()
        now_ms = self._now_ms()
        if self._next_beat_ms <= now_ms:
            self._next_beat_ms = MonotonicMs(now_ms + self._beat_ms)
            self._loops.guarded("group-ticker", self._beat)
        for group in due:
            if not self._loops.guarded("group-ticker", partial(self._tick, group)):
                # Its time must pass all the same: else no session of it would ever end.
                logger.error("time of a group not passed, trying again", group=group)
                self.schedule(group, MonotonicMs(now_ms + RETRY_MS))
        return True

    def _take_due(self) -> list[GroupId]:
        now_ms = self._now_ms()
        due: list[GroupId] = []
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, group = heapq.heappop(self._heap)
            if self._due.get(group) == due_ms:
                del self._due[group]
                due.append(group)
        return due
