"""Where a log begins has one owner on the disk, and a deleted log promises nothing: after a crash at any moment."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from kit.faulty_files import Loss, LossyFileSystem, SimulatedCrash
from kit.node import Node
from kit.partitions import NOW, TOPIC_ID, TP, Shelf, append, open_shelf, values
from kit.slow_files import StartWrites
from raylog.broker.storage.disk import checkpoint
from raylog.broker.storage.disk.checkpoint import LOG_STARTS, RECOVERY_POINTS, read_offsets
from raylog.broker.storage.disk.files import RealFileSystem
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import LeaderEpoch, Offset, PartitionIndex, TopicId, TopicName, TopicPartition
from raylog.protocol.wire.fetch import FetchedPartition

DIR = Path("/logs")
COUNT = 12
SMALL = {"segment.bytes": 300}


def filled(fs: LossyFileSystem) -> Shelf:
    shelf = open_shelf(DIR, fs=fs, topic=SMALL)
    for n in range(COUNT):
        append(shelf.partition, b"%d" % n)
    shelf.partition.flush()
    shelf.dirs.dirs[0].checkpoint()
    return shelf


@pytest.mark.parametrize("start", [2, COUNT - 1, COUNT])
def test_follower_killed_after_a_new_epoch_keeps_its_start(tmp_path: Path, start: int) -> None:
    """A new epoch drops the rows of those that have no records left; the start must not go with them."""
    shelf = open_shelf(tmp_path)
    for n in range(COUNT):
        append(shelf.partition, b"%d" % n)
    partition = shelf.partition
    partition.role.become_follower(LeaderEpoch(1))
    partition.role.fetched(FetchedPartition(0, 0, COUNT, COUNT, start), LeaderEpoch(1), NOW)
    partition.role.settle()
    assert partition.durable_start == start
    partition.role.become_follower(LeaderEpoch(2))
    shelf.dirs.abandon()
    again = open_shelf(tmp_path, epoch=3)
    assert again.partition.log_start_offset == start
    assert values(again.partition) == [b"%d" % n for n in range(start, COUNT)]
    again.dirs.close()


def test_leader_epochs_tell_nothing_of_the_start(tmp_path: Path) -> None:
    shelf = open_shelf(tmp_path)
    append(shelf.partition, b"a", b"b", b"c")
    shelf.partition.delete_records(Offset(2))
    shelf.partition.save_start()
    shelf.dirs.abandon()
    (shelf.directory / checkpoint.LEADER_EPOCHS).write_text("0\n1\n0 0\n")
    again = open_shelf(tmp_path)
    assert again.partition.log_start_offset == 2
    again.dirs.close()


def test_start_that_rests_on_a_file_about_to_go_is_saved(tmp_path: Path) -> None:
    """The log begins with a segment already, but the files before it are there, when the checkpoint is written."""
    shelf = open_shelf(tmp_path, topic=SMALL)
    for n in range(COUNT):
        append(shelf.partition, b"%d" % n)
    shelf.partition.delete_records(Offset(2))
    shelf.partition.save_start()
    log, base = shelf.partition.log, shelf.partition.log.segments[-1].base_offset
    with log.lock:
        log.publish(start=base)
        log.set_segments(log.segments[-1:])
    shelf.dirs.dirs[0].checkpoint()
    shelf.dirs.abandon()
    again = open_shelf(tmp_path)
    assert again.partition.log_start_offset == base
    again.dirs.close()


def test_changed_digit_in_a_log_start_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shelf = open_shelf(tmp_path)
    append(shelf.partition, *[b"x"] * 20)
    shelf.partition.delete_records(Offset(12))
    shelf.partition.save_start()
    shelf.dirs.abandon()
    path = tmp_path / LOG_STARTS
    assert read_offsets(RealFileSystem(), path) == {TP: 12}
    path.write_text(path.read_text().replace("t 0 12", "t 0 13"))
    again = open_shelf(tmp_path)
    assert again.partition.log_start_offset == 0
    assert "another checksum" in caplog.text
    again.dirs.close()


def test_log_starts_written_by_kafka_are_taken(tmp_path: Path) -> None:
    shelf = open_shelf(tmp_path)
    append(shelf.partition, *[b"x"] * 20)
    shelf.dirs.close()
    (tmp_path / LOG_STARTS).write_text("0\n1\nt 0 7\n")
    again = open_shelf(tmp_path)
    assert again.partition.log_start_offset == 7
    again.dirs.close()


def delete(shelf: Shelf) -> None:
    shelf.partition.role.resign()
    shelf.dirs.delete(TP)


def delete_and_make_anew(shelf: Shelf) -> None:
    delete(shelf)
    shelf.dirs.create(TP, TOPIC_ID, NOW)


def set_aside(shelf: Shelf) -> None:
    shelf.dirs.set_aside(TP, "the cluster has no such topic")


@pytest.mark.parametrize("loss", Loss)
@pytest.mark.parametrize("change", [delete, delete_and_make_anew, set_aside])
def test_crash_while_a_log_is_deleted_is_no_lost_data(loss: Loss, change: Callable[[Shelf], None]) -> None:
    points = 0
    for point in range(1, 1000):
        rng = random.Random(point)
        fs = LossyFileSystem()
        shelf = filled(fs)
        shelf.partition.delete_records(Offset(COUNT - 1))
        shelf.partition.save_start()
        fs.crash_after(point)
        try:
            change(shelf)
        except SimulatedCrash:
            points += 1
        else:
            break
        after = open_shelf(DIR, fs=fs.after_crash(loss, rng), topic=SMALL)
        assert not after.dirs.lost_data, f"after operation {point}"
        found = values(after.partition)
        assert found == [] or found[-1] == b"%d" % (COUNT - 1), f"after operation {point}"
        assert append(after.partition, b"new") == after.partition.log_end_offset - 1
        names = after.dirs.dirs[0]._fs.list_dir(DIR)
        assert [name for name in names if name.endswith("-delete")] == []
        after.dirs.close()
    assert points > 10


def test_deletions_of_one_message_share_their_checkpoint(tmp_path: Path) -> None:
    """Each would write all partitions that are left and wait for the disk, while no other message is taken in."""
    fs = StartWrites(RealFileSystem())
    with Node(tmp_path, fs=fs) as node:
        node.create_topic("kept")
        node.create_topic("t", partitions=20)
        before = fs.count
        [deleted] = node.delete_topics(["t"], timeout_ms=0)
        assert not isinstance(deleted, RaylogError)
        assert (fs.count - before, [tp.topic for tp in node.ports.log_dirs.partitions()]) == (1, ["kept"])


def test_withdrawn_log_that_is_wanted_again_keeps_its_promises(tmp_path: Path) -> None:
    """Its deletion failed, and then the controller gave the broker the same replica again."""
    shelf = open_shelf(tmp_path)
    append(shelf.partition, b"a", b"b", b"c")
    shelf.partition.delete_records(Offset(2))
    shelf.partition.save_start()
    shelf.dirs.withdraw([TP])
    assert read_offsets(RealFileSystem(), tmp_path / LOG_STARTS) == {}
    assert shelf.dirs.create(TP, TOPIC_ID, NOW) is shelf.partition.log
    shelf.dirs.dirs[0].checkpoint()
    assert read_offsets(RealFileSystem(), tmp_path / LOG_STARTS) == {TP: 2}
    shelf.dirs.close()


def test_logs_withdrawn_one_after_another_are_promised_no_more(tmp_path: Path) -> None:
    shelf = open_shelf(tmp_path)
    other = TopicPartition(TopicName("u"), PartitionIndex(0))
    shelf.dirs.create(other, TopicId(uuid4()), NOW)
    for tp in (TP, other):
        shelf.dirs.withdraw([tp])
    assert read_offsets(RealFileSystem(), tmp_path / RECOVERY_POINTS) == {}
    shelf.dirs.close()
