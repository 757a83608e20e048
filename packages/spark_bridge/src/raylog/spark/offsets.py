"""◆ What Spark's users write as ``startingOffsets`` and ``endingOffsets``, and the offsets it stands for.

The text is ``earliest``, ``latest`` or JSON like ``{"flights": {"0": 23, "1": -2}}``, in which -2 is earliest
and -1 latest, as in Spark's own Kafka source. Without any I/O: the bounds of the log are handed in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import Offset, PartitionIndex, TopicName, TopicPartition

EARLIEST = Offset(-2)
"""Stands for the first offset that the log still has; ListOffsets knows it by the same number."""

LATEST = Offset(-1)
"""Stands for the end of what consumers may read; ListOffsets knows it by the same number."""

OffsetSpec = int | Mapping[TopicPartition, Offset]
"""EARLIEST or LATEST for every partition, or for each its own: EARLIEST, LATEST or an offset."""

_WORDS = {"earliest": EARLIEST, "latest": LATEST}


class DataLoss(RaylogError):
    """Offsets that were asked for are not in the log, or no longer; the message says what to do."""


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


def parse_offsets(option: str, text: str) -> OffsetSpec:
    """The value of ``option``, whose name is for error messages.

    Raises ValueError in one sentence for what is neither a known word nor JSON of the right shape, and for a
    range that starts at the end or ends at the start: ``startingOffsets`` latest, ``endingOffsets`` earliest.
    """
    pointless = LATEST if option == "startingOffsets" else EARLIEST
    word = _WORDS.get(text.strip().lower())
    if word is not None:
        spec: OffsetSpec = word
        wrong = [word] if word == pointless else []
    else:
        spec = _parse_json(option, text)
        wrong = [offset for offset in spec.values() if offset == pointless]
    if wrong:
        name = "latest (-1)" if pointless == LATEST else "earliest (-2)"
        raise ValueError(f"{option}={text!r} leaves nothing to read: {name} is only for streams or the other end")
    return spec


def _parse_json(option: str, text: str) -> dict[TopicPartition, Offset]:
    shape = f'{option}={text!r} must be earliest, latest or JSON like {{"flights": {{"0": 23, "1": -2}}}}'
    try:
        topics = json.loads(text)
        spec = {
            TopicPartition(TopicName(topic), PartitionIndex(int(partition))): Offset(offset)
            for topic, partitions in topics.items()
            for partition, offset in partitions.items()
        }
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{shape}: {error}") from error
    for tp, offset in spec.items():
        if type(offset) is not int or offset < EARLIEST:
            raise ValueError(f"{shape}: {offset!r} is no offset for {tp}")
    return spec


def resolve(
    starting: OffsetSpec, ending: OffsetSpec, bounds: Mapping[TopicPartition, LogBounds]
) -> tuple[list[OffsetRange], list[str]]:
    """The ranges to read, in order, without empty ones; and a phrase for each offset that the log has not.

    Such an offset is moved to the nearest one the log has, so that who accepts the loss can read on. Raises
    ValueError when JSON names other partitions than those of ``bounds``, or a range ends before it starts.
    """
    ranges, losses = [], []
    starts = _for_each("startingOffsets", starting, bounds)
    ends = _for_each("endingOffsets", ending, bounds)
    for tp in sorted(bounds):
        log, start, end = bounds[tp], starts[tp], ends[tp]
        if 0 <= end < start:
            raise ValueError(f"{tp}: endingOffsets {end} is before startingOffsets {start}")
        first, last = _place(start, log), _place(end, log)
        for asked, placed in ((start, first), (end, last)):
            if placed != asked >= 0:
                losses.append(f"{tp} has offsets {log.first} to {log.next - 1}, not {asked}")
        if first < last:
            ranges.append(OffsetRange(tp, first, last))
    return ranges, losses


def _for_each(
    option: str, spec: OffsetSpec, bounds: Mapping[TopicPartition, LogBounds]
) -> Mapping[TopicPartition, Offset]:
    if isinstance(spec, int):
        return dict.fromkeys(bounds, Offset(spec))
    if spec.keys() != bounds.keys():
        missing = ", ".join(map(str, sorted(bounds.keys() - spec.keys()))) or "none"
        unknown = ", ".join(map(str, sorted(spec.keys() - bounds.keys()))) or "none"
        raise ValueError(
            f"{option} must name every partition of the topics once: missing are {missing}; unknown are {unknown}"
        )
    return spec


def _place(offset: int, log: LogBounds) -> Offset:
    """The offset that ``offset`` stands for, moved into the log when it is outside."""
    if offset == EARLIEST:
        return log.first
    if offset == LATEST:
        return log.next
    return Offset(min(max(offset, log.first), log.next))
