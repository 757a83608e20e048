"""A follower's life, crashed after every single file operation in turn: it appends, truncates where its leader differs,
falls behind its leader's start and begins anew. Whatever is found afterwards is a prefix of what it had at some moment,
and a process that was killed, while its machine lives on, has lost nothing.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kit.faulty_files import Loss, LossyFileSystem, SimulatedCrash
from kit.partitions import NOW, Shelf, batch, open_shelf
from raylog.broker.partition.partition import Partition
from raylog.protocol.errors import OffsetOutOfRange
from raylog.protocol.ids import LeaderEpoch, Offset
from raylog.protocol.records import decode_batches
from raylog.protocol.wire.fetch import EpochEndOffset, FetchedPartition

LOG_DIR = Path("/logs")
SMALL = {"segment.bytes": "400"}
Row = tuple[int, int, bytes]
"""Offset, leader epoch, value."""
Rows = tuple[Row, ...]


def take(partition: Partition, base: int, epochs: list[int], high_watermark: int, log_start: int = -1) -> Rows:
    """Have the follower take in one batch for each of ``epochs``, from ``base`` on."""
    rows = tuple((base + n, epoch, b"%d/%d" % (epoch, base + n)) for n, epoch in enumerate(epochs))
    data = b"".join(
        bytes(batch(value, base_offset=offset, leader_epoch=epoch, producer=(epoch, 0, offset)))
        for offset, epoch, value in rows
    )
    found = FetchedPartition(0, 0, high_watermark, high_watermark, log_start, memoryview(bytearray(data)))
    partition.role.fetched(found, partition.role.leader_epoch, NOW)
    partition.role.settle()
    return rows


def live(shelf: Shelf, had: list[Rows], told: list[int]) -> None:
    """What the log holds after each step goes into ``had``; the starts that the leader would hear, into ``told``."""
    partition = shelf.partition
    partition.role.become_follower(LeaderEpoch(3))
    had.append(())
    for base in range(6):
        had.append(had[-1] + take(partition, base, [1 if base < 3 else 2], 0))
    had.append(had[-1] + take(partition, 6, [2, 3], 5))
    partition.flush()
    partition.role.become_follower(LeaderEpoch(5))
    diverging = FetchedPartition[memoryview](0, diverging_epoch=EpochEndOffset(2, 5))
    partition.role.fetched(diverging, LeaderEpoch(5), NOW)
    had.append(had[-1][:5])
    had.append(had[-1] + take(partition, 5, [4, 5, 5], 6))
    partition.role.fetch_failed(OffsetOutOfRange("t-0"), FetchedPartition(0, log_start_offset=100), LeaderEpoch(5), NOW)
    had.append(())
    had.append(take(partition, 100, [5, 5], 101))
    for start, epoch in ((101, 6), (104, 7), (108, 8)):
        had.append(had[-1] + take(partition, partition.log_end_offset, [5, 5], 108))
        take(partition, partition.log_end_offset, [], 108, start)
        had.append(tuple(row for row in had[-1] if row[0] >= start))
        told.append(partition.durable_start)
        partition.role.become_follower(LeaderEpoch(epoch))
        had.append(had[-1])
    assert told == [101, 104, 108]
    assert had[-1] == ()
    shelf.dirs.close()


def rows_of(partition: Partition) -> Rows:
    rows: list[Row] = []
    at = partition.log_start_offset
    while (data := partition.log.read(at, 1 << 20, partition.log.offsets.end, min_one_batch=True)) is not None:
        found = decode_batches(data.read(), from_offset=at)
        data.release()
        epochs = partition.log.epochs
        rows += [(row.offset, epochs.epoch_at(Offset(row.offset)), row.value or b"") for row in found]
        at = Offset(found[-1].offset + 1)
    return tuple(rows)


def producers_of(partition: Partition) -> dict[int, int]:
    return {facts.id: facts.last_sequence for facts in partition.log.producers.describe()}


@pytest.mark.parametrize("loss", Loss)
def test_every_crash_point_leaves_a_prefix_of_what_was_there(loss: Loss) -> None:
    fs = LossyFileSystem()
    shelf = open_shelf(LOG_DIR, fs=fs, topic=SMALL)
    first = fs.operations
    stages: list[Rows] = []
    live(shelf, stages, [])
    points = fs.operations - first
    assert points > 60
    for point in range(1, points + 1):
        rng = random.Random(point)
        fs = LossyFileSystem()
        shelf = open_shelf(LOG_DIR, fs=fs, topic=SMALL)
        fs.crash_after(point, None if loss is Loss.KEPT else rng)
        had: list[Rows] = []
        told: list[int] = []
        with pytest.raises(SimulatedCrash):
            live(shelf, had, told)
        again = open_shelf(LOG_DIR, fs=fs.after_crash(loss, rng), topic=SMALL, epoch=10)
        partition = again.partition
        rows = rows_of(partition)
        possible = stages[: len(had) + 1]  # the step under way may have come through
        start = partition.log_start_offset
        assert start >= max(told, default=0), f"deleted records came back after operation {point} of {points}"
        kept = [tuple(row for row in stage if row[0] >= start or start <= 100) for stage in possible]
        assert any(rows == stage[: len(rows)] for stage in kept), f"after operation {point} of {points}: {rows}"
        if rows:
            assert partition.log_start_offset == rows[0][0]
        expected = {epoch: offset for offset, epoch, _ in rows}
        found = producers_of(partition)
        if start > 100:  # a snapshot may know producers whose batches were deleted
            found = {producer: last for producer, last in found.items() if producer in expected}
        assert found == expected, f"after operation {point} of {points}"
        if loss is Loss.KEPT and had:
            before, after = possible[-2:]
            takes_away = len(after) < len(before)
            assert takes_away or rows in (before, after), f"after operation {point} of {points}: {rows}"
            assert not again.dirs.lost_data, f"after operation {point} of {points}"
        again.dirs.close()
