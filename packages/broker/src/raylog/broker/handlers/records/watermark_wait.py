"""Waiting until the watermarks of partitions have passed what a request did.

Partitions are looked at one by one: those of one request may end differently.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from raylog.broker.handlers.awaited import Awaited, News, Wake
from raylog.broker.replication.delayed_operations import DelayedOperation, DelayedOperations
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import Offset, TopicPartition

__all__ = ["WatermarkWait"]

T = TypeVar("T")


class WatermarkWait(Awaited, Generic[T]):
    """The wait of one request. One thread uses it."""

    def __init__(self, table: DelayedOperations, waiting: Sequence[T], timeout_ms: int) -> None:
        """``timeout_ms`` counts from now."""
        self._table = table
        self._deadline_s = time.monotonic() + max(timeout_ms, 0) / 1000
        self._pending = dict(enumerate(waiting))
        self.errors: dict[int, RaylogError] = {}
        """What is to be answered for those of ``waiting`` that did not end well, by their number."""
        self._operation: DelayedOperation | None = None
        self._news = News()
        self._settle()
        if self._pending:
            self._arm()

    @abstractmethod
    def required(self, each: T) -> tuple[TopicPartition, Offset]:
        """The watermark that it waits for."""

    @abstractmethod
    def is_done(self, each: T) -> bool:
        """Whether its wait is over; raises what is to be answered when it did not end well."""

    @abstractmethod
    def late(self, each: T) -> RaylogError:
        """What is to be answered when the time is over."""

    @property
    def deadline_s(self) -> float:
        return self._deadline_s

    def is_over(self) -> bool:
        """True when every partition's wait has ended."""
        if self._pending:
            if self._news.take():
                self._arm()
            if self._pending and time.monotonic() >= self._deadline_s:
                self._time_out()
        return not self._pending

    def notify(self, wake: Wake) -> None:
        self._news.notify(wake)

    def abandon(self) -> None:
        """Nobody waits any more."""
        self._pending.clear()
        self._disarm()

    def _arm(self) -> None:
        """Look again, and be told when there is something new to see.

        A partition that was settled just before it was waited for is waited for in vain: then anew without it.
        """
        armed = -1
        while self._pending and armed != len(self._pending):
            self._disarm()
            armed = len(self._pending)
            self._operation = self._table.arm(dict(map(self.required, self._pending.values())), self._news.come)
            self._settle()
        if not self._pending:
            self._disarm()

    def _disarm(self) -> None:
        operation, self._operation = self._operation, None
        if operation is not None:
            self._table.remove(operation)

    def _settle(self) -> None:
        for number, each in self._pending.copy().items():
            try:
                if not self.is_done(each):
                    continue
            except RaylogError as error:
                self.errors[number] = error
            del self._pending[number]

    def _time_out(self) -> None:
        self._settle()  # it is woken only when all are over: some may be, and none of those has timed out
        self.errors.update((number, self.late(each)) for number, each in self._pending.items())
        self.abandon()
