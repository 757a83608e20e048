"""What a Spark task does: fetch one range of one partition and hand out Arrow batches.

Runs in executors' Python workers, and so imports neither pyspark nor Ray.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from raylog.client.consumer import Consumer
from raylog.protocol.errors import OffsetOutOfRange, RequestTimedOut
from raylog.spark.columns import RangeDecoder
from raylog.spark.offsets import DataLoss, OffsetRange

POLL_TIMEOUT_MS = 1_000
STALL_TIMEOUT_S = 120.0
"""A task that gets nothing for so long fails, and Spark tries it again elsewhere."""

LOSS_HINT = (
    "they were deleted by retention or with the topic; read with startingOffsets that the log still has, "
    "or accept the loss with failOnDataLoss=False"
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """All that a task needs to know; it travels to executors pickled."""

    bootstrap_servers: str
    pieces: Sequence[OffsetRange]
    """One per Spark partition."""
    columns: Sequence[str]
    fail_on_data_loss: bool
    consumer: Mapping[str, Any]
    """Settings for the consumer, with underscores."""


def read_pieces(plan: ReadPlan, numbered: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The records of the pieces whose numbers are in the first column of ``numbered``."""
    for numbers in numbered:
        for number in numbers.column(0).to_pylist():
            yield from read_piece(plan, plan.pieces[number])


def read_piece(plan: ReadPlan, piece: OffsetRange) -> Iterator[pa.RecordBatch]:
    """Arrow batches with the piece's records, in order.

    Raises DataLoss when the log has lost a part of it, unless the plan accepts that, and RequestTimedOut when
    its leader does not answer for STALL_TIMEOUT_S seconds.
    """
    decoder = RangeDecoder(piece, plan.columns)
    with Consumer(plan.bootstrap_servers, auto_offset_reset="none", **plan.consumer) as consumer:
        consumer.assign([piece.tp])
        consumer.seek(*piece.tp, decoder.position)
        deadline = time.monotonic() + STALL_TIMEOUT_S
        while not decoder.done:
            before = decoder.position
            try:
                for fetched in consumer.poll_batches(timeout_ms=POLL_TIMEOUT_MS).values():
                    yield from decoder.feed(fetched)
            except OffsetOutOfRange as error:
                _skip_lost(plan, consumer, decoder, error)
            if decoder.position > before:
                deadline = time.monotonic() + STALL_TIMEOUT_S
            elif time.monotonic() >= deadline:
                raise RequestTimedOut(
                    f"{piece.tp}: nothing came from offset {decoder.position} on within "
                    f"{STALL_TIMEOUT_S:g} s: is its leader up? (`raylog status`)"
                )
            elif not decoder.done:
                _check_end(plan, consumer, decoder)


def _skip_lost(plan: ReadPlan, consumer: Consumer, decoder: RangeDecoder, error: OffsetOutOfRange) -> None:
    """The position is outside the log: go on where the log begins, or raise DataLoss."""
    tp, position = decoder.piece.tp, decoder.position
    first = consumer.beginning_offsets([tp])[tp]
    message = f"{tp}: offsets {position} to {min(first, decoder.piece.end) - 1} are gone"
    if first <= position:
        message = f"{tp}: offset {position} and what follows are gone"
        first = decoder.piece.end
    if plan.fail_on_data_loss:
        raise DataLoss(f"{message}: {LOSS_HINT}") from error
    log.warning("%s; failOnDataLoss is false, so they are left out", message)
    decoder.position = min(first, decoder.piece.end)
    if not decoder.done:
        consumer.seek(*tp, decoder.position)


def _check_end(plan: ReadPlan, consumer: Consumer, decoder: RangeDecoder) -> None:
    """Nothing came: when the log ends before the piece does, nothing ever will."""
    tp, piece = decoder.piece.tp, decoder.piece
    end = consumer.end_offsets([tp])[tp]
    if end >= piece.end:
        return
    message = f"{tp}: the log ends at offset {end}, and offsets {max(end, decoder.position)} to {piece.end - 1}"
    if plan.fail_on_data_loss:
        raise DataLoss(f"{message} are gone: {LOSS_HINT}")
    log.warning("%s are gone; failOnDataLoss is false, so they are left out", message)
    decoder.position = piece.end
