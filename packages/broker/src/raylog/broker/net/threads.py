"""Threads for what must not run in the loop, used again: to make one costs some 55 µs of the interpreter, which others
wait for.

A thread that is done with its request waits a while for the next.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from functools import partial

from raylog.coordination.host.loops import Loops

__all__ = ["Threads"]

Job = Callable[[], None]

STACK_BYTES = 512 * 1024
"""A thread's stack; only what it touches is ever resident."""

MAX_WAITING = 64
"""Threads that wait for work; more end at once."""

MAX_WAIT_S = 10.0


class Threads:
    """Runs each job in a thread of its own, at once. Any thread may call :meth:`run`."""

    def __init__(self, name: str, loops: Loops, *, max_wait_s: float = MAX_WAIT_S) -> None:
        """``name``: of threads without a job; a job may name its thread as long as it runs."""
        self._name = name
        self._loops = loops
        self._max_wait_s = max_wait_s
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._waiting = 0
        """Threads that wait, less the jobs that are on their way to them."""

    @property
    def waiting(self) -> int:
        """Threads that have nothing to do."""
        return self._waiting

    def run(self, job: Job) -> None:
        """Begin ``job``; what it raises is told, and ends nothing else. RuntimeError when the system has no more
        threads.
        """
        with self._lock:
            if self._waiting:
                self._waiting -= 1
                self._jobs.put(job)
                return
            before = threading.stack_size(STACK_BYTES)
            try:
                self._loops.once(self._name, partial(self._work, [job]))
            finally:
                threading.stack_size(before)

    def _work(self, first: list[Job]) -> None:
        """``first``: one job, to be taken out: a thread keeps its arguments as long as it lives."""
        this = threading.current_thread()
        job = first.pop()
        while True:
            self._loops.guarded(self._name, job)
            del job  # what it holds must not live as long as the thread waits
            this.name = self._name
            with self._lock:
                if self._waiting == MAX_WAITING:
                    return
                self._waiting += 1
            try:
                job = self._jobs.get(timeout=self._max_wait_s)
            except queue.Empty:
                with self._lock:
                    if self._jobs.empty():
                        self._waiting -= 1
                        return
                    job = self._jobs.get()
