"""What holds up appends: no thread waits for the disk while it holds a lock that an append needs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.machine import scaled
from kit.partitions import NOW, Shelf, append, batch, open_shelf
from kit.slow_files import MeasuredLock, SlowDisk, StuckDisk
from raylog.broker.storage.disk.files import RealFileSystem
from raylog.protocol.ids import LeaderEpoch, Offset, TimestampMs
from raylog.protocol.wire.fetch import FetchedPartition

TOPIC = {"segment.bytes": 200, "index.interval.bytes": 0, "retention.bytes": 500, "retention.ms": -1}
COUNT = 20
WAIT_S = 30.0


def filled(path: Path, disk: SlowDisk | StuckDisk) -> Shelf:
    shelf = open_shelf(path, fs=disk, topic=TOPIC)
    for n in range(COUNT):
        append(shelf.partition, b"value %d" % n, timestamps=[NOW + n], producer=(7, 0, n))
    shelf.partition.flush()
    return shelf


def roll(shelf: Shelf) -> None:
    segments = len(shelf.partition.log.segments)
    for n in range(5):
        append(shelf.partition, b"x" * 100, producer=(7, 0, COUNT + n))
    assert len(shelf.partition.log.segments) > segments


def flush(shelf: Shelf) -> None:
    roll(shelf)
    shelf.partition.flush()


def delete_records(shelf: Shelf) -> None:
    shelf.partition.delete_records(Offset(COUNT - 3))
    shelf.partition.save_start()


def retain(shelf: Shelf) -> None:
    shelf.dirs.maintain(NOW, 0)
    shelf.dirs.maintain(TimestampMs(NOW + 10**7), 10**7)
    assert shelf.partition.log_start_offset > 0


def look_up(shelf: Shelf) -> None:
    assert shelf.partition.offset_for_timestamp(TimestampMs(NOW + 3)) is not None
    assert shelf.partition.max_timestamp_offset() is not None


def follow(shelf: Shelf) -> None:
    """Records come, and the leader's log begins later than before."""
    found = FetchedPartition(0, 0, COUNT, COUNT, COUNT - 3, memoryview(bytearray(batch(b"y", base_offset=COUNT))))
    shelf.partition.role.fetched(found, shelf.partition.role.leader_epoch, NOW)
    shelf.partition.role.settle()
    assert shelf.partition.durable_start == shelf.partition.log_start_offset == COUNT - 3


@pytest.mark.parametrize("work", [roll, flush, delete_records, retain, look_up, follow])
def test_nobody_waits_for_the_disk_under_the_log_lock(
    tmp_path: Path, work: Callable[[Shelf], None], record_property: Callable[[str, object], None]
) -> None:
    disk = SlowDisk(RealFileSystem())
    shelf = filled(tmp_path, disk)
    if work is follow:
        shelf.partition.role.become_follower(LeaderEpoch(1))
        shelf.partition.role.fetched(
            FetchedPartition(0, 0, COUNT, COUNT, 0, memoryview(bytearray(batch(b"y", base_offset=COUNT)))),
            shelf.partition.role.leader_epoch,
            NOW,
        )
    log = shelf.partition.log
    log.lock = lock = MeasuredLock(log.lock, disk)  # type: ignore[assignment, arg-type]
    log.set_segments(log.segments)
    before = disk.spent_ms
    work(shelf)
    record_property("disk's time, of it under the lock (ms)", (disk.spent_ms - before, lock.longest_ms))
    if work not in (roll, look_up):
        assert disk.spent_ms > before, "the disk was not even asked"
    assert lock.longest_ms == 0
    shelf.dirs.close()


@pytest.mark.parametrize("operation", ["unlink", "fsync_dir", "fdatasync"])
def test_appends_and_reads_go_on_while_records_are_deleted(tmp_path: Path, operation: str) -> None:
    disk = StuckDisk(RealFileSystem())
    shelf = filled(tmp_path, disk)
    disk.stick(operation)
    deleting = threading.Thread(target=delete_records, args=(shelf,), daemon=True)
    done: list[int] = []
    appending = threading.Thread(target=lambda: done.append(append(shelf.partition, b"more")), daemon=True)
    try:
        deleting.start()
        assert disk.met.wait(scaled(WAIT_S))
        appending.start()
        appending.join(scaled(WAIT_S))
        assert done == [COUNT], "the append waited for the disk"
        assert shelf.partition.offset_for_timestamp(TimestampMs(0)) == (COUNT - 3, NOW + COUNT - 3, 0)
    finally:
        disk.gate.set()
        deleting.join(scaled(WAIT_S))
    assert not deleting.is_alive()
    shelf.dirs.close()
