"""The product's long-lived threads without threads: the engine calls their steps, and some of these may fail."""

from __future__ import annotations

import math
import queue
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from raylog.coordination.host.loops import FIRST_PAUSE_S, Loop, Loops
from raylog.coordination.store.port import NodeEvent, SessionEvent
from raylog.protocol.errors import RaylogError

from .engine import Thread, Violation
from .local import StepFailed
from .zookeeper import Ensemble, SimSink, SimStore

MOST_TURNS = 1_000
"""So many without waiting: a thread that does more spins."""


class SimLoop(Loop):
    """Its steps are called by :meth:`turn`; what one leaves half done is mended as in a thread."""

    _runs = _turns = False

    def start(self) -> None:
        self._runs = True

    def join(self, timeout_s: float | None = None) -> None:
        """Told to stop, it does what is left; nothing more comes from a step that is under way."""
        while self._runs and not self._turns and self.turn():
            pass

    @property
    def was_started(self) -> bool:
        return self._runs

    @property
    def is_alive(self) -> bool:
        return self._runs

    @property
    def is_idle(self) -> bool:
        return self._runs and not self._turns

    def turn(self) -> bool:
        """One step; False after the last one."""
        self._turns = True
        try:
            self._owner._before_step(self.name)
            self._runs = self._step()
            self._in_a_row = 0
        except Exception as error:  # noqa: BLE001 (as in Loop)
            self._note(error)
            try:
                self._mend(error)
            except Exception as worse:  # noqa: BLE001
                self._note(worse)
            self._runs = not self.stopping.is_set()
        finally:
            self._turns = False
        if not self._runs:
            self._owner.guarded(self.name, self._finish)
        return self._runs


class EndsByAnError(SimLoop):
    """A thread ends by what it does not foresee, and nobody says so."""

    def _note(self, error: Exception) -> None:
        super()._note(error)
        self.stopping.set()


class SimLoops(Loops):
    """Those of one process."""

    kind = SimLoop

    def __init__(self, on_failed: Callable[[], None]) -> None:
        """``on_failed`` is told of each step that fails because it was to."""
        super().__init__(reports=Unheard(), before_step=self.begin_step, now_s=lambda: 0.0)
        self._on_failed = on_failed
        self._made: dict[str, list[SimLoop]] = {}
        self._failing: dict[str, int] = {}
        """So many of the next steps fail, by the thread's name."""

    def loop(
        self,
        name: str,
        step: Callable[[], bool],
        *,
        vital: bool = True,
        mend: Callable[[Exception], None] = lambda error: None,
        finish: Callable[[], None] = lambda: None,
        last_pause_s: float = 0.0,
    ) -> SimLoop:
        loop = self.kind(self, name, step, vital, mend, finish, last_pause_s)
        self._made.setdefault(name, []).append(loop)
        return loop

    def fail(self, count: int, more: Iterable[str] = ()) -> None:
        """So many of the next steps of each of them fail, and of those that begin under the names ``more``."""
        self._failing = dict.fromkeys((*self._made, *more), count)

    def begin_step(self, name: str) -> None:
        """Raises StepFailed."""
        if self._failing.get(name):
            self._failing[name] -= 1
            self._on_failed()
            raise StepFailed(f"{name}: can't start new thread")

    def turn(self, name: str) -> bool:
        """One step of a thread of this name that is idle; False when none is, or all have ended."""
        idle = next((loop for loop in self._made[name] if loop.is_idle), None)
        if idle is not None:
            idle.turn()
        return idle is not None


class Waits(BaseException):
    """Unwinds a step that waits for an item, which is the first thing that it does; it begins again later."""

    def __init__(self, inbox: SimInbox, timeout_s: float | None) -> None:
        self.inbox = inbox
        self.timeout_s = timeout_s


class SimInbox(SimSink):
    """What a loop waits on. News of the store come late and in order."""

    def __init__(self, ensemble: Ensemble, number: int, thread: Thread) -> None:
        super().__init__(ensemble, number, thread, self._arrives)
        self._items: deque[Any] = deque()
        self.is_timed_out = False
        """The time is over for which its loop has waited."""
        self.wake: Callable[[], None] = lambda: None

    def put(self, item: Any, /) -> None:
        if isinstance(item, NodeEvent | SessionEvent):
            super().put(item)
        else:
            self._arrives(item)

    def _arrives(self, item: Any) -> None:
        self._items.append(item)
        self.wake()

    def get(self, timeout: float | None = None) -> Any:
        is_timed_out, self.is_timed_out = self.is_timed_out, False
        if self._items:
            return self._items.popleft()
        if is_timed_out or (timeout is not None and timeout <= 0):
            raise queue.Empty
        raise Waits(self, timeout)

    def get_nowait(self) -> Any:
        return self.get(0)

    def empty(self) -> bool:
        return not self._items


class RunningLoop(SimLoop):
    """Runs by itself: a step, whenever there is something in the inbox that it waits on, or its time is over."""

    _owner: RunningLoops
    _waits = 0
    """How often it has waited so far."""

    def start(self) -> None:
        super().start()
        self._soon()

    def _soon(self, delay_ms: int = 0) -> None:
        self._waits += 1
        waits, owner = self._waits, self._owner
        owner.ensemble.engine.at(delay_ms, owner.thread, lambda: self._go_on(waits))

    def _go_on(self, waits: int) -> None:
        """Turn until it waits; unless it went on before."""
        if not self._runs or waits != self._waits:
            return
        for _ in range(MOST_TURNS):
            try:
                if not self.turn():
                    return
            except Waits as wait:
                self._wait(wait)
                return
            if self._in_a_row:
                self._soon(int(1_000 * min(FIRST_PAUSE_S * 2 ** (self._in_a_row - 1), self._last_pause_s)))
                return
        raise Violation("a thread that has nothing to do waits", self.name)

    def _wait(self, wait: Waits) -> None:
        inbox, owner = wait.inbox, self._owner
        self._waits += 1
        waits = self._waits

        def times_out() -> None:
            if waits == self._waits:
                inbox.is_timed_out = True
                self._go_on(waits)

        def wake() -> None:
            inbox.wake = lambda: None
            self._soon()

        inbox.wake = wake
        if wait.timeout_s is not None:
            owner.ensemble.engine.at(max(1, math.ceil(wait.timeout_s * 1_000 - 1e-6)), owner.thread, times_out)


class RunningLoops(SimLoops):
    """Those of one thread of the engine, which speaks with ``store``."""

    kind = RunningLoop

    def __init__(
        self, store: SimStore, ensemble: Ensemble, thread: Thread, on_failed: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(on_failed)
        self._store = store
        self.ensemble = ensemble
        self.thread = thread

    def begin_step(self, name: str) -> None:
        self._store.thread = self.thread
        super().begin_step(name)

    def inbox(self) -> Any:
        return SimInbox(self.ensemble, self.ensemble.number(), self.thread)


class Unheard:
    """The reports of loops. What nobody foresaw is a defect."""

    def failed(self, loop: str, error: BaseException, in_a_row: int) -> None:
        if not isinstance(error, StepFailed | RaylogError | OSError):
            raise Violation("a thread fails by what is foreseen only", f"{loop}: {error!r}") from error

    def recovered(self, *args: Any) -> None: ...

    def gone(self, *args: Any) -> None: ...
