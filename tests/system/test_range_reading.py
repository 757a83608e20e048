"""Ranges are read from real brokers: to their ends whatever is there, and what is lost meanwhile is told."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from kit.cluster import InProcessCluster
from kit.leaders import move_leader
from kit.odd_logs import append_as_stored, compacted, control_batch
from raylog.client import Admin, Producer
from raylog.client.ranges.offset_ranges import LATEST, AtTime, DataLoss, OffsetRange, Selection
from raylog.client.ranges.range_planner import log_bounds, offsets_at, select
from raylog.client.ranges.range_reader import RangeReading, read_range
from raylog.protocol.errors import OffsetOutOfRange, UnknownTopicOrPartition
from raylog.protocol.ids import Offset, PartitionIndex, TopicName, TopicPartition
from raylog.protocol.records import Record

pytestmark = pytest.mark.system

SMALL_FETCHES = {"max_partition_fetch_bytes": 1_000, "fetch_max_bytes": 1_000}
"""What is lost while a range is read must not be here already."""

_numbers = count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessCluster]:
    with InProcessCluster(tmp_path_factory.mktemp("brokers")) as running:
        yield running


@pytest.fixture
def topic(cluster: InProcessCluster) -> str:
    """A topic of one partition, with nothing in it."""
    name = f"t{next(_numbers)}"
    cluster.create_topic(name)
    return name


@pytest.fixture
def admin(cluster: InProcessCluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap_servers) as made:
        yield made


def whole(admin: Admin, topic: str) -> OffsetRange:
    """All that partition 0 of the topic holds."""
    tp = TopicPartition(TopicName(topic), PartitionIndex(0))
    bounds = log_bounds(admin, [tp])[tp]
    return OffsetRange(tp, bounds.first, bounds.next)


def fill(cluster: InProcessCluster, topic: str, number: int, size: int = 0) -> None:
    """Send ``number`` records, each a batch of its own."""
    with Producer(cluster.bootstrap_servers, batch_size=1) as producer:
        for value in range(number):
            producer.send(topic, b"%d" % value + bytes(size))


def offsets(reading: RangeReading, piece: OffsetRange) -> list[int]:
    return [offset for batch in read_range(reading, piece) for offset in batch.column("offset").to_pylist()]


def test_the_last_offsets_may_be_control_records_or_compacted_away(
    cluster: InProcessCluster, admin: Admin, topic: str
) -> None:
    records = [Record(value=b"%d" % number) for number in range(5)]
    append_as_stored(cluster, topic, 0, compacted(records, {0, 2}), control_batch())
    reading = RangeReading(cluster.bootstrap_servers, ["offset", "value"])
    piece = whole(admin, topic)
    assert (piece.start, piece.end) == (0, 6)
    [batch] = read_range(reading, piece)
    assert batch.to_pydict() == {"offset": [0, 2], "value": [b"0", b"2"]}
    append_as_stored(cluster, topic, 0, compacted(records, {1}), compacted(records, {0}))
    assert offsets(reading, whole(admin, topic)) == [0, 2, 7, 11]
    assert offsets(reading, OffsetRange(piece.tp, Offset(3), Offset(7))) == []
    assert offsets(reading, OffsetRange(piece.tp, Offset(12), Offset(15))) == []


def test_records_that_are_deleted_meanwhile_are_a_loss(cluster: InProcessCluster, admin: Admin, topic: str) -> None:
    fill(cluster, topic, 20, 900)
    piece = whole(admin, topic)
    loud = read_range(RangeReading(cluster.bootstrap_servers, ["offset"], consumer=SMALL_FETCHES), piece)
    quiet = read_range(RangeReading(cluster.bootstrap_servers, ["offset"], False, SMALL_FETCHES), piece)
    assert next(loud).num_rows == next(quiet).num_rows == 1
    admin.delete_records({piece.tp: 15})
    with pytest.raises(DataLoss, match=rf"{topic}-0: offsets \d to 14 are gone: .*failOnDataLoss"):
        list(loud)
    rest = [offset for batch in quiet for offset in batch.column("offset").to_pylist()]
    assert rest[-5:] == [15, 16, 17, 18, 19]
    assert set(rest[:-5]) <= {1, 2, 3}


def test_a_topic_that_is_deleted_meanwhile_is_a_loss(cluster: InProcessCluster, admin: Admin, topic: str) -> None:
    fill(cluster, topic, 20, 900)
    piece = whole(admin, topic)
    loud = read_range(RangeReading(cluster.bootstrap_servers, ["offset"], consumer=SMALL_FETCHES), piece)
    quiet = read_range(RangeReading(cluster.bootstrap_servers, ["offset"], False, SMALL_FETCHES), piece)
    assert next(loud).num_rows == next(quiet).num_rows == 1
    assert admin.delete_topics([topic]) == {topic: None}
    with pytest.raises(DataLoss, match=rf"{topic}-0: .* offsets \d to 19 are gone"):
        list(loud)
    assert sum(batch.num_rows for batch in quiet) < 5


def test_a_topic_of_the_same_name_is_not_taken_for_the_planned_one(
    cluster: InProcessCluster, admin: Admin, topic: str
) -> None:
    fill(cluster, topic, 3)
    selected = select(admin, Selection(topics=(topic,)))
    piece = whole(admin, topic)
    assert admin.delete_topics([topic]) == {topic: None}
    admin.create_topic(topic, 1)
    fill(cluster, topic, 5)
    loud = RangeReading(cluster.bootstrap_servers, ["offset"], topic_ids=selected.topic_ids)
    quiet = RangeReading(cluster.bootstrap_servers, ["offset"], False, topic_ids=selected.topic_ids)
    with pytest.raises(DataLoss, match=f"{topic}-0: the topic was deleted, and created again since"):
        offsets(loud, piece)
    assert offsets(quiet, piece) == []


def test_topic_made_anew_meanwhile_is_not_read(cluster: InProcessCluster, admin: Admin, topic: str) -> None:
    """The new one has records at the same offsets, in the same leader epoch, and nobody asked in between."""
    fill(cluster, topic, 20, 900)
    piece, topic_ids = whole(admin, topic), select(admin, Selection(topics=(topic,))).topic_ids
    columns = ["offset", "value"]
    loud = read_range(RangeReading(cluster.bootstrap_servers, columns, True, SMALL_FETCHES, topic_ids), piece)
    quiet = read_range(RangeReading(cluster.bootstrap_servers, columns, False, SMALL_FETCHES, topic_ids), piece)
    assert next(loud).num_rows == next(quiet).num_rows == 1
    assert admin.delete_topics([topic]) == {topic: None}
    admin.create_topic(topic, 1)
    fill(cluster, topic, 30, 901)
    with pytest.raises(DataLoss, match=rf"{topic}-0: the topic was deleted, and created again since"):
        list(loud)
    rest = [len(value.lstrip(b"0123456789")) for batch in quiet for value in batch.column("value").to_pylist()]
    assert rest == [900] * len(rest)


def test_a_range_goes_on_at_the_next_leader(tmp_path: Path) -> None:
    with InProcessCluster(tmp_path, brokers=3, config={"default.replication.factor": "3"}) as three:
        three.create_topic("t")
        fill(three, "t", 20, 900)
        with Admin(three.bootstrap_servers) as admin:
            piece = whole(admin, "t")
        reading = RangeReading(three.bootstrap_servers, ["offset"], consumer=SMALL_FETCHES)
        found = read_range(reading, piece)
        first = next(found).column("offset").to_pylist()
        three.stop(three.leader("t", 0).broker_id)
        rest = [offset for batch in found for offset in batch.column("offset").to_pylist()]
        assert [*first, *rest] == list(range(20))


def test_a_log_that_went_another_way_is_a_loss(tmp_path: Path) -> None:
    """What was read is not in the log of the new leader, as after an unclean election (KIP-320)."""
    with InProcessCluster(tmp_path, brokers=2) as pair, Admin(pair.bootstrap_servers) as admin:
        pair.create_topic("t")
        fill(pair, "t", 20, 900)
        piece = whole(admin, "t")
        loud = read_range(RangeReading(pair.bootstrap_servers, ["offset"], consumer=SMALL_FETCHES), piece)
        quiet = read_range(RangeReading(pair.bootstrap_servers, ["offset"], False, SMALL_FETCHES), piece)
        assert next(loud).num_rows == next(quiet).num_rows == 1
        move_leader(pair, piece.tp)
        with pytest.raises(DataLoss, match=r"t-0: .* are gone"):
            list(loud)
        assert sum(batch.num_rows for batch in quiet) < 5


def test_a_log_that_ends_before_the_range_is_a_loss(cluster: InProcessCluster, admin: Admin, topic: str) -> None:
    fill(cluster, topic, 3)
    piece = whole(admin, topic)._replace(end=Offset(9))
    with pytest.raises(DataLoss, match=rf"{topic}-0: the log ends at offset 3, and offsets 3 to 8 are gone"):
        offsets(RangeReading(cluster.bootstrap_servers, ["offset"]), piece)
    assert offsets(RangeReading(cluster.bootstrap_servers, ["offset"], False), piece) == [0, 1, 2]


def test_topics_are_selected_by_name_pattern_or_partition(cluster: InProcessCluster, admin: Admin) -> None:
    for name in ("sel-a", "sel-b", "presel-a"):
        cluster.create_topic(name, partitions=2)
    assert [str(tp) for tp in select(admin, Selection(pattern="sel-.*")).leaders] == [
        "sel-a-0", "sel-a-1", "sel-b-0", "sel-b-1"
    ]  # fmt: skip
    assert select(admin, Selection(pattern="none-.*")).leaders == {}
    one = TopicPartition(TopicName("sel-b"), PartitionIndex(1))
    assert list(select(admin, Selection(partitions=(one,))).leaders) == [one]
    with pytest.raises(UnknownTopicOrPartition, match="no partition sel-b-2"):
        select(admin, Selection(partitions=(one._replace(partition=PartitionIndex(2)),)))


def test_times_stand_for_offsets(cluster: InProcessCluster, admin: Admin, topic: str) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        for time in (1_000, 2_000, 3_000):
            producer.send(topic, b"v", timestamp=time)
    tp = whole(admin, topic).tp
    assert offsets_at(admin, "startingTimestamp", AtTime(1_500), [tp], or_latest=False) == {tp: 1}
    assert offsets_at(admin, "endingTimestamp", AtTime({tp: 9_000}), [tp], or_latest=True) == {tp: LATEST}
    with pytest.raises(OffsetOutOfRange, match=f"startingTimestamp: {topic}-0 has no record at or after 9000 ms"):
        offsets_at(admin, "startingTimestamp", AtTime(9_000), [tp], or_latest=False)
    with pytest.raises(ValueError, match=f"missing are {topic}-0"):
        offsets_at(admin, "startingOffsetsByTimestamp", AtTime({}), [tp], or_latest=False)
