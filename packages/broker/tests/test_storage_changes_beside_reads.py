"""A log is changed before any line of a reader: the reader finds what was there, or is there, or is told it is gone."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory

import pytest

from kit.interrupts import Interrupt
from kit.partitions import NOW, Shelf, append, open_shelf
from raylog.broker.partition.partition import Isolation, Partition
from raylog.broker.storage.log import first_read, log, reading, timestamps
from raylog.broker.storage.log.cleaning import enforce_retention
from raylog.protocol.errors import OffsetOutOfRange
from raylog.protocol.ids import Offset, TimestampMs
from raylog.protocol.records import decode_batches

TOPIC = {"segment.bytes": 200, "index.interval.bytes": 0, "retention.bytes": 300, "retention.ms": -1}
RECORDS = 12


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory with six segments of two records, the last of them active."""
    path = tmp_path_factory.mktemp("stored")
    shelf = open_shelf(path, topic=TOPIC)
    for n in range(RECORDS):
        append(shelf.partition, b"%d" % n, timestamps=[NOW + n])
    assert [segment.base_offset for segment in shelf.partition.log.segments] == [0, 2, 4, 6, 8, 10]
    shelf.dirs.close()
    return path


def copied(stored: Path, path: Path) -> Shelf:
    """What lies in its segments is checked when it is read first."""
    copytree(stored, path, dirs_exist_ok=True)
    return open_shelf(path, topic=TOPIC)


def read_at(offset: int) -> Callable[[Partition], None]:
    def read(partition: Partition) -> None:
        try:
            data = partition.read(Offset(offset), 1 << 16).data
        except OffsetOutOfRange:
            assert not partition.log_start_offset <= offset <= partition.log_end_offset
            return
        if data is not None:
            try:
                found = decode_batches(data.read())[0]
            finally:
                data.release()
            assert (found.offset, found.timestamp) == (offset, NOW + offset)

    return read


def by_time(partition: Partition) -> None:
    found = partition.offset_for_timestamp(TimestampMs(NOW + 4), isolation=Isolation.HIGH_WATERMARK)
    assert found is None or found.timestamp == NOW + found.offset >= NOW + 4


def newest(partition: Partition) -> None:
    found = partition.max_timestamp_offset()
    assert found is None or found.timestamp == NOW + found.offset


def deleted_to(offset: int) -> Callable[[Partition], object]:
    return lambda partition: partition.delete_records(Offset(offset))


def retained(partition: Partition) -> None:
    assert enforce_retention(partition.log, NOW, 0)


def anew_at(offset: int) -> Callable[[Partition], object]:
    return lambda partition: partition.log.start_anew(Offset(offset), TimestampMs(NOW))


def appended(partition: Partition) -> None:
    for n in range(RECORDS, RECORDS + 4):
        append(partition, b"%d" % n, timestamps=[NOW + n])


def beside_reader(partition: Partition, change: Callable[[Partition], object]) -> None:
    """In another thread, unless the reader holds the lock: then it must wait, and changes nothing here."""

    def try_to() -> None:
        if partition.log.lock.acquire(blocking=False):
            try:
                change(partition)
            finally:
                partition.log.lock.release()

    with ThreadPoolExecutor(1) as other:
        other.submit(try_to).result()


READERS = {
    "first": (read_at(1), 2),
    "second": (read_at(4), 2),
    "last": (read_at(10), 2),
    "time": (by_time, 11),
    "newest": (newest, 11),
}
"""With each, how many lines lie between two changes."""
CHANGES: dict[str, Callable[[Partition], object]] = {
    "within a segment": deleted_to(5),
    "whole segments": deleted_to(6),
    "all": deleted_to(RECORDS),
    "retention": retained,
    "anew": anew_at(40),
    "append": appended,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize(("reader", "lines"), READERS.values(), ids=READERS)
def test_reader_takes_no_change_for_damage(
    stored: Path, tmp_path: Path, reader: Callable[[Partition], None], lines: int, change: Callable[[Partition], object]
) -> None:
    for nth in count(0, lines):
        with TemporaryDirectory(dir=tmp_path) as path:
            shelf = copied(stored, Path(path))
            partition = shelf.partition
            beside = partial(beside_reader, partition, change)
            with Interrupt(nth, reading, log, first_read, timestamps, handler=beside) as interrupt:
                reader(partition)
            assert not partition.log.is_suspect
            shelf.dirs.close()
        if not interrupt.reached:
            assert nth > 20
            break
