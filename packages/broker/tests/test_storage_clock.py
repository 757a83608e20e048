"""Wall clocks that are set: nothing is deleted early, and nothing waits for a day (RELIABILITY, row 20)."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.faulty_files import LossyFileSystem
from kit.partitions import NOW, Shelf, append, open_shelf
from raylog.broker.storage.directories.clock import RetentionClock
from raylog.broker.storage.log.cleaning import enforce_retention
from raylog.protocol.ids import TimestampMs

HOUR_MS = 60 * 60 * 1000
DAY_MS = 24 * HOUR_MS


def test_the_earlier_clock_counts() -> None:
    clock = RetentionClock(NOW, 5000)
    assert clock.now_ms(NOW, 5000) == NOW
    assert clock.now_ms(TimestampMs(NOW + 10), 5010) == NOW + 10
    assert clock.now_ms(TimestampMs(NOW + DAY_MS), 5020) == NOW + 20
    assert clock.now_ms(TimestampMs(NOW - DAY_MS), 5030) == NOW - DAY_MS
    assert clock.now_ms(TimestampMs(NOW + 40), 5040) == NOW + 40


class Month:
    """A partition over thirty days, an hour a step, with a clock that somebody keeps setting."""

    def __init__(self, timestamp_type: str, seed: int) -> None:
        self.rng = random.Random(seed)
        self.append_time = timestamp_type == "LogAppendTime"
        topic = {
            "segment.bytes": 140, "retention.ms": 3 * DAY_MS, "message.timestamp.type": timestamp_type,
            "message.timestamp.after.max.ms": 4 * DAY_MS,
        }  # fmt: skip
        self.shelf: Shelf = open_shelf(Path("/disk/logs"), fs=LossyFileSystem(), topic=topic)
        self.passed_ms = 0
        self.step_ms = 0
        self.written: list[int] = []
        """When each record was really written, by offset."""
        self.deleted = self.early = 0

    def hour(self) -> None:
        """Perhaps set the clock, perhaps write, always look for what is old."""
        if self.rng.random() < 0.05:
            self.step_ms = self.rng.choice((-DAY_MS, 0, DAY_MS))
        partition = self.shelf.partition
        if self.rng.random() < 0.5:
            future = self.rng.choice((0, 0, 0, HOUR_MS, 2 * DAY_MS))
            append(partition, b"x", timestamps=[NOW + self.passed_ms + future], now_ms=self.wall_ms)
            self.written.append(self.passed_ms)
        before = partition.log_start_offset
        self.shelf.dirs.maintain(TimestampMs(self.wall_ms), self.passed_ms)
        for offset in range(before, partition.log_start_offset):
            self.deleted += 1
            self.early += self.passed_ms - self.written[offset] <= 3 * DAY_MS
        self.passed_ms += HOUR_MS

    @property
    def wall_ms(self) -> int:
        return NOW + self.passed_ms + self.step_ms


@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
def test_nothing_is_deleted_early(timestamp_type: str, record_property: Callable[[str, object], None]) -> None:
    deleted = early = 0
    for seed in range(5):
        month = Month(timestamp_type, seed)
        for _ in range(30 * 24):
            month.hour()
        month.shelf.dirs.close()
        deleted += month.deleted
        early += month.early
    assert deleted > 500
    assert early == 0
    record_property("records deleted, of them early", (deleted, early))


def test_records_stay_for_retention_ms_by_the_monotonic_clock_too(tmp_path: Path) -> None:
    shelf = open_shelf(tmp_path, topic={"message.timestamp.type": "LogAppendTime", "retention.ms": HOUR_MS})
    append(shelf.partition, b"a")
    log, later = shelf.partition.log, TimestampMs(NOW + DAY_MS)
    assert enforce_retention(log, NOW, 5) == 0
    assert enforce_retention(log, later, 5 + HOUR_MS) == 0
    assert enforce_retention(log, later, 6 + HOUR_MS) == 1
    shelf.dirs.close()


def test_what_is_due_by_interval_does_not_wait_for_the_wall_clock(tmp_path: Path) -> None:
    shelf = open_shelf(tmp_path, topic={"flush.ms": 1000})
    shelf.dirs.maintain(NOW, 0)
    append(shelf.partition, b"a")
    shelf.dirs.maintain(TimestampMs(NOW - DAY_MS), 1000)
    assert shelf.partition.log.recovery_point == 1
    (tmp_path / "recovery-point-offset-checkpoint").unlink()
    shelf.dirs.maintain(TimestampMs(NOW - DAY_MS), 60_000)
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\nt 0 1\n"
    shelf.dirs.close()


def test_records_from_the_future_are_kept_until_then(tmp_path: Path) -> None:
    topic = {"segment.bytes": 140, "retention.ms": DAY_MS, "message.timestamp.after.max.ms": 9 * DAY_MS}
    shelf = open_shelf(tmp_path, topic=topic)
    append(shelf.partition, b"a", timestamps=[NOW + 5 * DAY_MS])
    shelf.dirs.maintain(NOW, 0)
    shelf.dirs.maintain(TimestampMs(NOW + 6 * DAY_MS), 6 * DAY_MS)
    assert shelf.partition.log_start_offset == 0
    shelf.dirs.maintain(TimestampMs(NOW + 7 * DAY_MS), 7 * DAY_MS)
    assert shelf.partition.log_start_offset == 1
    shelf.dirs.close()
