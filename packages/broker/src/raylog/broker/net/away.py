"""Work for a source that may wait, for a disk or the metadata store: another thread does it while the loop goes on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from raylog.broker.net.loop import EventLoop
from raylog.broker.net.source import Source
from raylog.broker.net.threads import Threads

__all__ = ["Away"]

Work = Callable[[], Callable[[], None]]
"""What it answers is called in the loop once the source has come back."""


class Away:
    """The work of one source, which is away meanwhile. It does not keep the source, which has it."""

    def __init__(self, loop: EventLoop, threads: Threads) -> None:
        self._loop = loop
        self._threads = threads
        self._come: Callable[[], None] | None = None

    def go(self, source: Source, work: Work) -> None:
        """Do ``work`` for ``source`` in another thread. Raises OSError when there is none."""
        self._loop.leave(source)
        try:
            self._threads.run(partial(self._do, source, work))
        except RuntimeError as error:
            self._loop.come_back(source)
            raise OSError(f"the broker has no thread for this client: {error}") from error

    def came_back(self) -> bool:
        """Go on with what the work answered, or raise what it raised; False when there is nothing of that."""
        come, self._come = self._come, None
        if come is None:
            return False
        come()
        return True

    def _do(self, source: Source, work: Work) -> None:
        try:
            self._come = work()
        except Exception as error:  # noqa: BLE001 (the loop tells of it)
            self._come = partial(_raise, error)
        finally:
            self._loop.come_back(source)


def _raise(error: Exception) -> None:
    raise error
