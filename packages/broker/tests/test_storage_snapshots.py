"""Producers outlive the batches that tell of them: what is deleted at a log's front was noted in a snapshot before."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kit.faulty_files import Loss, LossyFileSystem
from kit.partitions import NOW, Shelf, batch, open_shelf
from raylog.broker.partition.partition import AppendInfo
from raylog.protocol.ids import Offset

SMALL = {"segment.bytes": 300}  # two batches
COUNT = 12


def send(shelf: Shelf, producer: int, sequence: int) -> AppendInfo:
    return shelf.partition.append(batch(b"v" * 50, producer=(producer, 0, sequence)), now_ms=NOW)


def filled(path: Path) -> Shelf:
    """Producer 7 has sent the first three batches, producer 1 all others; nothing was flushed."""
    shelf = open_shelf(path, topic=SMALL)
    for sequence in range(3):
        send(shelf, 7, sequence)
    for sequence in range(COUNT):
        send(shelf, 1, sequence)
    return shelf


def killed(shelf: Shelf, path: Path, epoch: int) -> Shelf:
    shelf.dirs.abandon()
    return open_shelf(path, topic=SMALL, epoch=epoch)


@pytest.mark.parametrize("before", ["killed", "truncated", "both"])
def test_producer_of_deleted_batches_is_known_after_a_kill(tmp_path: Path, before: str) -> None:
    shelf = filled(tmp_path)
    if before != "truncated":
        shelf = killed(shelf, tmp_path, 1)
    if before != "killed":
        shelf.partition.log.truncate(Offset(5), NOW)
    log = shelf.partition.log
    log.flush()
    shelf.partition.delete_records(log.segments[-1].base_offset)
    shelf.partition.save_start()
    again = killed(shelf, tmp_path, 2)
    assert again.partition.log_start_offset > 3, "nothing is left of what producer 7 sent"
    assert send(again, 7, 2).duplicate
    again.dirs.close()


def test_producer_goes_on_after_its_deleted_batches_are_lost() -> None:
    """The snapshot that is left knows nothing of the batches that went with the power: no gap is to be seen in them."""
    path, fs = Path("/disk/logs"), LossyFileSystem()
    shelf = open_shelf(path, fs=fs, topic=SMALL)
    for sequence in range(5):
        send(shelf, 1, sequence)
    shelf.partition.log.flush()
    for sequence in range(5, 8):
        send(shelf, 1, sequence)
    shelf.partition.delete_records(Offset(8))
    shelf.partition.save_start()
    shelf.dirs.abandon()
    again = open_shelf(path, fs=fs.after_crash(Loss.LOST, random.Random(1)), topic=SMALL, epoch=1)
    assert (again.partition.log_start_offset, again.partition.log_end_offset) == (8, 8)
    assert send(again, 1, 8).base_offset == 8
    again.dirs.close()


def test_start_without_producers_writes_no_snapshot(tmp_path: Path) -> None:
    shelf = killed(open_shelf(tmp_path), tmp_path, 1)
    assert not shelf.partition.log.unsaved_snapshots
    shelf.dirs.close()
