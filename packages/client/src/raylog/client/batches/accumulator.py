"""◆ Records gather in batches here until they are sent.

A partition has a queue of batches; the last one is open and takes records until it is full. Memory is counted
per batch: opening one reserves ``batch.size`` (or the size of a larger record), and it is given back when
nobody can need the batch any more. Nothing here is thread-safe: the producer calls it under its one lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import IntEnum
from itertools import chain
from typing import Generic, NamedTuple, TypeVar

from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import LeaderEpoch, TopicPartition
from raylog.protocol.records import HEADER_SIZE, Record, decode_batch, frame_batch

O = TypeVar("O")  # noqa: E741
"""What the producer hangs on a batch to tell its records' owners of the outcome."""

RECORD_OVERHEAD = 21
"""Most bytes that a record takes besides key, value and headers: five varints and its attributes."""


def record_size(record: Record) -> int:
    """The most bytes that the record takes in a batch."""
    headers = sum(header_size(name, value) for name, value in record.headers)
    return RECORD_OVERHEAD + len(record.key or b"") + len(record.value or b"") + headers


def header_size(name: str, value: bytes | None) -> int:
    """The most bytes that a header takes: two lengths, a name of UTF-8, a value."""
    return 10 + (len(name) if name.isascii() else len(name.encode())) + len(value or b"")


class EncodedRecords(NamedTuple):
    """The records of one batch to be, in bytes; the batch's header is still to come."""

    partition: int
    body: bytes
    record_count: int
    base_timestamp: int
    max_timestamp: int

    def decoded(self) -> list[Record]:
        """The records, one by one."""
        return decode_batch(frame_batch(*self[1:]), check_crc=False)


class BatchState(IntEnum):
    """QUEUED → IN_FLIGHT ⇄ RETRY → DONE; a queued batch may also expire, which is DONE. What a batch that was too large
    is split into begins in RETRY."""

    QUEUED = 0
    IN_FLIGHT = 1
    RETRY = 2
    DONE = 3


class Batch(Generic[O]):
    """Records for one partition that are sent, retried and resolved together."""

    __slots__ = (
        "abandoned",
        "attempts",
        "created_ms",
        "encoded",
        "full",
        "last_error",
        "leader_epoch",
        "limit",
        "outcome",
        "records",
        "rejected",
        "reserved",
        "sequence",
        "size",
        "state",
        "tp",
    )

    def __init__(self, tp: TopicPartition, outcome: O, limit: int, created_ms: int) -> None:
        self.tp = tp
        self.outcome = outcome
        self.records: list[Record] = []
        self.encoded: EncodedRecords | None = None
        """The records in bytes, in place of :attr:`records`, when they came as columns."""
        self.size = HEADER_SIZE
        """An upper bound of the encoded size, in bytes."""
        self.limit = limit
        self.reserved = limit
        self.created_ms = created_ms
        self.full = False
        self.state = BatchState.QUEUED
        self.attempts = 0
        self.leader_epoch = LeaderEpoch(-1)
        """Of the leader that it was sent to last; -1 before that, and when it isn't known."""
        self.last_error: RaylogError | None = None
        self.sequence = -1
        self.abandoned = False
        """In flight past its delivery timeout: its records have failed, but the answer still counts for
        sequences."""
        self.rejected = False
        """The broker is known not to have it under its present sequence."""

    @property
    def count(self) -> int:
        """How many records it has."""
        return len(self.records) if self.encoded is None else self.encoded.record_count


class Accumulator(Generic[O]):
    """Open and waiting batches of all partitions."""

    def __init__(
        self,
        *,
        batch_size: int,
        linger_ms: int,
        buffer_memory: int,
        new_outcome: Callable[[TopicPartition], O],
    ) -> None:
        self._new_outcome = new_outcome
        self.batch_size = batch_size
        self.linger_ms = linger_ms
        self.free_memory = buffer_memory
        self.buffer_memory = buffer_memory
        self.in_a_hurry = 0
        """How many wait for everything to be sent: flushes, a close, senders blocked on memory."""
        self.incomplete: dict[Batch[O], None] = {}
        """Every batch whose memory is still reserved, oldest first."""
        self.open: dict[TopicPartition, Batch[O]] = {}
        """The batches that take records: ``append`` to these goes on in the producer, which saves a call per
        record."""
        self.waiting: dict[TopicPartition, deque[Batch[O]]] = {}

    def open_batch(self, tp: TopicPartition, size: int, now_ms: int, record: Record) -> Batch[O] | None:
        """A new open batch with ``record``, of ``size`` bytes; the one open before is full. None when memory is used
        up."""
        batch = self._new_batch(tp, size, now_ms)
        if batch is not None:
            batch.records.append(record)
            self._add(batch)
        return batch

    def add_encoded(self, tp: TopicPartition, encoded: EncodedRecords, now_ms: int) -> Batch[O] | None:
        """A full batch of records that are in bytes already; None when memory is used up."""
        batch = self._new_batch(tp, len(encoded.body), now_ms)
        if batch is not None:
            batch.encoded, batch.full = encoded, True
            self._add(batch)
        return batch

    def _new_batch(self, tp: TopicPartition, size: int, now_ms: int) -> Batch[O] | None:
        """To be added once it has its ``size`` bytes of records: an empty one must never be sent."""
        limit = max(self.batch_size, HEADER_SIZE + size)
        if limit > self.free_memory:
            return None
        self.close_batch(tp)
        batch = Batch(tp, self._new_outcome(tp), limit, now_ms)
        batch.size += size
        return batch

    def _add(self, batch: Batch[O]) -> None:
        """All or nothing: an interrupt comes behind a call, and between the changes there is none. A batch that was
        counted and is never sent would keep a flush waiting, and fail the sender once its time is over."""
        queue = self.waiting.get(batch.tp)
        if queue is None:
            queue = deque()
        self.free_memory -= batch.reserved
        self.incomplete[batch] = None
        self.waiting[batch.tp] = queue
        queue += (batch,)
        if not batch.full:
            self.open[batch.tp] = batch

    def close_batch(self, tp: TopicPartition) -> None:
        """Let no more records into the partition's open batch."""
        batch = self.open.pop(tp, None)
        if batch is not None:
            batch.full = True

    def ready(self, tp: TopicPartition, now_ms: int) -> Batch[O] | None:
        """The partition's oldest waiting batch if it is time to send it."""
        queue = self.waiting.get(tp)
        if not queue:
            return None
        batch = queue[0]
        if batch.full or self.in_a_hurry or now_ms >= batch.created_ms + self.linger_ms:
            return batch
        return None

    def take(self, batch: Batch[O]) -> None:
        """``batch``, the oldest of its partition, is about to be sent for the first time."""
        tp = batch.tp
        queue = self.waiting[tp]
        if queue.popleft() is not batch:
            raise RuntimeError(f"{tp}: a batch was about to overtake an older one")
        if self.open.get(tp) is batch:
            self.close_batch(tp)
        del self.waiting[tp]
        if queue:
            self.waiting[tp] = queue  # behind the others: partitions take turns

    def release(self, batch: Batch[O]) -> None:
        """Nobody needs ``batch`` any more: its memory is free."""
        del self.incomplete[batch]
        self.free_memory += batch.reserved

    def split(self, batch: Batch[O], outcomes: Callable[[Sequence[int]], Sequence[O]]) -> list[Batch[O]]:
        """Two batches that go in place of ``batch``, which is in flight and too large: a half of its records each.

        So the same batch is always split in the same way, whoever sends it again. ``outcomes`` gives those of batches
        of so many records.
        """
        records = batch.records if batch.encoded is None else batch.encoded.decoded()
        middle = len(records) // 2
        halves, parts = (records[:middle], records[middle:]), []
        for outcome, some in zip(outcomes([*map(len, halves)]), halves, strict=True):
            part = Batch(batch.tp, outcome, batch.limit, batch.created_ms)
            part.records, part.full, part.state = some, True, BatchState.RETRY
            part.size += sum(map(record_size, some))
            part.leader_epoch, part.last_error = batch.leader_epoch, batch.last_error
            parts.append(part)
        parts[0].reserved = batch.reserved // 2
        parts[1].reserved = batch.reserved - parts[0].reserved
        at_its_place = [parts if other is batch else (other,) for other in self.incomplete]
        self.incomplete = dict.fromkeys(chain.from_iterable(at_its_place))
        return parts

    def older_than(self, deadline_ms: int) -> list[Batch[O]]:
        """Incomplete batches that were opened at ``deadline_ms`` or before, oldest first."""
        found = []
        for batch in self.incomplete:
            if batch.created_ms > deadline_ms:
                break
            found.append(batch)
        return found

    def linger_left_ms(self, tp: TopicPartition, now_ms: int) -> int | None:
        """How long the partition's oldest waiting batch still waits for company; None when there is none."""
        queue = self.waiting.get(tp)
        return queue[0].created_ms + self.linger_ms - now_ms if queue else None

    def clear(self) -> None:
        """Forget all batches."""
        self.open.clear()
        self.waiting.clear()
        self.incomplete.clear()
        self.free_memory = self.buffer_memory
