"""◆ Cuts offset ranges into Spark partitions, as Spark's own Kafka source does.

Without options each Kafka partition is one Spark partition. ``minPartitions`` cuts the larger ones further,
in proportion to their sizes: ranges of 900 and 100 offsets with ``minPartitions`` 10 become nine and one.
``maxRecordsPerPartition`` first cuts every range that is longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from raylog.protocol.ids import Offset
from raylog.spark.offsets import OffsetRange


def split(
    ranges: Sequence[OffsetRange], *, min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """``ranges`` in the same order, cut until none is longer than ``max_records`` offsets and there are about
    ``min_partitions``. Each becomes one Spark partition. Raises ValueError for numbers below 1.
    """
    for option, value in (("minPartitions", min_partitions), ("maxRecordsPerPartition", max_records)):
        if value is not None and value < 1:
            raise ValueError(f"{option}={value} must be at least 1")
    pieces = list(ranges)
    if max_records is not None:
        pieces = [part for piece in pieces for part in _cut(piece, -(-piece.size // max_records))]
    if min_partitions is not None and len(pieces) < min_partitions:
        total = sum(piece.size for piece in pieces)
        pieces = [part for piece in pieces for part in _cut(piece, max(1, round(piece.size / total * min_partitions)))]
    return pieces


def _cut(piece: OffsetRange, count: int) -> Iterator[OffsetRange]:
    """``piece`` in ``count`` parts whose sizes differ by at most one; empty ones are left out."""
    edges = [piece.start + piece.size * number // count for number in range(count + 1)]
    for start, end in pairwise(edges):
        if start < end:
            yield OffsetRange(piece.tp, Offset(start), Offset(end))
