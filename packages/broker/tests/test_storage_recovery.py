"""What a start finds after a stop of either kind, and what it says about it."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from crc32c import crc32c

from kit.faulty_files import FailingFileSystem
from kit.partitions import NOW, TOPIC_ID, TP, Shelf, append, lead, open_shelf, values
from raylog.broker.storage.directories.log_dirs import LogDirs
from raylog.broker.storage.disk.checkpoint import LEADER_EPOCHS
from raylog.broker.storage.disk.files import RealFileSystem
from raylog.protocol.errors import InconsistentTopicId, StorageError
from raylog.protocol.ids import BrokerId, Offset, TopicId

SMALL = {"segment.bytes": 300, "index.interval.bytes": 0}
LOG = "00000000000000000000.log"


def filled(tmp_path: Path, count: int = 20) -> Shelf:
    shelf = open_shelf(tmp_path, topic=SMALL)
    for n in range(count):
        append(shelf.partition, b"value %02d" % n)
    return shelf


def expected(count: int) -> list[bytes]:
    return [b"value %02d" % n for n in range(count)]


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


def test_truncates_at_the_first_bad_batch_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shelf = filled(tmp_path)
    shelf.dirs.abandon()
    segments = sorted(shelf.directory.glob("*.log"))
    assert len(segments) > 4
    flip(segments[2], 70)
    base = int(segments[2].stem)
    caplog.clear()
    shelf = open_shelf(tmp_path, topic=SMALL)
    assert values(shelf.partition) == expected(base)
    assert sorted(shelf.directory.glob("*.log"))[-1] == segments[2]
    (event,) = [record for record in caplog.records if getattr(record, "event", "") == "log truncated"]
    assert (str(event.fields["partition"]), event.fields["offset"]) == ("t-0", base)
    assert "checksum" in event.fields["reason"]
    assert event.levelno == logging.WARNING
    assert append(shelf.partition, b"more") == base
    shelf.dirs.close()


def test_losing_what_was_flushed_is_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shelf = open_shelf(tmp_path)
    append(shelf.partition, b"a")
    append(shelf.partition, b"b")
    shelf.partition.flush()
    shelf.dirs.dirs[0].checkpoint()
    shelf.dirs.abandon()
    os.truncate(shelf.directory / LOG, 75)
    shelf = open_shelf(tmp_path)
    assert values(shelf.partition) == [b"a"]
    (event,) = [record for record in caplog.records if getattr(record, "event", "") == "log truncated"]
    assert (event.levelno, event.fields["recovery_point"]) == (logging.ERROR, 2)
    shelf.dirs.close()


def test_losing_all_segments_is_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shelf = open_shelf(tmp_path)
    append(shelf.partition, b"a")
    shelf.partition.flush()
    shelf.dirs.dirs[0].checkpoint()
    shelf.dirs.abandon()
    (shelf.directory / LOG).unlink()
    shelf = open_shelf(tmp_path)
    assert values(shelf.partition) == []
    (event,) = [record for record in caplog.records if getattr(record, "event", "") == "log truncated"]
    assert (event.levelno, event.fields["reason"]) == (logging.ERROR, "all segments are missing")
    shelf.dirs.close()


def test_what_is_below_the_recovery_point_is_not_read(tmp_path: Path) -> None:
    shelf = filled(tmp_path)
    shelf.dirs.maintain(NOW, NOW)  # flushes the closed segments
    shelf.dirs.dirs[0].checkpoint()
    shelf.dirs.abandon()
    flip(shelf.directory / LOG, 65)
    shelf = open_shelf(tmp_path, topic=SMALL)
    assert shelf.partition.log_end_offset == 20
    shelf.dirs.close()


def test_after_a_clean_stop_nothing_is_read(tmp_path: Path) -> None:
    shelf = filled(tmp_path, 2)
    shelf.dirs.close()
    flip(shelf.directory / LOG, 65)
    shelf = open_shelf(tmp_path, topic=SMALL)
    assert shelf.partition.log_end_offset == 2
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    shelf.dirs.abandon()
    shelf = open_shelf(tmp_path, topic=SMALL)
    assert shelf.partition.log_end_offset == 0
    shelf.dirs.close()


def test_a_start_that_came_to_nothing_is_no_orderly_stop_of_the_incarnation_before(tmp_path: Path) -> None:
    """A broker that is refused its registration closes its logs in good order, whatever became of its former life."""
    shelf = filled(tmp_path, 2)
    assert not shelf.dirs.was_stopped_cleanly
    shelf.dirs.abandon()
    for _ in range(2):
        shelf = open_shelf(tmp_path, topic=SMALL)
        assert not shelf.dirs.was_stopped_cleanly
        shelf.dirs.close()
    open_shelf(tmp_path, topic=SMALL).dirs.close(broker_epoch=7)
    for _ in range(2):
        shelf = open_shelf(tmp_path, topic=SMALL)
        assert shelf.dirs.was_stopped_cleanly
        shelf.dirs.close()


def test_a_torn_tail_is_cut_even_after_a_clean_stop(tmp_path: Path) -> None:
    shelf = filled(tmp_path)
    shelf.dirs.close()
    last = max(shelf.directory.glob("*.log"))
    os.truncate(last, last.stat().st_size - 1)
    shelf = open_shelf(tmp_path, topic=SMALL)
    assert values(shelf.partition) == expected(19)
    shelf.dirs.close()


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["gone", "torn", "empty", "flipped", "reversed"])
def test_damaged_indexes_lose_nothing(tmp_path: Path, suffix: str, damage: str) -> None:
    shelf = filled(tmp_path)
    shelf.dirs.close()
    for path in shelf.directory.glob(f"*{suffix}"):
        data = path.read_bytes()
        match damage:
            case "gone":
                path.unlink()
            case "torn":
                path.write_bytes(data[:-3])
            case "empty":
                path.write_bytes(b"")
            case "flipped":
                path.write_bytes(bytes(byte ^ 0x15 for byte in data))
            case "reversed":
                path.write_bytes(data[::-1])
    shelf = open_shelf(tmp_path, topic=SMALL)
    assert values(shelf.partition) == expected(20)
    for offset in range(20):
        assert values(shelf.partition, offset) == expected(20)[offset:]
    shelf.dirs.close()


@pytest.mark.parametrize("rows", [b"", b"0 1 2 3\n", b"0 0 0 0 0 0 0 0\n7 0 0 0 0 0 0 0\n"])
def test_other_index_checksums_lose_nothing(tmp_path: Path, rows: bytes) -> None:
    shelf = filled(tmp_path)
    shelf.dirs.close()
    (shelf.directory / "index-checksums").write_bytes(f"{crc32c(rows)}\n".encode() + rows)
    shelf = open_shelf(tmp_path, topic=SMALL)
    assert values(shelf.partition) == expected(20)
    shelf.dirs.close()


def test_producers_survive_without_their_snapshots(tmp_path: Path) -> None:
    for stop in (LogDirs.close, LogDirs.abandon):
        path = tmp_path / stop.__name__
        shelf = open_shelf(path, topic=SMALL)
        for n in range(12):
            append(shelf.partition, b"v", producer=(5, 0, n))
        stop(shelf.dirs)
        for snapshot in shelf.directory.glob("*.snapshot"):
            flip(snapshot, 5)
        shelf = open_shelf(path, topic=SMALL)
        assert append(shelf.partition, b"v", producer=(5, 0, 11)) == 11
        assert append(shelf.partition, b"v", producer=(5, 0, 12)) == 12
        shelf.dirs.close()


@pytest.mark.parametrize("stop", [LogDirs.close, LogDirs.abandon])
def test_leader_epochs_survive(tmp_path: Path, stop: Callable[[LogDirs], None]) -> None:
    shelf = open_shelf(tmp_path, epoch=1)
    append(shelf.partition, b"a")
    lead(shelf.partition, 4)
    append(shelf.partition, b"b")
    stop(shelf.dirs)
    (shelf.directory / "leader-epoch-checkpoint").write_text("nonsense")
    shelf = open_shelf(tmp_path, epoch=4)
    assert shelf.partition.log.epochs.rows() == [(1, 0), (4, 1)]
    shelf.dirs.close()


def test_leftovers_are_swept(tmp_path: Path) -> None:
    shelf = filled(tmp_path, 1)
    shelf.dirs.close()
    (shelf.directory / "00000000000000000007.index").touch()
    (shelf.directory / "leader-epoch-checkpoint.tmp").touch()
    (tmp_path / "old-0.abc-delete").mkdir()
    (tmp_path / "old-0.abc-delete" / LOG).touch()
    (tmp_path / "half-made-0").mkdir()
    (tmp_path / "something else").mkdir()
    shelf = open_shelf(tmp_path, topic=SMALL)
    assert list(shelf.dirs.partitions()) == [TP]
    assert not (shelf.directory / "00000000000000000007.index").exists()
    assert not (shelf.directory / "leader-epoch-checkpoint.tmp").exists()
    assert {p.name for p in tmp_path.iterdir() if p.is_dir()} == {"t-0", "something else"}
    shelf.dirs.close()


def test_one_partition_in_two_directories(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    shelf = open_shelf(one, two)
    append(shelf.partition, b"a")
    shelf.dirs.close()
    shutil.copytree(one / "t-0", two / "t-0")
    shelf = open_shelf(one, two)
    assert values(shelf.partition) == [b"a"]
    (aside,) = [p.name for p in two.iterdir() if p.is_dir()]
    assert aside.startswith("t-0.")
    assert aside.endswith("-stray")
    assert "log set aside" in [getattr(record, "event", "") for record in caplog.records]
    shelf.dirs.close()


def test_a_directory_has_one_owner(tmp_path: Path) -> None:
    shelf = open_shelf(tmp_path)
    with pytest.raises(StorageError, match="is in use by another broker"):
        open_shelf(tmp_path)
    assert append(shelf.partition, b"a") == 0
    shelf.dirs.close()
    open_shelf(tmp_path).dirs.close()


@pytest.mark.parametrize(("cluster", "broker"), [("another", 1), ("cluster-of-tests", 2)])
def test_a_foreign_directory_is_refused(tmp_path: Path, cluster: str, broker: int) -> None:
    shelf = open_shelf(tmp_path)
    shelf.dirs.close()
    dirs = LogDirs(shelf.dirs._config, RealFileSystem(), cluster, BrokerId(broker))
    with pytest.raises(StorageError, match="belongs to"):
        dirs.open(NOW)
    ids = shelf.dirs.directory_ids()
    shelf = open_shelf(tmp_path)
    assert shelf.dirs.directory_ids() == ids
    shelf.dirs.close()


def test_a_topic_made_again_does_not_get_the_old_records(tmp_path: Path) -> None:
    shelf = open_shelf(tmp_path)
    append(shelf.partition, b"old")
    shelf.partition.flush()
    shelf.dirs.dirs[0].checkpoint()
    new = TopicId(type(TOPIC_ID)(int=99))
    with pytest.raises(InconsistentTopicId):
        shelf.dirs.create(TP, new, NOW)
    shelf.dirs.delete(TP)
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n0\n"
    log = shelf.dirs.create(TP, new, NOW)
    assert log.offsets.end.offset == 0
    shelf.dirs.set_aside(TP, "not in the cluster's metadata")
    assert shelf.dirs.partitions() == {}
    shelf.dirs.close()


def test_a_log_without_a_topic_id_is_adopted(tmp_path: Path) -> None:
    shelf = filled(tmp_path, 1)
    shelf.dirs.close()
    (shelf.directory / "partition.metadata").unlink()
    shelf = open_shelf(tmp_path, topic=SMALL)
    assert values(shelf.partition) == expected(1)
    assert (shelf.directory / "partition.metadata").exists()
    shelf.dirs.close()


def with_two_epochs(root: Path) -> Shelf:
    """Of eight batches in epoch 0, and two in epoch 3."""
    shelf = open_shelf(root, topic=SMALL)
    for n in range(8):
        append(shelf.partition, b"%d" % n)
    lead(shelf.partition, 3)
    append(shelf.partition, b"8")
    append(shelf.partition, b"9")
    return shelf


def test_epoch_that_began_before_the_log_hides_no_wrong_one(tmp_path: Path) -> None:
    shelf = with_two_epochs(tmp_path)
    shelf.partition.delete_records(Offset(6))
    log = shelf.partition.log
    assert 0 < log.segments[0].base_offset <= 6
    assert log.epochs.rows() == [(0, 6), (3, 8)]
    shelf.dirs.close()
    (shelf.directory / LEADER_EPOCHS).write_text("0\n2\n0 0\n3 7\n")
    shelf = open_shelf(tmp_path, topic=SMALL, epoch=3)
    assert shelf.partition.log.epochs.rows() == [(0, 6), (3, 8)]
    shelf.dirs.close()


@pytest.mark.parametrize(
    "rows",
    ["0 0\n3 9\n", "0 0\n3 7\n", "3 8\n", "0 0\n", "3 0\n", "0 0\n2 5\n3 8\n", "0 0\n3 8\n4 9\n"],
    ids=["late", "early", "first missing", "last missing", "first too long", "one too many", "one too new"],
)
def test_epochs_that_the_batches_contradict_are_read_from_the_log(tmp_path: Path, rows: str) -> None:
    shelf = with_two_epochs(tmp_path)
    shelf.dirs.close()
    (shelf.directory / LEADER_EPOCHS).write_text(f"0\n{rows.count(chr(10))}\n{rows}")
    shelf = open_shelf(tmp_path, topic=SMALL, epoch=4)
    assert shelf.partition.log.epochs.rows() == [(0, 0), (3, 8), (4, 10)]
    shelf.dirs.close()


def test_foreign_file_beside_the_segments_is_left_alone(tmp_path: Path) -> None:
    shelf = filled(tmp_path, 3)
    shelf.dirs.abandon()
    notes = shelf.directory / "notes.log"
    notes.write_text("seen on Monday")
    shelf = open_shelf(tmp_path, topic=SMALL)
    assert values(shelf.partition) == expected(3)
    assert notes.read_text() == "seen on Monday"
    shelf.dirs.close()


def test_recovery_reads_many_batches_at_once(tmp_path: Path) -> None:
    shelf = open_shelf(tmp_path)
    for n in range(200):
        append(shelf.partition, b"%d" % n)
    shelf.dirs.abandon()
    fs = FailingFileSystem(RealFileSystem())
    shelf = open_shelf(tmp_path, fs=fs)
    assert shelf.partition.log_end_offset == 200
    assert fs.calls["pread"] < 20
    shelf.dirs.close()


def test_indexes_of_an_earlier_stop_do_not_outlast_a_roll(tmp_path: Path) -> None:
    shelf = filled(tmp_path, 2)
    shelf.dirs.close()
    index = shelf.directory / "00000000000000000000.index"
    assert index.exists()
    shelf = open_shelf(tmp_path, topic=SMALL)
    while len(shelf.partition.log.segments) == 1:
        append(shelf.partition, b"more")
    assert not index.exists()
    shelf.partition.flush()
    assert index.exists()
    shelf.dirs.close()


def test_recovery_keeps_batches_at_large_offsets(tmp_path: Path) -> None:
    base = Offset(2**40)
    shelf = open_shelf(tmp_path)
    shelf.partition.log.start_anew(base, NOW)
    append(shelf.partition, b"a", b"b")
    shelf.dirs.abandon()
    shelf = open_shelf(tmp_path)
    assert (values(shelf.partition, base), shelf.partition.log_end_offset) == ([b"a", b"b"], base + 2)
    shelf.dirs.close()
