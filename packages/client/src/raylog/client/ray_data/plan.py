"""◆ Where a dataset starts and ends, in the words of ``ray.data.read_kafka``; and which piece is read on which node.

A place is ``"earliest"``, ``"latest"``, an offset for every partition, a time (the first record at or after it; without
a time zone: UTC), or ``{"flights": {0: 1500, 1: "earliest"}}``, where partitions that are left out take the default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from raylog.client.ranges.offset_ranges import EARLIEST, LATEST, OffsetRange
from raylog.protocol.ids import Offset, PartitionIndex, TimestampMs, TopicName, TopicPartition

OffsetPlace = int | str | datetime
"""Where to start or end, in one partition or in all."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_WORDS = {"earliest": EARLIEST, "latest": LATEST}


class Places(NamedTuple):
    """What a user's start or end says of each partition: an offset, EARLIEST or LATEST, or a time to be looked up."""

    offsets: Mapping[TopicPartition, Offset]
    times: Mapping[TopicPartition, TimestampMs]


def places(
    option: str,
    given: OffsetPlace | Mapping[str, Mapping[int, OffsetPlace]],
    default: Offset,
    partitions: Iterable[TopicPartition],
) -> Places:
    """``given`` for each of ``partitions``; ``option`` is its name in error messages.

    Raises ValueError for what is no place, and for topics or partitions that are not among these.
    """
    wanted = list(partitions)
    if not isinstance(given, Mapping):
        return _sorted_out(option, dict.fromkeys(wanted, given))
    by_partition: dict[TopicPartition, OffsetPlace] = {}
    for topic, of_topic in given.items():
        if not isinstance(of_topic, Mapping):
            raise ValueError(f'{option}={given!r} must be like {{"flights": {{0: 1500, 1: "earliest"}}}}')
        for partition, place in of_topic.items():
            if type(partition) is not int:
                raise ValueError(f"{option}: {partition!r} is no partition of {topic}; partitions are numbers")
            by_partition[TopicPartition(TopicName(topic), PartitionIndex(partition))] = place
    unknown = by_partition.keys() - set(wanted)
    if unknown:
        raise ValueError(f"{option}: there is no partition {min(unknown, key=str)} to read")
    found = _sorted_out(option, by_partition)
    left_out = {tp: default for tp in wanted if tp not in by_partition}
    return Places({**left_out, **found.offsets}, found.times)


def _sorted_out(option: str, by_partition: Mapping[TopicPartition, OffsetPlace]) -> Places:
    offsets: dict[TopicPartition, Offset] = {}
    times: dict[TopicPartition, TimestampMs] = {}
    for tp, place in by_partition.items():
        if isinstance(place, datetime) and place == place:  # pandas' NaT is neither
            times[tp] = _milliseconds(place)
        elif isinstance(place, str) and place in _WORDS:
            offsets[tp] = _WORDS[place]
        elif isinstance(place, int) and not isinstance(place, bool) and place >= 0:
            offsets[tp] = Offset(place)
        else:
            raise ValueError(
                f"{option}: {place!r} is no place; give earliest, latest, an offset, a datetime, or a dict"
            )
    return Places(offsets, times)


def _milliseconds(time: datetime) -> TimestampMs:
    """The first one at or after ``time``; 0 for all before 1970, since negative ones stand for other places."""
    aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return TimestampMs(max(0, -((_EPOCH - aware) // _MS)))


def by_node(
    pieces: Sequence[OffsetRange], hosts: Mapping[TopicPartition, Sequence[str]], nodes: Mapping[str, Sequence[str]]
) -> dict[str | None, list[OffsetRange]]:
    """The pieces per id of the node that they are read on; under None, those for which any node will do.

    ``hosts``: the names of each partition's leader; ``nodes``: the ids of the living nodes per address. Where several
    nodes share the address of a leader, they share its pieces, too.
    """
    placed: dict[str | None, list[OffsetRange]] = {}
    turns: dict[tuple[str, ...], int] = {}
    for piece in pieces:
        near = tuple(sorted({node for host in hosts.get(piece.tp, ()) for node in nodes.get(host, ())}))
        turn = turns.get(near, 0)
        turns[near] = turn + 1
        placed.setdefault(near[turn % len(near)] if near else None, []).append(piece)
    return placed


def tasks_at_once(
    pieces: int, of_all: int, concurrency: int | None, node_cpus: float | None, task_cpus: float | None
) -> int | None:
    """How many tasks read at once on one node, which has ``pieces`` of ``of_all``; None: as Ray Data finds.

    At most its share of ``concurrency``, and no more than the node has CPUs for: others would only wait for it.
    """
    limits = []
    if concurrency is not None:
        limits.append(concurrency * pieces // max(1, of_all))
    if node_cpus is not None:
        limits.append(int(node_cpus / (task_cpus or 1)))
    return max(1, min(limits)) if limits else None
