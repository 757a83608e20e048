"""Offsets by time against a plain search: any bound, any start, times in any order; and how much is read for one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kit.faulty_files import FailingFile, FailingFileSystem
from kit.partitions import Shelf, append, lead, open_shelf
from raylog.broker.storage.disk.files import File, RealFileSystem
from raylog.broker.storage.log.timestamps import TimestampedOffset, max_timestamp_offset, offset_for_timestamp
from raylog.protocol.ids import Offset, TimestampMs


class CountingFiles(FailingFileSystem):
    """Counts what is read."""

    bytes_read = 0

    def open(self, path: Path, *, create: bool = False) -> File:
        return CountingFile(self, self._inner.open(path, create=create))


class CountingFile(FailingFile):
    """A file of CountingFiles."""

    def pread(self, length: int, position: int) -> bytes:
        assert isinstance(self._fs, CountingFiles)
        self._fs.bytes_read += length
        return super().pread(length, position)


Rows = list[tuple[int, int]]
"""Offsets and timestamps."""


def fill(shelf: Shelf, rng: random.Random, batches: int, spread: int) -> tuple[Rows, list[int]]:
    """Appends; the rows, and the offsets at which batches begin or end."""
    rows: Rows = []
    edges = [0]
    for n in range(batches):
        times = [max(n + rng.randint(-spread, spread), 0) for _ in range(rng.randint(1, 3))]
        base = append(shelf.partition, *[b"v"] * len(times), timestamps=times)
        rows += [(base + number, time) for number, time in enumerate(times)]
        edges.append(base + len(times))
    return rows, edges


def pair(found: TimestampedOffset | None) -> tuple[int, int] | None:
    return None if found is None else (found.offset, found.timestamp)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("spread", [0, 3, 40])
def test_look_ups_are_exact_for_any_bound_and_start(tmp_path: Path, spread: int, seed: int) -> None:
    rng = random.Random(seed)
    interval = rng.choice([0, 200, 4096])
    shelf = open_shelf(tmp_path, topic={"segment.bytes": 3000, "index.interval.bytes": interval, "retention.ms": -1})
    rows, edges = fill(shelf, rng, 90, spread)
    log = shelf.partition.log
    assert len(log.segments) > 2
    for start in [0, *sorted(rng.sample(range(len(rows)), 8))]:
        shelf.partition.delete_records(Offset(start))
        for bound in sorted(rng.sample([edge for edge in edges if edge >= start], min(12, len(edges) // 3))) * 2:
            kept = [row for row in rows if start <= row[0] < bound]
            newest = min(kept, key=lambda row: (-row[1], row[0]), default=None)
            assert pair(max_timestamp_offset(log, Offset(bound))) == newest, f"start {start}, bound {bound}"
            for asked in {0, rng.randint(0, 90), newest[1] if newest else 1}:
                first = next((row for row in kept if row[1] >= asked), None)
                assert pair(offset_for_timestamp(log, TimestampMs(asked), Offset(bound))) == first
        if len(edges) - 10 < start:
            break
    shelf.dirs.close()


@pytest.mark.parametrize("deleted", [0, 2])
def test_look_up_reads_no_more_of_a_large_segment(tmp_path: Path, deleted: int) -> None:
    """The newest record is not committed yet; what has the highest time of the others came long ago, or is deleted."""
    fs = CountingFiles(RealFileSystem())
    shelf = open_shelf(tmp_path, fs=fs)
    for n in range(1500):
        time = {0: 10_000, 1: 9_000, 2: 8_000}.get(n, 5_000 if n < 1400 else 20_000 + n)
        append(shelf.partition, b"x" * 50, timestamps=[time])
    shelf.partition.delete_records(Offset(deleted))
    log = shelf.partition.log
    assert len(log.segments) == 1
    bound = Offset(1300)
    newest = (0, 10_000) if not deleted else (2, 8_000)
    assert pair(max_timestamp_offset(log, bound)) == newest
    fs.bytes_read = 0
    assert pair(max_timestamp_offset(log, bound)) == newest
    if not deleted:
        assert pair(offset_for_timestamp(log, TimestampMs(9_500), Offset(1500))) == (0, 10_000)
        assert pair(offset_for_timestamp(log, TimestampMs(10_001), bound)) is None
        assert pair(offset_for_timestamp(log, TimestampMs(21_450), Offset(1500))) == (1450, 21_450)
    assert fs.bytes_read < 60_000 < log.size, "the segment was scanned"
    shelf.dirs.close()


def test_earliest_offset_has_the_epoch_of_its_record(tmp_path: Path) -> None:
    """KIP-320: a client that compares it with what it knows must not take a newer epoch for that of an old record."""
    shelf = open_shelf(tmp_path, epoch=0)
    append(shelf.partition, b"a", b"b")
    lead(shelf.partition, 4)
    append(shelf.partition, b"c")
    assert shelf.partition.earliest() == (0, 0)
    shelf.partition.delete_records(Offset(1))
    assert shelf.partition.earliest() == (1, 0)
    shelf.partition.delete_records(Offset(2))
    assert shelf.partition.earliest() == (2, 4)
    shelf.dirs.close()


def test_records_without_a_time_have_no_highest_one(tmp_path: Path) -> None:
    shelf = open_shelf(tmp_path)
    append(shelf.partition, b"a", timestamps=[-1])
    assert max_timestamp_offset(shelf.partition.log, Offset(1)) is None
    append(shelf.partition, b"b", timestamps=[0])
    assert pair(max_timestamp_offset(shelf.partition.log, Offset(2))) == (1, 0)
    shelf.dirs.close()


def test_look_up_by_time_makes_a_damaged_index_anew(tmp_path: Path) -> None:
    topic = {"segment.bytes": 300, "index.interval.bytes": 0, "retention.ms": -1}
    shelf = open_shelf(tmp_path, topic=topic)
    for time in range(12):
        append(shelf.partition, b"v", timestamps=[time])
    shelf.dirs.close()
    index = min(shelf.directory.glob("*.timeindex"))
    data = bytearray(index.read_bytes())
    data[3] ^= 1
    index.write_bytes(data)
    shelf = open_shelf(tmp_path, topic=topic, epoch=1)
    assert pair(offset_for_timestamp(shelf.partition.log, TimestampMs(1), Offset(12))) == (1, 1)
    shelf.dirs.close()
