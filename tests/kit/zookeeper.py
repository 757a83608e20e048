"""A ZooKeeper server of a test's own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kit import process_logs, quick_zookeeper
from raylog.coordination.zookeeper.embedded import EmbeddedZooKeeper


@contextmanager
def running_zookeeper(data_dir: Path) -> Iterator[EmbeddedZooKeeper]:
    """It serves; at the end it is stopped, also where the test has left it with SIGSTOP."""
    server = EmbeddedZooKeeper(data_dir)
    process_logs.watch(data_dir, "*.log")
    try:
        quick_zookeeper.start(server)
        yield server
    finally:
        process_logs.forget(data_dir)
        for process in filter(None, (server.jvm, server.owner)):
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
        server.stop()
