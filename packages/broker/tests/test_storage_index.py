"""A segment's indexes and their checksums, by themselves: look-ups, truncation and files, with a base that is not 0."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from raylog.broker.storage.disk.files import RealFileSystem
from raylog.broker.storage.disk.index_sums import IndexSum, IndexSums
from raylog.broker.storage.segments.index import OffsetIndex, TimeIndex
from raylog.broker.storage.segments.segment import Segment
from raylog.broker.storage.segments.segments import KEPT, WarmIndexes
from raylog.broker.storage.segments.unchecked import Unchecked
from raylog.broker.storage.state.marks import RecentMarks
from raylog.broker.storage.state.offsets import Mark
from raylog.protocol.errors import CorruptMessage
from raylog.protocol.ids import FilePosition, Offset, TimestampMs

BASE = Offset(1_000)


@pytest.fixture
def offsets(tmp_path: Path) -> OffsetIndex:
    """Batches that end at 1009, 1019 and 1029, and begin at bytes 0, 100 and 200."""
    index = OffsetIndex(RealFileSystem(), tmp_path / "o.index", BASE)
    index.clear()
    for last, position in ((1_009, 0), (1_019, 100), (1_029, 200)):
        index.append(Offset(last), FilePosition(position))
    return index


@pytest.fixture
def times(tmp_path: Path) -> TimeIndex:
    index = TimeIndex(RealFileSystem(), tmp_path / "o.timeindex", BASE)
    index.clear()
    for timestamp, last in ((5, 1_009), (7, 1_019), (9, 1_029)):
        index.maybe_append(TimestampMs(timestamp), Offset(last))
    return index


def test_lookup_is_at_or_before_the_batch(offsets: OffsetIndex) -> None:
    asked = (1_000, 1_008, 1_009, 1_018, 1_019, 1_028, 1_029, 2_000)
    assert [offsets.lookup(Offset(offset)) for offset in asked] == [0, 0, 0, 0, 100, 100, 200, 200]


@pytest.mark.parametrize(("end", "left"), [(1_030, 3), (1_029, 2), (1_020, 2), (1_019, 1), (1_009, 0), (1_000, 0)])
def test_truncation_keeps_what_ends_before(offsets: OffsetIndex, times: TimeIndex, end: int, left: int) -> None:
    offsets.truncate_to(Offset(end))
    times.truncate_to(Offset(end))
    assert (len(offsets), len(times)) == (left, left)
    assert offsets.last_position() == (0, 0, 100, 200)[left]
    assert times.last() == ((-1, 1_000), (5, 1_009), (7, 1_019), (9, 1_029))[left]


def test_time_index_leads_to_the_batch_that_reached_a_time(times: TimeIndex) -> None:
    found = [times.reached(TimestampMs(time)) for time in (4, 5, 6, 7, 9, 10)]
    assert found == [1_009, 1_009, 1_019, 1_019, 1_029, None]


def test_time_index_tells_the_highest_time_up_to_an_offset(times: TimeIndex) -> None:
    found = [times.peak_until(Offset(offset)) for offset in (1_000, 1_008, 1_009, 1_018, 1_019, 1_029, 2_000)]
    assert found == [(-1, BASE), (-1, BASE), (5, 1_009), (5, 1_009), (7, 1_019), (9, 1_029), (9, 1_029)]


def test_offset_index_tells_the_last_batch_before_an_offset(offsets: OffsetIndex) -> None:
    asked = (1_000, 1_009, 1_010, 1_019, 1_020, 1_030, 2_000)
    assert [offsets.last_before(Offset(offset), 3) for offset in asked] == [999, 999, 1_009, 1_009, 1_019, 1_029, 1_029]
    assert offsets.last_before(Offset(2_000), 2) == 1_019, "entries that came later are not looked at"
    assert offsets.last_before(Offset(2_000), 9) == 1_029
    assert offsets.last_before(Offset(2_000), 0) == 999


def test_time_index_takes_later_times_only(tmp_path: Path, times: TimeIndex) -> None:
    times.maybe_append(TimestampMs(9), Offset(1_039))
    times.maybe_append(TimestampMs(8), Offset(1_049))
    assert times.last() == (9, 1_029)
    times.clear()
    times.maybe_append(TimestampMs(-1), Offset(1_009))
    assert times.last() == (-1, BASE)
    times.maybe_append(TimestampMs(0), Offset(1_019))
    assert times.last() == (0, 1_019)


@pytest.mark.parametrize("name", ["offsets", "times"])
def test_saved_index_is_loaded_when_needed(request: pytest.FixtureRequest, name: str) -> None:
    index = request.getfixturevalue(name)
    index.unload()
    assert len(index) == 3, "what is not saved stays in memory"
    saved = index.save()
    assert saved[0] == index.path.stat().st_size == index.size_bytes() == 3 * index.ENTRY_SIZE
    again = type(index)(RealFileSystem(), index.path, BASE)
    assert again.open_saved(saved)
    assert len(again) == 3
    again.unload()
    index.unload()
    index.path.write_bytes(b"\0" * saved[0])
    for each in (index, again):
        with pytest.raises(CorruptMessage):
            len(each)


def test_saving_twice_writes_once(offsets: OffsetIndex) -> None:
    first = offsets.save()
    offsets.path.unlink()
    assert offsets.save() == first
    assert not offsets.path.exists()
    offsets.append(Offset(1_039), FilePosition(300))
    assert offsets.save() != first
    assert offsets.path.stat().st_size == 32


def test_change_of_a_saved_index_is_saved(offsets: OffsetIndex) -> None:
    offsets.save()
    offsets.truncate_to(Offset(1_030))
    offsets.path.unlink()
    offsets.save()
    assert not offsets.path.exists(), "nothing was cut"
    offsets.truncate_to(Offset(1_029))
    assert offsets.save()[0] == offsets.path.stat().st_size == 16
    offsets.unlink()
    assert not offsets.path.exists()
    offsets.unlink()
    assert offsets.save()[0] == offsets.path.stat().st_size == 16
    offsets.clear()
    assert len(offsets) == 0
    assert offsets.save()[0] == offsets.path.stat().st_size == 0


def test_file_of_another_length_is_not_taken_up(offsets: OffsetIndex) -> None:
    size, crc = offsets.save()
    again = OffsetIndex(RealFileSystem(), offsets.path, BASE)
    assert not again.open_saved((size + 8, crc))
    offsets.path.unlink()
    assert not again.open_saved((size, crc))


SUMS = IndexSum(500, 24, 1, 36, 2, 9, 1_029)


def test_sums_are_for_a_log_file_of_that_size(tmp_path: Path) -> None:
    sums = IndexSums(RealFileSystem(), tmp_path)
    sums.note(BASE, SUMS)
    sums.note(Offset(2_000), SUMS)
    sums.save({BASE})
    again = IndexSums(RealFileSystem(), tmp_path)
    assert again.get(BASE, 500) == SUMS
    assert again.get(BASE, 501) is None
    assert again.get(Offset(2_000), 500) is None, "that segment is gone"


def test_sums_are_written_when_something_changed(tmp_path: Path) -> None:
    path = tmp_path / "index-checksums"
    sums = IndexSums(RealFileSystem(), tmp_path)
    sums.save({BASE})
    assert not path.exists()
    sums.note(BASE, SUMS)
    sums.save({BASE})
    path.unlink()
    sums.note(BASE, SUMS)
    sums.forget(Offset(2_000))
    sums.save({BASE})
    assert not path.exists(), "nothing changed"
    sums.note(BASE, SUMS._replace(log_size=501))
    sums.forget(Offset(2_000))
    sums.save({BASE})
    assert path.exists()
    sums.forget(BASE)
    assert sums.get(BASE, 501) is None
    sums.save({BASE})
    assert IndexSums(RealFileSystem(), tmp_path).get(BASE, 501) is None


def test_mark_is_found_once_and_earlier_ones_go() -> None:
    marks = RecentMarks()
    noted = [Mark(Offset(offset), Offset(0), FilePosition(10 * offset)) for offset in (5, 8, 12)]
    for mark in noted:
        marks.note(mark)
    assert marks.take(Offset(4)) is None
    assert marks.take(Offset(8)) == noted[1]
    assert marks.take(Offset(5)) is None
    assert marks.take(Offset(11)) is None
    assert marks.take(Offset(12)) == noted[2]
    marks.note(noted[0])
    marks.clear()
    assert marks.take(Offset(5)) is None


class Closed:
    """A closed segment, as far as its indexes go."""

    def __init__(self, number: int, unloaded: list[int]) -> None:
        self.sealed = True
        self.number = number
        self._unloaded = unloaded
        self.index = self.time_index = self

    def unload(self) -> None:
        self._unloaded.append(self.number)


def test_indexes_of_segments_needed_last_stay_in_memory() -> None:
    unloaded: list[int] = []
    segments = [Closed(number, unloaded) for number in range(KEPT + 2)]
    warm = WarmIndexes()

    def need(number: int) -> None:
        warm.needed(cast(Segment, segments[number]))

    for number in range(KEPT):
        need(number)
    need(0)
    need(0)
    assert unloaded == []
    need(KEPT)
    assert unloaded == [1, 1], "0 was needed again since"
    segments[KEPT + 1].sealed = False
    need(KEPT + 1)
    assert unloaded == [1, 1], "an open segment needs its own"


def test_checked_stretches_join_and_are_counted() -> None:
    unchecked = Unchecked()
    unchecked.add(10, 20)
    unchecked.add(30, 40)
    assert unchecked.checked == 20
    assert [unchecked.checked_to(at) for at in (5, 10, 19, 20, 25, 30)] == [5, 20, 20, 20, 25, 40]
    unchecked.add(20, 30)
    assert (unchecked.checked, unchecked.checked_to(10)) == (30, 40)
