"""A disk that is full, cannot be read, or cannot sync: no false answer, and the directory goes offline."""

from __future__ import annotations

import errno
from pathlib import Path
from uuid import uuid4

import pytest

from kit.faulty_files import FailingFileSystem
from kit.partitions import NOW, TP, append, batch, open_shelf, values
from raylog.broker.storage.disk.checkpoint import RECOVERY_POINTS, read_offsets
from raylog.broker.storage.disk.files import RealFileSystem
from raylog.protocol.errors import StorageError
from raylog.protocol.ids import PartitionIndex, TimestampMs, TopicId, TopicName, TopicPartition


@pytest.fixture
def fs() -> FailingFileSystem:
    return FailingFileSystem(RealFileSystem())


@pytest.mark.parametrize("after_bytes", [None, 0, 30, 61])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failed_write_is_not_acknowledged(
    tmp_path: Path, fs: FailingFileSystem, code: int, after_bytes: int | None
) -> None:
    shelf = open_shelf(tmp_path, fs=fs)
    told: list[list[str]] = []
    shelf.dirs.on_offline = lambda: told.append(list(shelf.dirs.offline()))
    append(shelf.partition, b"kept")
    fs.fail("pwritev", code, ".log", after_bytes)
    with pytest.raises(StorageError, match="is offline: append to t-0 failed"):
        append(shelf.partition, b"lost")
    assert told == [[str(tmp_path)]]
    fs.faults.clear()
    for use in (
        lambda: append(shelf.partition, b"after"),
        lambda: shelf.partition.read(0, 1),
        shelf.partition.flush,
        lambda: shelf.dirs.create(TP, shelf.partition.topic_id, NOW),
    ):
        with pytest.raises(StorageError):
            use()
    assert list(shelf.dirs.offline()) == [str(tmp_path)]
    assert shelf.dirs.partitions() == {}
    shelf.dirs.maintain(TimestampMs(NOW + 10**9), NOW + 10**9)
    shelf.dirs.close()
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    again = open_shelf(tmp_path)
    assert values(again.partition) == [b"kept"]
    again.dirs.close()


def test_a_failed_fsync_is_never_retried(tmp_path: Path, fs: FailingFileSystem) -> None:
    shelf = open_shelf(tmp_path, fs=fs, topic={"flush.messages": 1})
    append(shelf.partition, b"acked")
    fault = fs.fail("fdatasync", errno.EIO, ".log")
    with pytest.raises(StorageError):
        append(shelf.partition, b"not acked")
    assert shelf.partition.high_watermark == 1
    fs.faults.remove(fault)
    fs.calls.clear()
    with pytest.raises(StorageError):
        append(shelf.partition, b"x")
    with pytest.raises(StorageError):
        shelf.partition.flush()
    shelf.dirs.maintain(TimestampMs(NOW + 10**9), NOW + 10**9)
    shelf.dirs.close()
    assert fs.calls["fdatasync"] == 0


def test_nothing_is_visible_before_it_is_synced(tmp_path: Path, fs: FailingFileSystem) -> None:
    shelf = open_shelf(tmp_path, fs=fs, topic={"flush.messages": 1})
    fs.fail("fdatasync", errno.EIO, ".log")
    with pytest.raises(StorageError):
        append(shelf.partition, b"a")
    assert (shelf.partition.log_end_offset, shelf.partition.high_watermark) == (1, 0)
    shelf.dirs.close()


def test_a_failed_read_takes_the_directory_offline(tmp_path: Path, fs: FailingFileSystem) -> None:
    shelf = open_shelf(tmp_path, fs=fs)
    append(shelf.partition, b"a")
    fs.fail("pread", errno.EIO, ".log")
    with pytest.raises(StorageError, match="read of t-0 at offset 0 failed"):
        shelf.partition.read(0, 1)
    assert shelf.dirs.offline()
    shelf.dirs.close()


@pytest.mark.parametrize("flushing", [False, True])
@pytest.mark.parametrize("operation", ["open", "fsync_dir", "rename"])
def test_a_failed_roll_is_not_acknowledged(
    tmp_path: Path, fs: FailingFileSystem, operation: str, flushing: bool
) -> None:
    """A roll makes nothing durable itself: the flush after it does, which is a part of the append if that was asked."""
    topic = {"segment.bytes": 100} | ({"flush.messages": 1} if flushing else {})
    shelf = open_shelf(tmp_path, fs=fs, topic=topic)
    append(shelf.partition, b"first")
    fs.fail(operation, errno.ENOSPC)
    if operation != "open" and not flushing:
        assert append(shelf.partition, b"second") == 1
        with pytest.raises(StorageError):
            shelf.partition.flush()
        shelf.dirs.close()
        return
    with pytest.raises(StorageError):
        append(shelf.partition, b"second")
    assert shelf.partition.high_watermark == 1
    shelf.dirs.close()
    fs.faults.clear()
    again = open_shelf(tmp_path, fs=fs, topic={"segment.bytes": 100})
    is_rolled = operation != "open"  # the record was written then, and its flush failed: it may be there
    assert append(again.partition, b"third") == 1 + is_rolled, "what the failed roll left behind is in nobody's way"
    assert values(again.partition) == [b"first", *[b"second"] * is_rolled, b"third"]
    again.dirs.close()


def test_the_other_directory_goes_on(tmp_path: Path, fs: FailingFileSystem) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    shelf = open_shelf(one, two, fs=fs)
    other = TP._replace(partition=PartitionIndex(1))
    log = shelf.dirs.create(other, shelf.partition.topic_id, NOW)
    assert (shelf.directory.parent, log.directory.parent) == (one, two)
    fs.fail("pwritev", errno.ENOSPC, str(shelf.directory / f"{0:020d}.log"))
    with pytest.raises(StorageError):
        append(shelf.partition, b"a")
    assert list(shelf.dirs.partitions()) == [other]
    with pytest.raises(StorageError):
        shelf.dirs.create(TP, shelf.partition.topic_id, NOW)
    third = shelf.dirs.create(TP._replace(partition=PartitionIndex(2)), shelf.partition.topic_id, NOW)
    assert third.directory.parent == two
    shelf.dirs.close()
    assert not (one / ".kafka_cleanshutdown").exists()
    assert (two / ".kafka_cleanshutdown").exists()


def test_a_directory_that_cannot_be_read_at_the_start(tmp_path: Path, fs: FailingFileSystem) -> None:
    fs.fail("list_dir", errno.EIO, "one")
    shelf = open_shelf(tmp_path / "one", tmp_path / "two", fs=fs)
    assert list(shelf.dirs.offline()) == [str(tmp_path / "one")]
    assert append(shelf.partition, b"a") == 0
    shelf.dirs.close()
    with pytest.raises(StorageError, match="no log directory is usable"):
        open_shelf(tmp_path / "one", fs=fs)


def test_a_retry_is_answered_only_once_it_is_synced(tmp_path: Path, fs: FailingFileSystem) -> None:
    shelf = open_shelf(tmp_path, fs=fs, topic={"flush.messages": 1})
    data = batch(b"a", producer=(1, 0, 0))
    fs.fail("fdatasync", errno.EIO, ".log")
    with pytest.raises(StorageError):
        shelf.partition.append(data, now_ms=NOW)
    with pytest.raises(StorageError):
        shelf.partition.append(data, now_ms=NOW)
    assert shelf.partition.high_watermark == 0
    shelf.dirs.close()


def test_where_one_directory_fails_the_other_withdraws_its_logs(tmp_path: Path, fs: FailingFileSystem) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    shelf = open_shelf(one, two, fs=fs)
    other = TopicPartition(TopicName("u"), PartitionIndex(0))
    shelf.dirs.create(other, TopicId(uuid4()), NOW)
    for directory in shelf.dirs.dirs:
        directory.checkpoint()
    assert all(read_offsets(fs, path / RECOVERY_POINTS) for path in (one, two))
    fs.fail("rename", errno.EIO, str(one / RECOVERY_POINTS))
    shelf.dirs.withdraw([TP, other])
    assert read_offsets(fs, two / RECOVERY_POINTS) == {}
    shelf.dirs.abandon()


def test_directory_that_cannot_tell_its_room_is_offline_and_tells_none(tmp_path: Path, fs: FailingFileSystem) -> None:
    shelf = open_shelf(tmp_path, fs=fs)
    [directory] = shelf.dirs.dirs
    assert directory.describe().space.total > 0
    fs.fail("space", errno.EIO)
    facts = directory.describe()
    assert (facts.space, facts.logs) == ((-1, -1), {})
    assert "a look at the room on the disk" in facts.failure
    shelf.dirs.abandon()
