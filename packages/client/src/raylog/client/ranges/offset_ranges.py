"""◆ Ranges of offsets: how users name where reading starts and ends, what that stands for, and how ranges are cut.

The text is Spark's: ``earliest``, ``latest`` or JSON like ``{"flights": {"0": 23, "1": -2}}``, in which -2 is
earliest and -1 latest. Without any I/O: the bounds of logs are handed in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from raylog.client.config.texts import INT32_MAX, INT64_MAX, digits
from raylog.coordination.metadata.topic_names import check_topic_name
from raylog.protocol import ids
from raylog.protocol.errors import InvalidTopic, RaylogError
from raylog.protocol.ids import Offset, PartitionIndex, TimestampMs, TopicName, TopicPartition

EARLIEST = Offset(ids.EARLIEST)
"""Stands for the first offset that the log still has; ListOffsets knows it by the same number, -2."""

LATEST = Offset(ids.LATEST)
"""Stands for the end of what consumers may read; ListOffsets knows it by the same number, -1."""

OffsetSpec = int | Mapping[TopicPartition, Offset]
"""EARLIEST or LATEST for every partition, or for each its own: EARLIEST, LATEST or an offset."""

_WORDS = {"earliest": EARLIEST, "latest": LATEST}


@dataclass(frozen=True, slots=True)
class AtTime:
    """In each partition the first record at or after a time; for all the same one, or for each its own."""

    times: TimestampMs | Mapping[TopicPartition, TimestampMs]


@dataclass(frozen=True, slots=True)
class Selection:
    """What is to be read: all partitions of ``topics``, or of the topics whose whole names match ``pattern``, or
    ``partitions``. Exactly one of them is given."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()


class DataLoss(RaylogError):
    """Offsets that were asked for are not in the log, or no longer; the message says what to do."""

    def __init__(self, message: str, lost: Iterable[OffsetRange] = ()) -> None:
        super().__init__(message)
        self.lost = tuple(lost)
        """What of it is known to be lost, where that can be told."""


class LogBounds(NamedTuple):
    """What a partition's log holds for consumers: from ``first`` to ``next``, without ``next``."""

    first: Offset
    next: Offset


class OffsetRange(NamedTuple):
    """Offsets ``start`` to ``end``, without ``end``, of one partition."""

    tp: TopicPartition
    start: Offset
    end: Offset

    @property
    def size(self) -> int:
        """How many offsets; at most so many records."""
        return self.end - self.start


def parse_offsets(option: str, text: str, *, pointless: Offset | None = None) -> OffsetSpec:
    """The value of ``option``, whose name is for error messages.

    ``pointless``: LATEST for where a batch starts, EARLIEST for where it ends, since it leaves nothing to read.
    Raises ValueError in one sentence for it, and for what is neither a known word nor JSON of the right shape.
    """
    word = _WORDS.get(text.strip().lower())
    spec: OffsetSpec = _parse_json(option, text, "be earliest, latest or JSON", EARLIEST) if word is None else word
    if pointless is not None and pointless in ([spec] if isinstance(spec, int) else spec.values()):
        name = "latest (-1)" if pointless == LATEST else "earliest (-2)"
        raise ValueError(f"{option}={text!r} leaves nothing to read: {name} is only for streams or the other end")
    return spec


def parse_time(option: str, text: str) -> AtTime:
    """The value of ``option``, milliseconds since 1970 for every partition. Raises ValueError."""
    number = digits(text.strip())
    if number is None:
        raise ValueError(f"{option}={text!r} must be milliseconds since 1970")
    return AtTime(TimestampMs(number))


def parse_times(option: str, text: str) -> AtTime:
    """The value of ``option``, JSON with milliseconds since 1970 for each partition. Raises ValueError."""
    by_partition = _parse_json(option, text, "be JSON with milliseconds since 1970", Offset(0))
    return AtTime({tp: TimestampMs(time) for tp, time in by_partition.items()})


def parse_partitions(option: str, text: str) -> tuple[TopicPartition, ...]:
    """The value of ``option``, JSON like ``{"flights": [0, 1]}``. Raises ValueError, as for no partition at all."""
    shape = f'{option}={text!r} must be JSON like {{"flights": [0, 1]}}'
    try:
        found = {
            TopicPartition(TopicName(topic), PartitionIndex(partition))
            for topic, partitions in json.loads(text).items()
            for partition in partitions
        }
        for topic, _ in found:
            check_topic_name(topic)
    except (ValueError, AttributeError, TypeError, InvalidTopic) as error:
        raise ValueError(f"{shape}: {error}") from error
    if not found:
        raise ValueError(f"{shape}: it names no partition")
    for _, partition in found:
        if type(partition) is not int or not 0 <= partition <= INT32_MAX:
            raise ValueError(f"{shape}: {partition!r} is no partition")
    return tuple(sorted(found))


def _parse_json(option: str, text: str, must: str, least: Offset) -> dict[TopicPartition, Offset]:
    shape = f'{option}={text!r} must {must} like {{"flights": {{"0": 23, "1": {23 if least >= 0 else -2}}}}}'
    try:
        spec = {
            TopicPartition(TopicName(topic), PartitionIndex(int(partition))): Offset(offset)
            for topic, partitions in json.loads(text).items()
            for partition, offset in partitions.items()
        }
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{shape}: {error}") from error
    for tp, offset in spec.items():
        if type(offset) is not int or not least <= offset <= INT64_MAX:
            raise ValueError(f"{shape}: {offset!r} is no {'offset' if least < 0 else 'time'} for {tp}")
    return spec


def resolve(
    starting: OffsetSpec, ending: OffsetSpec, bounds: Mapping[TopicPartition, LogBounds]
) -> tuple[list[OffsetRange], list[str]]:
    """The ranges to read, in order, without empty ones; and a phrase for each offset that the log has not.

    Such an offset is moved to the nearest one the log has, so that who accepts the loss can read on. Raises
    ValueError when JSON names other partitions than those of ``bounds``, or a range ends before it starts.
    """
    ranges, losses = [], []
    starts = of_each("startingOffsets", starting, bounds)
    ends = of_each("endingOffsets", ending, bounds)
    for tp in sorted(bounds):
        log, start, end = bounds[tp], starts[tp], ends[tp]
        if 0 <= end < start:
            raise ValueError(f"{tp}: endingOffsets {end} is before startingOffsets {start}")
        first, last = _place(start, log), _place(end, log)
        for asked, placed in ((start, first), (end, last)):
            if placed != asked >= 0:
                losses.append(f"{tp} has {_extent(log)}, not {asked}")
        if first < last:
            ranges.append(OffsetRange(tp, first, last))
    return ranges, losses


def of_each(option: str, spec: OffsetSpec, partitions: Mapping[TopicPartition, object]) -> dict[TopicPartition, Offset]:
    """The offset, EARLIEST or LATEST that ``spec`` has for each of ``partitions``. Raises ValueError when it names
    others than these."""
    if isinstance(spec, int):
        return dict.fromkeys(partitions, Offset(spec))
    check_named(option, spec, partitions)
    return dict(spec)


def check_named(
    option: str, named: Mapping[TopicPartition, object], partitions: Mapping[TopicPartition, object]
) -> None:
    """Raises ValueError unless ``option`` has named each of ``partitions``, and no other."""
    if named.keys() != partitions.keys():
        missing = ", ".join(map(str, sorted(partitions.keys() - named.keys()))) or "none"
        unknown = ", ".join(map(str, sorted(named.keys() - partitions.keys()))) or "none"
        raise ValueError(
            f"{option} must name every partition of the topics once: missing are {missing}; unknown are {unknown}"
        )


def split(
    ranges: Sequence[OffsetRange], *, min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """``ranges`` in the same order, cut until none is longer than ``max_records`` offsets and there are about
    ``min_partitions``, of which each range has its share: of 10 pieces, 900 offsets become nine and 100 one.

    Spark's ``maxRecordsPerPartition`` and ``minPartitions``; each piece is one of its partitions. Raises ValueError
    for numbers below 1.
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
    count = min(count, piece.size)
    edges = [piece.start + piece.size * number // count for number in range(count + 1)]
    for start, end in pairwise(edges):
        if start < end:
            yield OffsetRange(piece.tp, Offset(start), Offset(end))


def _place(offset: int, log: LogBounds) -> Offset:
    """The offset that ``offset`` stands for, moved into the log when it is outside."""
    if offset == EARLIEST:
        return log.first
    if offset == LATEST:
        return log.next
    return Offset(min(max(offset, log.first), log.next))


def _extent(log: LogBounds) -> str:
    if log.first == log.next:
        return f"no records and goes on at offset {log.next}"
    return f"offsets {log.first} to {log.next - 1}"
