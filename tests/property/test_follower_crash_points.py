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
from raylog.broker.partition import Partition
from raylog.protocol.errors import OffsetOutOfRange
from raylog.protocol.fetch import EpochEndOffset, FetchedPartition
from raylog.protocol.ids import LeaderEpoch, Offset
from raylog.protocol.records import decode_batches

LOG_DIR = Path("/logs")
SMALL = {"segment.bytes": "400"}
Row = tuple[int, int, bytes]
"""Offset, leader epoch, value."""
Rows = tuple[Row, ...]


def take(partition: Partition, base: int, epochs: list[int], high_watermark: int) -> Rows:
    """Have the follower take in one batch for each of ``epochs``, from ``base`` on."""
    rows = tuple((base + n, epoch, b"%d/%d" % (epoch, base + n)) for n, epoch in enumerate(epochs))
    data = b"".join(
        bytes(batch(value, base_offset=offset, leader_epoch=epoch, producer=(epoch, 0, offset)))
        for offset, epoch, value in rows
    )
    found = FetchedPartition(0, 0, high_watermark, high_watermark, -1, memoryview(bytearray(data)))
    partition.fetched(found, partition.leader_epoch, NOW)
    return rows


def live(shelf: Shelf, had: list[Rows]) -> None:
    """What the log holds after each step goes into ``had``."""
    partition = shelf.partition
    partition.become_follower(LeaderEpoch(3))
    had.append(())
    for base in range(6):
        had.append(had[-1] + take(partition, base, [1 if base < 3 else 2], 0))
    had.append(had[-1] + take(partition, 6, [2, 3], 5))
    partition.flush()
    partition.become_follower(LeaderEpoch(5))
    diverging = FetchedPartition[memoryview](0, diverging_epoch=EpochEndOffset(2, 5))
    partition.fetched(diverging, LeaderEpoch(5), NOW)
    had.append(had[-1][:5])
    had.append(had[-1] + take(partition, 5, [4, 5, 5], 6))
    partition.fetch_failed(OffsetOutOfRange("t-0"), FetchedPartition(0, log_start_offset=100), LeaderEpoch(5), NOW)
    had.append(())
    had.append(take(partition, 100, [5, 5], 101))
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
    live(shelf, stages)
    points = fs.operations - first
    assert points > 60
    for point in range(1, points + 1):
        rng = random.Random(point)
        fs = LossyFileSystem()
        shelf = open_shelf(LOG_DIR, fs=fs, topic=SMALL)
        fs.crash_after(point, None if loss is Loss.KEPT else rng)
        had: list[Rows] = []
        with pytest.raises(SimulatedCrash):
            live(shelf, had)
        again = open_shelf(LOG_DIR, fs=fs.after_crash(loss, rng), topic=SMALL, epoch=9)
        partition = again.partition
        rows = rows_of(partition)
        possible = stages[: len(had) + 1]  # the step under way may have come through
        assert any(rows == stage[: len(rows)] for stage in possible), f"after operation {point} of {points}: {rows}"
        if rows:
            assert partition.log_start_offset == rows[0][0]
        expected = {epoch: offset for offset, epoch, _ in rows}
        assert producers_of(partition) == expected, f"after operation {point} of {points}"
        if loss is Loss.KEPT and had:
            before, after = possible[-2:]
            takes_away = len(after) < len(before)
            assert takes_away or rows in (before, after), f"after operation {point} of {points}: {rows}"
            assert not again.dirs.lost_data, f"after operation {point} of {points}"
        again.dirs.close()
