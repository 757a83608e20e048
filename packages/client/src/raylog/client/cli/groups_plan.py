"""◆ Where a consumer group is to go on: read from the command line, and checked before anything is done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

from raylog import client
from raylog.protocol.errors import InvalidPartitions, InvalidRequest
from raylog.protocol.ids import Offset, PartitionIndex, TopicName, TopicPartition

TOPIC_FORM = "NAME[:0,1,…]"
Topics = Mapping[TopicName, tuple[PartitionIndex, ...] | None]
"""Topics and their partitions; None: all."""


class Kind(Enum):
    """What a new position is reckoned from."""

    EARLIEST = auto()
    LATEST = auto()
    OFFSET = auto()
    TIMESTAMP = auto()
    SHIFT = auto()


class Goal(NamedTuple):
    """Where to go on; ``number`` is the offset, the time in ms, or by how many records to shift."""

    kind: Kind
    number: int = 0


class Log(NamedTuple):
    """From where to where a partition can be read."""

    earliest: Offset
    latest: Offset


class Reset(NamedTuple):
    """One partition's position: what it is, what was asked for, and what the log has of that."""

    tp: TopicPartition
    committed: Offset | None
    wanted: int
    log: Log

    @property
    def proposed(self) -> Offset:
        """The offset nearest to what was asked for that can be read."""
        return Offset(min(max(self.wanted, self.log.earliest), self.log.latest))


def goal_of(*, earliest: bool, latest: bool, offset: int | None, timestamp_ms: int | None, shift: int | None) -> Goal:
    """The one goal that was given. Raises InvalidRequest unless it is one."""
    goals = [Goal(kind) for kind, wanted in ((Kind.EARLIEST, earliest), (Kind.LATEST, latest)) if wanted]
    numbers = ((Kind.OFFSET, offset), (Kind.TIMESTAMP, timestamp_ms), (Kind.SHIFT, shift))
    goals += [Goal(kind, number) for kind, number in numbers if number is not None]
    if len(goals) != 1:
        raise InvalidRequest(
            "reset to what? give one of --to-earliest, --to-latest, --to-offset, --to-timestamp and --shift-by"
        )
    return goals[0]


def topics_of(texts: Iterable[str], option: str = "--topic") -> Topics:
    """``t`` or ``t:0,1`` as topics and their partitions. Raises InvalidRequest."""
    found: dict[TopicName, tuple[PartitionIndex, ...] | None] = {}
    for text in texts:
        name, colon, numbers = text.partition(":")
        if not name or name in found:
            raise InvalidRequest(f"{option} {text!r} {'names a topic twice' if name else 'names no topic'}")
        try:
            partitions = sorted({int(number) for number in numbers.split(",")}) if colon else None
        except ValueError:
            raise InvalidRequest(f"{option} {text!r} is not like {TOPIC_FORM}") from None
        found[TopicName(name)] = None if partitions is None else tuple(map(PartitionIndex, partitions))
    return found


def partitions_of(topic: client.TopicDescription, wanted: Sequence[int] | None) -> list[TopicPartition]:
    """These partitions of the topic, or all (None). Raises InvalidPartitions for one that it does not have."""
    count = len(topic.partitions)
    for number in wanted or ():
        if not 0 <= number < count:
            raise InvalidPartitions(f"{topic.name} has partitions 0 to {count - 1}, not {number}")
    chosen = range(count) if wanted is None else wanted
    return [TopicPartition(topic.name, PartitionIndex(number)) for number in chosen]


def resets_of(
    goal: Goal,
    logs: Mapping[TopicPartition, Log],
    committed: Mapping[TopicPartition, client.CommittedOffset],
    at_time: Mapping[TopicPartition, int],
) -> list[Reset]:
    """What to commit for each partition of ``logs``, by topic and partition.

    ``at_time``: the first offset at or after the goal's time, -1 where no record is so young: then it is the end.
    Raises InvalidRequest where there is nothing to shift.
    """
    resets = []
    for tp, log in sorted(logs.items()):
        before = committed[tp].offset if tp in committed else None
        resets.append(Reset(tp, before, _wanted(goal, tp, log, before, at_time), log))
    return resets


def _wanted(
    goal: Goal, tp: TopicPartition, log: Log, before: Offset | None, at_time: Mapping[TopicPartition, int]
) -> int:
    match goal.kind:
        case Kind.EARLIEST:
            return log.earliest
        case Kind.LATEST:
            return log.latest
        case Kind.OFFSET:
            return goal.number
        case Kind.TIMESTAMP:
            return at_time[tp] if at_time[tp] >= 0 else log.latest
        case Kind.SHIFT if before is not None:
            return before + goal.number
    raise InvalidRequest(f"{tp}: nothing is committed that could be shifted; leave it out, or use another --to-…")


def row_of(reset: Reset) -> dict[str, Any]:
    """The reset as commands show it; ``lag`` is what is left to read after it."""
    return {
        "topic": reset.tp.topic,
        "partition": reset.tp.partition,
        "committed": reset.committed,
        "proposed": reset.proposed,
        "earliest": reset.log.earliest,
        "latest": reset.log.latest,
        "lag": reset.log.latest - reset.proposed,
    }


def rows_of(
    group: client.GroupDescription,
    committed: Mapping[TopicPartition, client.CommittedOffset],
    logs: Mapping[TopicPartition, Log],
) -> list[dict[str, Any]]:
    """What the group has committed, and who reads what, as commands show it; nothing where it is not known."""
    readers = {tp: member for member in group.members for tp in member.assignment}
    rows = []
    for tp in sorted({*committed, *readers}):
        offset = committed[tp].offset if tp in committed else None
        log, reader = logs.get(tp), readers.get(tp)
        rows.append(
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "committed": offset,
                "earliest": log and log.earliest,
                "latest": log and log.latest,
                "lag": None if log is None or offset is None else max(0, log.latest - offset),
                "member_id": reader and reader.member_id,
                "client_id": reader and reader.client_id,
                "host": reader and reader.host,
                "metadata": committed[tp].metadata if tp in committed else "",
            }
        )
    return rows


def lost_positions(
    committed: Mapping[TopicPartition, client.CommittedOffset], logs: Mapping[TopicPartition, Log]
) -> list[str]:
    """What to say of positions that the log does not have: retention went past them, or it was cut."""
    return [
        f"{tp}: offset {committed[tp].offset} is committed, but the log has {log.earliest} to {log.latest}; "
        "who reads on from there does what its auto.offset.reset says"
        for tp, log in sorted(logs.items())
        if tp in committed and not log.earliest <= committed[tp].offset <= log.latest
    ]
