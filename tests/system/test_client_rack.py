"""A consumer that says where it runs reads from the replica there, and from the leader while that fails (KIP-392)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kit.cluster import InProcessCluster
from kit.machine import scaled
from kit.proxy import Fate, FrameProxy
from kit.waiting import wait_until
from raylog.broker.broker import Broker
from raylog.broker.storage.log.cleaning import delete_records
from raylog.client import Admin, Consumer, Producer
from raylog.client.admin import NewTopic
from raylog.client.aio import AsyncConsumer
from raylog.protocol.ids import Offset, PartitionIndex, TopicName, TopicPartition

WAIT_S = 40.0
FETCH = 1
SELECTOR = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
LEADER, NEAR = 0, 1
TP = TopicPartition(TopicName("t"), PartitionIndex(0))
CONSUMER: dict[str, Any] = {
    "auto_offset_reset": "earliest",
    "client_rack": "near",
    "fetch_max_wait_ms": 50,
    "retry_backoff_ms": 100,
    "metadata_max_age_ms": 2_000,
}
"""A replica that failed is tried again after two seconds at most."""


def create_topic(servers: str) -> None:
    """``t``, led by LEADER, with a replica on NEAR."""
    with Admin(servers) as admin:
        created = admin.create_topics([NewTopic("t", assignments={0: [LEADER, NEAR]})])
    assert created == {"t": None}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    with InProcessCluster(tmp_path, brokers=3, config=SELECTOR, racks=("far", "near", "far")) as running:
        create_topic(running.bootstrap_servers)
        yield running


def bytes_out(broker: Broker) -> int:
    """What it sent to consumers of the topic."""
    name = "kafka_server_brokertopicmetrics_bytesout_total"
    return sum(int(s.value) for s in broker.metrics() if s.metric.name == name and s.labels == ("t",))


class Reading:
    """Records are sent and read one by one; a consumer's ``poll`` is handed in."""

    def __init__(self, cluster: InProcessCluster, poll: Callable[[], list[bytes]], producer: Producer) -> None:
        self._cluster = cluster
        self._poll = poll
        self._producer = producer
        self.sent: list[bytes] = []
        self.read: list[bytes] = []

    def one(self) -> dict[int, bool]:
        """Another record is read; whether each broker sent something meanwhile."""
        before = {n: bytes_out(broker) for n, broker in self._cluster.brokers.items()}
        self.sent.append(b"%d" % len(self.sent))
        self._producer.send("t", self.sent[-1]).result(scaled(WAIT_S))
        wait_until(self._all_read, WAIT_S, "the record is read")
        return {n: bytes_out(broker) > before[n] for n, broker in self._cluster.brokers.items()}

    def _all_read(self) -> bool:
        self.read += self._poll()
        return len(self.read) >= len(self.sent)


def follow_the_replica(cluster: InProcessCluster, poll: Callable[[], list[bytes]]) -> None:
    """While it lives the replica nearby serves, else the leader; then the replica again. Every record comes once."""
    with Producer(cluster.bootstrap_servers, acks="all", linger_ms=0) as producer:
        reading = Reading(cluster, poll, producer)
        assert reading.one() == {LEADER: False, NEAR: True, 2: False}
        cluster.stop(NEAR)
        assert reading.one()[LEADER]
        cluster.start(NEAR)
        wait_until(lambda: reading.one() == {LEADER: False, NEAR: True, 2: False}, WAIT_S, "it reads nearby again")
        assert reading.read == reading.sent


def test_a_consumer_reads_from_the_replica_in_its_rack_while_that_lives(cluster: InProcessCluster) -> None:
    with Consumer(cluster.bootstrap_servers, ["t"], **CONSUMER) as consumer:
        follow_the_replica(
            cluster, lambda: [record.value for records in consumer.poll(200).values() for record in records]
        )


def test_consumer_behind_the_near_log_start_reads_from_the_leader(cluster: InProcessCluster) -> None:
    """Retention is each replica's own affair: the one nearby may have deleted what the leader still has."""
    sent = [b"%d" % number for number in range(20)]
    with Producer(cluster.bootstrap_servers, acks="all", linger_ms=0) as producer:
        for value in sent:
            producer.send("t", value).result(scaled(WAIT_S))
    near = cluster.brokers[NEAR].partitions.replica(TP)
    wait_until(lambda: near.high_watermark == len(sent), WAIT_S, "the replica knows what is committed")
    delete_records(near.log, Offset(15))
    led = cluster.brokers[LEADER].partitions.get(TP)
    wait_until(
        lambda: not led.role.readable_replicas(Offset(0)), WAIT_S, "the leader hears where the replica's log begins"
    )
    before = {n: bytes_out(broker) for n, broker in cluster.brokers.items()}
    read: list[bytes] = []
    with Consumer(cluster.bootstrap_servers, ["t"], **CONSUMER) as consumer:

        def all_read() -> bool:
            read.extend(record.value for records in consumer.poll(200).values() for record in records)
            return len(read) >= len(sent)

        wait_until(all_read, WAIT_S, "everything is read")
    assert read == sent
    assert bytes_out(cluster.brokers[LEADER]) > before[LEADER]


def test_so_does_an_asyncio_consumer(cluster: InProcessCluster) -> None:
    async def read() -> None:
        loop = asyncio.get_running_loop()
        async with AsyncConsumer(cluster.bootstrap_servers, ["t"], **CONSUMER) as consumer:

            async def poll() -> list[bytes]:
                return [record.value for records in (await consumer.poll(200)).values() for record in records]

            await asyncio.to_thread(
                follow_the_replica,
                cluster,
                lambda: asyncio.run_coroutine_threadsafe(poll(), loop).result(scaled(WAIT_S)),
            )

    asyncio.run(read())


def test_a_replica_that_never_answers_is_asked_more_and_more_seldom_and_the_leader_serves(tmp_path: Path) -> None:
    """It is in sync, so that the leader names it whenever it hears the rack, and only this consumer can't use it."""
    with ExitStack() as stack:
        proxy = stack.enter_context(FrameProxy())
        asked: list[float] = []
        """When the replica was asked for records, which it never answers."""

        def cut_fetches(api_key: int) -> Fate:
            if api_key != FETCH:
                return Fate.PASS
            asked.append(time.monotonic())
            return Fate.CUT

        proxy.on_request = cut_fetches
        host, port = proxy.target
        listens = {
            "listeners": f"PLAINTEXT://{host}:{port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}",
        }
        cluster = stack.enter_context(
            InProcessCluster(tmp_path, brokers=2, config=SELECTOR, racks=("far", "near"), overrides={NEAR: listens})
        )
        create_topic(cluster.bootstrap_servers)
        producer = stack.enter_context(Producer(cluster.bootstrap_servers, linger_ms=0))
        consumer = stack.enter_context(Consumer(cluster.bootstrap_servers, ["t"], **CONSUMER))
        sent: list[bytes] = []
        read: list[bytes] = []

        def all_read() -> bool:
            read.extend(record.value for records in consumer.poll(200).values() for record in records)
            return len(read) >= len(sent)

        def fetches(count: int) -> bool:
            """One more record is read; whether the replica was asked for records so often."""
            sent.append(b"%d" % len(sent))
            producer.send("t", sent[-1]).result(scaled(WAIT_S))
            wait_until(all_read, WAIT_S, "the record is read")
            return proxy.requests[FETCH] >= count

        wait_until(lambda: fetches(1), WAIT_S, "the replica is asked")
        wait_until(lambda: fetches(5) and len(asked) >= 5, WAIT_S, "it is asked again")
        assert asked[4] - asked[0] >= 0.1 + 0.2 + 0.4 + 0.8
        assert read == sent
        proxy.on_request = lambda _: Fate.PASS
        wait_until(lambda: fetches(20), WAIT_S, "it serves")
        assert read == sent
