"""The consumer and the admin client against real brokers in this process."""

from __future__ import annotations

import logging
import re
import select
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest

from kit.cluster import InProcessCluster
from kit.machine import scaled, scaled_ms
from kit.proxied import proxied
from kit.waiting import wait_until
from raylog.client import Admin, Consumer, NewTopic, Producer
from raylog.client.batches.decode import SCHEMA
from raylog.client.read_errors import PositionLost, WakeupError
from raylog.coordination.host.clocks import wall_ms
from raylog.protocol.errors import (
    CorruptMessage,
    InvalidConfig,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    OffsetOutOfRange,
    RaylogError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from raylog.protocol.ids import TopicName
from raylog.protocol.records import HEADER_SIZE, Record, batch_headers, encode_batch

FETCH = 1
COUNT = 1_000
EARLIEST = {"auto_offset_reset": "earliest"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    config = {"auto.create.topics.enable": "false"}
    with InProcessCluster(tmp_path, brokers=2, config=config) as running:
        running.create_topic("t", partitions=4)
        yield running


@pytest.fixture
def filled(cluster: InProcessCluster) -> InProcessCluster:
    """Topic ``t`` with COUNT records, 0 to COUNT - 1, round robin over four partitions, in small batches."""
    with Producer(cluster.bootstrap_servers, batch_size=500) as producer:
        for number in range(COUNT):
            producer.send("t", b"%d" % number, partition=number % 4, timestamp=1_000_000 + number)
    return cluster


def test_iterating_gives_everything_in_order(filled: InProcessCluster) -> None:
    with Consumer(filled.bootstrap_servers, ["t"], auto_offset_reset="earliest") as consumer:
        records = list(consumer.iterate(until_end=True))
        assert [consumer.position("t", partition) for partition in range(4)] == [COUNT // 4] * 4
    for partition in range(4):
        mine = [record for record in records if record.partition == partition]
        assert [record.offset for record in mine] == list(range(COUNT // 4))
        assert [record.value for record in mine] == [b"%d" % n for n in range(partition, COUNT, 4)]


def test_what_is_committed_is_everything_where_there_are_no_transactions(filled: InProcessCluster) -> None:
    settings = {"isolation_level": "read_committed", **EARLIEST}
    with Consumer(filled.bootstrap_servers, ["t"], **settings) as consumer:
        assert sum(1 for _ in consumer.iterate(until_end=True)) == COUNT
        assert consumer.end_offsets([("t", 0)]) == {("t", 0): COUNT // 4}


def test_polls_are_bounded_and_complete(filled: InProcessCluster) -> None:
    seen = 0
    with Consumer(filled.bootstrap_servers, ["t"], auto_offset_reset="earliest", max_poll_records=7) as consumer:
        while seen < COUNT:
            polled = sum(map(len, consumer.poll(scaled_ms(5_000)).values()))
            assert 0 < polled <= 7
            seen += polled
        assert consumer.poll(50) == {}


def test_whoever_stops_iterating_goes_on_where_he_left(filled: InProcessCluster) -> None:
    values = []
    with Consumer(filled.bootstrap_servers, **EARLIEST) as consumer:
        consumer.assign([("t", 1)])
        for record in consumer:
            values.append(record.value)
            if len(values) == 10:
                break
        assert consumer.position("t", 1) == 10
        (polled,) = consumer.poll(scaled_ms(5_000), max_records=5).values()
        values += [record.value for record in polled]
        values += [record.value for record in consumer.iterate(until_end=True)]
    assert values == [b"%d" % n for n in range(1, COUNT, 4)]


def test_a_poll_between_two_records_of_an_iteration_skips_none(filled: InProcessCluster) -> None:
    with Consumer(filled.bootstrap_servers, **EARLIEST) as consumer:
        consumer.assign([("t", 1)])
        records = consumer.iterate(timeout_ms=scaled_ms(4_000))  # more than it takes to connect
        values = [next(records).value for _ in range(3)]
        (polled,) = consumer.poll(scaled_ms(5_000), max_records=5).values()
        values += [record.value for record in polled]
        values += [record.value for record in records]
    assert values == [b"%d" % n for n in range(1, COUNT, 4)]


def test_the_latest_offset_is_the_default_and_new_records_come(filled: InProcessCluster) -> None:
    with Consumer(filled.bootstrap_servers, ["t"]) as consumer, Producer(filled.bootstrap_servers) as producer:
        assert [consumer.position("t", partition) for partition in range(4)] == [COUNT // 4] * 4
        producer.send("t", b"new", partition=2).result(scaled(10))
        (record,) = next(iter(consumer.poll(scaled_ms(5_000)).values()))
        assert (record.value, record.partition) == (b"new", 2)


def test_a_waiting_poll_is_woken_by_a_record(filled: InProcessCluster) -> None:
    """A long poll ends when data comes, long before fetch.max.wait.ms."""
    with (
        Consumer(filled.bootstrap_servers, ["t"], fetch_max_wait_ms=scaled_ms(20_000)) as consumer,
        Producer(filled.bootstrap_servers, linger_ms=0) as producer,
    ):
        assert consumer.poll(200) == {}
        producer.send("t", b"new", partition=2)
        begun = time.monotonic()
        assert consumer.poll(scaled_ms(15_000))
        assert time.monotonic() - begun < scaled(10)


def test_seeking(filled: InProcessCluster) -> None:
    with Consumer(filled.bootstrap_servers, ["t"]) as consumer:
        consumer.seek("t", 0, 200)
        consumer.seek_to_beginning(("t", 1))
        consumer.seek_to_end(("t", 2))
        positions = [consumer.position("t", partition) for partition in range(4)]
        assert positions == [200, 0, COUNT // 4, COUNT // 4]
        first: dict[int, int] = {}
        while len(first) < 2:
            for tp, records in consumer.poll(scaled_ms(5_000)).items():
                first.setdefault(tp.partition, records[0].offset)
        assert first == {0: 200, 1: 0}
        with pytest.raises(InvalidRequest, match="t-0: offset=-1"):
            consumer.seek("t", 0, -1)
        with pytest.raises(InvalidRequest, match="t-9 is not assigned"):
            consumer.seek("t", 9, 0)


def test_offsets_are_found(filled: InProcessCluster) -> None:
    with Consumer(filled.bootstrap_servers, ["t"]) as consumer:
        assert set(consumer.beginning_offsets(consumer.assignment()).values()) == {0}
        assert set(consumer.end_offsets(consumer.assignment()).values()) == {COUNT // 4}
        found = consumer.offsets_for_times({("t", 0): 1_000_000 + 41, ("t", 1): 2_000_000})
        by_partition = {tp.partition: answer and answer[:2] for tp, answer in found.items()}
        assert by_partition == {0: (11, 1_000_044), 1: None}


def test_an_offset_out_of_range_is_an_error_with_both_offsets(filled: InProcessCluster) -> None:
    with Consumer(filled.bootstrap_servers, auto_offset_reset="none") as consumer:
        consumer.assign([("t", 3)])
        with pytest.raises(OffsetOutOfRange, match="t-3: no position"):
            consumer.poll(scaled_ms(5_000))
        consumer.seek("t", 3, 9_999)
        for _ in range(2):
            with pytest.raises(PositionLost, match=r"t-3: offset 9999 .* has 0 to 250") as caught:
                consumer.poll(scaled_ms(5_000))
            assert (caught.value.position, caught.value.earliest, caught.value.end) == (9_999, 0, COUNT // 4)
        consumer.seek("t", 3, 249)
        assert len(consumer.poll(scaled_ms(5_000))) == 1


def test_a_reset_after_an_offset_out_of_range_is_never_silent(
    filled: InProcessCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with Consumer(filled.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([("t", 3)])
        consumer.seek("t", 3, 9_999)
        with caplog.at_level(logging.WARNING, "raylog.client"):
            (records,) = consumer.poll(scaled_ms(10_000)).values()
    assert records[0].offset == 0
    assert "t-3: offset 9999 is out of range, the broker has 0 to 250" in caplog.text
    assert "reading on from offset 0" in caplog.text


def test_a_damaged_batch_is_reported_and_can_be_passed(filled: InProcessCluster) -> None:
    path = next(filled.root.glob("broker-*/**/t-3/00000000000000000000.log"))
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff\xff")
    with Consumer(filled.bootstrap_servers, **EARLIEST) as consumer:
        consumer.assign([("t", 3)])
        with pytest.raises(CorruptMessage, match="t-3, batch at offset 0"):
            consumer.poll(scaled_ms(5_000))
        with pytest.raises(CorruptMessage, match="t-3, batch at offset 0"):
            consumer.poll(scaled_ms(5_000))
        consumer.seek("t", 3, 200)
        (records,) = consumer.poll(scaled_ms(5_000)).values()
        assert records[0].offset == 200


def test_raw_batches_are_handed_out_whole(filled: InProcessCluster) -> None:
    seen = []
    with Consumer(filled.bootstrap_servers, **EARLIEST) as consumer:
        consumer.assign([("t", 0)])
        consumer.seek("t", 0, 5)
        while consumer.position("t", 0) < COUNT // 4:
            for batches in consumer.poll_batches(scaled_ms(5_000)).values():
                records, high_watermark = batches
                seen += [record.offset for record in records]  # type: ignore[union-attr]
                assert high_watermark == COUNT // 4
    assert seen == list(range(5, COUNT // 4))


def test_a_consumer_outlives_a_restart_of_its_brokers(filled: InProcessCluster) -> None:
    with (
        Consumer(filled.bootstrap_servers, ["t"], auto_offset_reset="earliest", retry_backoff_ms=10) as consumer,
        Producer(filled.bootstrap_servers, retry_backoff_ms=10) as producer,
    ):
        seen = [record.value for record in islice(consumer, 100)]
        for broker_id in (0, 1):
            filled.restart(broker_id)
            for partition in range(4):
                producer.send("t", b"after %d on %d" % (broker_id, partition), partition=partition)
        producer.flush(30)

        def all_there() -> bool:
            seen.extend(record.value for records in consumer.poll(1_000).values() for record in records)
            return len(seen) >= COUNT + 8

        wait_until(all_there, 30, "everything was read")
    assert len(seen) == len(set(seen)) == COUNT + 8


def test_unknown_topics_and_settings_are_named(cluster: InProcessCluster) -> None:
    with pytest.raises(UnknownTopicOrPartition, match="nosuch"):
        Consumer(cluster.bootstrap_servers, ["nosuch"])
    with pytest.raises(InvalidConfig, match=r"auto\.offset\.rest"):
        Consumer(cluster.bootstrap_servers, auto_offset_rest="earliest")


def test_values_are_deserialized(cluster: InProcessCluster) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        producer.send("t", {"delay": 5}, "UA")
        producer.send("t", None, None)
    config = {"value_deserializer": "msgpack", "key_deserializer": "msgpack", **EARLIEST}
    with Consumer(cluster.bootstrap_servers, ["t"], **config) as consumer:
        rows = [(record.key, record.value) for record in consumer.iterate(until_end=True)]
    assert sorted(rows, key=str) == sorted([("UA", {"delay": 5}), (None, None)], key=str)


def test_admin_creates_describes_and_deletes(cluster: InProcessCluster) -> None:
    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topic("new", 3, configs={"retention.ms": "1000"})
        topic = admin.describe_topic("new")
        assert [partition.partition for partition in topic.partitions] == [0, 1, 2]
        assert {partition.leader for partition in topic.partitions} == {0, 1}
        configs = {entry.name: entry for entry in admin.describe_topic_configs("new")}
        assert (configs["retention.ms"].value, configs["retention.ms"].is_default) == ("1000", False)
        assert configs["segment.bytes"].is_default
        assert {entry.name for entry in admin.describe_broker_configs(1)} > {"broker.id", "log.dirs"}
        assert [found.name for found in admin.list_topics()] == ["new", "t"]
        described = admin.describe_cluster()
        assert [broker.broker_id for broker in described.brokers] == [0, 1]
        assert described.controller == cluster.controller.broker_id
        assert admin.delete_topics(["new"]) == {"new": None}
        wait_until(lambda: [found.name for found in admin.list_topics()] == ["t"], 10, "the topic is gone")
        wait_until(  # the other broker may be asked, too
            lambda: not any(b.partitions.state().topic(TopicName("new")) for b in cluster.brokers.values()),
            10,
            "every broker has forgotten it",
        )
        with pytest.raises(UnknownTopicOrPartition):
            admin.describe_topic("new")


def test_admin_tells_per_topic_why_not(cluster: InProcessCluster) -> None:
    with Admin(cluster.bootstrap_servers) as admin:
        results = admin.create_topics(
            [
                NewTopic("good", 1),
                NewTopic("t", 1),
                NewTopic("no/such", 1),
                NewTopic("copied", 1, 3),
                NewTopic("odd", 1, configs={"retention.mss": "1"}),
                NewTopic("placed", assignments={0: [1], 1: [0]}),
            ]
        )
        kinds = {name: type(error) for name, error in results.items()}
        assert kinds == {
            "good": type(None),
            "t": TopicAlreadyExists,
            "no/such": InvalidTopic,
            "copied": InvalidReplicationFactor,
            "odd": InvalidConfig,
            "placed": type(None),
        }
        assert [partition.leader for partition in admin.describe_topic("placed").partitions] == [1, 0]
        assert isinstance(admin.delete_topics(["nosuch"])["nosuch"], UnknownTopicOrPartition)
        with pytest.raises(UnknownTopicOrPartition, match="nosuch"):
            admin.list_offsets({("nosuch", 0): -1})
        with pytest.raises(UnknownTopicOrPartition, match="t-9"):
            admin.list_offsets({("t", 9): -1})


def test_only_validating_creates_nothing(cluster: InProcessCluster) -> None:
    with Admin(cluster.bootstrap_servers) as admin:
        assert admin.create_topics([NewTopic("new", 1)], validate_only=True) == {"new": None}
        assert "new" not in {topic.name for topic in admin.list_topics()}


def test_a_leaders_own_batches_are_read(cluster: InProcessCluster) -> None:
    """What an actor handle produced is read like everything else."""
    batch = encode_batch([Record(b"a", b"k", [("h", b"1"), ("h", None)], 5), Record(None, None, (), 6)])
    assert cluster.leader("t", 2).produce("t", 2, batch) == (0, 1)
    with Consumer(cluster.bootstrap_servers, ["t"], **EARLIEST) as consumer:
        rows = [record[2:] for record in consumer.iterate(until_end=True)]
    assert [row[:5] for row in rows] == [(0, 5, 0, b"k", b"a"), (1, 6, 0, None, None)]
    assert [list(row[5]) for row in rows] == [[("h", b"1"), ("h", None)], []]


def test_paused_partitions_keep_their_place(filled: InProcessCluster) -> None:
    with Consumer(filled.bootstrap_servers, ["t"], **EARLIEST, max_poll_records=10) as consumer:
        assert consumer.poll(scaled_ms(5_000))
        consumer.pause(("t", 1), ("t", 2))
        assert consumer.paused() == {("t", 1), ("t", 2)}
        before = [consumer.position("t", partition) for partition in (1, 2)]
        seen = set()

        def others_are_through() -> bool:
            seen.update(consumer.poll(200))
            return all(consumer.position("t", partition) == COUNT // 4 for partition in (0, 3))

        wait_until(others_are_through, 20, "the others were read")
        assert {tp.partition for tp in seen} == {0, 3}
        assert [consumer.position("t", partition) for partition in (1, 2)] == before
        assert len(consumer.poll_columns(0)) == 0
        consumer.resume()
        rest = sum(1 for _ in consumer.iterate(until_end=True))
        assert rest == COUNT // 2 - sum(before)
        with pytest.raises(InvalidRequest, match="t-9 is not assigned"):
            consumer.pause(("t", 9))
    with Consumer(filled.bootstrap_servers, ["t"], **EARLIEST) as consumer:
        consumer.pause()
        assert [consumer.position("t", partition) for partition in range(4)] == [0] * 4
        assert consumer.poll(300) == {}
        assert not any(buffer.has_data() for buffer in consumer._fetcher.buffers.values()), "nothing was fetched"


def test_partitions_that_are_added_are_read_from_their_start(filled: InProcessCluster) -> None:
    """Also with auto.offset.reset=latest: nothing that is written to them is missed."""
    servers, fresh = filled.bootstrap_servers, {"metadata_max_age_ms": 200}
    with Consumer(servers, ["t"], **fresh) as consumer, Producer(servers, **fresh) as producer:
        assert consumer.poll(100) == {}
        with Admin(servers) as admin:
            admin.create_partitions("t", 6)
        wait_until(lambda: filled.leader("t", 5), 10, "they are led")
        wait_until(lambda: producer.partitions_for("t") == 6, 10, "the producer knows them")
        for partition in (4, 5):
            producer.send("t", b"new", partition=partition).result(scaled(10))
        found: dict[int, list[int]] = {}
        for record in consumer.iterate(timeout_ms=scaled_ms(20_000)):
            found.setdefault(record.partition, []).append(record.offset)
            if len(found) == 2:
                break
        assert found == {4: [0], 5: [0]}
        assert len(consumer.assignment()) == 6
        consumer.assign([("t", 0)])
        with Admin(servers) as admin:
            admin.create_partitions("t", 7)
        wait_until(lambda: consumer.poll(50) == {} and len(consumer.partitions_for("t")) == 7, 10, "it is known")
        assert consumer.assignment() == {("t", 0)}, "this is what was asked for"


def test_a_reset_by_duration_begins_so_long_ago(cluster: InProcessCluster) -> None:
    now_ms = wall_ms()
    with Producer(cluster.bootstrap_servers) as producer:
        for hours in (5, 3, 1):
            producer.send("t", b"%d" % hours, partition=0, timestamp=now_ms - hours * 3_600_000)
    with Consumer(cluster.bootstrap_servers, ["t"], auto_offset_reset="by_duration:PT4H") as consumer:
        assert [record.value for record in consumer.iterate(until_end=True)] == [b"3", b"1"]
        consumer.seek("t", 0, 99)
        (records,) = wait_until(lambda: consumer.poll(1_000), 20, "it reads on").values()
        assert records[0].value == b"3"


def test_an_answer_that_comes_while_partitions_are_asked_for_is_taken(filled: InProcessCluster) -> None:
    """It was dropped, and its broker was not asked again: who subscribed to other topics read nothing more."""
    filled.create_topic("u")
    with Consumer(filled.bootstrap_servers, ["t"], **EARLIEST) as consumer:
        wait_until(lambda: consumer._fetcher.exchange(0) == -1 or consumer._fetcher._fetching, 10, "a fetch is sent")
        pool = consumer._network.pool
        wait_until(lambda: select.select([pool.fileno()], [], [], 0)[0], 10, "its answer lies in the socket")
        assert consumer.partitions_for("u") == (0,)
        assert sum(1 for _ in consumer.iterate(until_end=True, timeout_ms=scaled_ms(10_000))) == COUNT


def test_subscribe_reads_these_topics_in_place_of_others(filled: InProcessCluster) -> None:
    filled.create_topic("u")
    with Producer(filled.bootstrap_servers) as producer:
        producer.send("u", b"other")
    with Consumer(filled.bootstrap_servers, **EARLIEST) as consumer:
        consumer.subscribe("t")
        assert len(next(iter(consumer)).value)
        consumer.subscribe(["u"])
        assert [record.value for record in consumer.iterate(until_end=True)] == [b"other"]
        consumer.unsubscribe()
        assert consumer.assignment() == frozenset()
        assert consumer.poll(20) == {}
        with pytest.raises(UnknownTopicOrPartition, match="nosuch"):
            consumer.subscribe(["u", "nosuch"])
        with pytest.raises(InvalidRequest, match="only a group looks for new topics"):
            consumer.subscribe(re.compile("u"))


def test_lag_is_known_after_an_answer(filled: InProcessCluster) -> None:
    with Consumer(filled.bootstrap_servers, **EARLIEST) as consumer:
        consumer.assign([("t", 1)])
        assert consumer.current_lag("t", 1) is None
        (records,) = consumer.poll(scaled_ms(10_000), max_records=10).values()
        assert consumer.current_lag("t", 1) == COUNT // 4 - len(records)
        consumer.seek("t", 1, COUNT // 4)
        assert consumer.current_lag("t", 1) == 0
        with pytest.raises(InvalidRequest, match="t-9 is not assigned"):
            consumer.current_lag("t", 9)


def test_wakeup_ends_a_call_that_waits_or_the_next_one(filled: InProcessCluster) -> None:
    with Consumer(filled.bootstrap_servers, ["t"]) as consumer:
        consumer.wakeup()
        for read in (consumer.poll, consumer.poll_columns, consumer.poll_batches):
            with pytest.raises(WakeupError):
                read(20_000)
            assert not read(0)
            consumer.wakeup()
        with pytest.raises(WakeupError):
            next(iter(consumer))
        waiting = threading.Timer(0.3, consumer.wakeup)
        waiting.start()
        with pytest.raises(WakeupError):
            consumer.poll(60_000)
        waiting.join()
        consumer.seek_to_beginning()
        assert sum(1 for _ in consumer.iterate(until_end=True)) == COUNT


def test_seeking_to_a_time(filled: InProcessCluster) -> None:
    with Consumer(filled.bootstrap_servers, ["t"]) as consumer:
        consumer.seek_to_time(1_000_000 + 500)
        assert [consumer.position("t", partition) for partition in range(4)] == [125] * 4
        consumer.seek_to_time(2_000_000, ("t", 1))
        assert [consumer.position("t", partition) for partition in range(4)] == [125, COUNT // 4, 125, 125]
        with pytest.raises(InvalidRequest, match="timestamp=-1"):
            consumer.seek_to_time(-1)


def test_columns_have_everything_without_gaps(filled: InProcessCluster) -> None:
    tables = []
    with Consumer(filled.bootstrap_servers, ["t"], **EARLIEST) as consumer:
        first = next(iter(consumer))  # rows and columns mix
        while sum(map(len, tables)) < COUNT - 1:
            tables.append(consumer.poll_columns(scaled_ms(5_000)))
            assert len(tables[-1])
        assert len(consumer.poll_columns(50)) == 0
        consumer.seek_to_beginning()
        assert consumer.poll_columns(scaled_ms(5_000), ["offset", "value"]).column_names == ["offset", "value"]
    table = pa.concat_tables(tables)
    assert table.schema == SCHEMA
    values = [*table["value"].to_pylist(), first.value]
    assert sorted(map(int, values)) == list(range(COUNT))
    assert {(row["partition"], row["offset"]) for row in table.select(["partition", "offset"]).to_pylist()} == {
        (int(value) % 4, int(value) // 4) for value in table["value"].to_pylist()
    }
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [1_000_000 + int(v) for v in table["value"].to_pylist()]


def test_a_damaged_batch_comes_after_what_can_be_read_in_columns_too(filled: InProcessCluster) -> None:
    path = next(filled.root.glob("broker-*/**/t-3/00000000000000000000.log"))
    batches = list(batch_headers(path.read_bytes()))
    position, _ = batches[len(batches) // 2]
    with path.open("r+b") as file:
        file.seek(position + HEADER_SIZE)
        file.write(b"\xff\xff\xff\xff")
    with Consumer(filled.bootstrap_servers, **EARLIEST) as consumer:
        consumer.assign([("t", 3)])
        read = len(consumer.poll_columns(scaled_ms(5_000)))
        assert 0 < read == consumer.position("t", 3) < COUNT // 4
        for _ in range(2):
            with pytest.raises(CorruptMessage, match=f"t-3, batch at offset {read}"):
                consumer.poll_columns(scaled_ms(5_000))


def test_a_deleted_topic_is_told_not_waited_for(filled: InProcessCluster) -> None:
    with Consumer(filled.bootstrap_servers, ["t"], **EARLIEST, retry_backoff_max_ms=200) as consumer:
        assert consumer.poll(scaled_ms(5_000))
        with Admin(filled.bootstrap_servers) as admin:
            admin.delete_topics(["t"])

        def told() -> str:
            try:
                consumer.poll(200)
            except UnknownTopicOrPartition as error:
                return str(error)
            return ""

        assert "no broker knows the topic any more" in wait_until(told, 20, "the deletion is told")


def test_a_partition_that_is_not_there_is_told(filled: InProcessCluster) -> None:
    """And the others are read on."""
    with Consumer(filled.bootstrap_servers, **EARLIEST, retry_backoff_max_ms=200) as consumer:
        consumer.assign([("t", 0), ("t", 99)])
        seen: set[str] = set()

        def read() -> bool:
            try:
                seen.update(str(tp) for tp in consumer.poll(200))
            except UnknownTopicOrPartition as error:
                seen.add(str(error))
            return len(seen) == 2

        wait_until(read, 20, "what is there and what is not")
        assert seen == {"t-0", "t-99: the topic has 4 partitions; it was made anew? assign others"}
        with pytest.raises(UnknownTopicOrPartition, match="t-99"):
            consumer.position("t", 99)


def test_a_consumer_behind_the_start_of_the_log_is_told_both_offsets(tmp_path: Path) -> None:
    with InProcessCluster(tmp_path, config={"log.retention.check.interval.ms": "100"}) as cluster:
        cluster.create_topic("short", config={"segment.bytes": "1048576", "retention.bytes": "1048576"})
        servers = cluster.bootstrap_servers
        with Consumer(servers, auto_offset_reset="none") as consumer, Producer(servers, linger_ms=0) as producer:
            consumer.assign([("short", 0)])
            sent = [producer.send("short", b"x" * 500_000) for _ in range(10)]
            producer.flush(20)
            wait_until(lambda: consumer.beginning_offsets([("short", 0)])["short", 0] > 1, 30, "old segments go")
            consumer.seek("short", 0, 1)
            with pytest.raises(PositionLost, match="offset 1 is out of range") as caught:
                consumer.poll(scaled_ms(10_000))
        assert caught.value.position == 1 < caught.value.earliest
        assert caught.value.end == len(sent)


def test_a_consumer_is_for_one_thread_at_a_time(filled: InProcessCluster) -> None:
    with Consumer(filled.bootstrap_servers, ["t"]) as consumer:
        assert consumer.poll(100) == {}
        over = threading.Event()

        def poll_on() -> None:
            while not over.is_set():
                with suppress(RaylogError):  # the other thread was the one
                    consumer.poll(200)

        def refused() -> str:
            try:
                consumer.poll(0)
            except RaylogError as error:
                return str(error)
            return ""

        polling = threading.Thread(target=poll_on)
        polling.start()
        try:
            assert "for one at a time" in wait_until(refused, 10, "the second thread is refused")
        finally:
            over.set()
            polling.join(scaled(10))
        assert consumer.poll(0) == {}


def test_a_slow_reader_of_many_partitions_holds_no_more_than_fetch_max_bytes(cluster: InProcessCluster) -> None:
    cluster.create_topic("wide", partitions=20)
    with Producer(cluster.bootstrap_servers) as producer:
        for partition in range(20):
            for _ in range(4):
                producer.send("wide", b"x" * 50_000, partition=partition)
    limit = 300_000
    config = {"fetch_max_bytes": limit, "max_partition_fetch_bytes": 100_000, "max_poll_records": 1}
    with Consumer(cluster.bootstrap_servers, ["wide"], **EARLIEST, **config) as consumer:
        most = 0
        for _ in range(80):
            assert consumer.poll(scaled_ms(5_000))
            most = max(most, sum(buffer.held_bytes() for buffer in consumer._fetcher.buffers.values()))
    # What was held when the fetches were sent, and one answer of each of two brokers.
    assert limit / 2 < most <= 3 * limit + 200_000


@pytest.mark.parametrize("slots", ["1000", "0"])
def test_idle_partitions_are_left_to_a_fetch_session(tmp_path: Path, slots: str) -> None:
    """A request names what changed; where the broker has no room for a session, everything, and it works as well."""
    with proxied(tmp_path, {"max.incremental.fetch.session.cache.slots": slots}) as (cluster, proxy, servers):
        cluster.create_topic("wide", partitions=60)
        with (
            Consumer(servers, ["wide"], **EARLIEST, fetch_max_wait_ms=20) as consumer,
            Producer(servers, linger_ms=0) as producer,
        ):
            wait_until(lambda: consumer.poll(50) or proxy.requests[FETCH] > 5, 20, "idle fetches")
            read = []
            for number in (3, 45, 3):
                producer.send("wide", b"%d" % number, partition=number)
                (records,) = consumer.poll(scaled_ms(10_000)).values()
                read += [(record.partition, record.offset) for record in records]
            assert read == [(3, 0), (45, 0), (3, 1)]
            consumer.seek("wide", 45, 0)
            assert len(consumer.poll(scaled_ms(10_000))) == 1
            few = slots != "0"
            assert (proxy.last_bytes[FETCH] < 1_000) == few, "a full request has 25 bytes a partition"
            proxy.cut()
            producer.send("wide", b"after a new connection", partition=59)
            (records,) = wait_until(lambda: consumer.poll(1_000), 20, "it goes on").values()
            assert records[0].value == b"after a new connection"
        sessions = cluster.brokers[0]._parts.server._ports.fetch_sessions  # type: ignore[union-attr]
        wait_until(lambda: len(sessions) == 0, 10, "the consumer has ended its session")


@pytest.mark.parametrize("allowed", [True, False])
def test_reading_creates_a_topic_only_where_that_is_allowed(tmp_path: Path, allowed: bool) -> None:
    with InProcessCluster(tmp_path, brokers=1, config={"auto.create.topics.enable": "true"}) as brokers:
        servers = brokers.bootstrap_servers
        with Consumer(servers, allow_auto_create_topics=allowed) as consumer, Admin(servers) as admin:
            if not allowed:
                with pytest.raises(UnknownTopicOrPartition):
                    consumer.subscribe("new")
                assert admin.list_topics() == []
                return
            consumer.subscribe("new")
            assert consumer.assignment() == {("new", 0)}
            assert admin.delete_topics(["new"]) == {"new": None}
            with pytest.raises(UnknownTopicOrPartition):
                wait_until(lambda: consumer.poll(100) == "never", 20, "the consumer was told")
            assert admin.list_topics() == []
