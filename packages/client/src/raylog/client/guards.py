"""What a client refuses because it would break silently: a copy made by fork, and two users at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from types import TracebackType
from weakref import WeakSet

from raylog.protocol.errors import RaylogError

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
    """``with guard:`` around what only one thread, or one task, may do at a time."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = Lock()

    @property
    def is_in(self) -> bool:
        """Whether somebody uses it now."""
        return self._lock.locked()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise RaylogError(
                f"this {self._what} is in use by another thread or task; it is for one at a time: make one for each"
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def give_up(self) -> None:
        """Inside ``with guard:``, before awaiting the user's code; :meth:`take_again` behind it."""
        self._lock.release()

    def take_again(self) -> bool:
        """False while another uses it."""
        return self._lock.acquire(blocking=False)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Inside ``with guard:`` around a call of the user's code, which may use the client meanwhile."""
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()


def _after_fork_in_child() -> None:
    for guard in list(_alive):
        guard._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
