"""A disk on which every durable operation takes 50 ms, and locks that tell how long that kept others waiting.

:class:`SlowDisk` does not wait: it counts the time per thread, and :class:`MeasuredLock` takes the difference. So what
is measured is the disk's time under a lock, whatever else the machine does.
"""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Protocol

from kit.faulty_files import FailingFileSystem, Fault
from kit.machine import scaled
from raylog.broker.storage.disk.checkpoint import LOG_STARTS
from raylog.broker.storage.disk.files import FileSystem

__all__ = ["MeasuredLock", "SlowDisk", "StartWrites", "StuckDisk"]

OPERATION_MS = 50
SLOW = frozenset({"fdatasync", "fsync_dir", "unlink", "rename", "truncate", "remove_dir"})


class SlowDisk(FailingFileSystem):
    """See the module."""

    def __init__(self, inner: FileSystem) -> None:
        super().__init__(inner)
        self._spent = threading.local()

    @property
    def spent_ms(self) -> int:
        """The disk's time that the calling thread has used."""
        return getattr(self._spent, "ms", 0)

    def meet(self, operation: str, path: Path) -> Fault | None:
        if operation in SLOW:
            self._spent.ms = self.spent_ms + OPERATION_MS
        return super().meet(operation, path)


class StuckDisk(FailingFileSystem):
    """A disk on which one operation waits until :attr:`gate` is set; :attr:`met`: somebody has come to it."""

    def __init__(self, inner: FileSystem) -> None:
        super().__init__(inner)
        self.operation = ""
        self.met = threading.Event()
        self.gate = threading.Event()

    def stick(self, operation: str) -> None:
        """From now on."""
        self.met.clear()
        self.gate.clear()
        self.operation = operation
        self.is_cached = operation != "pread"

    def meet(self, operation: str, path: Path) -> Fault | None:
        if operation == self.operation:
            self.met.set()
            assert self.gate.wait(scaled(60)), "the test does not go on"
        return super().meet(operation, path)


class StartWrites(FailingFileSystem):
    """Counts how often the log starts of a directory are made durable."""

    count = 0

    def rename(self, old: Path, new: Path) -> None:
        self.count += new.name == LOG_STARTS
        super().rename(old, new)


class Lock(Protocol):
    """What is common to Lock and RLock."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...


class MeasuredLock:
    """A lock, perhaps reentrant, that counts the longest time that a holder spent waiting for the disk."""

    def __init__(self, inner: Lock, disk: SlowDisk) -> None:
        self.longest_ms = 0
        self._inner = inner
        self._disk = disk
        self._depth = 0
        self._since = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        got = self._inner.acquire(blocking, timeout)
        if got:
            if self._depth == 0:
                self._since = self._disk.spent_ms
            self._depth += 1
        return got

    def release(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.longest_ms = max(self.longest_ms, self._disk.spent_ms - self._since)
        self._inner.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.release()
