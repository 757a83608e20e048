"""Housekeeping of logs: what one log or directory meets holds up no other, and look and deed are one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import pytest

from kit.machine import scaled
from kit.partitions import NOW, TOPIC_ID, TP, Shelf, append, lead, open_shelf, values
from raylog.broker.partition.partition import Partition
from raylog.broker.storage.log.cleaning import enforce_retention
from raylog.broker.storage.log.log import Log
from raylog.protocol.ids import Offset, PartitionIndex, TimestampMs

LATER = TimestampMs(NOW + 10**9)
SMALL = {"retention.ms": 1000, "segment.bytes": 140}
OFTEN = {"log.retention.check.interval.ms": 1}


def another(shelf: Shelf, index: int) -> Partition:
    """Of the same topic, with the same settings, led here."""
    tp = TP._replace(partition=PartitionIndex(index))
    partition = Partition(tp, TOPIC_ID, shelf.dirs.create(tp, TOPIC_ID, NOW), shelf.partition.settings)
    lead(partition, 0)
    return partition


def fill(partition: Partition, count: int = 4) -> None:
    for n in range(count):
        append(partition, b"%d" % n, timestamps=[NOW + n])


def retained(shelf: Shelf) -> None:
    """Retention's time comes, and with it that of everything else."""
    shelf.dirs.maintain(NOW, 0)
    shelf.dirs.maintain(LATER, LATER - NOW)


def test_defect_of_one_log_holds_up_no_other(tmp_path: Path) -> None:
    shelf = open_shelf(tmp_path, topic=SMALL, broker=OFTEN)
    partitions = [shelf.partition, another(shelf, 1), another(shelf, 2)]
    for partition in partitions:
        fill(partition)

    def fail() -> None:
        raise AssertionError("not foreseen")

    partitions[0].log.on_start = fail
    with pytest.raises(
        ExceptionGroup, match=r"first AssertionError\('not foreseen'\) in the maintenance of t-0"
    ) as met:
        retained(shelf)
    assert len(met.value.exceptions) == 1
    assert [partition.log_start_offset for partition in partitions[1:]] == [4, 4]
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text().count("t ") == 3  # written all the same
    shelf.dirs.close()


def test_directory_whose_place_is_gone_holds_up_no_other(tmp_path: Path) -> None:
    """ENOTDIR: something else lies where its parent was."""
    lost, kept = tmp_path / "disk" / "logs", tmp_path / "kept"
    shelf = open_shelf(lost, kept, topic=SMALL, broker=OFTEN)
    other = another(shelf, 1)
    assert other.log.directory.parent == kept
    fill(other)
    (tmp_path / "disk").rename(tmp_path / "away")
    (tmp_path / "disk").write_bytes(b"")
    retained(shelf)
    assert list(shelf.dirs.offline()) == [str(lost)]
    assert "keeping of the lock failed (Not a directory)" in shelf.dirs.offline()[str(lost)]
    assert other.log_start_offset == 4
    shelf.dirs.close()


class Gap:
    """A log's lock at whose first release somebody else gets it, and does something to the log."""

    def __init__(self, lock: Any, work: Callable[[], object]) -> None:
        self._lock = lock
        self._work: Callable[[], object] | None = work
        self._depth = 0

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        self._lock.release()
        if not self._depth and self._work is not None:
            work, self._work = self._work, None
            other = threading.Thread(target=work)
            other.start()
            other.join(scaled(10))


@pytest.mark.parametrize("end", [0, 2])
def test_retention_beside_truncation_leaves_the_log_in_order(tmp_path: Path, end: int) -> None:
    """A follower truncates to less than what retention was about to make the log's start."""
    shelf = open_shelf(tmp_path, topic=SMALL)
    fill(shelf.partition, 6)
    log: Log = shelf.partition.log
    assert len(log.segments) >= 3
    log.lock = cast(threading.RLock, Gap(log.lock, lambda: log.truncate(Offset(end), NOW)))
    enforce_retention(log, LATER, 0)
    offsets = log.offsets
    assert offsets.start <= offsets.high_watermark.offset <= offsets.end.offset
    assert values(shelf.partition) == []
    assert append(shelf.partition, b"next") == offsets.end.offset
    shelf.dirs.close()
    again = open_shelf(tmp_path)
    assert values(again.partition) == [b"next"]
    again.dirs.close()
