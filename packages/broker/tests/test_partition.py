"""A partition as its callers see it: what is refused, what is stored, what is read."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from kit.partitions import NOW, TP, Heard, append, batch, lead, open_shelf, values
from raylog.broker.config import topic_settings
from raylog.broker.partition.partition import Isolation, Origin
from raylog.broker.storage.log.cleaning import enforce_retention
from raylog.broker.storage.log.truncation import truncate_to
from raylog.protocol.batches.compression import Codec
from raylog.protocol.errors import (
    CorruptMessage,
    FencedLeaderEpoch,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    OutOfOrderSequence,
    RecordListTooLarge,
    TransactionalIdAuthorizationFailed,
    UnknownLeaderEpoch,
)
from raylog.protocol.ids import LeaderEpoch, Offset, TimestampMs
from raylog.protocol.records import TimestampType, decode_batches, read_header


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return tmp_path / "logs"


def test_offsets_and_epoch_are_stamped_in_place(log_dir: Path) -> None:
    shelf = open_shelf(log_dir, epoch=4)
    first, second = batch(b"a", b"b"), batch(b"c", leader_epoch=77)
    info = shelf.partition.append(first, now_ms=NOW)
    assert info == (0, 1, -1, 0, False, 4)
    assert shelf.partition.append(second, now_ms=NOW).base_offset == 2
    header = read_header(second)
    assert (header.base_offset, header.leader_epoch) == (2, 4)
    assert (shelf.directory / f"{0:020d}.log").read_bytes() == bytes(first) + bytes(second)
    shelf.dirs.close()


def test_a_coordinator_may_append_several_batches_at_once(log_dir: Path) -> None:
    shelf = open_shelf(log_dir)
    both = memoryview(bytearray(bytes(batch(b"a", b"b")) + bytes(batch(b"c", codec=Codec.ZSTD))))
    info = shelf.partition.append(both, origin=Origin.COORDINATOR, now_ms=NOW)
    assert (info.base_offset, info.last_offset) == (0, 2)
    assert values(shelf.partition) == [b"a", b"b", b"c"]
    shelf.dirs.close()


def test_what_is_refused_leaves_no_trace(log_dir: Path) -> None:
    shelf = open_shelf(log_dir, topic={"max.message.bytes": 200, "segment.bytes": 400})

    def refused(data: memoryview, error: type[Exception], **more: object) -> None:
        with pytest.raises(error, match="t-0"):
            shelf.partition.append(data, now_ms=NOW, **more)  # type: ignore[arg-type]

    bad_crc, bad_magic = batch(b"a"), batch(b"a")
    bad_crc[-1] ^= 1
    bad_magic[16] = 3
    refused(bad_crc, CorruptMessage)
    refused(bad_magic, CorruptMessage)
    refused(batch(b"a")[:-1], CorruptMessage)
    refused(batch(b"a")[:0], InvalidRecord)
    refused(batch(b"x" * 200), MessageTooLarge)
    refused(memoryview(bytearray(bytes(batch(b"x" * 100)) * 3)), RecordListTooLarge)
    refused(batch(b"a", timestamps=[NOW + 3_600_001]), InvalidTimestamp)
    refused(batch(b"a", timestamp_type=TimestampType.LOG_APPEND_TIME), InvalidTimestamp)
    refused(batch(b"a", base_offset=1), InvalidRecord)
    refused(batch(b"a", producer=(1, 0, 0), transactional=True), TransactionalIdAuthorizationFailed)
    refused(batch(b"\0\0\0\0\0\0", control=True, producer=(1, 0, -1)), InvalidRecord)
    refused(memoryview(bytearray(bytes(batch(b"a")) * 2)), InvalidRecord)
    refused(batch(b"a"), FencedLeaderEpoch, leader_epoch=LeaderEpoch(-2))
    refused(batch(b"a"), UnknownLeaderEpoch, leader_epoch=LeaderEpoch(1))
    assert shelf.partition.log_end_offset == 0
    assert (shelf.directory / f"{0:020d}.log").stat().st_size == 0
    assert append(shelf.partition, b"a", timestamps=[NOW + 3_600_000]) == 0
    shelf.dirs.close()


def test_coordinators_may_write_control_batches(log_dir: Path) -> None:
    shelf = open_shelf(log_dir)
    append(shelf.partition, b"a")
    marker = batch(b"\0\0\0\0\0\0", control=True, producer=(1, 0, -1))
    assert shelf.partition.append(marker, origin=Origin.COORDINATOR, now_ms=NOW).base_offset == 1
    assert (shelf.directory / f"{0:020d}.log").read_bytes().endswith(bytes(marker))
    assert shelf.partition.high_watermark == 2
    shelf.dirs.close()


@pytest.mark.parametrize("producer_id", [0, 1])
def test_retries_get_the_first_answer(log_dir: Path, producer_id: int) -> None:
    shelf = open_shelf(log_dir, topic={"message.timestamp.type": "LogAppendTime"})
    data = bytes(batch(b"a", b"b", producer=(producer_id, 0, 0)))
    first = shelf.partition.append(memoryview(bytearray(data)), now_ms=NOW)
    assert append(shelf.partition, b"c", producer=(producer_id, 0, 2)) == 2
    again = shelf.partition.append(memoryview(bytearray(data)), now_ms=TimestampMs(NOW + 5))
    assert again == first._replace(duplicate=True)
    with pytest.raises(OutOfOrderSequence):
        append(shelf.partition, b"e", producer=(producer_id, 0, 4))
    assert shelf.partition.log_end_offset == 3
    shelf.dirs.close()


def test_log_append_time(log_dir: Path) -> None:
    shelf = open_shelf(log_dir, topic={"message.timestamp.type": "LogAppendTime"})
    info = shelf.partition.append(batch(b"a", b"b", timestamps=[5, NOW * 2]), now_ms=NOW)
    assert info.log_append_time == NOW
    read = shelf.partition.read(Offset(0), 1 << 20)
    assert read.data is not None
    records = decode_batches(read.data.read())
    read.data.release()
    assert [record.timestamp for record in records] == [NOW, NOW]
    assert shelf.partition.offset_for_timestamp(NOW) == (0, NOW, 0)
    assert shelf.partition.offset_for_timestamp(TimestampMs(NOW + 1)) is None
    shelf.dirs.close()


def test_settings_change_while_it_runs(log_dir: Path) -> None:
    shelf = open_shelf(log_dir)
    broker = shelf.dirs._config
    shelf.partition.configure(topic_settings(broker, {"max.message.bytes": "10"}))
    with pytest.raises(MessageTooLarge):
        append(shelf.partition, b"a")
    shelf.partition.configure(topic_settings(broker))
    assert append(shelf.partition, b"a") == 0
    shelf.dirs.close()


# --- roles ---------------------------------------------------------------------------------------------------


def test_only_a_leader_serves(log_dir: Path) -> None:
    shelf = open_shelf(log_dir, epoch=3)
    partition = shelf.partition
    append(partition, b"a")
    lead(partition, 3)
    with pytest.raises(FencedLeaderEpoch):
        lead(partition, 2)
    partition.role.check_leader_epoch(LeaderEpoch(3))
    with pytest.raises(FencedLeaderEpoch):
        partition.read(Offset(0), 1, current_leader_epoch=LeaderEpoch(2))
    with pytest.raises(UnknownLeaderEpoch):
        partition.read(Offset(0), 1, current_leader_epoch=LeaderEpoch(4))
    partition.role.resign()
    for use in (
        lambda: append(partition, b"b"),
        lambda: partition.read(Offset(0), 1),
        lambda: partition.offset_for_timestamp(NOW),
        lambda: partition.end_offset_for_epoch(LeaderEpoch(-1), LeaderEpoch(3)),
    ):
        with pytest.raises(NotLeaderOrFollower):
            use()
    lead(partition, 5)
    append(partition, b"b")
    lead(partition, 7)
    ends = {epoch: partition.end_offset_for_epoch(LeaderEpoch(7), LeaderEpoch(epoch)) for epoch in range(2, 9)}
    assert ends == {2: (2, 0), 3: (3, 1), 4: (3, 1), 5: (5, 2), 6: (5, 2), 7: (7, 2), 8: (-1, -1)}
    shelf.dirs.close()


def test_log_is_flushed_each_so_many_records(log_dir: Path) -> None:
    shelf = open_shelf(log_dir, topic={"flush.messages": 4})
    points = []
    for _ in range(5):
        append(shelf.partition, b"a", b"b")
        points.append(shelf.partition.log.recovery_point)
    assert points == [0, 4, 4, 8, 8]
    shelf.dirs.close()


def test_advances_are_told_with_their_bytes(log_dir: Path) -> None:
    heard = Heard()
    shelf = open_shelf(log_dir, subscriptions=heard.subscriptions())
    data = batch(b"a", producer=(1, 0, 0))
    shelf.partition.append(data, now_ms=NOW)
    shelf.partition.append(data, now_ms=NOW)
    assert heard.of("advance") == [("advance", TP, len(data), 1)]
    shelf.dirs.close()


# --- reading -------------------------------------------------------------------------------------------------


def test_reads_respect_their_bounds(log_dir: Path) -> None:
    shelf = open_shelf(log_dir, topic={"segment.bytes": 250})
    partition = shelf.partition
    stored = []
    for n in range(6):
        data = batch(b"%d" % n, b"%d" % n)
        partition.append(data, now_ms=NOW)
        stored.append(bytes(data))
    size = len(stored[0])
    assert [segment.base_offset for segment in partition.log.segments] == [0, 6]
    first, second = b"".join(stored[:3]), b"".join(stored[3:])

    def found(offset: int, max_bytes: int, **more: object) -> bytes:
        info = partition.read(Offset(offset), max_bytes, **more)  # type: ignore[arg-type]
        if info.data is None:
            return b""
        data = info.data.read()
        info.data.release()
        return data

    assert found(0, 1 << 20) == first
    assert found(0, 2 * size + 5) == first[: 2 * size + 5]
    assert found(0, 1) == stored[0]
    assert found(0, size - 1, min_one_batch=False) == b""
    assert found(0, size, min_one_batch=False) == stored[0]
    assert found(3, 1 << 20) == first[size:]  # from the middle of a batch: the whole batch
    assert found(5, 1 << 20) == stored[2]
    assert found(6, 1 << 20) == second
    assert found(12, 1 << 20) == b""
    for offset in (-1, 13):
        with pytest.raises(OffsetOutOfRange, match="holds 0 to 12"):
            found(offset, 1)
    shelf.dirs.close()


def test_a_read_stops_at_the_high_watermark(log_dir: Path) -> None:
    shelf = open_shelf(log_dir)
    for n in range(4):
        append(shelf.partition, b"%d" % n)
    log = shelf.partition.log
    with log.lock:
        log.publish(high_watermark=log.mark(Offset(2)))
    assert values(shelf.partition) == [b"0", b"1"]
    assert values(shelf.partition, isolation=Isolation.COMMITTED) == [b"0", b"1"]
    assert values(shelf.partition, isolation=Isolation.LOG_END) == [b"0", b"1", b"2", b"3"]
    with log.lock, pytest.raises(AssertionError, match="out of order"):
        log.publish(start=Offset(3))
    shelf.dirs.close()


def test_timestamps_are_exact_inside_a_batch(log_dir: Path) -> None:
    shelf = open_shelf(log_dir)
    append(shelf.partition, b"a", b"b", b"c", b"d", timestamps=[2, 4, 6, 8])
    append(shelf.partition, b"e", b"f", b"g", timestamps=[30, 10, 20], codec=Codec.LZ4)

    def at(timestamp: int) -> tuple[int, int] | None:
        found = shelf.partition.offset_for_timestamp(TimestampMs(timestamp))
        return None if found is None else (found.offset, found.timestamp)

    assert [at(t) for t in (0, 2, 3, 8)] == [(0, 2), (0, 2), (1, 4), (3, 8)]
    assert [at(t) for t in (9, 15, 30, 31)] == [(4, 30), (4, 30), (4, 30), None]
    assert shelf.partition.max_timestamp_offset() == (4, 30, 0)
    truncate_to(shelf.partition.log, Offset(4), NOW)
    assert shelf.partition.max_timestamp_offset() == (3, 8, 0)
    shelf.dirs.close()


# --- rolling and retention -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "begins"),
    [
        ({}, [0]),
        ({"segment.bytes": 3 * 68}, [0, 3, 6, 9]),
        ({"segment.ms": 2500}, [0, 3, 6, 9]),
        ({"segment.index.bytes": 24, "index.interval.bytes": 0}, [0, 3, 6, 9]),
    ],
)
def test_rolls(log_dir: Path, topic: dict[str, int], begins: list[int]) -> None:
    shelf = open_shelf(log_dir, topic=topic)
    for n in range(10):
        append(shelf.partition, b"", timestamps=[NOW + 1000 * n])
    assert [segment.base_offset for segment in shelf.partition.log.segments] == begins
    assert sorted(path.name for path in shelf.directory.glob("*.log")) == [f"{begin:020d}.log" for begin in begins]
    assert values(shelf.partition) == [b""] * 10
    shelf.dirs.close()


def test_retention_by_time(log_dir: Path) -> None:
    shelf = open_shelf(log_dir, topic={"retention.ms": 1000, "segment.bytes": 140})
    log = shelf.partition.log
    for n in range(6):
        append(shelf.partition, b"%d" % n, timestamps=[NOW + 1000 * n], now_ms=NOW + 1000 * n)
    held = shelf.partition.read(Offset(0), 1 << 20).data
    assert held is not None
    assert enforce_retention(log, TimestampMs(NOW), 0) == 0
    assert enforce_retention(log, TimestampMs(NOW + 4500), 0) == 2
    assert shelf.partition.log_start_offset == 4
    assert [record.value for record in decode_batches(held.read())] == [b"0", b"1"]
    held.release()
    with pytest.raises(OffsetOutOfRange):
        shelf.partition.read(Offset(3), 1)
    assert values(shelf.partition) == [b"4", b"5"]
    assert enforce_retention(log, TimestampMs(NOW + 10**6), 0) == 1
    assert (shelf.partition.log_start_offset, shelf.partition.log_end_offset) == (6, 6)
    assert append(shelf.partition, b"6") == 6
    shelf.dirs.close()
    shelf = open_shelf(log_dir)
    assert shelf.partition.log_start_offset == 6
    assert values(shelf.partition) == [b"6"]
    shelf.dirs.close()


def test_retention_by_size_and_by_maintenance(log_dir: Path) -> None:
    shelf = open_shelf(log_dir, topic={"retention.bytes": 300, "retention.ms": -1, "segment.bytes": 140})
    for n in range(20):
        append(shelf.partition, b"%d" % n)
    shelf.dirs.maintain(TimestampMs(NOW + 1000), NOW + 1000)
    assert shelf.partition.log_start_offset == 0
    shelf.dirs.maintain(TimestampMs(NOW + 301_000), NOW + 301_000)
    assert 300 <= shelf.partition.log.size < 300 + 140
    assert shelf.partition.describe()["size_bytes"] == sum(p.stat().st_size for p in shelf.directory.glob("*.log"))
    shelf.dirs.close()


def test_flush_ms(log_dir: Path) -> None:
    shelf = open_shelf(log_dir, topic={"flush.ms": 1000})
    shelf.dirs.maintain(NOW, NOW)
    append(shelf.partition, b"a")
    shelf.dirs.maintain(TimestampMs(NOW + 999), NOW + 999)
    assert shelf.partition.log.recovery_point == 0
    shelf.dirs.maintain(TimestampMs(NOW + 1000), NOW + 1000)
    assert shelf.partition.log.recovery_point == 1
    shelf.dirs.close()


def test_deleting_leaves_slices_readable(log_dir: Path) -> None:
    shelf = open_shelf(log_dir)
    append(shelf.partition, b"a")
    data = shelf.partition.read(Offset(0), 1 << 20).data
    assert data is not None
    shelf.partition.role.resign()
    shelf.dirs.delete(TP)
    assert [record.value for record in decode_batches(data.read())] == [b"a"]
    data.release()
    assert not shelf.directory.exists()
    with pytest.raises(NotLeaderOrFollower):
        append(shelf.partition, b"b")
    shelf.dirs.close()
    with pytest.raises(ValueError, match="released more often"):
        data.release()


# --- threads -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flush_messages", [2**63 - 1, 1])
def test_writers_readers_and_retention_at_once(log_dir: Path, flush_messages: int) -> None:
    topic = {
        "segment.bytes": 2000, "index.interval.bytes": 100, "retention.bytes": 6000, "retention.ms": -1,
        "flush.messages": flush_messages,
    }  # fmt: skip
    shelf = open_shelf(log_dir, topic=topic)
    partition = shelf.partition
    done, errors = threading.Event(), []
    acked: dict[int, bytes] = {}

    def guarded(work: object, *args: object) -> threading.Thread:
        def run() -> None:
            try:
                work(*args)  # type: ignore[operator]
            except BaseException as error:
                errors.append(error)
                raise

        return threading.Thread(target=run)

    def write(name: int) -> None:
        for n in range(150):
            value = b"%d:%d" % (name, n)
            acked[append(partition, value, producer=(name, 0, n))] = value

    def read(seen: dict[int, bytes]) -> None:
        offset = 0
        while not done.is_set() or offset < partition.log_end_offset:
            try:
                info = partition.read(Offset(offset), 700)
            except OffsetOutOfRange:
                before, offset = offset, partition.log_start_offset
                assert before < offset, "what the log has is not refused"
                continue
            if info.data is None:
                done.wait(0.001)
                continue
            data = info.data.read()
            info.data.release()
            for record in decode_batches(data):  # each in a batch of its own
                assert record.offset == offset
                assert record.value is not None
                seen[offset] = record.value
                offset += 1
            assert offset <= partition.high_watermark

    def clean() -> None:
        while not done.wait(0.002):
            shelf.dirs.maintain(NOW, NOW)
            enforce_retention(partition.log, NOW, 0)

    writers = [guarded(write, name) for name in range(3)]
    seen: list[dict[int, bytes]] = [{}, {}]
    others = [*(guarded(read, by_one) for by_one in seen), guarded(clean)]
    for thread in writers + others:
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    for thread in others:
        thread.join()
    assert errors == []
    assert sorted(acked) == list(range(450))
    for by_one in seen:
        assert max(by_one) == 449, "each reader has come to the end"
        assert by_one.items() <= acked.items()
    enforce_retention(partition.log, NOW, 0)
    start = partition.log_start_offset
    assert start > 0
    assert 6000 <= partition.log.size < 6000 + 2 * 2000
    assert values(partition) == [acked[offset] for offset in range(start, 450)]
    shelf.dirs.close()
    assert len(os.listdir(shelf.directory)) <= 4 * len(partition.log.segments) + 4
