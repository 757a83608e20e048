"""What the loop serves: a socket with what is to be done about it."""

from __future__ import annotations

from abc import ABC, abstractmethod

__all__ = ["DueTime", "Source"]


class DueTime:
    """When a source is due; without it once that is stale."""

    __slots__ = ("due_s", "source")

    def __init__(self, due_s: float, source: Source) -> None:
        self.due_s = due_s
        self.source: Source | None = source


class Source(ABC):
    """A file descriptor that the loop looks after."""

    away = 0
    """How many threads work for it: the loop leaves it alone. The loop's."""
    is_woken = False
    """The loop's."""
    timer: DueTime | None = None
    """When it is looked at; the loop's."""
    interest = 0
    """What epoll reports of it; the loop's."""

    @property
    def is_away(self) -> bool:
        """Whether another thread works for it."""
        return self.away > 0

    @abstractmethod
    def fileno(self) -> int: ...

    @abstractmethod
    def ready(self, events: int) -> None:
        """epoll reported ``events``."""

    @abstractmethod
    def woken(self) -> None:
        """There may be something new to see: it was woken, it is due, or it has come back."""

    def stuck(self) -> None:
        """It keeps the loop, which goes on without it. Called by another thread than that which is stuck."""
        return

    def loop_ended(self) -> None:
        """The loop is over, and nobody works for this any more: what it has is given back. From any thread."""
        return
