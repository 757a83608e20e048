"""The simulator's clock, queue and chance: everything that happens is an event, and one seed decides their order.

Theory. A run is a sequence of *steps*. A step runs one event to its end, at one moment of virtual time; events of the
same moment run in an order that the seed draws. So a run is a function of its seed and its faults, and can be repeated.

A *process* (:class:`Process`) is one life of a broker or client; what it still had to do dies with it. It has *threads*
(:class:`Thread`): events of one thread run one after another, those of different threads in any order. A paused process
(SIGSTOP) runs nothing; its events wait, time passes.

Between two calls of a thread to the store, others act. A call is a plain function here, so :meth:`Engine.elsewhere`
runs the queue on from inside the call: the caller's thread is *busy* meanwhile, and its events wait for it. That is how
the simulator finds races between two reads, or a read and a write, of code that knows nothing of it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random

Action = Callable[[], None]

MAX_DEPTH = 3
"""How many calls may be under way inside each other."""


class ProcessDied(BaseException):
    """Unwinds what a process was doing when it died."""


class Violation(BaseException):
    """An invariant does not hold. ``invariant`` names it, as docs/invariants.md does.

    It passes through code that goes on whatever an operation raises.
    """

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant
        self.what = what


class Process:
    """One life. ``name`` is for the trace."""

    __slots__ = ("alive", "name", "paused_until")

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused_until = 0


class Thread:
    """Events of one thread run one at a time."""

    __slots__ = ("busy", "process", "until", "waiting")

    def __init__(self, process: Process) -> None:
        self.process = process
        self.busy = False
        self.until = 0
        """When its last call to the store was to be answered."""
        self.waiting: list[Action] = []

    def is_held_up(self, now: int) -> bool:
        """Its call is not answered in time, since that of another thread, which began later, is still under way."""
        return self.busy and now > self.until


class Engine:
    """The queue and what is drawn from the seed."""

    def __init__(self, seed: int) -> None:
        self.now = 0
        """Virtual milliseconds. Nobody in the cluster sees it: each broker's clock is off by a constant."""
        self.steps = 0
        self.random = Random(seed)
        self.lines: list[str] | None = None
        """The trace, when one is kept."""
        self._queue: list[tuple[int, float, int, Thread, Action]] = []
        self._count = 0
        self._depth = 0
        self.after_step: Callable[[], None] = lambda: None
        """Checks the invariants."""

    def note(self, line: str) -> None:
        """Add a line to the trace. Guard calls that format much by ``if engine.lines is not None``."""
        if self.lines is not None:
            self.lines.append(f"{self.now:>6} ms  {line}")

    def at(self, delay: int, thread: Thread, action: Action) -> None:
        """Let ``thread`` run ``action`` after ``delay`` milliseconds; never, when its process dies before."""
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay, self.random.random(), self._count, thread, action))

    def chance(self, probability: float) -> bool:
        """True that often."""
        return probability > 0 and self.random.random() < probability

    def run_until(self, end: int) -> None:
        """Run all events up to the moment ``end``."""
        queue = self._queue
        while queue and queue[0][0] <= end:
            time, _, _, thread, action = heapq.heappop(queue)
            if time > self.now:
                self.now = time
            self.enter(thread, action)
        self.now = max(self.now, end)

    def enter(self, thread: Thread, action: Action) -> None:
        """Let ``thread`` run ``action`` now, or as soon as it can."""
        process = thread.process
        if not process.alive:
            return
        if process.paused_until > self.now:
            self.at(process.paused_until - self.now, thread, action)
            return
        if thread.busy:
            thread.waiting.append(action)
            return
        self.steps += 1
        try:
            action()
        except ProcessDied:
            pass
        self.after_step()

    def elsewhere(self, thread: Thread, delay: int) -> None:
        """Let ``delay`` milliseconds pass inside a call of ``thread``; ProcessDied when it does not live so long.

        A thread whose process is paused meanwhile goes on when that is over.
        """
        process = thread.process
        if self._depth >= MAX_DEPTH:
            return
        self._depth += 1
        thread.busy, thread.until = True, self.now + delay
        try:
            self.run_until(thread.until)
            while process.alive and process.paused_until > self.now:
                self.run_until(process.paused_until)
        finally:
            self._depth -= 1
            thread.busy = False
            waiting, thread.waiting = thread.waiting, []
            for action in waiting:
                self.at(0, thread, action)
        if not process.alive:
            raise ProcessDied
