"""The scrubber: what was damaged while the broker did not run is found before it is asked for, and can be mended."""

from __future__ import annotations

import copy
import logging
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.faulty_files import Loss, LossyFileSystem, SimulatedCrash
from kit.machine import scaled
from kit.partitions import NOW, Shelf, append, open_shelf, values
from kit.waiting import wait_until
from raylog.broker.partition.partition import Partition
from raylog.broker.storage.directories.scrub import CHUNK_BYTES, Scrubber, unread_bytes
from raylog.protocol.errors import CorruptMessage
from raylog.protocol.ids import LeaderEpoch, Offset, TimestampMs

DIR = Path("/disk/logs")
TOPIC = {"segment.bytes": 500, "index.interval.bytes": 0, "retention.ms": -1}
COUNT = 24
"""Batches, of two records each, in several segments."""
LATER = LeaderEpoch(9)
MENDED = TimestampMs(NOW)
WAIT_S = 20.0


class Scrub:
    """A log directory after a start, and the scrubber over it."""

    def __init__(self, fs: LossyFileSystem, *, rate: int = 1 << 20) -> None:
        self.shelf: Shelf = open_shelf(DIR, fs=fs, topic=TOPIC, epoch=1)
        self.partition: Partition = self.shelf.partition
        self.log = self.partition.log
        self.found = 0
        self.scrubber = Scrubber(
            lambda: [log for _, log in self.shelf.dirs.partitions().values()], lambda: rate, self._on_damage
        )

    def _on_damage(self) -> None:
        self.found += 1

    def read_all(self) -> int:
        """As many bytes as there are to read; how many that were."""
        total = 0
        while size := self.scrubber.step():
            total += size
        return total

    def mend(self) -> None:
        self.partition.role.mend(LATER, MENDED)


def fill(*, clean: bool = True) -> LossyFileSystem:
    fs = LossyFileSystem()
    shelf = open_shelf(DIR, fs=fs, topic=TOPIC, epoch=1)
    for n in range(COUNT):
        append(shelf.partition, b"%d" % (2 * n), b"%d" % (2 * n + 1), producer=(9, 0, 2 * n))
    shelf.dirs.close() if clean else shelf.dirs.abandon()
    return fs


def segments(fs: LossyFileSystem) -> list[Path]:
    return [DIR / "t-0" / name for name in fs.list_dir(DIR / "t-0") if name.endswith(".log")]


def change(fs: LossyFileSystem, path: Path, damage: Callable[[bytearray], object]) -> LossyFileSystem:
    """A copy of the disk with damage on it."""
    changed = copy.deepcopy(fs)
    inode = changed._dir(path.parent).entries[path.name]
    damage(inode.data)  # type: ignore[union-attr]
    inode.synced = bytes(inode.data)  # type: ignore[union-attr]
    return changed


def flip(position: int, mask: int = 0x10) -> Callable[[bytearray], None]:
    def damage(data: bytearray) -> None:
        data[position] ^= mask

    return damage


def is_prefix(found: list[bytes | None]) -> bool:
    return found == [b"%d" % n for n in range(len(found))]


def test_every_flipped_byte_of_a_log_is_found_and_cut_off(record_property: Callable[[str, object], None]) -> None:
    """Whatever is not covered by a checksum, too: base offsets and leader epochs."""
    template = fill()
    tried = found = 0
    for path in segments(template)[1:2]:
        size = len(template._dir(path.parent).entries[path.name].data)  # type: ignore[union-attr]
        for position in range(size):
            scrub = Scrub(change(template, path, flip(position, 1 << position % 8)))
            scrub.read_all()
            tried += 1
            found += scrub.log.damage is not None
            damage = scrub.log.damage
            assert damage is not None, (path.name, position)
            assert damage.segment.log_path == path
            assert damage.position <= position
            scrub.mend()
            assert scrub.partition.log_end_offset == damage.offset
            assert is_prefix(values(scrub.partition))
            scrub.read_all()
            assert (scrub.log.damage, unread_bytes(scrub.log), scrub.found) == (None, 0, 1)
            scrub.shelf.dirs.abandon()
    record_property("flipped bytes found", f"{found} of {tried}")
    assert found == tried > 300


def test_every_cut_of_a_closed_segment_is_found() -> None:
    template = fill()
    path = segments(template)[1]
    size = len(template._dir(path.parent).entries[path.name].data)  # type: ignore[union-attr]
    for length in (*range(0, size, 11), 79, 158, 237):  # and at batches' ends
        scrub = Scrub(change(template, path, lambda data, length=length: data.__delitem__(slice(length, None))))
        scrub.read_all()
        assert scrub.log.damage is not None, length
        scrub.mend()
        assert is_prefix(values(scrub.partition))
        scrub.shelf.dirs.abandon()


def test_what_is_sound_is_read_once_and_counted_down(caplog: pytest.LogCaptureFixture) -> None:
    scrub = Scrub(fill())
    before = unread_bytes(scrub.log)
    assert before == scrub.log.size > 0
    scrub.scrubber.step()
    assert 0 < unread_bytes(scrub.log) < before
    values(scrub.partition)  # what readers check, is checked
    assert scrub.read_all() == 0
    assert (unread_bytes(scrub.log), scrub.log.damage, scrub.found) == (0, None, 0)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_it_keeps_to_its_rate_and_ends_when_it_is_told() -> None:
    scrub = Scrub(fill(), rate=1)
    before, stopping = unread_bytes(scrub.log), threading.Event()

    def run() -> None:
        while scrub.scrubber.turn(stopping):
            pass

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: unread_bytes(scrub.log) < before, WAIT_S, "the first segment is read")
    finally:
        stopping.set()
        thread.join(scaled(WAIT_S))
    assert not thread.is_alive()
    assert unread_bytes(scrub.log) > before / 2, "the next one would have been due minutes later"


def test_what_recovery_has_read_is_not_read_again() -> None:
    scrub = Scrub(fill(clean=False))
    assert (unread_bytes(scrub.log), scrub.read_all()) == (0, 0)


def test_what_a_reader_meets_is_looked_into_though_nothing_is_read_unasked(caplog: pytest.LogCaptureFixture) -> None:
    template = fill()
    path = segments(template)[2]
    scrub = Scrub(change(template, path, flip(100)), rate=0)
    assert scrub.read_all() == 0
    assert scrub.log.damage is None
    with pytest.raises(CorruptMessage):
        values(scrub.partition)
    scrub.read_all()
    damage = scrub.log.damage
    assert damage is not None
    assert (damage.segment.log_path, scrub.found) == (path, 1)
    [told] = [record.getMessage() for record in caplog.records if "replica damaged" in record.getMessage()]
    for part in ("t-0", str(path), f"position={damage.position}", f"offset={damage.offset}"):
        assert part in told


def test_a_damaged_log_keeps_what_it_has_and_serves_what_is_good() -> None:
    template = fill()
    path = segments(template)[2]
    scrub = Scrub(change(template, path, flip(100)))
    scrub.read_all()
    damage, end = scrub.log.damage, scrub.partition.log_end_offset
    assert damage is not None
    before = scrub.partition.read(Offset(0), 1 << 20)
    assert before.data is not None
    before.data.release()
    with pytest.raises(CorruptMessage):
        scrub.partition.read(damage.offset, 1 << 20)
    scrub.read_all()
    assert (scrub.log.damage, scrub.partition.log_end_offset, scrub.found) == (damage, end, 1)
    assert str(path) in scrub.partition.describe()["damage"]


def test_a_log_is_not_mended_in_a_leader_epoch_in_which_its_end_is_known() -> None:
    template = fill()
    scrub = Scrub(change(template, segments(template)[2], flip(100)))
    scrub.read_all()
    end = scrub.partition.log_end_offset
    scrub.partition.role.mend(scrub.partition.role.leader_epoch, MENDED)
    assert scrub.partition.log_end_offset == end
    assert scrub.log.damage is not None


def test_damage_that_is_cut_off_or_deleted_meanwhile_is_none() -> None:
    template = fill()
    for gone in ("cut off", "deleted"):
        scrub = Scrub(change(template, segments(template)[1], flip(100)))
        scrub.read_all()
        damage = scrub.log.damage
        assert damage is not None
        if gone == "cut off":
            scrub.log.truncate(Offset(2), MENDED)
        else:
            scrub.log.start_anew(Offset(1000), MENDED)
        end = scrub.partition.log_end_offset
        scrub.read_all()
        assert scrub.log.damage is None
        scrub.mend()
        assert scrub.partition.log_end_offset == end
        scrub.shelf.dirs.abandon()


def test_gap_is_none_once_the_log_ends_before_it() -> None:
    template = fill()
    path = segments(template)[1]
    scrub = Scrub(change(template, path, lambda data: data.__delitem__(slice(-30, None))))
    scrub.read_all()
    damage = scrub.log.damage
    assert damage is not None
    scrub.log.truncate(damage.offset, MENDED)
    with scrub.log.lock:
        assert not damage.is_in(scrub.log)
    scrub.read_all()
    assert scrub.log.damage is None
    scrub.shelf.dirs.abandon()


def test_batch_larger_than_what_is_read_at_once_is_checked(tmp_path: Path) -> None:
    shelf = open_shelf(tmp_path)
    append(shelf.partition, b"v" * 3 * CHUNK_BYTES)
    append(shelf.partition, b"w")
    shelf.dirs.close()
    log = open_shelf(tmp_path, epoch=1).partition.log
    scrubber = Scrubber(lambda: [log], lambda: 1 << 20, lambda: None)
    assert scrubber.step() > 3 * CHUNK_BYTES
    while scrubber.step():
        pass
    assert unread_bytes(log) == 0
    assert log.damage is None
    log.close()


@pytest.mark.parametrize("loss", Loss)
def test_a_crash_while_a_log_is_mended_leaves_a_valid_one(loss: Loss) -> None:
    """After every single operation, and in the middle of it: damaged as before, or cut off where it was."""
    template = fill()
    damaged = change(template, segments(template)[1], flip(100))
    rng, operations = random.Random(5), 0
    while True:
        scrub = Scrub(copy.deepcopy(damaged))
        scrub.read_all()
        damage = scrub.log.damage
        assert damage is not None
        fs = scrub.shelf.dirs.dirs[0]._fs
        assert isinstance(fs, LossyFileSystem)
        fs.crash_after(operations + 1, rng)
        try:
            scrub.mend()
        except SimulatedCrash:
            pass
        else:
            break
        after = Scrub(fs.after_crash(loss, rng))
        after.read_all()
        after.mend()
        assert after.partition.log_end_offset == damage.offset
        assert is_prefix(values(after.partition))
        operations += 1
    assert operations > 10
