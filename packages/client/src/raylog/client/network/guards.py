"""What a client refuses because it would break silently: a copy made by fork, and two users at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import Lock
from typing import TypeVar
from weakref import WeakSet

from raylog.protocol.errors import RaylogError

T = TypeVar("T")

_alive: WeakSet[ForkGuard] = WeakSet()


class ForkGuard:
    """Knows whether this process is a fork of the one that made the client.

    A forked child has the client's sockets but not its thread: what it sent would be lost, or mix with what its
    parent sends. ``on_fork`` runs in the child, before anything else does.
    """

    def __init__(self, what: str, on_fork: Callable[[], object] = lambda: None) -> None:
        self.forked = False
        self._what = what
        self._on_fork = on_fork
        _alive.add(self)

    def check(self) -> None:
        """Raises RaylogError in a forked child."""
        if self.forked:
            raise RaylogError(
                f"this {self._what} was made before the process forked; make one in each process "
                "(with multiprocessing, use the start method spawn or forkserver)"
            )

    def _after_fork(self) -> None:
        self.forked = True
        self._on_fork()


class OneUser:
    """``with guard.alone():`` around what only one thread, or one task, may do at a time.

    The ``with`` is of the interpreter's own lock: Ctrl-C comes before it is taken or after. Between the lines of an
    ``__enter__`` and ``__exit__`` in Python it may come while the lock is held, and nobody would be let in again.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = Lock()

    @property
    def is_in(self) -> bool:
        """Whether somebody uses it now."""
        return self._lock.locked()

    def alone(self) -> AbstractContextManager[object]:
        """See the class. Raises RaylogError while another uses it; of two that come at the same moment, one waits."""
        if self.is_in:
            raise RaylogError(
                f"this {self._what} is in use by another thread or task; it is for one at a time: make one for each"
            )
        return self._lock

    def give_up(self) -> None:
        """Inside of the ``with``, before awaiting the user's code; :meth:`take_again` behind it."""
        self._lock.release()

    def take_again(self) -> bool:
        """False while another uses it."""
        return self._lock.acquire(blocking=False)

    def lent(self, call: Callable[[], T]) -> T:
        """Inside of the ``with``: what a call of the user's code answers, which may use the client meanwhile."""
        try:
            self._lock.release()
            return call()
        finally:
            self._lock.acquire()


def _after_fork_in_child() -> None:
    for guard in list(_alive):
        guard._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
