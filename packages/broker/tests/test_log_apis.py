"""DeleteRecords, DescribeLogDirs, DescribeProducers and ListOffsets: every version, without sockets."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from kit.faulty_files import FailingFileSystem
from kit.machine import scaled
from kit.node import Node
from kit.waiting import wait_until
from kit.wire import produce_request, request
from raylog.broker.handlers import TABLE
from raylog.broker.handlers.context import DelayedReply
from raylog.broker.storage.disk.files import RealFileSystem
from raylog.coordination.metadata.model import PartitionState
from raylog.protocol.batches.rows import encode_records
from raylog.protocol.errors import StorageError
from raylog.protocol.ids import BrokerEpoch, BrokerId, LeaderEpoch, MonotonicMs, Offset, TimestampMs
from raylog.protocol.records import Codec, Record, encode_batch, frame_batch
from raylog.protocol.wire.messages import decode_response
from raylog.protocol.wire.produce import parse_produce_response

LIST_OFFSETS, DELETE_RECORDS, DESCRIBE_LOG_DIRS, DESCRIBE_PRODUCERS = 2, 21, 35, 61
VERSIONS = {row.key: range(row.min_version, row.max_version + 1) for row in TABLE}
WAIT_S = 30.0
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL = -1, -2, -3, -4


@pytest.fixture
def fs() -> FailingFileSystem:
    return FailingFileSystem(RealFileSystem())


@pytest.fixture
def node(tmp_path: Path, fs: FailingFileSystem) -> Iterator[Node]:
    with Node(tmp_path, fs=fs) as node:
        node.create_topic("t", partitions=2, config={"segment.bytes": "2000"})
        yield node


def ask(node: Node, key: int, version: int, **values: Any) -> Any:
    reply = node.answer(request(key, version, **values)[4:])
    if isinstance(reply, DelayedReply):
        while not reply.wait(scaled(WAIT_S)):
            pass
        reply = reply.finish()
    assert isinstance(reply, bytes)
    return decode_response(key, version, reply)[1]


def append(node: Node, *timestamps: int, partition: int = 0, producer: tuple[int, int, int] = (-1, -1, -1)) -> None:
    records = [Record(b"%d" % time, timestamp=time) for time in timestamps]
    producer_id, epoch, sequence = producer
    batch = encode_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    node.partition("t", partition).append(memoryview(bytearray(batch)), now_ms=TimestampMs(1000))


def delete(
    node: Node, offset: int, *, partition: int = 0, topic: str = "t", version: int = 2, wait_ms: int = 0
) -> tuple[int, ErrorCode]:
    topics = [{"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}]
    timeout = timedelta(milliseconds=wait_ms)
    [result] = ask(node, DELETE_RECORDS, version, topics=topics, timeout=timeout).topics[0].partitions
    assert result.partition_index == partition
    return result.low_watermark, result.error_code


def offset_at(node: Node, timestamp: int, *, version: int = 11, **more: Any) -> tuple[int, int]:
    part = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
    topics = [{"name": "t", "partitions": [part]}]
    [result] = ask(node, LIST_OFFSETS, version, replica_id=-1, topics=topics, **more).topics[0].partitions
    assert result.error_code == ErrorCode.none, result
    return result.offset, result.timestamp


# --- DeleteRecords
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS[DELETE_RECORDS])
def test_delete_records_moves_the_start(node: Node, version: int) -> None:
    for time in range(100):
        append(node, time)
    log = node.partition("t").log
    begins = [segment.base_offset for segment in log.segments]
    kept = [begin for begin, after in zip(begins, [*begins[1:], 1 << 30], strict=True) if after > 50]
    assert len(kept) < len(begins)
    assert delete(node, 50, version=version) == (50, ErrorCode.none)
    assert [segment.base_offset for segment in log.segments] == kept, "each segment that is wholly deleted is gone"
    assert sorted(int(path.stem) for path in log.directory.glob("*.log")) == kept
    assert delete(node, 20, version=version) == (50, ErrorCode.none)
    assert delete(node, 101, version=version) == (-1, ErrorCode.offset_out_of_range)
    assert delete(node, -2, version=version) == (-1, ErrorCode.offset_out_of_range)
    assert offset_at(node, EARLIEST) == offset_at(node, EARLIEST_LOCAL) == (50, -1)
    assert (offset_at(node, 0), offset_at(node, LATEST)) == ((50, 50), (100, -1)), "no deleted record is found by time"
    assert delete(node, -1, version=version) == (100, ErrorCode.none)
    assert offset_at(node, EARLIEST) == offset_at(node, LATEST) == (100, -1)
    assert delete(node, 0, topic="unknown") == (-1, ErrorCode.unknown_topic_or_partition)
    node.lease_held = False
    assert delete(node, 100) == (-1, ErrorCode.not_leader_or_follower)


def test_an_old_timestamp_finds_nothing_that_was_deleted(node: Node) -> None:
    """Also where the start lies inside a batch, and where the newest record of all was deleted."""
    for time in range(0, 100, 4):
        append(node, time + 900 * (time == 48), time + 1, time + 2, time + 3)
    assert offset_at(node, MAX_TIMESTAMP) == (48, 948)
    assert delete(node, 50) == (50, ErrorCode.none)
    assert offset_at(node, 0) == (50, 50)
    assert offset_at(node, 49) == (50, 50)
    assert offset_at(node, 51) == (51, 51)
    assert offset_at(node, MAX_TIMESTAMP) == (99, 99)


def test_deleted_records_stay_deleted(tmp_path: Path) -> None:
    """Whether the broker stopped in an orderly way or not, and the other partitions keep theirs."""
    for clean in (True, False):
        root = tmp_path / str(clean)
        node = Node(root)
        node.create_topic("t", partitions=2)
        for partition in range(2):
            append(node, *range(10), partition=partition)
        assert delete(node, 7) == (7, ErrorCode.none)
        logs = node.ports.log_dirs
        topics = node.table.state().topics
        logs.close() if clean else logs.abandon()
        again = Node(root, topics=topics.values())
        assert [again.partition("t", index).log_start_offset for index in range(2)] == [7, 0]
        assert again.partition("t").log_end_offset == 10
        again.ports.log_dirs.close()


def test_a_deletion_waits_for_the_in_sync_replicas(node: Node) -> None:
    node.create_topic("r", replicas=(1, 2))
    partition = node.partition("r")
    node.answer(produce_request("r", encode_batch([Record(b"x")] * 3))[4:])

    def fetched(offset: int, start: int) -> None:
        partition.role.replica_fetched(
            BrokerId(2), BrokerEpoch(0), Offset(offset), Offset(start), MonotonicMs(0), leader_epoch=LeaderEpoch(0)
        )

    fetched(3, 0)
    assert delete(node, 2, topic="r") == (-1, ErrorCode.request_timed_out)
    assert partition.log_start_offset == 2
    answers: list[tuple[int, ErrorCode]] = []
    later = threading.Thread(target=lambda: answers.append(delete(node, 2, topic="r", wait_ms=60_000)), daemon=True)
    later.start()
    wait_until(lambda: node.ports.deletes.waiting == 1, WAIT_S, "the deletion waits")
    fetched(3, 1)
    assert (answers, node.ports.deletes.waiting) == ([], 1), "the follower still has a record that was to be deleted"
    fetched(3, 2)
    later.join(scaled(WAIT_S))
    assert answers == [(2, ErrorCode.none)], "woken by the fetch, long before the request's timeout"
    assert node.ports.deletes.waiting == 0
    node.create_topic("r", replicas=(1, 2), isr=(1,))
    fetched(3, 0)
    assert delete(node, 3, topic="r") == (3, ErrorCode.none)


def test_a_deletion_that_is_not_on_the_disk_is_not_told(node: Node, fs: FailingFileSystem) -> None:
    append(node, 1, 2, 3)
    fs.fail("fdatasync", errno.EIO, "log-start-offset-checkpoint.tmp")
    assert delete(node, 2) == (-1, ErrorCode.kafka_storage_error)


# --- ListOffsets
# ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS[LIST_OFFSETS])
@pytest.mark.parametrize("together", [True, False])
def test_timestamps_two_four_six_eight(node: Node, version: int, together: bool) -> None:
    for times in [(2, 4, 6, 8)] if together else [(2,), (4,), (6,), (8,)]:
        append(node, *times)
    asked = {time: offset_at(node, time, version=version) for time in (0, 2, 3, 8, 9)}
    assert asked == {0: (0, 2), 2: (0, 2), 3: (1, 4), 8: (3, 8), 9: (-1, -1)}


@pytest.mark.parametrize("version", VERSIONS[LIST_OFFSETS])
def test_timestamps_out_of_order_inside_a_batch(node: Node, version: int) -> None:
    append(node, 6, 2, 8, 4)
    append(node, 1, 9, 3)
    asked = {time: offset_at(node, time, version=version) for time in (0, 3, 7, 9, 10)}
    assert asked == {0: (0, 6), 3: (0, 6), 7: (2, 8), 9: (5, 9), 10: (-1, -1)}


def test_a_look_up_in_a_hostile_batch_costs_little(node: Node) -> None:
    """A few kilobytes that stand for two million records, and none has the time that its header promises."""
    count, record = 2_000_000, encode_records([Record(None, timestamp=1)])[0]
    hostile = frame_batch(b"".join(record) * count, count, 1, 500, codec=Codec.ZSTD)
    assert len(hostile) < 4_000
    reply = node.answer(produce_request("t", hostile)[4:])
    assert isinstance(reply, bytes)
    assert parse_produce_response(9, reply)[1].topics[0].partitions[0].error_code == ErrorCode.none
    append(node, 600)
    begun = process_time()
    assert offset_at(node, 1) == (0, 1)
    assert offset_at(node, 400) == (0, 1), "too early rather than too late"
    assert offset_at(node, 501) == (count, 600)
    assert process_time() - begun < 3


@pytest.mark.parametrize("version", VERSIONS[LIST_OFFSETS])
@pytest.mark.parametrize(
    ("timestamp", "since", "empty", "filled"),
    [
        (LATEST, 1, (0, -1), (5, -1)),
        (EARLIEST, 1, (0, -1), (1, -1)),
        (MAX_TIMESTAMP, 7, (-1, -1), (3, 9)),
        (EARLIEST_LOCAL, 8, (0, -1), (1, -1)),
        (-5, 9, (-1, -1), (-1, -1)),
        (-6, 11, (-1, -1), (-1, -1)),
        (-7, 1 << 15, (), ()),  # means nothing in any version
    ],
)
def test_the_ends_of_a_log(
    node: Node, version: int, timestamp: int, since: int, empty: tuple[int, int], filled: tuple[int, int]
) -> None:
    if version < since:
        part = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
        topics = [{"name": "t", "partitions": [part]}]
        [result] = ask(node, LIST_OFFSETS, version, replica_id=-1, topics=topics).topics[0].partitions
        assert (result.error_code, result.offset) == (ErrorCode.unsupported_version, -1)
        return
    assert offset_at(node, timestamp, version=version) == empty
    append(node, 10, 7, 2)
    append(node, 9, 9)
    delete(node, 1)
    assert offset_at(node, timestamp, version=version) == filled


# --- DescribeLogDirs
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS[DESCRIBE_LOG_DIRS])
def test_log_dirs_tell_sizes_and_room(node: Node, tmp_path: Path, version: int) -> None:
    append(node, 1, 2, 3)
    response = ask(node, DESCRIBE_LOG_DIRS, version, topics=None)
    [result] = response.results
    assert (result.error_code, result.log_dir) == (ErrorCode.none, str(tmp_path))
    [topic] = result.topics
    size = (tmp_path / "t-0" / f"{0:020d}.log").stat().st_size
    assert topic.name == "t"
    assert [(p.partition_index, p.partition_size, p.offset_lag, p.is_future_key) for p in topic.partitions] == [
        (0, size, 0, False),
        (1, 0, 0, False),
    ]
    if version >= 3:
        assert response.error_code == ErrorCode.none
    if version >= 4:
        assert result.total_bytes >= result.usable_bytes > 1 << 20


def test_log_dirs_of_some_partitions(node: Node) -> None:
    asked = [{"topic": "t", "partitions": [1, 9]}, {"topic": "unknown", "partitions": [0]}]
    [result] = ask(node, DESCRIBE_LOG_DIRS, 4, topics=asked).results
    assert [(topic.name, [p.partition_index for p in topic.partitions]) for topic in result.topics] == [("t", [1])]


def test_an_offline_log_dir_says_so(node: Node, fs: FailingFileSystem) -> None:
    fs.fail("pwritev", errno.EIO)
    with pytest.raises(StorageError):
        append(node, 1)
    [result] = ask(node, DESCRIBE_LOG_DIRS, 4, topics=None).results
    assert (result.error_code, result.topics, result.total_bytes) == (ErrorCode.kafka_storage_error, (), -1)


def test_a_disk_that_cannot_tell_its_size_is_offline(node: Node, fs: FailingFileSystem) -> None:
    fs.fail("space", errno.EIO)
    [result] = ask(node, DESCRIBE_LOG_DIRS, 4, topics=None).results
    assert result.error_code == ErrorCode.kafka_storage_error
    with pytest.raises(StorageError):
        append(node, 1)


# --- DescribeProducers
# ------------------------------------------------------------------------------------------------


def test_producers_are_told(node: Node) -> None:
    append(node, 1, 2, producer=(7, 0, 0))
    append(node, 3, producer=(7, 0, 2))
    append(node, 3, producer=(8, 4, 0))
    append(node, 4)
    topics = [{"name": "t", "partition_indexes": [0, 1, 5]}]
    told, none, missing = ask(node, DESCRIBE_PRODUCERS, 0, topics=topics).topics[0].partitions
    assert [
        (p.producer_id, p.producer_epoch, p.last_sequence, p.last_timestamp, p.current_txn_start_offset)
        for p in told.active_producers
    ] == [(7, 0, 2, 1000, -1), (8, 4, 0, 1000, -1)]
    assert (told.error_code, told.error_message) == (ErrorCode.none, None)
    assert (none.error_code, none.active_producers) == (ErrorCode.none, ())
    assert (missing.error_code, missing.active_producers) == (ErrorCode.unknown_topic_or_partition, ())
    assert "t-5" in missing.error_message


# --- idempotent producers
# --------------------------------------------------------------------------------------------


def produce(node: Node, sequence: int, *, epoch: int = 0) -> tuple[int, int]:
    """Error code and base offset of a batch of one record of producer 7."""
    batch = encode_batch([Record(b"x", timestamp=1)], producer_id=7, producer_epoch=epoch, base_sequence=sequence)
    reply = node.answer(produce_request("t", batch)[4:])
    assert isinstance(reply, bytes)
    part = parse_produce_response(9, reply)[1].topics[0].partitions[0]
    return part.error_code, part.base_offset


@pytest.mark.parametrize("clean", [True, False])
def test_a_producer_goes_on_over_a_restart(tmp_path: Path, clean: bool) -> None:
    """Its next batch is taken, retries of the last five are answered with their offsets, older ones as duplicates."""
    node = Node(tmp_path)
    node.create_topic("t")
    assert [produce(node, sequence) for sequence in range(8)] == [(0, offset) for offset in range(8)]
    logs, topics = node.ports.log_dirs, node.table.state().topics
    logs.close() if clean else logs.abandon()
    with Node(tmp_path, topics=topics.values()) as again:
        assert [produce(again, sequence) for sequence in range(3, 8)] == [(0, offset) for offset in range(3, 8)]
        assert produce(again, 2) == (ErrorCode.duplicate_sequence_number, -1)
        assert produce(again, 8) == (0, 8)
        assert produce(again, 10)[0] == ErrorCode.out_of_order_sequence_number
        assert produce(again, 9) == (0, 9)
        assert again.partition("t").log_end_offset == 10


def test_acks_all_answers_duplicates_once_they_are_committed(node: Node) -> None:
    """Also one whose offsets are no longer known, whose answer counts as success."""
    members = (BrokerId(1), BrokerId(2))
    partition = node.partition("t")
    partition.role.become_leader(PartitionState(members, members[0], LeaderEpoch(1), members), MonotonicMs(0))

    def send(sequence: int) -> DelayedReply:
        batch = encode_batch([Record(b"x", timestamp=1)], producer_id=7, producer_epoch=0, base_sequence=sequence)
        reply = node.answer(produce_request("t", batch, acks=-1, timeout_ms=60_000)[4:])
        assert isinstance(reply, DelayedReply)
        return reply

    replies = [send(sequence) for sequence in (*range(7), 0, 6)]
    assert not any(reply.is_over() for reply in replies), "nothing is committed"
    end = partition.log_end_offset
    partition.role.replica_fetched(
        members[1], BrokerEpoch(0), end, Offset(0), MonotonicMs(0), leader_epoch=LeaderEpoch(1)
    )
    assert all(reply.is_over() for reply in replies)
    answers = [parse_produce_response(9, reply.finish())[1].topics[0].partitions[0] for reply in replies]
    told = [(part.error_code, part.base_offset) for part in answers]
    assert told == [*((0, offset) for offset in range(7)), (ErrorCode.duplicate_sequence_number, -1), (0, 6)]
    assert end == 7


def test_a_producer_goes_on_after_it_was_forgotten(node: Node) -> None:
    assert produce(node, 0) == (0, 0)
    day_ms = 24 * 60 * 60 * 1000
    for uptime_ms in (0, day_ms, 2 * day_ms):
        node.ports.log_dirs.maintain(node.now_ms(), uptime_ms)
    topics = [{"name": "t", "partition_indexes": [0]}]
    [told] = ask(node, DESCRIBE_PRODUCERS, 0, topics=topics).topics[0].partitions
    assert told.active_producers == ()
    assert produce(node, 500) == (0, 1)
    assert produce(node, 501) == (0, 2)
    assert produce(node, 501) == (0, 2)


def test_a_producer_goes_on_after_its_records_were_deleted(node: Node) -> None:
    assert [produce(node, sequence)[0] for sequence in range(3)] == [0, 0, 0]
    assert delete(node, -1) == (3, ErrorCode.none)
    assert produce(node, 2) == (0, 2)
    assert produce(node, 3) == (0, 3)
