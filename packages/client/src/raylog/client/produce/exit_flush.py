"""Producers that nobody closed are closed when their process ends, so that a script that only sends loses nothing.

All of a process share one bound. What could not be sent by then is told to the log, by partition. It runs when the
interpreter ends, after Python has waited for threads that are no daemons; also in children made by fork, for the
producers that were made in them. A process that is killed, or ends by ``os._exit``, loses what was not flushed.
"""

from __future__ import annotations

import atexit
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.util import Finalize
from typing import Protocol

from raylog.client.batches.accumulator import Batch
from raylog.client.delivery import BatchOutcome
from raylog.protocol.logs import Logger

__all__ = ["EXIT_FLUSH_S", "KEPT", "STOP_S", "Unclosed", "close_all", "forget", "remember"]

log = Logger(__name__)

EXIT_FLUSH_S = 30.0
"""How long the end of a process waits at most for records to be delivered, by all its producers together."""
STOP_S = 1.0
"""How long a producer's thread may take to end, once all is settled or the time is over: it has to fail the rest."""
KEPT = (
    "a producer's thread did not end in time: a delivery callback or an interceptor keeps it, and those behind it may "
    "never be called; they must not wait"
)


class Unclosed(Protocol):
    """A producer, as it is closed here."""

    def hurry(self) -> Sequence[Batch[BatchOutcome]]:
        """Let everything be sent now; the batches that are not settled."""

    def close_at_exit(self, timeout_s: float) -> None:
        """Wait at most so long until these are settled, and close; what is not settled fails."""


_unclosed: dict[int, Unclosed] = {}
_hooked_pid = 0


def remember(producer: Unclosed) -> None:
    """Close it at the end of the process, unless :func:`forget` is called before."""
    global _hooked_pid
    if _hooked_pid != os.getpid():
        _hooked_pid = os.getpid()
        atexit.register(close_all)
        # A child that multiprocessing forked runs its finalizers, and no others; the priority: before its own.
        Finalize(None, close_all, exitpriority=1_000)
    _unclosed[id(producer)] = producer


def forget(producer: Unclosed) -> None:
    """It is closed."""
    _unclosed.pop(id(producer), None)


class _Wait:
    """For how long all of them are waited for: no longer once an interrupt came."""

    def __init__(self, timeout_s: float) -> None:
        self._deadline_s = time.monotonic() + timeout_s
        self.limit = f"within {timeout_s:g} s"
        self.interrupt: BaseException | None = None

    def left_s(self) -> float:
        return max(0.0, self._deadline_s - time.monotonic())

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Around what is done for one producer: the others have their turn, whatever it raises."""
        try:
            yield
        except Exception:
            log.exception("a producer could not be closed at the end of the process")
        except BaseException as error:  # noqa: BLE001 (close_all raises it)
            self.interrupt, self._deadline_s, self.limit = error, 0.0, "before it was interrupted"


def close_all(timeout_s: float = EXIT_FLUSH_S) -> None:
    """Flush and close all producers that are not closed, and tell what was not delivered.

    Interrupted (by Ctrl-C, say), it waits no longer, and raises that once all is told.
    """
    wait = _Wait(timeout_s)
    waiting: dict[Unclosed, Sequence[Batch[BatchOutcome]] | None] = dict.fromkeys(_unclosed.values())
    for producer in waiting:
        with wait.going_on():
            waiting[producer] = producer.hurry()
    for producer, batches in waiting.items():
        unsettled = batches or ()
        with wait.going_on():
            if batches is None:  # an interrupt came
                unsettled = producer.hurry()
            producer.close_at_exit(wait.left_s())
        forget(producer)
        _tell_lost(unsettled, wait.limit)
    if wait.interrupt is not None:
        raise wait.interrupt


def _tell_lost(batches: Sequence[Batch[BatchOutcome]], limit: str) -> None:
    lost: Counter[str] = Counter()
    reasons: dict[str, None] = {}
    for batch in batches:
        for outcome, count in batch.outcome.batches(batch.count):
            if not outcome.done or outcome.error is not None:
                lost[str(batch.tp)] += count
                reasons[str(batch.last_error or outcome.error or "no answer came")] = None
    if lost:
        log.error(
            "the process ends, and %d records were not delivered %s: %s (%s); close() or flush() producers "
            "and look at the deliveries",
            lost.total(),
            limit,
            ", ".join(f"{tp}: {count}" for tp, count in sorted(lost.items())),
            "; ".join(reasons),
        )


os.register_at_fork(after_in_child=_unclosed.clear)
