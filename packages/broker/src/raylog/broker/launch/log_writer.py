"""The log of a broker's process, written by a thread of its own: a file or a pipe that hangs keeps no other thread.

Lines that come faster than they can be written wait. Where too many do, the next ones are dropped, and how many is told
with the first line that is written again.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Sequence
from logging.handlers import QueueHandler

from raylog.coordination.host.loops import Loops

__all__ = ["FLUSH_S", "MOST_WAITING", "LogWriter"]

MOST_WAITING = 10_000
"""Lines: some 3 MB."""
FLUSH_S = 1.0
"""So long an end waits for what is not written yet."""


class LogWriter(QueueHandler):
    """The one handler of the root logger, before those that write."""

    def __init__(self, handlers: Sequence[logging.Handler]) -> None:
        """``handlers`` write; what is logged before :meth:`start` waits for that."""
        self._lines: queue.Queue[logging.LogRecord] = queue.Queue(MOST_WAITING)
        super().__init__(self._lines)
        self._handlers = tuple(handlers)
        self._dropped = 0

    def start(self, loops: Loops) -> None:
        """Begin to write."""
        loops.loop("log", self._turn, vital=False).start()

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self._lines.put_nowait(record)
        except queue.Full:
            self._dropped += 1

    def flush(self) -> None:
        """Wait until all is written, up to FLUSH_S."""
        lines = self._lines
        with lines.all_tasks_done:
            lines.all_tasks_done.wait_for(lambda: not lines.unfinished_tasks, FLUSH_S)

    def _turn(self) -> bool:
        record = self._lines.get()
        try:
            self._write(record)
            if dropped := self._dropped:
                self._dropped -= dropped
                self._write(_dropped(dropped))
        finally:
            self._lines.task_done()
        return True

    def _write(self, record: logging.LogRecord) -> None:
        for handler in self._handlers:
            handler.handle(record)


def _dropped(lines: int) -> logging.LogRecord:
    text = f'log lines dropped lines={lines} reason="they could not be written as fast as they came"'
    return logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, (), None)
