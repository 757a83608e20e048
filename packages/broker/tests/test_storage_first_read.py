"""A batch from before the start is checked when it is read first; what happens to the log meanwhile is no damage."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import pytest

from kit.partitions import NOW, append, open_shelf
from raylog.broker.partition.partition import Isolation, Partition
from raylog.broker.storage.directories.scrub import Scrubber
from raylog.broker.storage.log.cleaning import delete_records
from raylog.broker.storage.log.first_read import Stretch, check
from raylog.broker.storage.segments.held import hold
from raylog.protocol.errors import CorruptMessage, OffsetOutOfRange
from raylog.protocol.ids import Offset
from raylog.protocol.records import batch_headers, decode_batches

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


def test_check_of_a_sound_file_finds_no_reason(partition: Partition) -> None:
    log = partition.log
    with hold(log.segments[0]) as held:
        assert check(log, held, 0, log.segments[0].size) == Stretch(log.segments[0].size, Offset(2), "")


def test_file_that_begins_with_another_offset_is_damaged(partition: Partition) -> None:
    """Each of its batches follows on the one before, and no checksum covers offsets: the name tells."""
    log = partition.log
    data = bytearray(log.segments[0].log_path.read_bytes())
    for position, header in list(batch_headers(data)):
        data[position : position + 8] = (header.base_offset + 1).to_bytes(8, "big")
    log.segments[0].log_path.write_bytes(data)
    with hold(log.segments[0]) as held:
        found = check(log, held, 0, log.segments[0].size)
    assert found.end == 0
    assert "offsets 1 to 1, out of line" in found.reason


def test_last_offset_that_no_batch_has_is_told(partition: Partition) -> None:
    """A reader that was told nothing would wait for it for ever."""
    more(partition)
    log = partition.log
    path = log.segments[-1].log_path
    data = bytearray(path.read_bytes())
    position, header = list(batch_headers(data))[-1]
    assert header.base_offset == 3
    data[position : position + 8] = (2).to_bytes(8, "big")
    path.write_bytes(data)
    with pytest.raises(CorruptMessage, match="no batch says that it holds offset 3"):
        partition.read(Offset(3), 1)
    assert log.is_suspect


def test_read_that_ends_inside_a_header_meets_no_damage(partition: Partition) -> None:
    log = partition.log
    (_, first), (second, _) = batch_headers(log.segments[0].log_path.read_bytes())
    with hold(log.segments[0]) as held:
        assert check(log, held, 0, second + 10) == Stretch(first.size, Offset(1), "")
