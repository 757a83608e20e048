"""A broker knows when its disk came back with less than it had promised, and tells until it was heard."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kit.partitions import NOW, Shelf, append, open_shelf
from raylog.broker.storage.disk.files import RealFileSystem
from raylog.protocol.errors import StorageError
from raylog.protocol.ids import TimestampMs

HIGH_WATERMARKS = "replication-offset-checkpoint"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"


def shelf_with_records(path: Path, *, checkpoint: bool = True) -> Shelf:
    shelf = open_shelf(path)
    append(shelf.partition, b"a", b"b")
    append(shelf.partition, b"c")
    if checkpoint:
        shelf.dirs.dirs[0].checkpoint()
    return shelf


def cut(shelf: Shelf) -> None:
    """End the process, and lose the last batch of the log file."""
    [log] = shelf.directory.glob("*.log")
    shelf.dirs.abandon()
    log.write_bytes(log.read_bytes()[:-10])


def test_nothing_is_lost_after_an_orderly_stop_or_a_crash_of_the_process(tmp_path: Path) -> None:
    shelf_with_records(tmp_path).dirs.close()
    shelf = open_shelf(tmp_path)
    assert not shelf.dirs.lost_data
    shelf.dirs.abandon()
    assert not open_shelf(tmp_path).dirs.lost_data


def test_a_log_that_ends_before_its_checkpoints_lost_data(tmp_path: Path) -> None:
    cut(shelf_with_records(tmp_path))
    assert open_shelf(tmp_path).dirs.lost_data


@pytest.mark.parametrize("known", [HIGH_WATERMARKS, RECOVERY_POINTS])
def test_either_checkpoint_promises_what_it_names(tmp_path: Path, known: str) -> None:
    shelf = shelf_with_records(tmp_path)
    shelf.partition.flush()
    shelf.dirs.maintain(TimestampMs(NOW + 10**6), 10**6)
    assert {HIGH_WATERMARKS, RECOVERY_POINTS} <= {path.name for path in tmp_path.iterdir()}
    shelf.dirs.abandon()
    shelf.directory.rename(tmp_path / "elsewhere")
    for name in {HIGH_WATERMARKS, RECOVERY_POINTS} - {known}:
        (tmp_path / name).unlink()
    assert open_shelf(tmp_path).dirs.lost_data


def test_so_did_a_log_that_is_not_there(tmp_path: Path) -> None:
    shelf = shelf_with_records(tmp_path)
    shelf.dirs.abandon()
    shelf.directory.rename(tmp_path / "elsewhere")
    assert open_shelf(tmp_path).dirs.lost_data


def test_a_damaged_batch_is_lost_though_no_checkpoint_knew_of_it(tmp_path: Path) -> None:
    """A process that dies leaves a part of a batch, never other bytes: what was there may be acknowledged."""
    shelf = shelf_with_records(tmp_path, checkpoint=False)
    [log] = shelf.directory.glob("*.log")
    shelf.dirs.abandon()
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    assert open_shelf(tmp_path).dirs.lost_data


def test_what_was_never_promised_is_not_lost(tmp_path: Path) -> None:
    cut(shelf_with_records(tmp_path, checkpoint=False))
    assert not open_shelf(tmp_path).dirs.lost_data


def test_a_loss_is_remembered_until_it_was_told(tmp_path: Path) -> None:
    cut(shelf_with_records(tmp_path))
    for _ in range(2):
        shelf = open_shelf(tmp_path)
        assert shelf.dirs.lost_data
        shelf.dirs.abandon()
    shelf = open_shelf(tmp_path)
    shelf.dirs.loss_told()
    assert not shelf.dirs.lost_data
    shelf.dirs.abandon()
    assert not open_shelf(tmp_path).dirs.lost_data


def test_high_watermarks_are_saved_every_five_seconds_when_they_moved(tmp_path: Path) -> None:
    shelf = open_shelf(tmp_path)
    saved = tmp_path / HIGH_WATERMARKS
    shelf.dirs.maintain(NOW, 0)
    append(shelf.partition, b"a", b"b")
    shelf.dirs.maintain(TimestampMs(NOW + 4_999), 4_999)
    assert "t 0 2" not in saved.read_text()
    shelf.dirs.maintain(TimestampMs(NOW + 5_000), 5_000)
    assert "t 0 2" in saved.read_text()
    saved.unlink()
    shelf.dirs.maintain(TimestampMs(NOW + 10_000), 10_000)
    assert not saved.exists(), "nothing has moved"
    shelf.dirs.close()


def test_directory_whose_lock_is_gone_goes_offline(tmp_path: Path) -> None:
    shelf = shelf_with_records(tmp_path)
    shelf.dirs.maintain(TimestampMs(NOW + 1_000), 1_000)
    assert list(shelf.dirs.offline()) == []
    (tmp_path / ".lock").unlink()
    shelf.dirs.maintain(TimestampMs(NOW + 2_000), 2_000)
    assert list(shelf.dirs.offline()) == [str(tmp_path)]
    with pytest.raises(StorageError, match="another broker may write here"):
        append(shelf.partition, b"d")


def test_lock_that_is_held_costs_no_descriptor(tmp_path: Path) -> None:
    fs = RealFileSystem()
    held = fs.lock(tmp_path / ".lock")
    assert held is not None
    before = len(os.listdir("/proc/self/fd"))
    assert fs.lock(tmp_path / ".lock") is None
    assert len(os.listdir("/proc/self/fd")) == before
    held.release()
    again = fs.lock(tmp_path / ".lock")
    assert again is not None
    again.release()
