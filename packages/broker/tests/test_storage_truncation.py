"""What truncation and recovery make durable, what a reader sees meanwhile, and what they leave in no file."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.faulty_files import Loss, LossyFileSystem, SimulatedCrash
from kit.partitions import NOW, Shelf, append, open_shelf, values
from raylog.broker.storage.directories.verify import Verifier
from raylog.broker.storage.state.offsets import Mark
from raylog.protocol.ids import FilePosition, Offset
from raylog.protocol.records import decode_batches

DIR = Path("/disk/logs")
TOPIC = {"segment.bytes": 400, "index.interval.bytes": 0, "retention.ms": -1}
"""Five batches a segment."""
COUNT = 12


def filled(*paths: Path, fs: LossyFileSystem | None = None, producer: int | None = None) -> Shelf:
    """Segments that begin at 0, 5 and 10."""
    shelf = open_shelf(*paths, fs=fs, topic=TOPIC)
    for n in range(COUNT):
        append(shelf.partition, b"%d" % n, producer=None if producer is None else (producer, 0, n))
    assert [segment.base_offset for segment in shelf.partition.log.segments] == [0, 5, 10]
    return shelf


def numbers(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


@pytest.mark.parametrize("end", [5, 7, 10])
def test_flushed_after_a_kill_in_a_truncation_stays(end: int) -> None:
    """The killed process had given the new segment its name, and not synced it: recovery has to."""
    point = 0
    while True:
        point += 1
        fs = LossyFileSystem()
        shelf = filled(DIR, fs=fs)
        shelf.partition.flush()
        shelf.dirs.dirs[0].checkpoint()
        fs.crash_after(point)
        try:
            shelf.partition.log.truncate(Offset(end), NOW)
        except SimulatedCrash:
            pass
        else:
            break
        killed = fs.after_crash(Loss.KEPT, None)  # type: ignore[arg-type]  # nothing is drawn
        shelf = open_shelf(DIR, fs=killed, topic=TOPIC)
        kept = shelf.partition.log_end_offset
        append(shelf.partition, b"new")
        shelf.partition.flush()
        shelf.dirs.dirs[0].checkpoint()
        again = open_shelf(DIR, fs=killed.after_crash(Loss.LOST, None), topic=TOPIC)  # type: ignore[arg-type]
        assert values(again.partition) == [*numbers(kept), b"new"], f"after operation {point}"
        assert not again.partition.log.lost_in_recovery
    assert point > 5


@pytest.mark.parametrize(
    ("end", "bases"), [(0, [0]), (3, [0, 3]), (5, [0, 5]), (7, [0, 5, 7]), (10, [0, 5, 10]), (11, [0, 5, 10, 11])]
)
def test_new_segment_begins_where_the_log_was_cut(tmp_path: Path, end: int, bases: list[int]) -> None:
    shelf = filled(tmp_path)
    shelf.partition.log.truncate(Offset(end), NOW)
    assert [segment.base_offset for segment in shelf.partition.log.segments] == bases
    assert sorted(int(path.stem) for path in shelf.directory.glob("*.log")) == bases
    shelf.dirs.close()


def test_no_snapshot_of_any_offset_outlasts_a_new_start(tmp_path: Path) -> None:
    shelf = filled(tmp_path)
    log = shelf.partition.log
    log.start_anew(Offset(2**40), NOW)
    for n in range(COUNT):
        append(shelf.partition, b"%d" % n, producer=(7, 0, n))
    log.flush()
    assert list(shelf.directory.glob("*.snapshot"))
    log.start_anew(Offset(3), NOW)
    assert not list(shelf.directory.glob("*.snapshot"))
    shelf.dirs.close()


@pytest.mark.parametrize("end", [3, 5, 10, 11])
@pytest.mark.parametrize("anew", [False, True])
def test_what_was_cut_off_stays_away_without_power(end: int, anew: bool) -> None:
    fs = LossyFileSystem()
    shelf = filled(DIR, fs=fs)
    shelf.partition.flush()
    log = shelf.partition.log
    log.start_anew(Offset(end), NOW) if anew else log.truncate(Offset(end), NOW)
    again = open_shelf(DIR, fs=fs.after_crash(Loss.LOST, None), topic=TOPIC)  # type: ignore[arg-type]
    assert again.partition.log_end_offset == end
    assert values(again.partition) == ([] if anew else numbers(end))


def test_what_recovery_found_stays_without_power() -> None:
    """Recovery promises it: the recovery point is the end that it found."""
    fs = LossyFileSystem()
    filled(DIR, fs=fs)
    killed = fs.after_crash(Loss.KEPT, None)  # type: ignore[arg-type]
    shelf = open_shelf(DIR, fs=killed, topic=TOPIC)
    shelf.dirs.dirs[0].checkpoint()
    again = open_shelf(DIR, fs=killed.after_crash(Loss.LOST, None), topic=TOPIC)  # type: ignore[arg-type]
    assert values(again.partition) == numbers(COUNT)


@pytest.mark.parametrize("base", [5, 10])
def test_reader_beside_a_truncation_stops_at_the_new_end(tmp_path: Path, base: int) -> None:
    """It has the old segments and the new end, which is to begin a segment of its own."""
    log = filled(tmp_path).partition.log
    bound = Mark(Offset(base + 1), Offset(base + 1), FilePosition(0))
    data = log.read(Offset(base), 1 << 20, bound, min_one_batch=True)
    assert data is not None
    assert [record.offset for record in decode_batches(data.read())] == [base]
    data.release()
    log.abandon()


@pytest.mark.parametrize("end", [3, 5, 7])
def test_truncated_log_has_no_index_of_what_was_cut(tmp_path: Path, end: int) -> None:
    shelf = filled(tmp_path)
    shelf.partition.flush()
    shelf.partition.log.truncate(Offset(end), NOW)
    assert list(Verifier(records=False).check(tmp_path)) == []
    shelf.dirs.abandon()


def test_truncation_makes_a_damaged_time_index_anew(tmp_path: Path) -> None:
    filled(tmp_path).dirs.close()
    path = tmp_path / "t-0" / f"{5:020d}.timeindex"
    path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))
    shelf = open_shelf(tmp_path, topic=TOPIC)
    shelf.partition.log.truncate(Offset(7), NOW)
    assert values(shelf.partition) == numbers(7)
    assert shelf.partition.log.health.failure == ""
    shelf.dirs.close()


def test_log_started_anew_forgets_producers_for_good(tmp_path: Path) -> None:
    shelf = open_shelf(tmp_path)
    append(shelf.partition, *[b"v"] * 200, producer=(7, 0, 0))
    shelf.dirs.close()
    shelf = open_shelf(tmp_path)
    assert len(shelf.partition.log.producers) == 1
    shelf.partition.log.start_anew(Offset(300), NOW)
    shelf.dirs.abandon()
    again = open_shelf(tmp_path)
    assert again.partition.log_end_offset == 300
    assert len(again.partition.log.producers) == 0
    again.dirs.close()


def test_only_the_last_segment_takes_appends(tmp_path: Path) -> None:
    shelf = filled(tmp_path)
    log = shelf.partition.log

    def sealed() -> list[bool]:
        return [segment.sealed for segment in log.segments]

    assert sealed() == [True, True, False]
    log.truncate(Offset(11), NOW)
    assert sealed() == [True, True, True, False]
    log.truncate(Offset(7), NOW)
    assert sealed() == [True, True, False]
    shelf.dirs.abandon()
    log = open_shelf(tmp_path, topic=TOPIC).partition.log
    assert sealed() == [True, True, False]
    log.start_anew(Offset(20), NOW)
    assert sealed() == [False]
    log.abandon()


def test_flush_of_closed_segments_promises_no_more(tmp_path: Path) -> None:
    shelf = filled(tmp_path)
    log = shelf.partition.log
    log.flush(sealed_only=True)
    assert log.recovery_point == 10
    log.flush()
    assert log.recovery_point == COUNT
    shelf.dirs.close()


def test_move_of_the_start_is_told_and_nothing_else(tmp_path: Path) -> None:
    shelf = filled(tmp_path)
    log = shelf.partition.log
    told: list[int] = []
    log.on_start = lambda: told.append(log.offsets.start)
    append(shelf.partition, b"more")
    shelf.partition.delete_records(Offset(0))
    assert told == []
    shelf.partition.delete_records(Offset(3))
    shelf.partition.delete_records(Offset(3))
    assert told == [3]
    log.start_anew(Offset(50), NOW)
    assert told == [3, 50]
    shelf.dirs.close()
