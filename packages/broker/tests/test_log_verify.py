"""What `raylog log verify` finds: nothing in a sound directory, and each kind of damage in its place."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from crc32c import crc32c

from kit.partitions import NOW, TP, Shelf, append, open_shelf
from raylog.broker.storage.directories.stored import rows_of
from raylog.broker.storage.directories.verify import Finding, Level, Verifier
from raylog.broker.storage.disk import checkpoint
from raylog.protocol.batches.compression import Codec
from raylog.protocol.batches.header import HEADER_SIZE
from raylog.protocol.errors import CorruptMessage, InvalidRequest
from raylog.protocol.records import Record, encode_batch

SMALL = {"segment.bytes": 600, "index.interval.bytes": 0}
FIRST = "00000000000000000000"


def filled(root: Path, count: int = 30) -> Shelf:
    """Some segments, written by producers and under two leader epochs."""
    shelf = open_shelf(root, topic=SMALL)
    for n in range(count):
        if n == count // 2:
            shelf.dirs.close()
            shelf = open_shelf(root, topic=SMALL, epoch=3)
        append(shelf.partition, b"value %02d" % n, timestamps=[NOW + n], producer=(7 + n % 2, 0, n // 2))
    return shelf


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """The log directory of a broker that was stopped."""
    path = tmp_path / "data" / "logs"
    filled(path).dirs.close()
    return path


def findings(path: Path, *, records: bool = False) -> list[Finding]:
    return list(Verifier(records=records).check(path))


def damaged(path: Path) -> list[Finding]:
    return [finding for finding in findings(path) if finding.level is Level.DAMAGED]


def change(path: Path, at: int, to: int | None = None) -> None:
    data = bytearray(path.read_bytes())
    data[at] = data[at] ^ 0xFF if to is None else to
    path.write_bytes(data)


def logs(path: Path) -> list[Path]:
    return sorted((path / str(TP)).glob("*.log"))


def test_a_stopped_brokers_directory_is_sound(stopped: Path) -> None:
    verifier = Verifier(records=True)
    assert list(verifier.check(stopped)) == []
    assert (verifier.partitions, verifier.batches, verifier.records) == (1, 30, 30)
    assert verifier.segments == len(logs(stopped)) > 3
    assert verifier.bytes == sum(log.stat().st_size for log in logs(stopped))


def test_a_running_brokers_directory_is_sound(tmp_path: Path) -> None:
    shelf = filled(tmp_path)
    shelf.dirs.maintain(NOW, NOW)
    assert findings(tmp_path) == []
    shelf.dirs.abandon()


def test_paths_may_be_a_partition_or_a_file(stopped: Path) -> None:
    assert findings(stopped / str(TP)) == []
    assert findings(logs(stopped)[1]) == []
    assert findings(stopped.parent) == []
    with pytest.raises(InvalidRequest, match=r"no logs in"):
        findings(Path(__file__).parent / "..")
    with pytest.raises(InvalidRequest, match=r"give a \.log file"):
        findings(logs(stopped)[0].with_suffix(".index"))


def test_a_damaged_batch_is_told_with_its_place_and_the_rest_is_read(stopped: Path) -> None:
    log = logs(stopped)[1]
    change(log, 70)
    (finding,) = damaged(stopped)
    assert (finding.path, finding.position) == (log, 0)
    assert "checksum" in finding.problem
    assert f"seeking behind offset {int(log.stem)}" in finding.remedy
    rows = list(rows_of(log))
    assert [row["valid"] for row in rows] == [False, *[True] * (len(rows) - 1)]
    assert rows[0]["base_offset"] == int(log.stem)


def test_a_batch_that_hides_what_follows_is_told(stopped: Path) -> None:
    log = logs(stopped)[1]
    change(log, 16, 9)  # its magic
    found = damaged(stopped)
    assert "what follows it can't be read" in found[0].problem
    assert any(finding.path == logs(stopped)[2] and "the one before it ends at" in finding.problem for finding in found)


def test_records_are_looked_at_when_that_is_asked_for(tmp_path: Path) -> None:
    data = bytearray(encode_batch([Record(b"value")]))
    data[HEADER_SIZE] = 2  # the record's length, as if it had one byte
    struct.pack_into(">I", data, 17, crc32c(data[21:]))
    path = tmp_path / "t-0" / f"{FIRST}.log"
    path.parent.mkdir()
    path.write_bytes(data)
    assert findings(path) == []
    [found] = findings(path, records=True)
    assert (found.level, found.position) == (Level.DAMAGED, 0)


def test_a_torn_end_is_damage_only_where_nobody_may_have_been_writing(stopped: Path) -> None:
    last = logs(stopped)[-1]
    with last.open("r+b") as file:
        file.truncate(last.stat().st_size - 3)
    assert {finding.path for finding in damaged(stopped)} >= {last}
    (stopped / checkpoint.CLEAN_STOP).unlink()
    torn = [finding for finding in findings(stopped) if finding.path == last]
    assert [finding.level for finding in torn] == [Level.NOTED]
    assert "recovery cuts it off" in torn[0].remedy


def test_a_lost_segment_and_a_lost_index_are_told(stopped: Path) -> None:
    logs(stopped)[2].with_suffix(".index").unlink()
    (finding,) = findings(stopped)
    assert (finding.level, finding.path.suffix) == (Level.NOTED, ".index")
    logs(stopped)[2].unlink()
    assert any("the segment begins at offset" in finding.problem for finding in damaged(stopped))


@pytest.mark.parametrize(
    ("name", "at", "word"),
    [
        (f"{FIRST}.index", 3, "entry 0"),
        (f"{FIRST}.index", 15, "entry 1"),
        (f"{FIRST}.timeindex", 7, "entry 0"),
        (f"{FIRST}.timeindex", -12, "entry"),
        ("leader-epoch-checkpoint", 0, "not a checkpoint"),
        ("index-checksums", 0, "checksum"),
        ("index-checksums", -2, "checksum"),
        ("partition.metadata", -3, "damaged"),
    ],
)
def test_each_other_file_of_a_partition_is_checked(stopped: Path, name: str, at: int, word: str) -> None:
    path = stopped / str(TP) / name
    change(path, at)
    (finding,) = damaged(stopped)
    assert finding.path == path
    assert word in finding.problem
    assert finding.remedy


def test_time_that_no_batch_brought_is_told(tmp_path: Path) -> None:
    """In the last segment, whose indexes need not tell of all that is in the log."""
    shelf = open_shelf(tmp_path)
    append(shelf.partition, b"a", timestamps=[NOW])
    append(shelf.partition, b"b", timestamps=[NOW - 1])
    shelf.dirs.close()
    path = logs(tmp_path)[0].with_suffix(".timeindex")
    path.write_bytes(struct.pack(">qi", 1, 1))
    (finding,) = damaged(tmp_path)
    assert finding.path == path
    assert "timestamp 1 at offset 1: the log has not" in finding.problem


def test_snapshots_and_checkpoints_are_checked(stopped: Path) -> None:
    snapshot = max((stopped / str(TP)).glob("*.snapshot"))
    change(snapshot, 20)
    change(stopped / checkpoint.HIGH_WATERMARKS, 0)
    assert [finding.path for finding in damaged(stopped)] == [stopped / checkpoint.HIGH_WATERMARKS, snapshot]


def test_a_snapshot_of_what_is_gone_is_noted(stopped: Path) -> None:
    snapshot = max((stopped / str(TP)).glob("*.snapshot"))
    beyond = snapshot.rename(snapshot.with_name("00000000000000000031.snapshot"))
    (finding,) = findings(stopped)
    assert (finding.level, finding.path) == (Level.NOTED, beyond)


def test_checkpoints_that_lead_out_of_the_log_are_told(stopped: Path) -> None:
    for name in (checkpoint.RECOVERY_POINTS, checkpoint.LOG_STARTS):
        (stopped / name).write_text(f"0\n1\n{TP.topic} {TP.partition} 31\n")
    found = damaged(stopped)
    assert {finding.path.name for finding in found} == {checkpoint.RECOVERY_POINTS, checkpoint.LOG_STARTS}


def test_an_epoch_that_the_batches_do_not_have_is_told(stopped: Path) -> None:
    path = stopped / str(TP) / checkpoint.LEADER_EPOCHS
    path.write_text("0\n2\n0 0\n3 9\n")
    found = damaged(stopped)
    assert {finding.path for finding in found} == {path}
    assert "has 0" in found[0].problem


def test_any_flipped_byte_of_a_log_is_found(stopped: Path) -> None:
    """Also where no checksum covers it: the base offset by its neighbours, the leader epoch by the checkpoint."""
    rng = random.Random(3)
    for log in logs(stopped):
        good = log.read_bytes()
        for at in rng.sample(range(len(good)), 60):
            change(log, at)
            assert damaged(stopped), f"byte {at} of {log.name}"
            log.write_bytes(good)
    assert findings(stopped) == []


def test_any_flipped_byte_of_an_index_or_snapshot_is_found(stopped: Path) -> None:
    files = [path for path in (stopped / str(TP)).iterdir() if path.suffix in (".index", ".timeindex", ".snapshot")]
    assert len(files) > 6
    for path in files:
        good = path.read_bytes()
        for at in range(0, len(good), 5):
            change(path, at)
            assert [finding.path for finding in damaged(stopped)] == [path], f"byte {at} of {path.name}"
            path.write_bytes(good)


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".snapshot"])
def test_a_file_cut_short_is_found(stopped: Path, suffix: str) -> None:
    path = logs(stopped)[1].with_suffix(suffix)
    path.write_bytes(path.read_bytes()[:-5])
    assert path in [finding.path for finding in damaged(stopped)]


def rows(path: Path) -> list[dict[str, object]]:
    return list(rows_of(path))


def test_every_file_can_be_dumped(stopped: Path) -> None:
    log = logs(stopped)[0]
    batches = rows(log)
    assert [row["base_offset"] for row in batches] == list(range(len(batches)))
    size = batches[1]["position"]
    assert {**batches[1], "crc": 0} == {
        "base_offset": 1,
        "last_offset": 1,
        "position": size,
        "valid": True,
        "size": size,
        "records": 1,
        "leader_epoch": 0,
        "compression": "none",
        "timestamp_type": "CreateTime",
        "max_timestamp": NOW + 1,
        "producer_id": 8,
        "producer_epoch": 0,
        "base_sequence": 0,
        "last_sequence": 0,
        "transactional": False,
        "control": False,
        "crc": 0,
        "problem": "",
    }
    records = list(rows_of(log, records=True))
    assert [row["value"] for row in records] == [f"value {n:02d}" for n in range(len(records))]
    assert records[1] == {
        "offset": 1, "timestamp": NOW + 1, "key": None, "value": "value 01", "headers": {}, "problem": "",
    }  # fmt: skip
    assert rows(log.with_suffix(".index"))[1] == {"last_offset": 2, "position": batches[2]["position"]}
    assert rows(log.with_suffix(".timeindex"))[0] == {"timestamp": NOW + 1, "last_offset": 1}
    producers = {row["producer_id"]: row for row in rows(max(log.parent.glob("*.snapshot")))}
    assert producers[8] == {
        "producer_id": 8, "producer_epoch": 0, "first_sequence": 14, "last_sequence": 14, "last_offset": 29,
        "last_timestamp": NOW, "coordinator_epoch": -1, "transaction_start": None,
    }  # fmt: skip
    assert producers.keys() == {7, 8}
    assert rows(log.with_name(checkpoint.LEADER_EPOCHS)) == [
        {"leader_epoch": 0, "start_offset": 0},
        {"leader_epoch": 3, "start_offset": 15},
    ]
    assert rows(stopped / checkpoint.RECOVERY_POINTS) == [{"topic": "t", "partition": 0, "offset": 30}]
    assert rows(stopped / checkpoint.META_PROPERTIES)[0]["broker.id"] == "1"
    sums = rows(log.with_name("index-checksums"))[0]
    assert (sums["base_offset"], sums["log_size"]) == (0, log.stat().st_size)
    assert sums["index_size"] == log.with_suffix(".index").stat().st_size
    assert "topic_id" in rows(log.with_name(checkpoint.PARTITION_METADATA))[0]


def test_dump_names_codec_key_headers_and_damage(tmp_path: Path) -> None:
    record = Record(b"v", key=b"k", headers=(("h", b"\xff"), ("n", None)), timestamp=3)
    good = encode_batch([record], codec=Codec.GZIP)
    path = tmp_path / f"{FIRST}.log"
    path.write_bytes(bytes(good) * 2)
    change(path, 2 * len(good) - 1)
    batches = rows(path)
    assert [row["compression"] for row in batches] == ["gzip", "gzip"]
    assert [row["valid"] for row in batches] == [True, False]
    assert [bool(row["problem"]) for row in batches] == [False, True]
    first, second = rows_of(path, records=True)
    assert first == {
        "offset": 0, "timestamp": 3, "key": "k", "value": "v", "headers": {"h": "\\xff", "n": None}, "problem": "",
    }  # fmt: skip
    assert (second["offset"], second["timestamp"]) == (None, None)
    assert second["problem"].startswith(f"position {len(good)}: ")


@pytest.mark.parametrize("spoil", [lambda path: path.write_bytes(b"x"), lambda path: change(path, 5)])
def test_a_file_that_cannot_be_read_raises(stopped: Path, spoil: Callable[[Path], None]) -> None:
    snapshot = max((stopped / str(TP)).glob("*.snapshot"))
    spoil(snapshot)
    with pytest.raises(CorruptMessage):
        rows(snapshot)
    with pytest.raises(InvalidRequest, match="no file of a log"):
        rows(stopped / checkpoint.CLEAN_STOP)
