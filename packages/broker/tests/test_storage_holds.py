"""Files are closed and deleted beside everything that reads: no disk fails by that, and no file of ours stays open."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from kit.machine import scaled
from kit.partitions import NOW, TOPIC_ID, TP, Shelf, append, lead, open_shelf
from kit.slow_files import StuckDisk
from raylog.broker.config import topic_settings
from raylog.broker.partition.partition import Partition
from raylog.broker.storage.directories.scrub import Scrubber
from raylog.broker.storage.disk.files import File, FileClosed, RealFileSystem
from raylog.broker.storage.log.cleaning import enforce_retention
from raylog.broker.storage.segments.held import hold
from raylog.protocol.errors import NotLeaderOrFollower, OffsetOutOfRange
from raylog.protocol.ids import Offset, TimestampMs
from raylog.protocol.records import decode_batches

TOPIC = {"segment.bytes": 300, "index.interval.bytes": 0, "retention.bytes": 600, "retention.ms": -1}
WAIT_S = 60.0
CHURN_S = 4.0


def open_files(below: Path) -> list[str]:
    """What this process has open there, deleted files among it."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if (target := os.readlink(f"/proc/self/fd/{fd}")).startswith(str(below)):
                found.append(target)
    return found


@pytest.mark.parametrize(
    "use",
    [
        File.fileno,
        File.size,
        File.fdatasync,
        lambda file: file.pread(1, 0),
        lambda file: file.pwritev((b"x",), 0),
        lambda file: file.truncate(0),
        lambda file: file.reserve(0, 1),
        lambda file: file.forget(0, 1),
    ],
)
def test_closed_file_raises_what_no_disk_is_blamed_for(tmp_path: Path, use: Callable[[File], object]) -> None:
    file = RealFileSystem().open(tmp_path / "f", create=True)
    file.close()
    other = RealFileSystem().open(tmp_path / "other", create=True)  # gets the descriptor's number
    with pytest.raises(FileClosed) as caught:
        use(file) if not hasattr(use, "__name__") or use.__name__ == "<lambda>" else getattr(file, use.__name__)()
    assert not isinstance(caught.value, OSError)
    assert other.size() == 0
    other.close()


def test_read_without_a_hold_is_impossible(tmp_path: Path) -> None:
    shelf = open_shelf(tmp_path, topic=TOPIC)
    append(shelf.partition, b"a")
    segment = shelf.partition.log.segments[0]
    with hold(segment) as held:
        assert held.find(Offset(0)) is not None
    for read in (lambda: held.find(Offset(0)), lambda: held.pread(1, 0), lambda: list(held.headers())):
        with pytest.raises(FileClosed):
            read()
    with hold(segment) as held:
        shelf.dirs.delete(TP)
        assert len(held.pread(10, 0)) == 10, "who holds it reads on"
    with pytest.raises(FileClosed):
        hold(segment)
    assert not shelf.dirs.offline()
    shelf.dirs.close()


class Churn:
    """One partition under retention, DeleteRecords and deletion, beside readers of every kind."""

    def __init__(self, path: Path) -> None:
        self.shelf = open_shelf(path, topic=TOPIC)
        self.stopping = threading.Event()
        self.wrong: list[str] = []
        self.answers = 0
        self._threads: list[threading.Thread] = []

    @property
    def partition(self) -> Partition:
        return self.shelf.partition

    def beside(self, work: Callable[[Partition], None]) -> None:
        """Do it again and again in another thread."""

        def run() -> None:
            while not self.stopping.wait(0.001):
                partition = self.partition
                try:
                    work(partition)
                    self.answers += 1
                except (NotLeaderOrFollower, OffsetOutOfRange):
                    continue
                except Exception as error:  # noqa: BLE001
                    self.wrong.append(f"{work.__name__}: {error!r}")
                    return

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def end(self) -> None:
        self.stopping.set()
        for thread in self._threads:
            thread.join(scaled(WAIT_S))
            assert not thread.is_alive()

    def remake(self) -> None:
        """Delete the topic; another takes its name."""
        dirs = self.shelf.dirs
        self.partition.role.resign()
        dirs.delete(TP)
        log = dirs.create(TP, TOPIC_ID, NOW)
        partition = Partition(TP, TOPIC_ID, log, topic_settings(dirs._config, {k: str(v) for k, v in TOPIC.items()}))
        lead(partition, 0)
        self.shelf = Shelf(dirs, partition)


def by_time(partition: Partition) -> None:
    found = partition.offset_for_timestamp(TimestampMs(NOW + 20))
    assert found is None or found.timestamp >= NOW + 20


def newest(partition: Partition) -> None:
    found = partition.max_timestamp_offset()
    assert found is None or found.timestamp == NOW + found.offset


def read(partition: Partition) -> None:
    offset = partition.log_start_offset
    data = partition.read(offset, 1 << 16).data
    if data is not None:
        try:
            assert decode_batches(data.read())[0].timestamp >= NOW
        finally:
            data.release()


def retain(partition: Partition) -> None:
    enforce_retention(partition.log, NOW, 0)


def delete(partition: Partition) -> None:
    partition.delete_records(Offset(partition.high_watermark // 2))


def flush(partition: Partition) -> None:
    partition.log.flush(sealed_only=True)


@pytest.mark.parametrize("removal", [retain, delete])
def test_look_ups_beside_deletion_take_no_disk_offline(
    tmp_path: Path, removal: Callable[[Partition], None], record_property: Callable[[str, object], None]
) -> None:
    churn = Churn(tmp_path)
    scrubber = Scrubber(churn.shelf.dirs.all_logs, lambda: 1 << 30, lambda: None)

    def scrub(partition: Partition) -> None:
        partition.log.is_suspect = True
        for segment in partition.log.segments:
            segment.unchecked.damaged.setdefault(-1, "to be looked into")
        scrubber.step()

    try:
        for work in (by_time, newest, read, removal, flush, scrub):
            churn.beside(work)
        until = time.monotonic() + CHURN_S
        while time.monotonic() < until:
            for n in range(20):
                offset = churn.partition.log_end_offset
                append(churn.partition, b"value %d" % n, timestamps=[NOW + offset])
            churn.remake()
            if churn.wrong:
                break
    finally:
        churn.end()
    record_property("answers", churn.answers)
    assert churn.wrong == []
    assert not churn.shelf.dirs.offline()
    assert churn.answers > 50
    churn.partition.log.flush()
    live = {str(segment.log_path) for segment in churn.partition.log.segments}
    assert {path for path in open_files(tmp_path / "t-0") if path not in live} == set()
    assert [path for path in open_files(tmp_path) if path.endswith("(deleted)")] == []
    churn.shelf.dirs.close()


@pytest.mark.parametrize("operation", ["unlink", "fsync_dir"])
def test_retention_stopped_by_deletion_leaks_no_file(tmp_path: Path, operation: str) -> None:
    """Retention has taken segments off the log and is about to delete them, and the whole log is deleted."""
    disk = StuckDisk(RealFileSystem())
    shelf = open_shelf(tmp_path, fs=disk, topic=TOPIC)
    for n in range(20):
        append(shelf.partition, b"value %d" % n)
    shelf.partition.flush()
    log = shelf.partition.log
    disk.stick(operation)
    retaining = threading.Thread(target=enforce_retention, args=(log, NOW, 0), daemon=True)
    retaining.start()
    assert disk.met.wait(scaled(WAIT_S))
    deleting = threading.Thread(target=shelf.dirs.delete, args=(TP,), daemon=True)
    deleting.start()
    disk.gate.set()
    for thread in (retaining, deleting):
        thread.join(scaled(WAIT_S))
        assert not thread.is_alive()
    assert not shelf.dirs.offline()
    assert [path for path in open_files(tmp_path) if ".log" in path] == []
    shelf.dirs.close()


def test_retention_after_deletion_touches_no_file(tmp_path: Path) -> None:
    shelf = open_shelf(tmp_path, topic=TOPIC)
    for n in range(20):
        append(shelf.partition, b"value %d" % n)
    log = shelf.partition.log
    shelf.dirs.delete(TP)
    assert enforce_retention(log, NOW, 0) == 0
    with pytest.raises(NotLeaderOrFollower, match="is closed here"):
        shelf.partition.delete_records(Offset(5))
    assert not shelf.dirs.offline()
    assert list(tmp_path.glob("t-0*")) == []
    shelf.dirs.close()
