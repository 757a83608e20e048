"""The promise of a delivery: one outcome per batch, one light handle per record.

A batch resolves once, in the sender's thread, and every record's :class:`Delivery` reads from it: no lock,
event or callback list exists per record.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from threading import Lock, local
from typing import NamedTuple

from raylog.client.latch import Latch
from raylog.client.results import RecordMetadata
from raylog.protocol.errors import InvalidRequest, RaylogError
from raylog.protocol.logs import Logger

log = Logger(__name__)


_thread = local()


def delivers_here() -> None:
    """From now on this thread resolves outcomes and runs their callbacks: who waits in it, waits for himself."""
    _thread.delivers = True


def is_delivering() -> bool:
    """Whether this is such a thread."""
    return getattr(_thread, "delivers", False)


def refuse_to_wait(what: str) -> None:
    """Raises InvalidRequest in a delivery callback, where ``what`` would wait for ever."""
    if is_delivering():
        raise InvalidRequest(f"{what} in a delivery callback, whose thread is the one that delivers; do it elsewhere")


class BatchOutcome:
    """What became of one batch. Exactly one of :meth:`succeed`, :meth:`fail` and :meth:`split` is called, exactly
    once."""

    __slots__ = (
        "_callbacks",
        "_done",
        "_known",
        "_lock",
        "_parts",
        "_whole",
        "append_time",
        "base_offset",
        "error",
        "partition",
        "topic",
    )

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.base_offset = -1
        self.append_time = -1
        self.error: RaylogError | None = None
        self._done = False
        self._known: Latch | None = None
        self._lock = Lock()
        self._callbacks: list[Callable[[], None]] = []
        self._parts: Sequence[tuple[int, BatchOutcome]] = ()
        self._whole: BatchOutcome | None = None

    @property
    def done(self) -> bool:
        return self._done

    @property
    def whole(self) -> BatchOutcome:
        """Of the batch that this one is a part of, or itself."""
        return self._whole or self

    def succeed(self, base_offset: int, append_time: int = -1) -> None:
        """The batch begins at ``base_offset`` (-1: unknown); ``append_time`` is the broker's time or -1."""
        self._resolve(base_offset, append_time, None)

    def fail(self, error: RaylogError) -> None:
        """The batch was not delivered, or nobody knows whether it was."""
        self._resolve(-1, -1, error)

    def split(self, counts: Sequence[int]) -> list[BatchOutcome]:
        """The outcomes of the batches of so many records each that go in place of this one, which was too large.

        This one is known once all of them are; its error is the first one's that failed.
        """
        parts = [BatchOutcome(self.topic, self.partition) for _ in counts]
        self._parts = tuple(zip(counts, parts, strict=True))
        for part in parts:
            part._whole = self.whole
            part.on_done(self._take_part)
        return parts

    def _take_part(self) -> None:
        parts = [part for _, part in self._parts]
        if all(part.done for part in parts):
            error = next((part.error for part in parts if part.error is not None), None)
            self._resolve(parts[0].base_offset, parts[0].append_time, error)

    def of_record(self, index: int) -> tuple[BatchOutcome, int]:
        """The outcome of the batch that the record went with in the end, and its place there."""
        for count, part in self._parts:
            if index < count:
                return part.of_record(index)
            index -= count
        return self, index

    def batches(self, count: int) -> Iterator[tuple[BatchOutcome, int]]:
        """The batches in which these ``count`` records went in the end, and how many in each."""
        if not self._parts:
            yield self, count
        for of_part, part in self._parts:
            yield from part.batches(of_part)

    def _resolve(self, base_offset: int, append_time: int, error: RaylogError | None) -> None:
        with self._lock:
            if self._done:
                raise RuntimeError(f"the outcome of a batch for {self.topic}-{self.partition} is already known")
            self.base_offset = base_offset
            self.append_time = append_time
            self.error = error
            self._done = True
            callbacks, self._callbacks = self._callbacks, []
            known = self._known
        if known is not None:
            known.set()
        for callback in callbacks:
            self._call(callback)

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except BaseException as error:
            if not isinstance(error, Exception) and not is_delivering():
                raise  # it is to end the thread of the user's that this is
            log.exception("a delivery callback for %s-%d raised", self.topic, self.partition)

    def wait(self, timeout_s: float | None) -> None:
        """Return once the outcome is known; TimeoutError after ``timeout_s``."""
        if self._done:
            return
        refuse_to_wait(f"waiting for a batch to {self.topic}-{self.partition}")
        with self._lock:
            if self.done:
                return
            if self._known is None:
                self._known = Latch()
            known = self._known
        if not known.wait(timeout_s):
            raise TimeoutError(f"no answer for a batch to {self.topic}-{self.partition} within {timeout_s} s")

    def on_done(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the outcome is known: in the sender's thread, or here and now."""
        with self._lock:
            if not self._done:
                self._callbacks.append(callback)
                return
        self._call(callback)


class Delivery:
    """One record's delivery, as a future: it resolves exactly once."""

    __slots__ = ("_index", "_outcome", "_timestamp")

    def __init__(self, outcome: BatchOutcome, index: int, timestamp: int) -> None:
        self._outcome = outcome
        self._index = index
        self._timestamp = timestamp

    def done(self) -> bool:
        """True when the record was delivered or has failed."""
        return self._outcome.done

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Where the record landed. Raises the delivery's error, or TimeoutError after ``timeout_s``."""
        self._outcome.wait(timeout_s)
        error, landed = self.settled()
        if error is not None:
            raise error
        return landed

    def settled(self) -> tuple[RaylogError | None, RecordMetadata]:
        """Once :meth:`done`: why it failed, or None, and where the record landed, or was to."""
        outcome, index = self._outcome.of_record(self._index)
        offset = outcome.base_offset + index if outcome.base_offset >= 0 else -1
        timestamp = outcome.append_time if outcome.append_time >= 0 else self._timestamp
        return outcome.error, RecordMetadata(outcome.topic, outcome.partition, offset, timestamp)

    def exception(self, timeout_s: float | None = None) -> RaylogError | None:
        """Why the delivery failed, or None when it succeeded; TimeoutError after ``timeout_s``."""
        self._outcome.wait(timeout_s)
        return self._outcome.of_record(self._index)[0].error

    def add_done_callback(self, callback: Callable[[Delivery], None]) -> None:
        """Call ``callback(self)`` once, when the outcome is known.

        It runs in the producer's sender thread, or here when the outcome is known: it must be quick and must not
        wait. It may send, as long as there is room. An Exception that it raises is logged; anything else, as
        KeyboardInterrupt, is logged in the sender's thread and raised here.
        """
        self._outcome.on_done(lambda: callback(self))


class Landed(NamedTuple):
    """Rows that went into one batch: in their order, at ``offset`` and up (-1 when the broker didn't say)."""

    topic: str
    partition: int
    offset: int
    record_count: int


class BatchDelivery:
    """The delivery of all rows of one ``send_batch``, as a future."""

    __slots__ = ("_outcomes",)

    def __init__(self) -> None:
        self._outcomes: list[tuple[BatchOutcome, int]] = []

    def add(self, outcome: BatchOutcome, count: int) -> None:
        """``count`` rows more depend on ``outcome``."""
        self._outcomes.append((outcome, count))

    def __len__(self) -> int:
        """How many rows."""
        return sum(count for _, count in self._outcomes)

    def done(self) -> bool:
        """True when every row was delivered or has failed."""
        return all(outcome.done for outcome, _ in self._outcomes)

    def result(self, timeout_s: float | None = None) -> list[Landed]:
        """Where the rows landed. Raises the first error, or TimeoutError after ``timeout_s``."""
        error = self.exception(timeout_s)
        if error is not None:
            raise error
        return self.landed()

    def landed(self) -> list[Landed]:
        """Once :meth:`done`: where the rows landed; those that failed have no offset."""
        return [
            Landed(outcome.topic, outcome.partition, outcome.base_offset, count) for outcome, count in self._batches()
        ]

    def on_done(self, callback: Callable[[RaylogError | None], None]) -> None:
        """Call ``callback`` with the first error, or None, once every row is settled: in the sender's thread, or here
        and now."""
        settled, total = itertools.count(1), len(self._outcomes)

        def one_more() -> None:
            if next(settled) >= total:
                callback(self._error())

        for outcome, _ in self._outcomes:
            outcome.on_done(one_more)
        if not total:
            one_more()

    def exception(self, timeout_s: float | None = None) -> RaylogError | None:
        """Why some rows were not delivered: the first error, or None. TimeoutError after ``timeout_s``."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for outcome, _ in self._outcomes:
            outcome.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return self._error()

    def _error(self) -> RaylogError | None:
        return next((outcome.error for outcome, _ in self._outcomes if outcome.error is not None), None)

    def failed(self) -> int:
        """How many rows are known to have failed; the others were delivered, or are under way."""
        return sum(count for outcome, count in self._batches() if outcome.done and outcome.error is not None)

    def _batches(self) -> Iterator[tuple[BatchOutcome, int]]:
        for outcome, count in self._outcomes:
            yield from outcome.batches(count)


class Deliveries:
    """The deliveries of one task, of which only those are kept that are not known to be there."""

    def __init__(self) -> None:
        self._awaited: deque[BatchDelivery] = deque()
        self.delivered = 0
        """How many rows are known to be there."""

    def add(self, delivery: BatchDelivery) -> None:
        """Raises the error of what was added before and is known to have failed: nothing more needs to be sent."""
        self._awaited.append(delivery)
        while self._awaited and self._awaited[0].done():
            self._settle_first()

    def finish(self) -> None:
        """Wait for all, and raise the first error; producers bound that by ``delivery.timeout.ms``."""
        while self._awaited:
            self._settle_first()

    def _settle_first(self) -> None:
        first = self._awaited.popleft()
        first.result()
        self.delivered += len(first)
