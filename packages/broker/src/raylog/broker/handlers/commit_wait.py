"""Waiting until what was appended with acks=all is committed: until the in-sync replicas have it, too.

Partitions are looked at one by one: those of one request may end differently. A wait ends for a partition when its high
watermark has passed the batch in the leader epoch of the append, when the partition lost its leadership or too many of
its replicas, or when the request's time is over; then nobody knows, and the client must ask again (RequestTimedOut).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from raylog.broker.partition import AppendInfo, Partition
from raylog.broker.replication.delayed_operations import DelayedOperation, DelayedOperations
from raylog.protocol.errors import RaylogError, RequestTimedOut
from raylog.protocol.ids import Offset

__all__ = ["Appended", "CommitWait"]


class Appended(NamedTuple):
    """An append that must be committed before it is acknowledged."""

    partition: Partition
    info: AppendInfo


class CommitWait:
    """The wait of one request. One thread uses it."""

    def __init__(self, produces: DelayedOperations, appended: Sequence[Appended], timeout_ms: int) -> None:
        """``timeout_ms`` counts from now."""
        self._produces = produces
        self._deadline = time.monotonic() + max(timeout_ms, 0) / 1000
        self._timeout_ms = timeout_ms
        self._pending = dict(enumerate(appended))
        self.errors: dict[int, RaylogError] = {}
        """Why those of ``appended`` must not be acknowledged that are in here, by their number."""
        self._operation: DelayedOperation | None = None
        self._gate = threading.Lock()
        """Open once there is something new to see. One for each time of arming: a wake-up may come late."""
        self._settle()
        if self._pending:
            self._arm()

    def is_over(self) -> bool:
        """True when every partition's wait has ended, without waiting."""
        return self.wait(0)

    def wait(self, timeout_s: float) -> bool:
        """:meth:`is_over`, after waiting up to ``timeout_s`` for news; there may be some, and the wait goes on."""
        if self._pending:
            until = min(time.monotonic() + timeout_s, self._deadline)
            if self._gate.acquire(timeout=max(until - time.monotonic(), 0)):
                self._arm()
            elif until == self._deadline:
                self._time_out()
        return not self._pending

    def abandon(self) -> None:
        """Nobody waits any more."""
        self._pending.clear()
        self._disarm()

    def _arm(self) -> None:
        """Look again, and have the gate opened when there is something new to see.

        A partition that was settled just before it was waited for is waited for in vain: then anew without it.
        """
        armed = -1
        while self._pending and armed != len(self._pending):
            self._disarm()
            self._gate = gate = threading.Lock()
            gate.acquire()
            armed = len(self._pending)
            waiting = self._pending.values()
            required = {each.partition.tp: Offset(each.info.last_offset + 1) for each in waiting}
            self._operation = self._produces.arm(required, gate.release)
            self._settle()
        if not self._pending:
            self._disarm()

    def _disarm(self) -> None:
        operation, self._operation = self._operation, None
        if operation is not None:
            self._produces.remove(operation)

    def _settle(self) -> None:
        for number, (partition, info) in list(self._pending.items()):
            try:
                if not partition.check_committed(info):
                    continue
            except RaylogError as error:
                self.errors[number] = error
            del self._pending[number]

    def _time_out(self) -> None:
        self._settle()  # it is woken only when all are committed: some may be, and none of those has timed out
        for number, (partition, info) in self._pending.items():
            self.errors[number] = RequestTimedOut(
                f"{partition.tp}: appended up to offset {info.last_offset}, but the in-sync replicas did not have it "
                f"within {self._timeout_ms} ms; it may be committed later"
            )
        self.abandon()
