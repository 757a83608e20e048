"""Segments: when one is closed, what their offsets may be, and what a start takes up of them."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from crc32c import crc32c

from kit.partitions import NOW, TP, append, batch, open_shelf, values
from raylog.broker.storage.log.cleaning import enforce_retention
from raylog.broker.storage.log.validation import check_policy
from raylog.broker.storage.segments.held import hold
from raylog.broker.storage.segments.segment import MAX_RELATIVE_OFFSET
from raylog.broker.storage.state.log_config import LogConfig
from raylog.protocol.batches.header import CRC_POSITION, HEADER, HEADER_SIZE, LOG_OVERHEAD, read_header
from raylog.protocol.errors import CorruptMessage, MessageTooLarge
from raylog.protocol.ids import FilePosition, Offset, TimestampMs

TOPIC = {"segment.bytes": 300, "index.interval.bytes": 0, "retention.ms": -1}
HOUR_MS = 60 * 60 * 1000


def test_batch_up_to_the_last_offset_of_a_segment_is_kept(tmp_path: Path) -> None:
    """As compaction may leave it: one record, and all offsets that a segment's indexes can tell."""
    data = bytearray(batch(b"v"))
    header = read_header(data)._replace(leader_epoch=0, last_offset_delta=MAX_RELATIVE_OFFSET)
    data[:HEADER_SIZE] = HEADER.pack(*header)
    data[CRC_POSITION : CRC_POSITION + 4] = crc32c(bytes(data[CRC_POSITION + 4 :])).to_bytes(4, "big")
    shelf = open_shelf(tmp_path)
    log = shelf.partition.log
    with log.lock:
        log.append_as_replica(memoryview(data), [read_header(data)], NOW)
    shelf.dirs.abandon()
    again = open_shelf(tmp_path)
    assert again.partition.log_end_offset == MAX_RELATIVE_OFFSET + 1
    again.dirs.close()


def test_all_segments_but_the_last_are_sealed(tmp_path: Path) -> None:
    shelf = open_shelf(tmp_path, topic=TOPIC)
    for _ in range(8):
        append(shelf.partition, b"a")
    sealed = [segment.sealed for segment in shelf.partition.log.segments]
    assert sealed == [True] * (len(sealed) - 1) + [False]
    assert len(sealed) > 1
    shelf.dirs.close()
    shelf = open_shelf(tmp_path, topic=TOPIC)
    assert [segment.sealed for segment in shelf.partition.log.segments] == sealed
    shelf.dirs.close()


def test_batch_without_records_is_found(tmp_path: Path) -> None:
    """As compaction leaves one, so that its producer stays known."""
    shelf = open_shelf(tmp_path)
    data = bytearray(batch(b"a")[:HEADER_SIZE])
    empty = read_header(batch(b"a"))._replace(batch_length=HEADER_SIZE - LOG_OVERHEAD, record_count=0)
    data[:] = HEADER.pack(*empty)
    log = shelf.partition.log
    with log.lock:
        log.append_as_replica(memoryview(data), [empty], NOW)
    with hold(log.segments[0]) as held:
        located = held.find(Offset(0))
    assert located is not None
    assert (located.position, located.size) == (0, HEADER_SIZE)
    shelf.dirs.abandon()


def test_offset_that_no_index_can_tell_is_damage(tmp_path: Path) -> None:
    shelf = open_shelf(tmp_path)
    append(shelf.partition, b"a")
    [segment] = shelf.partition.log.segments
    header = read_header(segment.log_path.read_bytes())
    odd = header._replace(base_offset=1, last_offset_delta=MAX_RELATIVE_OFFSET)
    segment.log_path.write_bytes(HEADER.pack(*odd) + segment.log_path.read_bytes()[HEADER_SIZE:])
    with hold(segment) as held, pytest.raises(CorruptMessage, match="impossible offset"):
        held.rebuild_indexes()
    shelf.dirs.abandon()


def test_indexes_are_made_anew_at_large_offsets(tmp_path: Path) -> None:
    base = 2**40
    shelf = open_shelf(tmp_path, topic=TOPIC)
    log = shelf.partition.log
    log.start_anew(Offset(base), NOW)
    append(shelf.partition, b"a", b"b")
    append(shelf.partition, b"c")
    with hold(log.segments[0]) as held:
        held.rebuild_indexes()
        located = held.find(Offset(base + 2))
    assert located is not None
    assert located.base_offset == base + 2
    shelf.dirs.close()


def test_flush_of_what_is_sealed_promises_no_more(tmp_path: Path) -> None:
    shelf = open_shelf(tmp_path, topic=TOPIC)
    for _ in range(8):
        append(shelf.partition, b"a")
    log = shelf.partition.log
    assert 0 < log.segments[-1].base_offset < 8
    log.flush(sealed_only=True)
    assert log.recovery_point == log.segments[-1].base_offset
    log.flush()
    assert log.recovery_point == 8
    shelf.dirs.close()


def test_index_that_leads_astray_is_made_anew(tmp_path: Path) -> None:
    shelf = open_shelf(tmp_path)
    for _ in range(3):
        append(shelf.partition, b"a")
    [segment] = shelf.partition.log.segments
    segment.index.append(Offset(0), FilePosition(segment.size // 3 * 2))  # there is the batch of offset 2
    with hold(segment) as held:
        located = held.find(Offset(1))
    assert located is not None
    assert (located.base_offset, located.position) == (1, segment.size // 3)
    shelf.dirs.close()


def test_look_up_ends_where_the_log_ends(tmp_path: Path) -> None:
    """Bytes of an append that is under way may lie behind it in the file."""
    shelf = open_shelf(tmp_path, topic={"index.interval.bytes": 0})
    for _ in range(3):
        append(shelf.partition, b"a")
    [segment] = shelf.partition.log.segments
    with segment.log_path.open("ab") as file:
        file.write((3).to_bytes(8, "big") + segment.log_path.read_bytes()[-segment.size // 3 + 8 :])
    with hold(segment) as held:
        assert held.find(Offset(2)) is not None
        assert held.find(Offset(3)) is None
    shelf.dirs.close()


def test_highest_time_is_in_an_index_made_anew(tmp_path: Path) -> None:
    shelf = open_shelf(tmp_path)
    append(shelf.partition, b"a", b"b", timestamps=[NOW + 2, NOW])
    [segment] = shelf.partition.log.segments
    with hold(segment) as held:
        held.rebuild_indexes()
    assert segment.time_index.last()[0] == NOW + 2
    shelf.dirs.close()


def test_records_without_much_time_close_no_segment(tmp_path: Path) -> None:
    """segment.ms counts by the records' times where they have one, and 0 is one."""
    shelf = open_shelf(tmp_path, topic={"segment.ms": HOUR_MS, "retention.ms": -1})
    append(shelf.partition, b"a", timestamps=[0])
    append(shelf.partition, b"b", timestamps=[0], now_ms=NOW + 2 * HOUR_MS)
    assert len(shelf.partition.log.segments) == 1
    append(shelf.partition, b"c", timestamps=[HOUR_MS + 1])
    assert len(shelf.partition.log.segments) == 2
    shelf.dirs.close()


@pytest.mark.parametrize("clean", [True, False])
def test_age_of_a_segment_counts_from_before_a_start(tmp_path: Path, clean: bool) -> None:
    topic = {"segment.ms": HOUR_MS}
    shelf = open_shelf(tmp_path, topic=topic)
    append(shelf.partition, b"a")
    shelf.dirs.close() if clean else shelf.dirs.abandon()
    shelf = open_shelf(tmp_path, topic=topic)
    append(shelf.partition, b"b", timestamps=[NOW + HOUR_MS])
    assert len(shelf.partition.log.segments) == 1
    append(shelf.partition, b"c", timestamps=[NOW + HOUR_MS + 1], now_ms=NOW + 1)
    assert len(shelf.partition.log.segments) == 2
    shelf.dirs.close()


def test_retention_by_size_leaves_the_last_segment_alone(tmp_path: Path) -> None:
    shelf = open_shelf(tmp_path, topic=TOPIC | {"retention.bytes": 0})
    for n in range(9):
        append(shelf.partition, b"%d" % n)
    log = shelf.partition.log
    last = log.segments[-1]
    assert enforce_retention(log, NOW, 0) > 1
    assert log.segments == (last,)
    shelf.dirs.close()


def test_indexes_that_recovery_made_are_taken_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A kill costs the reading of what was not flushed once, not at the orderly start after it as well."""
    shelf = open_shelf(tmp_path, topic=TOPIC)
    for n in range(9):
        append(shelf.partition, b"%d" % n)
    shelf.dirs.abandon()
    open_shelf(tmp_path, topic=TOPIC).dirs.close()
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        again = open_shelf(tmp_path, topic=TOPIC)
    assert len(again.partition.log.segments) > 2
    assert values(again.partition) == [b"%d" % n for n in range(9)]
    assert "indexes made anew" not in caplog.text
    again.dirs.close()


def test_epochs_that_batches_contradict_are_made_anew(tmp_path: Path) -> None:
    shelf = open_shelf(tmp_path, topic=TOPIC, epoch=3)
    append(shelf.partition, b"a")
    shelf.dirs.close()
    path = tmp_path / str(TP) / "leader-epoch-checkpoint"
    assert path.read_text() == "0\n1\n3 0\n"
    path.write_text("0\n1\n2 0\n")
    again = open_shelf(tmp_path, topic=TOPIC, epoch=3)
    assert again.partition.log.epochs.rows() == [(3, 0)]
    again.dirs.close()


def test_each_of_several_batches_must_suit_the_topic(tmp_path: Path) -> None:
    shelf = open_shelf(tmp_path, topic={"message.timestamp.type": "LogAppendTime", "max.message.bytes": 100})
    config: LogConfig = shelf.partition.log.config
    headers = [read_header(batch(b"v" * size)) for size in (10, 10, 100)]
    check_policy(tuple(headers[:2]), 200, config, TP, TimestampMs(NOW))
    with pytest.raises(MessageTooLarge, match=r"max\.message\.bytes is 100"):
        check_policy(tuple(headers), 300, config, TP, TimestampMs(NOW))
    shelf.dirs.close()
