"""How far moves of partitions are: as rows, and until they are over."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from raylog import client
from raylog.client.cli.terminal.common import log_dirs_of
from raylog.client.cli.terminal.progress import StatusLine
from raylog.client.cli.topics.reassign_plan import Replicas
from raylog.protocol.errors import NoReassignmentInProgress, UnknownTopicOrPartition
from raylog.protocol.ids import TopicPartition

UnderWay = Mapping[TopicPartition, client.PartitionReassignment]

_EVERY_S = 0.5
"""How often a command that waits looks."""
_STALE_S = 5.0
"""How long a broker may tell of the old replicas after the controller has ended a move."""


def sizes_on(admin: client.Admin, brokers: Iterable[int]) -> dict[int, dict[TopicPartition, int]]:
    """Bytes of each replica on these brokers; those that do not answer are left out."""
    return {
        broker: {
            tp: replica.size_bytes for log_dir in log_dirs_of(admin, broker) for tp, replica in log_dir.replicas.items()
        }
        for broker in sorted(set(brokers))
    }


def partitions_of(
    admin: client.Admin, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, client.PartitionDescription]:
    """What the cluster's metadata tells of these; those that were deleted are left out."""
    return {
        tp: partition
        for topic in admin.list_topics()
        for partition in topic.partitions
        if (tp := TopicPartition(topic.name, partition.partition)) in partitions
    }


def rows_of(admin: client.Admin, under_way: UnderWay) -> list[dict[str, Any]]:
    """One per move: from where to where, what it waits for, and how much of it is copied."""
    alive = {broker.broker_id for broker in admin.describe_cluster().brokers}
    sizes = sizes_on(admin, {broker for moving in under_way.values() for broker in moving.replicas} & alive)
    there = partitions_of(admin, under_way)
    rows = []
    for tp, moving in sorted(under_way.items()):
        if (partition := there.get(tp)) is None:
            continue  # deleted since
        size = sizes.get(partition.leader, {}).get(tp)
        copied = sum(min(sizes.get(broker, {}).get(tp, 0), size or 0) for broker in moving.adding_replicas)
        rows.append(
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "current": list(moving.origin),
                "proposed": list(moving.target),
                "waits_for": [broker for broker in moving.target if broker not in partition.isr],
                "copied_bytes": copied,
                "to_copy_bytes": None if size is None else size * len(moving.adding_replicas),
            }
        )
    return rows


def brokers_down(admin: client.Admin, rows: Iterable[Mapping[str, Any]]) -> list[int]:
    """Brokers that moves wait for, and that are not up."""
    alive = {broker.broker_id for broker in admin.describe_cluster().brokers}
    return sorted({broker for row in rows for broker in row["waits_for"]} - alive)


def wait(admin: client.Admin, wanted: Mapping[TopicPartition, Replicas]) -> None:
    """Return once all of these are where they are wanted; on a terminal, a line tells how far that is.

    Raises UnknownTopicOrPartition for a topic that is deleted meanwhile, NoReassignmentInProgress for a move that
    somebody cancelled or replaced by another.
    """
    line = StatusLine()
    left = dict(wanted)
    ended: dict[TopicPartition, float] = {}
    try:
        while left:
            under_way = admin.list_partition_reassignments(left)
            there = partitions_of(admin, left)
            now = time.monotonic()
            for tp, goal in left.copy().items():
                if tp not in there:
                    raise UnknownTopicOrPartition(f"{tp}: topic {tp.topic} was deleted before the move was complete")
                if tp in under_way and under_way[tp].target == goal:
                    ended.pop(tp, None)
                elif tp not in under_way and there[tp].replicas == goal:
                    del left[tp]
                elif tp in under_way or now - ended.setdefault(tp, now) >= _STALE_S:
                    raise NoReassignmentInProgress(
                        f"{tp}: its move was cancelled, or replaced by another; `raylog topics reassign` shows what is "
                        "under way"
                    )
            if left:
                if line.is_shown:
                    line.show(_how_far(admin, under_way, len(wanted) - len(left), len(wanted)))
                time.sleep(_EVERY_S)
    finally:
        line.end()


def _how_far(admin: client.Admin, under_way: UnderWay, done: int, count: int) -> str:
    rows = rows_of(admin, under_way)
    copied, total = (sum(row[name] or 0 for row in rows) for name in ("copied_bytes", "to_copy_bytes"))
    return f"{done} of {count} partitions moved, {copied / 1e6:,.1f} of {total / 1e6:,.1f} MB of the others copied"
