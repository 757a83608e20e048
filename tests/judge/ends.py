"""What is there when a life is over: where its topic's partitions begin and end, and all that can be read."""

from __future__ import annotations

from collections.abc import Iterator

from judge.bases import ask, seen
from judge.steps import Ref, RefKind, Step, Tree

__all__ = ["what_is_left"]

PARTITIONS = range(5)
FETCH, LIST_OFFSETS, LEADER_EPOCH, DESCRIBE_PRODUCERS = 1, 2, 23, 61
READER = "end"
EARLIEST, LATEST, NEWEST = -2, -1, -3
FIRST_EPOCH = 0


def what_is_left(name: str) -> Iterator[Step]:
    """Questions that tell what a life has left of its topic."""
    yield seen(name)
    yield ask(DESCRIBE_PRODUCERS, 0, topics=[{"name": name, "partition_indexes": list(PARTITIONS)}])
    epochs = [{"partition": n, "current_leader_epoch": -1, "leader_epoch": FIRST_EPOCH} for n in PARTITIONS]
    yield ask(LEADER_EPOCH, 4, replica_id=-1, topics=[{"topic": name, "partitions": epochs}])
    for timestamp in (LATEST, NEWEST, EARLIEST):
        offsets = [{"partition_index": n, "timestamp": timestamp, "current_leader_epoch": -1} for n in PARTITIONS]
        yield ask(LIST_OFFSETS, 7, READER, replica_id=-1, topics=[{"name": name, "partitions": offsets}])
    yield ask(
        FETCH,
        11,
        READER,
        replica_id=-1,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=[{"topic": name, "partitions": [_from_its_start(n) for n in PARTITIONS]}],
    )


def _from_its_start(partition: int) -> Tree:
    """The fetch follows the ListOffsets of the earliest offsets."""
    return {
        "partition": partition, "current_leader_epoch": -1, "log_start_offset": -1,
        "fetch_offset": Ref(RefKind.OFFSET, f"{READER}-{partition}"), "partition_max_bytes": 1 << 20,
    }  # fmt: skip
