"""The producer against real brokers in this process, through a proxy that loses what brokers answer."""

from __future__ import annotations

import itertools
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from kit.cluster import InProcessCluster
from kit.machine import scaled, scaled_ms
from kit.proxied import proxied
from kit.proxy import Fate, FrameProxy
from kit.reading import all_records
from kit.waiting import wait_until
from raylog.client import Admin, Consumer, Delivery, Producer
from raylog.client.batches.decode import HEADERS
from raylog.client.network.metadata import ClusterView
from raylog.client.results import PartitionDescription, TopicDescription
from raylog.protocol.errors import (
    InvalidPartitions,
    InvalidRecord,
    InvalidTopic,
    MessageTooLarge,
    RaylogError,
    RequestTimedOut,
)
from raylog.protocol.ids import NO_TOPIC_ID, BrokerId, LeaderEpoch, PartitionIndex, TopicName

PRODUCE, METADATA = 0, 3


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    with InProcessCluster(tmp_path, brokers=2, config={"auto.create.topics.enable": "false"}) as running:
        running.create_topic("t", partitions=4)
        yield running


def knows(producer: Producer, topic: str) -> bool:
    """Whether the metadata came within max.block.ms."""
    try:
        return producer.partitions_for(topic) > 0
    except RaylogError:
        return False


def delivered(producer: Producer, value: bytes) -> bool:
    """Whether it was within max.block.ms and delivery.timeout.ms, which a slow machine may exceed."""
    try:
        return producer.send("t", value).exception(scaled(10)) is None
    except RaylogError:
        return False


def values(servers: str, topic: str = "t") -> list[bytes]:
    """All values of the topic, per partition in order."""
    return [record.value for record in all_records(servers, topic)]


def test_records_arrive_where_their_deliveries_say(cluster: InProcessCluster) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        deliveries = [producer.send("t", b"v%d" % n, b"k%d" % (n % 7), headers=[("h", None)]) for n in range(500)]
        producer.flush(10)
        landed = {delivery.result(0)[:3]: b"v%d" % n for n, delivery in enumerate(deliveries)}
    with Consumer(cluster.bootstrap_servers, ["t"], auto_offset_reset="earliest") as consumer:
        read = {record[:3]: record.value for record in consumer.iterate(until_end=True)}
    assert read == landed
    assert len(landed) == 500


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_acks_and_compression(cluster: InProcessCluster, acks: str, compression: str) -> None:
    with Producer(cluster.bootstrap_servers, acks=acks, compression_type=compression) as producer:
        sent = [producer.send("t", b"x" * n, partition=1) for n in (0, 1, 100_000, 1_000_000)]
        producer.send("t", None, b"key", partition=1)
    assert all(delivery.exception(0) is None for delivery in sent)
    assert all((delivery.result().offset >= 0) == (acks != "0") for delivery in sent)
    wait_until(
        lambda: (
            [None if value is None else len(value) for value in values(cluster.bootstrap_servers)]
            == [0, 1, 100_000, 1_000_000, None]
        ),
        10,
        "all records are there",
    )


@pytest.mark.parametrize(("compression", "levels"), [("gzip", (1, 6, 9)), ("lz4", (9, 3, 12)), ("zstd", (-50, 3, 19))])
def test_batches_have_the_level_of_the_settings(
    cluster: InProcessCluster, compression: str, levels: Sequence[int]
) -> None:
    """From rows and from columns: the more of a level, the smaller they are."""
    chance = random.Random(1)
    values = [b"%d" % chance.randrange(1000) for _ in range(4_000)]
    for level in levels:
        config = {f"compression_{compression}_level": level, "compression_type": compression, "batch_size": 1 << 20}
        with Producer(cluster.bootstrap_servers, linger_ms=60_000, delivery_timeout_ms=120_000, **config) as producer:
            for value in values:
                producer.send("t", value, partition=0, timestamp=1)
            producer.flush(20)
            producer.send_batch("t", values, timestamps=[1] * len(values), partition=1).result(scaled(20))
    for partition in (0, 1):
        with Consumer(cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", partition)])
            sizes: list[int] = []
            while len(sizes) < len(levels):
                for batches in consumer.poll_batches(scaled_ms(10_000)).values():
                    sizes += [header.size for _, header in batches.visible()]
        assert sizes == sorted(set(sizes), reverse=True)


def test_records_that_can_never_be_sent_are_refused_at_once(cluster: InProcessCluster) -> None:
    with Producer(cluster.bootstrap_servers, max_block_ms=5_000) as producer:
        with pytest.raises(MessageTooLarge, match=r"max\.request\.size"):
            producer.send("t", b"x" * 1_100_000)
        with pytest.raises(InvalidTopic):
            producer.send("", b"x")
        with pytest.raises(InvalidTopic):
            producer.send("no/such", b"x")
        with pytest.raises(InvalidRecord, match="header"):
            producer.send("t", b"x", headers=[("h", "text")])  # type: ignore[list-item]
        with pytest.raises(InvalidRecord, match="timestamp"):
            producer.send("t", b"x", timestamp=-5)
        assert producer.send("t", b"fine").result(scaled(10)).offset == 0


def test_a_partition_that_was_added_is_found(cluster: InProcessCluster) -> None:
    """However old the metadata may get; one that is not added is waited for as long as anything is."""
    servers = cluster.bootstrap_servers
    with (
        Producer(servers, metadata_max_age_ms=3_600_000) as producer,
        Producer(servers, max_block_ms=1_000) as impatient,
        Admin(servers) as admin,
    ):
        assert producer.send("t", b"before", partition=3).result(scaled(20)).partition == 3
        with pytest.raises(InvalidPartitions, match=r"0 to 3, not 4.*max\.block\.ms=1000"):
            impatient.send("t", b"x", partition=4)
        with pytest.raises(InvalidPartitions, match=r"0 to 3, not 4.*max\.block\.ms=1000"):
            impatient.send_batch("t", [b"x"] * 2, partition=[0, 4])
        admin.create_partitions("t", 6)
        assert producer.send("t", b"after", partition=4).result(scaled(20)).partition == 4
        admin.create_partitions("t", 8)
        assert [run.partition for run in producer.send_batch("t", [b"x"], partition=[7]).result(scaled(20))] == [7]
        assert impatient.send("t", b"x", partition=7).result(scaled(20)).partition == 7


def test_a_topic_made_anew_with_fewer_partitions_refuses_what_was_to_go_to_the_others(
    cluster: InProcessCluster,
) -> None:
    servers = cluster.bootstrap_servers
    with (
        Admin(servers) as admin,
        Producer(servers, partitioner=lambda *_: replaced(), metadata_max_age_ms=100, max_block_ms=1_000) as producer,
    ):
        assert producer.partitions_for("t") == 4

        def replaced() -> int:
            """The last partition of a topic that is made anew with fewer meanwhile."""
            if producer.partitions_for("t") == 4:
                admin.delete_topics(["t"])
                admin.create_topic("t", 2)
                wait_until(lambda: producer.partitions_for("t") == 2, 20, "the producer knows the new topic")
            return 3

        with pytest.raises(InvalidPartitions, match="0 to 1, not 3"):
            producer.send_batch("t", [b"x"] * 2)
        assert producer.send("t", b"y", partition=1).result(scaled(20)).partition == 1


def test_a_deleted_topic_is_made_anew_only_by_sending_to_it(tmp_path: Path) -> None:
    with (
        proxied(tmp_path, {"auto.create.topics.enable": "true"}) as (_, proxy, servers),
        Producer(servers, metadata_max_age_ms=400, linger_ms=0) as producer,
        Admin("{}:{}".format(*proxy.target)) as admin,
    ):
        for topic in ("kept", "deleted"):
            assert producer.send(topic, b"makes it").exception(scaled(20)) is None
        admin.delete_topics(["deleted"])
        asked = proxy.requests[METADATA]
        wait_until(lambda: proxy.requests[METADATA] >= asked + 3, 20, "the metadata is refreshed")
        assert producer.send("new", b"makes it").exception(scaled(20)) is None, "that asks for metadata, too"
        assert {topic.name for topic in admin.list_topics()} == {"t", "kept", "new"}
        assert producer.send("deleted", b"makes it again").exception(scaled(20)) is None


def test_a_topic_that_is_not_there_blocks_for_max_block_ms(cluster: InProcessCluster) -> None:
    with (
        Producer(cluster.bootstrap_servers, max_block_ms=3_000) as producer,
        pytest.raises(RequestTimedOut, match=r"nosuch.*max\.block\.ms=3000.*UNKNOWN_TOPIC"),
    ):
        producer.send("nosuch", b"x")


def test_a_batch_too_large_for_the_topic_fails_and_the_next_goes_on(cluster: InProcessCluster) -> None:
    cluster.create_topic("small", config={"max.message.bytes": "1000"})
    with Producer(cluster.bootstrap_servers) as producer:
        refused = producer.send("small", b"x" * 2_000)
        with pytest.raises(MessageTooLarge, match="small-0"):
            refused.result(scaled(10))
        assert producer.send("small", b"fits").result(scaled(10)).offset == 0
        assert producer.send("small", b"too").result(scaled(10)).offset == 1


def test_threads_share_a_producer(cluster: InProcessCluster) -> None:
    per_thread = 2_000
    with Producer(cluster.bootstrap_servers, linger_ms=0, batch_size=500) as producer:

        def run(name: int) -> None:
            for number in range(per_thread):
                producer.send("t", b"%d" % number, b"%d" % name)
                if number % 100 == 0:
                    producer.flush(30)

        threads = [threading.Thread(target=run, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(scaled(60))
        assert [thread.is_alive() for thread in threads] == [False] * 4
    with Consumer(cluster.bootstrap_servers, ["t"], auto_offset_reset="earliest") as consumer:
        by_key: dict[bytes, list[int]] = {}
        for record in consumer.iterate(until_end=True):
            by_key.setdefault(record.key, []).append(int(record.value))
    assert by_key == {b"%d" % name: list(range(per_thread)) for name in range(4)}


def test_a_full_buffer_holds_senders_back_and_then_fails_them(tmp_path: Path) -> None:
    with proxied(tmp_path) as (_, proxy, servers):
        config = {"buffer_memory": 40_000, "batch_size": 4_000, "linger_ms": 0, "max_block_ms": 300}
        with Producer(servers, **config) as producer:  # type: ignore[arg-type]
            wait_until(lambda: delivered(producer, b"first"), 20, "records pass")
            proxy.on_answer = lambda key: Fate.DROP if key == PRODUCE else Fate.PASS

            def fill() -> None:
                for _ in range(100):
                    producer.send("t", b"x" * 3_000)

            with pytest.raises(RequestTimedOut, match=r"buffer\.memory"):
                fill()
            proxy.on_answer = lambda _: Fate.PASS
            proxy.cut()
            wait_until(lambda: delivered(producer, b"again"), 20, "memory is free again")


def test_the_delivery_timeout_is_kept(tmp_path: Path) -> None:
    with proxied(tmp_path) as (_, proxy, servers):
        with Producer(servers, delivery_timeout_ms=700, linger_ms=0) as producer:
            wait_until(
                lambda: producer.send("t", b"first", partition=0).exception(scaled(10)) is None, 20, "records pass"
            )
            proxy.on_request = lambda key: Fate.DROP if key == PRODUCE else Fate.PASS
            lost = [producer.send("t", b"lost %d" % n, partition=0) for n in range(3)]
            for delivery in lost:
                with pytest.raises(RequestTimedOut, match="not delivered within 700 ms"):
                    delivery.result(scaled(5))
            proxy.on_request = lambda _: Fate.PASS
            wait_until(
                lambda: producer.send("t", b"later", partition=0).exception(scaled(10)) is None,
                20,
                "records pass again",
            )
        assert set(values(servers)) == {b"first", b"later"}


@pytest.mark.parametrize("fate", [Fate.DROP, Fate.CUT])
@pytest.mark.parametrize("side", ["request", "answer"])
def test_idempotence_neither_duplicates_nor_reorders(tmp_path: Path, fate: Fate, side: str) -> None:
    """Produce requests or answers are lost at random; every record is there once, in order."""
    count, chance = 300, random.Random(7)
    resolved: dict[int, int] = {}
    with proxied(tmp_path) as (_, proxy, servers):

        def decide(key: int) -> Fate:
            return fate if key == PRODUCE and chance.random() < 0.15 else Fate.PASS

        setattr(proxy, f"on_{side}", decide)
        config = {"linger_ms": 0, "batch_size": 200, "request_timeout_ms": 300, "retry_backoff_ms": 10}
        with Producer(servers, **config) as producer:  # type: ignore[arg-type]
            deliveries = []
            for number in range(count):
                delivery = producer.send("t", b"%04d" % number, partition=number % 2)
                delivery.add_done_callback(lambda _, n=number: resolved.update({n: resolved.get(n, 0) + 1}))  # type: ignore[misc]
                deliveries.append(delivery)
            producer.flush(60)
            assert [delivery.exception(0) for delivery in deliveries] == [None] * count
        proxy.on_request = proxy.on_answer = lambda _: Fate.PASS
        assert resolved == dict.fromkeys(range(count), 1)
        expected = [b"%04d" % n for n in range(0, count, 2)] + [b"%04d" % n for n in range(1, count, 2)]
        assert values(servers) == expected


def test_a_producer_outlives_a_restart_of_its_brokers(cluster: InProcessCluster) -> None:
    deliveries: list[Delivery] = []
    numbers = itertools.count()
    with Producer(cluster.bootstrap_servers, linger_ms=0, batch_size=300, retry_backoff_ms=10) as producer:

        def send(count: int) -> None:
            deliveries.extend(producer.send("t", b"%05d" % next(numbers), partition=0) for _ in range(count))

        send(500)
        for broker_id in (0, 1):
            send(500)
            cluster.restart(broker_id)
            send(500)
        producer.flush(30)
    assert [error for delivery in deliveries if (error := delivery.exception(0))] == []
    assert values(cluster.bootstrap_servers) == [b"%05d" % n for n in range(len(deliveries))]


def test_a_leader_that_moved_to_another_address_is_found(tmp_path: Path) -> None:
    """The old address refuses connections: only fresh metadata, from another broker's address, tells the new one."""
    with FrameProxy() as old, FrameProxy() as new:
        new.target = old.target
        config = {
            "listeners": "PLAINTEXT://{}:{}".format(*old.target),
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{old.port}",
        }
        servers = f"127.0.0.1:{old.port},127.0.0.1:{new.port}"
        with InProcessCluster(tmp_path, brokers=1, config=config) as cluster:
            cluster.create_topic("t")
            with (
                Producer(servers, linger_ms=0, retry_backoff_ms=10) as producer,
                Consumer(servers, ["t"], auto_offset_reset="earliest", retry_backoff_ms=10) as consumer,
            ):
                producer.send("t", b"before").result(scaled(10))
                assert len(consumer.poll(scaled_ms(10_000))) == 1
                cluster.stop(0)
                old.close()
                config["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{new.port}"
                cluster._config.update(config)
                cluster.start(0)
                assert producer.send("t", b"after").result(scaled(20)).offset == 1
                (records,) = wait_until(lambda: consumer.poll(1_000), 20, "the consumer goes on").values()
                assert [record.value for record in records] == [b"after"]


def test_what_is_not_delivered_at_the_end_of_close_fails(tmp_path: Path) -> None:
    with proxied(tmp_path) as (_, proxy, servers):
        producer = Producer(servers, linger_ms=0)
        producer.send("t", b"first").result(scaled(10))
        proxy.on_answer = lambda key: Fate.DROP if key == PRODUCE else Fate.PASS
        stuck = producer.send("t", b"stuck")
        producer.close(0.2)
        producer.close()
        with pytest.raises(RaylogError, match="closed before"):
            stuck.result(0)
        with pytest.raises(RaylogError, match="is closed"):
            producer.send("t", b"late")


def test_partition_that_was_forgotten_goes_on_without_loss(cluster: InProcessCluster) -> None:
    """Under its former sequences its first records would count as duplicates of those that it sent first."""
    with Producer(cluster.bootstrap_servers) as producer:
        for number in range(12):
            producer.send("t", b"%02d" % number, partition=number % 2)
            if number % 3 == 2:
                producer.flush(10)
                with producer._lock:
                    producer._sender._states.forget(lambda _: False, ())
                    assert len(producer._sender._states) == 0
    assert values(cluster.bootstrap_servers) == [b"%02d" % n for n in (*range(0, 12, 2), *range(1, 12, 2))]


def test_routes_of_topics_that_are_forgotten_go() -> None:
    with Producer("127.0.0.1:1") as producer:
        for number in range(1_000):
            led = {f"t{n}": (0,) for n in range(max(0, number - 9), number + 1)}
            partition = PartitionDescription(PartitionIndex(0), BrokerId(1), LeaderEpoch(0), (), ())
            topics = {name: TopicDescription(TopicName(name), NO_TOPIC_ID, (partition,)) for name in led}
            producer._network.metadata.view = ClusterView(topics=topics, led=led, version=number + 1)
            assert producer.partitions_for(f"t{number}") == 1
            assert len(producer._routes) <= 21


def test_a_callback_may_send_again_and_close(cluster: InProcessCluster) -> None:
    producer = Producer(cluster.bootstrap_servers, linger_ms=60_000)
    second: list[Delivery] = []
    first = producer.send("t", b"1")  # which lingers until the callback is set: the sender's thread runs it
    first.add_done_callback(lambda _: second.append(producer.send("t", b"2")))
    producer.flush(10)
    wait_until(lambda: second, 10, "the callback ran")
    producer.flush(10)
    assert second[0].result(scaled(10)).offset >= 0
    producer.close()


def test_a_bootstrap_server_that_says_nothing_does_not_keep_it_from_the_next(cluster: InProcessCluster) -> None:
    """As a stopped process does: the kernel takes the connection, and nobody answers on it."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        servers = f"127.0.0.1:{silent.getsockname()[1]},{cluster.bootstrap_servers}"
        with Producer(servers, request_timeout_ms=scaled_ms(60_000), max_block_ms=scaled_ms(15_000)) as producer:
            assert producer.send("t", b"x").result(scaled(15)).offset == 0


def test_nobody_at_the_address_is_told_in_one_sentence() -> None:
    with (
        Producer("127.0.0.1:1", max_block_ms=2_000) as producer,
        pytest.raises(RaylogError, match=r"no broker answers at 127\.0\.0\.1:1 .*refused"),
    ):
        producer.send("t", b"x")
    with (
        Admin("127.0.0.1:1", default_api_timeout_ms=2_000) as admin,
        pytest.raises(RaylogError, match=r"no broker answers at 127\.0\.0\.1:1 .*refused"),
    ):
        admin.list_topics()


def test_columns_arrive_as_rows_do(cluster: InProcessCluster) -> None:
    """Lists and Arrow columns, keyed, placed, or neither; each row where its batch says."""
    count = 5_000
    servers = cluster.bootstrap_servers
    names = [b"k%d" % (n % 50) for n in range(count)]
    for topic in ("columns", "rows"):
        cluster.create_topic(topic, partitions=4)
    with Producer(servers, batch_size=2_000, compression_type="lz4") as producer:
        first = producer.send_batch("columns", [b"%d" % n for n in range(count)], names)
        for number, key in enumerate(names):
            producer.send("rows", b"%d" % number, key)
        landed = first.result(scaled(10))
        assert (len(first), first.done(), first.failed()) == (count, True, 0)
        assert sum(run.record_count for run in landed) == count
    assert values(servers, "columns") == values(servers, "rows")

    headers = pa.array([[("h", b"1")], None], HEADERS)
    table = pa.table({"value": ["a", None], "partition": [2, 0], "timestamp": [5, 6], "headers": headers})
    with Producer(servers, value_serializer="str") as producer:
        assert [run[1:] for run in producer.send_batch("t", table).result(scaled(10))] == [(0, 0, 1), (2, 0, 1)]
        assert producer.send_batch("t", []).result(0) == []
        spread = producer.send_batch("t", pa.array([b"x" * 100] * 2_000)).result(scaled(10))
        assert len({run.partition for run in spread}) > 1
    with Consumer(servers, ["t"], auto_offset_reset="earliest") as consumer:
        rows = [r for r in consumer.iterate(until_end=True) if r.value != b"x" * 100]
    assert sorted((r.partition, r.value, r.timestamp, list(r.headers)) for r in rows) == [
        (0, None, 6, []),
        (2, b"a", 5, [("h", b"1")]),
    ]


def test_columns_with_a_bad_row_are_refused_whole(cluster: InProcessCluster) -> None:
    with Producer(cluster.bootstrap_servers, max_block_ms=5_000) as producer:
        with pytest.raises(MessageTooLarge, match="row 1 is a record"):
            producer.send_batch("t", [b"fine", b"x" * 1_100_000])
        with pytest.raises(InvalidPartitions, match="0 to 3, not 4"):
            producer.send_batch("t", [b"a", b"b"], partition=[0, 4])
        with pytest.raises(InvalidRecord, match="different lengths"):
            producer.send_batch("t", [b"a", b"b"], [b"k"])
        with pytest.raises(InvalidRecord, match="2 partitions for 1"):
            producer.send_batch("t", [b"a"], partition=[1, 2])
        with pytest.raises(InvalidRecord, match="columns \\['offset'\\]"):
            producer.send_batch("t", pa.table({"value": [b"a"], "offset": [1]}))
    assert values(cluster.bootstrap_servers) == []


def test_an_own_partitioner_chooses(cluster: InProcessCluster) -> None:
    asked: list[tuple[bytes | None, list[int], list[int]]] = []

    def by_length(key: bytes | None, all_partitions: Sequence[int], available: Sequence[int]) -> int:
        asked.append((key, list(all_partitions), list(available)))
        return len(key or b"")

    with Producer(cluster.bootstrap_servers, partitioner=by_length) as producer:
        landed = [producer.send("t", b"v", b"k" * n) for n in (3, 0, 1)]
        assert [delivery.result(scaled(10)).partition for delivery in landed] == [3, 0, 1]
        runs = producer.send_batch("t", [b"v"] * 3, [b"kk", None, b"kk"]).result(scaled(10))
        assert [(run.partition, run.record_count) for run in runs] == [(0, 1), (2, 2)]
        with pytest.raises(InvalidPartitions, match="the partitioner chose 4 for t"):
            producer.send("t", b"v", b"kkkk")
    assert asked[0] == (b"kkk", [0, 1, 2, 3], [0, 1, 2, 3])


def test_roundrobin_leaves_out_partition_without_leader(tmp_path: Path) -> None:
    with InProcessCluster(tmp_path, brokers=2) as cluster:
        cluster.create_topic("t", partitions=2)
        servers = cluster.bootstrap_servers
        cluster.stop(cluster.leader("t", 1).broker_id)
        with Admin(servers) as admin, Producer(servers, partitioner="roundrobin") as producer:
            wait_until(lambda: admin.describe_topic("t").partitions[1].leader < 0, 20, "nobody leads t-1")
            landed = [producer.send("t", b"v").result(scaled(20)).partition for _ in range(3)]
            runs = producer.send_batch("t", [b"v"] * 5).result(scaled(20))
    assert landed == [0, 0, 0]
    assert [(run.partition, run.record_count) for run in runs] == [(0, 5)]


def test_callbacks_that_raise_or_wait_harm_nobody(cluster: InProcessCluster, caplog: pytest.LogCaptureFixture) -> None:
    refused: list[RaylogError] = []

    def waits(_: Delivery) -> None:
        for wait in (producer.flush, producer.send("t", b"from a callback").result):
            try:
                wait(5)
            except RaylogError as error:
                refused.append(error)

    def raises(_: Delivery) -> None:
        raise ValueError("a callback's own mistake")

    with Producer(cluster.bootstrap_servers, linger_ms=60_000) as producer:
        delivery = producer.send("t", b"1")  # which lingers until both are told of it, by the sender's thread
        delivery.add_done_callback(raises)
        delivery.add_done_callback(waits)
        producer.flush(10)
        wait_until(lambda: len(refused) == 2, 10, "the callbacks ran")
        assert all("in a delivery callback" in str(error) for error in refused)
        delivery.add_done_callback(raises)  # the outcome is known: it runs here, and still harms nobody
        second = producer.send("t", b"2")
        producer.flush(10)
        assert second.result(scaled(10)).offset >= 0
    assert [record.levelname for record in caplog.records].count("ERROR") == 2


def test_a_callback_that_sends_while_memory_is_used_up_is_refused_not_stuck(tmp_path: Path) -> None:
    with proxied(tmp_path) as (_, proxy, servers):
        config = {"buffer_memory": 20_000, "batch_size": 4_000, "linger_ms": 0, "delivery_timeout_ms": 3_000}
        outcome: list[Exception | None] = []

        def fill(_: Delivery) -> None:
            try:
                while True:
                    producer.send("t", b"x" * 3_000)
            except RaylogError as error:
                outcome.append(error)

        with Producer(servers, **config) as producer:  # type: ignore[arg-type]
            wait_until(lambda: delivered(producer, b"first"), 20, "records pass")
            proxy.on_request = lambda key: Fate.DROP if key == PRODUCE else Fate.PASS
            producer.send("t", b"x" * 3_000).add_done_callback(fill)
            wait_until(lambda: outcome, 20, "the callback was refused")
            assert "no buffer.memory free; brokers are slow) in a delivery callback" in str(outcome[0])
            proxy.on_request = lambda _: Fate.PASS


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_told_to_make_its_own(cluster: InProcessCluster) -> None:
    servers = cluster.bootstrap_servers
    with Producer(servers) as producer, Consumer(servers, ["t"]) as consumer, Admin(servers) as admin:
        producer.send("t", b"before").result(scaled(10))
        admin.describe_topic("t")
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # a child that hangs must not stay
            answers = []
            for use in (
                lambda: producer.send("t", b"child"),
                lambda: producer.flush(5),
                lambda: consumer.poll(0),
                lambda: admin.describe_topic("t"),
            ):
                try:
                    use()
                    answers.append("no error")
                except RaylogError as error:
                    answers.append(str(error))
            producer.close()
            admin.close()
            os.write(write, "\n".join(answers).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as answered:
            told = answered.read().splitlines()
        assert os.waitpid(child, 0)[1] == 0
        assert len(told) == 4
        assert all("before the process forked" in line for line in told)
        assert admin.describe_topic("t").name == "t"
        assert producer.send("t", b"after").result(scaled(10))
    assert sorted(values(cluster.bootstrap_servers)) == [b"after", b"before"]


def test_a_broker_that_stops_answering_is_given_up_and_its_records_are_sent_once(tmp_path: Path) -> None:
    """It takes the requests, in flight by five, and says nothing; then the connection is made anew."""
    with proxied(tmp_path) as (_, proxy, servers):
        config = {"linger_ms": 0, "batch_size": 100, "request_timeout_ms": 400, "retry_backoff_ms": 10}
        with Producer(servers, **config) as producer:  # type: ignore[arg-type]
            producer.send("t", b"000", partition=0).result(scaled(10))
            proxy.on_answer = lambda key: Fate.DROP if key == PRODUCE else Fate.PASS
            deliveries = [producer.send("t", b"%03d" % n, partition=0) for n in range(1, 50)]
            assert not deliveries[0].done()
            wait_until(lambda: proxy.connections > 2, 10, "it has connected anew")
            proxy.on_answer = lambda _: Fate.PASS
            producer.flush(20)
            assert all(delivery.exception(0) is None for delivery in deliveries)
        assert values(servers) == [b"%03d" % n for n in range(50)]


def test_metadata_is_not_asked_for_in_storms(tmp_path: Path) -> None:
    """Each record for a topic that isn't there, and each refused batch, asks: at most one request a backoff."""
    with proxied(tmp_path) as (_, proxy, servers):
        config = {"retry_backoff_ms": 100, "retry_backoff_max_ms": 100, "linger_ms": 0, "delivery_timeout_ms": 1_500}
        with Producer(servers, max_block_ms=50, **config) as producer:  # type: ignore[arg-type]
            wait_until(lambda: knows(producer, "t"), 10, "it knows the topic")
            wait_until(lambda: delivered(producer, b"first"), 20, "records pass")
            before, begun = proxy.requests[METADATA], time.monotonic()
            for number in range(20):
                with pytest.raises(RequestTimedOut):
                    producer.send(f"nosuch-{number % 2}", b"x")
            took = time.monotonic() - begun
        assert proxy.requests[METADATA] - before <= took / 0.1 + 5


def test_a_deleted_topic_fails_its_records_by_name(cluster: InProcessCluster) -> None:
    with (
        Admin(cluster.bootstrap_servers) as admin,
        Producer(cluster.bootstrap_servers, linger_ms=0, delivery_timeout_ms=1_000, max_block_ms=500) as producer,
    ):
        wait_until(lambda: delivered(producer, b"x"), 20, "records pass")
        admin.delete_topics(["t"])

        def failure() -> str:
            try:
                producer.send("t", b"y", partition=0).result(scaled(10))
            except RaylogError as error:
                return str(error)
            return ""

        def told() -> str:
            error = failure()  # the first may be that time was up before any broker had answered
            return error if "UNKNOWN_TOPIC_OR_PARTITION" in error else ""

        assert "t" in wait_until(told, 20, "a record fails for its topic", instead=failure)
