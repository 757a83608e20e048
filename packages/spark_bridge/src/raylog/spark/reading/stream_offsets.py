"""◆ Where a stream stands, and how far its next batch goes.

A stream's offset tells, per partition, the first offset that no batch has yet. Spark writes it to the checkpoint before
a batch runs (its offset log), so it must say all that running the batch again needs: the ids of the topics, by which
one that was deleted and created again is noticed, and for the first batch where it began.

What brokers tell of the logs is compared with it: what is new is admitted (``maxOffsetsPerTrigger``), what is missing
is a loss.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from raylog.client.ranges.offset_ranges import EARLIEST, LATEST, LogBounds, OffsetRange, OffsetSpec, of_each
from raylog.protocol.ids import NO_TOPIC_ID, BrokerId, Offset, PartitionIndex, TopicId, TopicName, TopicPartition

Positions = Mapping[TopicPartition, Offset]
"""Per partition, the next offset."""

FORMAT = 1
"""Of the JSON in checkpoints; raised when an older raylog could not read a new one."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """How far batches have been planned: up to ``positions``, without them."""

    positions: Positions
    topic_ids: Mapping[TopicName, TopicId]
    initial: Positions | None = None
    """Where the first batch began; only that batch's end tells it."""

    def to_json(self) -> str:
        """The same text for the same offset: Spark compares offsets by it."""
        told: dict[str, Any] = {
            "format": FORMAT,
            "positions": _nested(self.positions),
            "topic_ids": {name: str(topic_id) for name, topic_id in sorted(self.topic_ids.items())},
        }
        if self.initial is not None:
            told["initial"] = _nested(self.initial)
        return json.dumps(told)

    @classmethod
    def from_json(cls, text: str) -> StreamOffset:
        """Raises ValueError for what another source, or a newer raylog, has written."""
        try:
            told = json.loads(text)
            if told["format"] != FORMAT:
                raise ValueError(f"it is of format {told['format']!r}, and format {FORMAT} is known here")
            initial = told.get("initial")
            return cls(
                _flat(told["positions"]),
                {TopicName(name): TopicId(UUID(topic_id)) for name, topic_id in told["topic_ids"].items()},
                None if initial is None else _flat(initial),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(
                f"the checkpoint's offset {text!r} is none of a raylog stream ({error!r}): take a new checkpoint "
                "location, and begin where the old one ended by startingOffsets"
            ) from error


class Seen(NamedTuple):
    """What brokers told of the topics at one moment."""

    leaders: Mapping[TopicPartition, BrokerId]
    topic_ids: Mapping[TopicName, TopicId]
    bounds: Mapping[TopicPartition, LogBounds]


class Backlog(NamedTuple):
    """What a stream has not read yet."""

    unread: Mapping[TopicPartition, LogBounds]
    """Per partition, what the next batches may read."""
    losses: tuple[str, ...]
    """A phrase for each stretch that cannot be read any more, naming partition and offsets."""

    @property
    def size(self) -> int:
        """How many offsets; at most so many records."""
        return sum(log.next - log.first for log in self.unread.values())


def beginning(starting: OffsetSpec, seen: Seen) -> StreamOffset:
    """Where a stream without a checkpoint begins. Raises ValueError when ``starting`` names other partitions."""
    words = {EARLIEST: "first", LATEST: "next"}
    named = of_each("startingOffsets", starting, seen.bounds)
    positions = {tp: getattr(seen.bounds[tp], words[at]) if at in words else at for tp, at in named.items()}
    return StreamOffset(positions, seen.topic_ids, positions)


def backlog(start: StreamOffset, seen: Seen, until: Positions | None = None) -> Backlog:
    """What follows ``start``, up to ``until`` where that is given.

    A partition that was added since is read from its very first offset, and so is a topic that was created again.
    """
    losses = [
        f"{tp} is gone (deleted, or not selected any more), with what came from offset {position} on"
        for tp, position in sorted(start.positions.items())
        if tp not in seen.bounds
    ]
    unread = {}
    for tp, log in seen.bounds.items():
        position = start.positions.get(tp, Offset(0))
        if tp in start.positions and _is_another(tp.topic, start.topic_ids, seen.topic_ids):
            losses.append(
                f"{tp} was deleted and created again, and what the old one had from offset {position} on is gone"
            )
            position = Offset(0)
        if position < log.first:
            losses.append(f"{tp}: offsets {position} to {log.first - 1} are gone")
        elif position > log.next:
            losses.append(
                f"{tp}: the log ends at offset {log.next} and the stream was at {position}: records before are gone"
            )
        first = min(max(position, log.first), log.next)
        end = log.next if until is None else min(log.next, until.get(tp, first))
        unread[tp] = LogBounds(first, max(first, end))
    return Backlog(unread, tuple(losses))


def advance(start: StreamOffset, seen: Seen, found: Backlog, most: int | None) -> StreamOffset:
    """The end of a batch of at most ``most`` offsets of the backlog; ``start`` itself when there is nothing to plan."""
    admitted = admit({tp: log.next - log.first for tp, log in found.unread.items()}, most)
    positions = {tp: Offset(log.first + admitted[tp]) for tp, log in found.unread.items()}
    if positions == start.positions and seen.topic_ids == start.topic_ids:
        return start
    return StreamOffset(positions, seen.topic_ids)


def admit(sizes: Mapping[TopicPartition, int], most: int | None) -> dict[TopicPartition, int]:
    """How much of each partition's backlog a batch takes: in proportion, as Spark's Kafka source, but never more than
    ``most`` together. No partition waits for the others to be empty: each has at least one, the largest first."""
    total = sum(sizes.values())
    if most is None or total <= most:
        return dict(sizes)
    served = sorted((tp for tp, size in sizes.items() if size), key=lambda tp: (-sizes[tp], tp))[:most]
    shares = {tp: max(1, most * sizes[tp] // total) for tp in served}
    for _ in range(sum(shares.values()) - most):
        shares[max(served, key=shares.__getitem__)] -= 1
    return {tp: shares.get(tp, 0) for tp in sizes}


def is_early(size: int, least: int | None, waited_ms: float, max_delay_ms: int) -> bool:
    """Whether a batch of ``size`` offsets waits for more: for ``minOffsetsPerTrigger``, but no longer than
    ``maxTriggerDelay`` since the one before."""
    return least is not None and size < least and waited_ms < max_delay_ms


def ranges_between(start: StreamOffset | None, end: StreamOffset) -> list[OffsetRange]:
    """What the batch from ``start`` to ``end`` reads, in order; None: it is the first one. Asked again, the same.

    Raises ValueError for the first batch when ``end`` does not tell where it began.
    """
    if start is None:
        if end.initial is None:
            raise ValueError(f"the checkpoint lost the offsets before {end.to_json()}: take a new checkpoint location")
        start = StreamOffset(end.initial, end.topic_ids)
    ranges = []
    for tp, position in sorted(end.positions.items()):
        is_new = tp not in start.positions or _is_another(tp.topic, start.topic_ids, end.topic_ids)
        first = Offset(0) if is_new else start.positions[tp]
        if first < position:
            ranges.append(OffsetRange(tp, first, position))
    return ranges


def behind(positions: Positions, bounds: Mapping[TopicPartition, LogBounds]) -> dict[str, str]:
    """How far a stream is behind the ends of the logs, in the names and as the texts of Spark's Kafka source."""
    lags = [max(0, bounds[tp].next - position) for tp, position in positions.items() if tp in bounds]
    if not lags:
        return {}
    return {
        "minOffsetsBehindLatest": str(min(lags)),
        "maxOffsetsBehindLatest": str(max(lags)),
        "avgOffsetsBehindLatest": str(sum(lags) / len(lags)),
    }


def _is_another(topic: TopicName, then: Mapping[TopicName, TopicId], now: Mapping[TopicName, TopicId]) -> bool:
    """Whether the topic was created anew; brokers that tell no ids can't say so."""
    before, after = then.get(topic, NO_TOPIC_ID), now.get(topic, NO_TOPIC_ID)
    return NO_TOPIC_ID not in (before, after) and before != after


def _nested(positions: Positions) -> dict[str, dict[str, int]]:
    """In the shape of ``startingOffsets``."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(positions.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    return topics


def _flat(topics: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, Offset]:
    return {
        TopicPartition(TopicName(topic), PartitionIndex(int(partition))): Offset(int(offset))
        for topic, partitions in topics.items()
        for partition, offset in partitions.items()
    }
