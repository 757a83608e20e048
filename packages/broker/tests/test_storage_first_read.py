"""A batch from before the start is checked when it is read first; what happens to the log meanwhile is no damage."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import pytest

from kit.partitions import NOW, append, open_shelf
from raylog.broker.partition import Isolation, Partition
from raylog.broker.storage.cleaning import delete_records
from raylog.broker.storage.scrub import Scrubber
from raylog.protocol.errors import OffsetOutOfRange
from raylog.protocol.ids import Offset
from raylog.protocol.records import decode_batches

TOPIC = {"segment.bytes": 200, "index.interval.bytes": 0, "retention.ms": -1}
"""Two batches a segment."""


class ActsBefore:
    """A log's lock that has something done right before it is taken for the first time."""

    def __init__(self, lock: threading.RLock, act: Callable[[], object]) -> None:
        self._lock = lock
        self._acts = [act]

    def __enter__(self) -> None:
        if self._acts:
            self._acts.pop()()
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._lock.release()


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    """Three batches in two segments, after a start."""
    shelf = open_shelf(tmp_path, topic=TOPIC)
    for value in (b"0", b"1", b"2"):
        append(shelf.partition, value)
    shelf.dirs.close()
    partition = open_shelf(tmp_path, topic=TOPIC, epoch=1).partition
    assert [segment.base_offset for segment in partition.log.segments] == [0, 2]
    return partition


def more(partition: Partition) -> None:
    append(partition, b"3")


def roll(partition: Partition) -> None:
    append(partition, b"3")
    append(partition, b"4")


def deletion(partition: Partition) -> None:
    delete_records(partition.log, Offset(2))


def truncation(partition: Partition) -> None:
    partition.log.truncate(Offset(1), NOW)


def anew(partition: Partition) -> None:
    partition.log.start_anew(Offset(2), NOW)


Change = Callable[[Partition], None]


@pytest.mark.parametrize("change", [more, roll, deletion, truncation, anew])
@pytest.mark.parametrize("offset", [0, 1, 2])
def test_change_during_a_first_read_is_no_damage(partition: Partition, offset: int, change: Change) -> None:
    log = partition.log
    log.lock = ActsBefore(log.lock, lambda: change(partition))  # type: ignore[assignment]
    try:
        data = partition.read(Offset(offset), 1, isolation=Isolation.LOG_END).data
    except OffsetOutOfRange:
        assert change in (deletion, truncation, anew)
    else:
        if data is not None:
            assert [record.value for record in decode_batches(data.read())] == [b"%d" % offset]
            data.release()
        else:
            assert change in (truncation, anew)
    assert not log.is_suspect
    assert not any(segment.unchecked.damaged for segment in log.segments)
    assert log.health.failure == ""


@pytest.mark.parametrize("change", [more, roll, deletion, truncation, anew])
def test_change_beside_the_scrubber_is_no_damage(partition: Partition, change: Change) -> None:
    log = partition.log
    found: list[str] = []
    scrubber = Scrubber(lambda: [log], lambda: 1 << 20, lambda: found.append("damage"))
    log.lock = ActsBefore(log.lock, lambda: change(partition))  # type: ignore[assignment]
    while scrubber.step():
        pass
    assert found == []
    assert log.damage is None
    assert not any(segment.unchecked.damaged for segment in log.segments)
