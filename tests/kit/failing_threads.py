"""Clusters in one process whose long-lived threads fail when a test wants it."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from kit.cluster import InProcessCluster
from raylog.broker.events import LoopEvents
from raylog.coordination.host.loops import Loops

__all__ = ["FaultyThreads", "FaultyThreadsCluster", "Injected", "kind_of"]


class Injected(Exception):
    """What no code foresees."""


def kind_of(thread: str) -> str:
    """A thread's name without the broker that it is about."""
    return re.sub(r"-\d+$", "", thread)


class FaultyThreads:
    """Makes threads fail; any thread calls it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._armed: Counter[str] = Counter()
        self._error: type[BaseException] = Injected
        self._only: int | None = None

    def arm(self, kind: str, times: int, error: type[BaseException] = Injected, *, only: int | None = None) -> None:
        """Have the next rounds of threads of that kind raise ``error``; ``only``: in this broker."""
        with self._lock:
            self._armed[kind], self._error, self._only = times, error, only

    def left(self, kind: str) -> int:
        """How many rounds are still to fail."""
        with self._lock:
            return self._armed[kind]

    def before_step(self, broker_id: int, thread: str) -> None:
        """The hook that is handed in (see Loops)."""
        kind = kind_of(thread)
        with self._lock:
            if self._armed[kind] <= 0 or self._only not in (None, broker_id):
                return
            self._armed[kind] -= 1
        raise self._error(f"injected into {thread}")


class FaultyThreadsCluster(InProcessCluster):
    """See the module."""

    def __init__(self, root: Path, faults: FaultyThreads, *, brokers: int, config: Mapping[str, str]) -> None:
        super().__init__(root, brokers=brokers, config=config)
        self.faults = faults
        self.loops: dict[int, Loops] = {}
        """Of each broker, its long-lived threads."""
        self.gone: dict[int, str] = {}
        """Brokers that a thread has gone without which they must not serve, and what was told of it."""

    def _loops_of(self, broker_id: int) -> Loops:
        self.loops[broker_id] = loops = Loops(
            LoopEvents(),
            before_step=partial(self.faults.before_step, broker_id),
            on_gone=partial(self.gone.__setitem__, broker_id),
        )
        return loops
