"""Whether a log directory's disk can be trusted.

The first OSError takes the directory offline for good: after a failed fsync the kernel may have dropped the
unsynced pages and marked them clean, so a second fsync would claim what is not true. Everything in the directory
raises StorageError from then on, and nothing in it is acknowledged any more, until the broker restarts and recovers
from what is really on the disk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from raylog.broker.events import EventLog
from raylog.protocol.errors import StorageError

log = EventLog(__name__)


class Health:
    """One directory's state; shared by its logs, safe for all threads."""

    def __init__(self, path: Path, on_failure: Callable[[], None] = lambda: None) -> None:
        """``on_failure`` is called once, by any thread, perhaps under a log's lock: it must only take note."""
        self.path = path
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._failure = ""

    @property
    def failure(self) -> str:
        """Why the directory is offline; empty while it is usable."""
        return self._failure

    def check(self) -> None:
        """Raise StorageError when the directory is offline."""
        if self._failure:
            raise StorageError(self._failure)

    def fail(self, error: OSError, doing: str) -> StorageError:
        """Take the directory offline; answers the error to raise. The first failure is the one that is told."""
        with self._lock:
            if not self._failure:
                self._failure = (
                    f"log directory {self.path} is offline: {doing} failed ({error.strerror or error}); "
                    "repair or replace the disk and restart the broker"
                )
                log.error("log directory offline", path=self.path, doing=doing, reason=error)
                self._on_failure()
        return StorageError(self._failure)

    @contextmanager
    def guard(self, doing: str) -> Iterator[None]:
        """Do file work: refused when the directory is offline; an OSError takes it offline (StorageError)."""
        self.check()
        try:
            yield
        except OSError as error:
            raise self.fail(error, doing) from error
