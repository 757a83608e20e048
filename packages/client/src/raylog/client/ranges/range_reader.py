"""Reads one range of offsets of one partition as Arrow batches: what a task of Spark or Ray Data does.

It runs in executors and workers, and so imports neither pyspark nor Ray.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from raylog.client.batches.decode import body_of, decode_columns, schema_of
from raylog.client.consumer import Consumer
from raylog.client.ranges.offset_ranges import DataLoss, OffsetRange
from raylog.client.read_errors import LogTruncated, unreadable
from raylog.protocol.batches.compression import Buffer
from raylog.protocol.batches.header import BatchHeader
from raylog.protocol.errors import OffsetOutOfRange, RaylogError, RequestTimedOut, UnknownTopicOrPartition
from raylog.protocol.ids import NO_TOPIC_ID, Offset, TopicId, TopicName, TopicPartition
from raylog.protocol.logs import Logger
from raylog.protocol.records import Batches

POLL_TIMEOUT_MS = 1_000
STALL_TIMEOUT_S = 120.0
"""A read that gets nothing for so long fails, and who planned it tries again elsewhere."""

PORTION_BYTES = 4 << 20
"""Decompressed bytes after which an Arrow batch is handed out: enough to spread its fixed costs, little to hold."""

FETCHING = {"max_partition_fetch_bytes": 4 << 20}
"""Consumer settings that suit one partition per consumer, where nobody sets others."""

LOSS_HINT = (
    "they were deleted by retention or with the topic; start from offsets that the log still has, "
    "or accept the loss with failOnDataLoss=False (fail_on_data_loss outside Spark)"
)

log = Logger(__name__)


@dataclass(frozen=True, slots=True)
class RangeReading:
    """How ranges are read, the same for all of them; it travels to tasks pickled."""

    bootstrap_servers: str
    columns: Sequence[str] | None = None
    """Names of ``raylog.client.batches.decode.SCHEMA``, in the wanted order; None: all."""
    fail_on_data_loss: bool = True
    """False: what is lost is warned of and left out."""
    consumer: Mapping[str, Any] = field(default_factory=dict)
    """Settings for the consumer, with underscores."""
    topic_ids: Mapping[TopicName, TopicId] = field(default_factory=dict)
    """The topics that were planned for: one of the same name that was created since is a loss."""


def read_range(reading: RangeReading, piece: OffsetRange) -> Iterator[pa.RecordBatch]:
    """The piece's records in order, in non-empty batches with the columns of ``reading``.

    It ends by position: the last offsets may be control records, or compacted away. Raises DataLoss when the log has
    lost a part of it, unless ``reading`` accepts that; RequestTimedOut when its leader does not answer for
    STALL_TIMEOUT_S seconds; CorruptBatch after what comes before the damage.
    """
    schema = schema_of(reading.columns)
    with Consumer(reading.bootstrap_servers, auto_offset_reset="none", **{**FETCHING, **reading.consumer}) as consumer:
        consumer.assign([piece.tp])
        position = _Position(reading, piece, consumer)
        deadline = time.monotonic() + STALL_TIMEOUT_S
        while not position.done:
            before = position.offset
            try:
                polled = consumer.poll_batches(timeout_ms=POLL_TIMEOUT_MS)
                position.check_topic()
                for fetched in polled.values():
                    yield from decode_range(piece, fetched, schema)
                    position.offset = fetched.next_offset
            except (OffsetOutOfRange, UnknownTopicOrPartition) as error:
                position.skip_lost(error)
            if position.offset > before:
                deadline = time.monotonic() + STALL_TIMEOUT_S
            elif time.monotonic() >= deadline:
                raise RequestTimedOut(
                    f"{piece.tp}: nothing came from offset {position.offset} on within "
                    f"{STALL_TIMEOUT_S:g} s: is its leader up? (`raylog status`)"
                )
            elif not position.done:
                position.check_end()


def decode_range(piece: OffsetRange, fetched: Batches, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The records of ``piece`` in what a consumer fetched, from its ``from_offset`` on, in non-empty batches.

    The consumer has checked the checksums. Raises CorruptBatch or UnsupportedCompressionType after what comes before
    the batch.
    """
    start = max(piece.start, fetched.from_offset)
    portion: list[tuple[BatchHeader, Buffer]] = []
    size = 0
    damage: RaylogError | None = None
    for pos, header in fetched.visible():
        if header.base_offset >= piece.end:
            break
        if header.last_offset < start:
            continue
        try:
            body = body_of(fetched.data, pos, header)
        except RaylogError as error:
            damage = unreadable(piece.tp, header, error)
            break
        portion.append((header, body))
        size += len(body)
        if size >= PORTION_BYTES:
            yield from _decode(piece, start, portion, schema)
            portion, size = [], 0
    yield from _decode(piece, start, portion, schema)
    if damage is not None:
        raise damage


def _decode(
    piece: OffsetRange, start: int, portion: Sequence[tuple[BatchHeader, Buffer]], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    if not portion:
        return
    try:
        found = decode_columns(piece.tp, portion, schema, from_offset=start, until_offset=piece.end)
    except RaylogError as error:
        if len(portion) == 1:
            raise unreadable(piece.tp, portion[0][0], error) from error
        for batch in portion:  # which of them is damaged?
            yield from _decode(piece, start, [batch], schema)
        raise
    if len(found):
        yield found


class _Position:
    """How far a range was read, and what is done when the log does not have what follows."""

    def __init__(self, reading: RangeReading, piece: OffsetRange, consumer: Consumer) -> None:
        self.offset: int = piece.start
        self._reading = reading
        self._piece = piece
        self._consumer = consumer
        consumer.seek(*piece.tp, piece.start)

    @property
    def done(self) -> bool:
        """True once nothing of the range can follow."""
        return self.offset >= self._piece.end

    def check_topic(self) -> None:
        """Raises UnknownTopicOrPartition when the topic is another one than was planned for."""
        tp = self._piece.tp
        planned, found = self._reading.topic_ids.get(tp.topic, NO_TOPIC_ID), self._consumer.topic_id(tp.topic)
        if NO_TOPIC_ID not in (planned, found) and planned != found:
            raise UnknownTopicOrPartition(f"{tp}: the topic was deleted, and created again since")

    def skip_lost(self, error: RaylogError) -> None:
        """What the position names is not there: go on behind what is lost. Raises DataLoss where that is not
        accepted."""
        tp, end = self._piece.tp, self._piece.end
        if isinstance(error, UnknownTopicOrPartition):
            self._lose(f"{error}; offsets {self.offset} to {end - 1}", end, error)
        elif isinstance(error, LogTruncated):
            self._lose(f"{error}; some records before it", self.offset, error)
        elif (first := self._ask(self._consumer.beginning_offsets)) is not None:
            if first > self.offset:
                self._lose(f"{tp}: offsets {self.offset} to {min(first, end) - 1}", min(first, end), error)
            else:
                self._lose(f"{tp}: offset {self.offset} and what follows", end, error)

    def check_end(self) -> None:
        """Nothing came: when the log ends before the range does, nothing ever will."""
        tp, end = self._piece.tp, self._piece.end
        log_end = self._ask(self._consumer.end_offsets)
        if log_end is not None and log_end < end:
            lost = f"offsets {max(log_end, self.offset)} to {end - 1}"
            self._lose(f"{tp}: the log ends at offset {log_end}, and {lost}", end, None)

    def _ask(self, where: Callable[[list[TopicPartition]], dict[TopicPartition, int]]) -> int | None:
        """None where a broker does not know the topic: one that just started may not know it yet, and when it is gone
        for good, polling tells."""
        try:
            return where([self._piece.tp])[self._piece.tp]
        except UnknownTopicOrPartition:
            return None

    def _lose(self, what: str, next_offset: int, cause: RaylogError | None) -> None:
        if self._reading.fail_on_data_loss:
            lost = self._piece._replace(start=Offset(self.offset), end=Offset(next_offset))
            raise DataLoss(f"{what} are gone: {LOSS_HINT}", [lost]) from cause
        log.warning("%s are gone; the loss is accepted, so they are left out", what)
        self.offset = next_offset
        if not self.done:
            self._consumer.seek(*self._piece.tp, next_offset)
