"""Long-lived threads: the one way to have one, so that none ends or fails in silence.

A :class:`Loop` is a thread that calls its *step* again and again. A step that raises is counted and told; the owner
mends its state (``mend``), and after a pause, which grows while steps fail in a row, the step is called again. A thread
ends when its step says so, when a step fails after it was told to stop, or by what is no Exception (SystemExit, say):
then it is *gone*, which is told, too. A process whose *vital* loop is gone must not go on as if nothing had happened:
its owner hears of it and ends what depends on it.

:class:`Loops` keeps the books of one owner (a broker, a member of a group) and makes its threads.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

__all__ = ["LogReports", "Loop", "LoopReports", "Loops"]
from raylog.protocol.logs import Logger
from raylog.protocol.texts import told

log = Logger(__name__)

FIRST_PAUSE_S, LAST_PAUSE_S = 0.1, 5.0
FAILING_FOR_S = 60.0
"""So long after its last failure a loop counts as failing, unless a step succeeds earlier: a step may wait for long."""
TELL_AGAIN_S = 60.0
"""A failure that repeats itself is told again after this time, not each time."""


class LoopReports(Protocol):
    """Hears what becomes of loops, each call in an ``except`` clause of the thread that it is about."""

    def failed(self, loop: str, error: BaseException, in_a_row: int) -> None:
        """A step raised, for the ``in_a_row``-th time without success; it is tried again."""

    def recovered(self, loop: str, failures: int) -> None:
        """A step succeeded after so many failures; in no ``except`` clause."""

    def gone(self, loop: str, error: BaseException, vital: bool) -> None:
        """The thread has ended though nobody told it to."""


class LogReports:
    """Tells the log alone."""

    def failed(self, loop: str, error: BaseException, in_a_row: int) -> None:
        log.error("thread %s failed, %d times in a row; trying again", loop, in_a_row, exc_info=error)

    def recovered(self, loop: str, failures: int) -> None:
        log.info("thread %s works again after %d failures", loop, failures)

    def gone(self, loop: str, error: BaseException, vital: bool) -> None:
        log.error("thread %s has ended", loop, exc_info=error)


def _nothing() -> None:
    return


def _no_mending(_: Exception) -> None:
    return


def _no_hook(_: str) -> None:
    return


class Loop:
    """One thread; made by :meth:`Loops.loop`. Any thread may call its methods."""

    def __init__(
        self,
        owner: Loops,
        name: str,
        step: Callable[[], bool],
        vital: bool,
        mend: Callable[[Exception], None],
        finish: Callable[[], None],
        last_pause_s: float,
    ) -> None:
        self.name = name
        self.vital = vital
        self.stopping = threading.Event()
        """Set by :meth:`stop`. A step may wait for it."""
        self._owner = owner
        self._step = step
        self._mend = mend
        self._finish = finish
        self._last_pause_s = last_pause_s
        self._in_a_row = 0
        """Failures since the last success."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread. RuntimeError when the system has no more threads; it may be started later then."""
        self._owner._add(self)
        try:
            self._thread.start()
        except BaseException:
            self._owner._remove(self)
            raise

    def stop(self) -> None:
        """Let it end: pauses end at once, and a step that fails is the last one. Whatever else a step waits for, its
        owner has to end.
        """
        self.stopping.set()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until it has ended; returns at once when it was never started, or in the thread itself."""
        if self.was_started and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    @property
    def was_started(self) -> bool:
        return self._thread.ident is not None

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:  # noqa: BLE001 (whatever it is, it is told)
            self._end()
            self._owner._gone(self.name, error, self.vital)
        else:
            self._end()

    def _end(self) -> None:
        self._owner.guarded(self.name, self._finish)
        self._owner._remove(self)

    def _turn(self) -> bool:
        """One step; False after the last one."""
        try:
            self._owner._before_step(self.name)
            goes_on = self._step()
        except Exception as error:  # noqa: BLE001 (that is what the loop is for)
            self._note(error)
            try:
                self._mend(error)
            except Exception as worse:  # noqa: BLE001
                self._note(worse)
            pause_s = min(FIRST_PAUSE_S * 2 ** min(self._in_a_row - 1, 16), self._last_pause_s)
            return not self.stopping.wait(pause_s)
        if self._in_a_row:
            self._owner._recovered(self.name, self._in_a_row)
            self._in_a_row = 0
        return goes_on

    def _note(self, error: Exception) -> None:
        self._in_a_row += 1
        self._owner._failed(self.name, error, self._in_a_row)


class _Trouble(NamedTuple):
    """The last failure of one name."""

    reason: str
    at_s: float
    told_s: float
    """When the reports heard of this reason last."""


class Loops:
    """See the module. Any thread may call its methods."""

    def __init__(
        self,
        reports: LoopReports | None = None,
        *,
        before_step: Callable[[str], None] = _no_hook,
        on_gone: Callable[[str], None] = _no_hook,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``reports``: hears of failures, the log by default. ``before_step``: called with a loop's name before each
        step, which fails when it raises: the place for tests to make any loop fail. ``on_gone``: called once a vital
        loop is gone, with the reason, in its thread. ``now_s``: a monotonic clock, in seconds.
        """
        self._reports = reports or LogReports()
        self._before_step = before_step
        self._on_gone = on_gone
        self._now_s = now_s
        self._lock = threading.Lock()
        self._running: set[Loop] = set()
        self._failures: Counter[str] = Counter()
        self._troubles: dict[str, _Trouble] = {}
        self._ended: dict[str, str] = {}
        self.failure = ""
        """Which vital loop is gone, and why; empty while there is none."""

    def loop(
        self,
        name: str,
        step: Callable[[], bool],
        *,
        vital: bool = True,
        mend: Callable[[Exception], None] = _no_mending,
        finish: Callable[[], None] = _nothing,
        last_pause_s: float = LAST_PAUSE_S,
    ) -> Loop:
        """A thread, not started yet.

        ``step`` does one round and answers whether there is another; ``mend`` puts right, in the thread, what a step
        that raised may have left half done; ``finish`` is called in the thread when it ends, however that comes.
        ``vital``: its owner cannot do its work without it. ``last_pause_s``: the longest pause after a failure.
        """
        return Loop(self, name, step, vital, mend, finish, last_pause_s)

    def inbox(self) -> queue.SimpleQueue[Any]:
        """What a loop waits on: any thread puts items there, and the loop's step takes one, as the first thing that it
        does.
        """
        return queue.SimpleQueue()

    def once(self, name: str, task: Callable[[], object]) -> Loop:
        """Start a thread that does one thing. What it raises is counted and told, and ends it. RuntimeError when the
        system has no more threads.
        """

        def step() -> bool:
            self.guarded(name, task)
            return False

        loop = Loop(self, name, step, False, _no_mending, _nothing, LAST_PAUSE_S)
        loop.start()
        return loop

    def guarded(self, name: str, task: Callable[[], object]) -> bool:
        """Do one of several things that a loop does, such that its failure holds up no other: counted and told as a
        failure of ``name``. False when it failed.
        """
        try:
            task()
        except Exception as error:  # noqa: BLE001 (it is told)
            self._failed(name, error, 1)
            return False
        return True

    def failures(self) -> Mapping[str, int]:
        """How often steps of each loop failed since the start, 0 for those that run and never did."""
        with self._lock:
            return {**dict.fromkeys((loop.name for loop in self._running), 0), **self._failures}

    def troubles(self) -> Mapping[str, str]:
        """Which loops fail at the moment (see FAILING_FOR_S) or are gone, and why."""
        oldest_s = self._now_s() - FAILING_FOR_S
        with self._lock:
            failing = {name: trouble.reason for name, trouble in self._troubles.items() if trouble.at_s > oldest_s}
            return {**failing, **self._ended}

    def names(self) -> set[str]:
        """The loops that run."""
        with self._lock:
            return {loop.name for loop in self._running}

    # --- what loops call

    def _add(self, loop: Loop) -> None:
        with self._lock:
            self._running.add(loop)

    def _remove(self, loop: Loop) -> None:
        with self._lock:
            self._running.discard(loop)

    def _failed(self, name: str, error: Exception, in_a_row: int) -> None:
        reason, now_s = told(error), self._now_s()
        with self._lock:
            self._failures[name] += 1
            before = self._troubles.get(name)
            is_known = before is not None and before.reason == reason and now_s - before.told_s < TELL_AGAIN_S
            told_s = before.told_s if before is not None and is_known else now_s
            self._troubles[name] = _Trouble(reason, now_s, told_s)
        if not is_known:
            self._tell(lambda reports: reports.failed(name, error, in_a_row))

    def _recovered(self, name: str, failures: int) -> None:
        with self._lock:
            self._troubles.pop(name, None)
        self._tell(lambda reports: reports.recovered(name, failures))

    def _gone(self, name: str, error: BaseException, vital: bool) -> None:
        reason = f"thread {name} has ended by {told(error)}"
        with self._lock:
            self._failures[name] += 1
            self._ended[name] = reason
            is_first = vital and not self.failure
            if is_first:
                self.failure = reason
        self._tell(lambda reports: reports.gone(name, error, vital))
        if is_first:
            self._on_gone(reason)

    def _tell(self, tell: Callable[[LoopReports], None]) -> None:
        """A report that fails (a full disk under the log, say) must not end the thread that it is about."""
        try:
            tell(self._reports)
        except Exception:
            log.exception("what became of a thread could not be reported")
