"""Threads that do something for groups whose time has come.

There are a few of them: what is slow for one group keeps one thread, and the others go on with the other groups. For
one group one thread at a time does it, so what is done for it is done in order.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from functools import partial

from raylog.broker.events import EventLog
from raylog.coordination.host.loops import Loops
from raylog.protocol.ids import GroupId, MonotonicMs

__all__ = ["DueGroups"]

logger = EventLog(__name__)

THREADS = 4
"""So many groups may be slow at once and hold up no others."""
RETRY_MS = 1_000
"""How long after a failure it is tried again."""


class DueGroups:
    """Any thread may call; see the module."""

    def __init__(
        self, name: str, work: Callable[[GroupId], None], now_ms: Callable[[], MonotonicMs], loops: Loops
    ) -> None:
        """``name``: of the threads; ``work``: what they do for a group."""
        self._name = name
        self._work = work
        self._now_ms = now_ms
        self._changed = threading.Condition()
        self._due: dict[GroupId, MonotonicMs] = {}
        """When each group's time comes: the earliest that was asked for."""
        self._heap: list[tuple[MonotonicMs, GroupId]] = []
        """The same in order, without the groups at work, and what was asked for before an earlier one."""
        self._at_work: set[GroupId] = set()
        self._stopping = False
        self._loops = loops
        new_thread = partial(loops.loop, name, self._turn, mend=self._pass_on, last_pause_s=RETRY_MS / 1000)
        self._threads = [new_thread(finish=partial(self._pass_on, None)) for _ in range(THREADS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, *, finish: bool = False) -> None:
        """Nothing is under way any more once this returns. Not to be called by the work.

        ``finish``: what was scheduled before is done first, at once.
        """
        with self._changed:
            self._stopping = True
            if not finish:
                self._due.clear()
                self._heap.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.stop()
        for thread in self._threads:
            thread.join()

    def schedule(self, group: GroupId, due_ms: MonotonicMs | None) -> None:
        """Have it done then, or earlier if that was asked for; None: the group has nothing to wait for.

        While it is being done for the group, it is done once more after that. Nothing happens once it stops.
        """
        if due_ms is None:
            return
        with self._changed:
            known = self._due.get(group)
            if not self._stopping and (known is None or due_ms < known):
                self._due[group] = due_ms
                self._put(group)
                self._changed.notify()

    @property
    def next_ms(self) -> MonotonicMs | None:
        """When there is something to do next; None: nothing is known of."""
        with self._changed:
            return self._next()

    def _put(self, group: GroupId) -> None:
        if group in self._due and group not in self._at_work:
            heapq.heappush(self._heap, (self._due[group], group))

    def _pass_on(self, error: Exception | None) -> None:
        """This thread takes nothing now: another one looks when the next group is due."""
        with self._changed:
            self._changed.notify()

    def _turn(self) -> bool:
        with self._changed:
            group = self._take()
        if group is None:
            return False
        try:
            if not self._loops.guarded(self._name, partial(self._work, group)):
                logger.error("work for a group failed, trying again", thread=self._name, group=group)
                self.schedule(group, MonotonicMs(self._now_ms() + RETRY_MS))
        finally:
            with self._changed:
                self._at_work.discard(group)
                self._put(group)
        return True

    def _next(self) -> MonotonicMs | None:
        while self._heap:
            due_ms, group = self._heap[0]
            if self._due.get(group) == due_ms and group not in self._at_work:
                return due_ms
            heapq.heappop(self._heap)
        return None

    def _take(self) -> GroupId | None:
        """The next group, once its time has come; None when this thread is to end.

        One of the threads that are idle knows when that is, others may sleep longer.
        """
        while True:
            due_ms = self._next()
            if due_ms is None:
                if self._stopping:
                    return None
                self._changed.wait()
            elif (wait_ms := due_ms - self._now_ms()) > 0 and not self._stopping:
                self._changed.wait(wait_ms / 1000)
            else:
                _, group = heapq.heappop(self._heap)
                del self._due[group]
                self._at_work.add(group)
                if self._heap:
                    self._changed.notify()
                return group
