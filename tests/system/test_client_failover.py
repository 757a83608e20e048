"""Our clients over leader moves: every record once, in both shells, with idempotence (three brokers, min ISR 2)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.cluster import InProcessCluster
from kit.machine import scaled
from kit.waiting import wait_until
from raylog.client import Consumer, Producer
from raylog.client.aio import AsyncConsumer, AsyncProducer
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition

WAIT_S = 20.0
TP = TopicPartition(TopicName("t"), PartitionIndex(0))
MOVES, RECORDS = 3, 300
CONFIG = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "1000",
    "replica.fetch.backoff.ms": "50",
}
QUICK = {"retry_backoff_ms": 20}
SENT = [[b"%d.%d" % (move, number) for number in range(RECORDS)] for move in range(MOVES)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    with InProcessCluster(tmp_path, brokers=3, config=CONFIG) as running:
        running.create_topic("t")
        yield running


def expire_leader(cluster: InProcessCluster) -> None:
    """The leader's session ends while it runs: another leads at once, and it comes back as a new incarnation."""
    cluster.tree.expire(cluster.stores[cluster.leader(*TP).broker_id].session.id)


def everybody_in_sync(cluster: InProcessCluster) -> bool:
    state = cluster.controller.partitions.state().partition(TP)
    return state is not None and len(state.isr) == 3


def test_nothing_is_lost_or_repeated_over_leader_moves(cluster: InProcessCluster) -> None:
    servers = cluster.bootstrap_servers
    read: list[bytes | None] = []
    with (
        Producer(servers, acks="all", linger_ms=0, batch_size=500, **QUICK) as producer,
        Consumer(servers, ["t"], auto_offset_reset="earliest", fetch_max_wait_ms=50, **QUICK) as consumer,
    ):

        def poll(expected: int) -> bool:
            for records in consumer.poll(200).values():
                read.extend(record.value for record in records)
            return len(read) >= expected

        for move, values in enumerate(SENT):
            futures = []
            for number, value in enumerate(values):
                futures.append(producer.send("t", value))
                if number == RECORDS // 2:
                    expire_leader(cluster)
            offsets = [future.result(scaled(WAIT_S)).offset for future in futures]
            assert offsets == list(range(move * RECORDS, (move + 1) * RECORDS))
            wait_until(lambda expected=(move + 1) * RECORDS: poll(expected), WAIT_S, "all records were read")
            wait_until(lambda: everybody_in_sync(cluster), WAIT_S, "everybody is in sync again")
        assert not consumer.poll(200)
    assert read == [value for values in SENT for value in values]


def test_nothing_is_lost_or_repeated_in_an_event_loop(cluster: InProcessCluster) -> None:
    servers = cluster.bootstrap_servers

    async def run() -> list[bytes | None]:
        read: list[bytes | None] = []
        async with (
            AsyncProducer(servers, acks="all", linger_ms=0, batch_size=500, **QUICK) as producer,
            AsyncConsumer(servers, ["t"], auto_offset_reset="earliest", fetch_max_wait_ms=50, **QUICK) as consumer,
        ):
            for move, values in enumerate(SENT):
                futures = [await producer.aiosend("t", value) for value in values[: RECORDS // 2]]
                await asyncio.to_thread(expire_leader, cluster)
                futures += [await producer.aiosend("t", value) for value in values[RECORDS // 2 :]]
                offsets = [answer.offset for answer in await asyncio.gather(*futures)]
                assert offsets == list(range(move * RECORDS, (move + 1) * RECORDS))
                while len(read) < (move + 1) * RECORDS and (polled := await consumer.poll(WAIT_S * 1_000)):
                    read += [record.value for records in polled.values() for record in records]
                await asyncio.to_thread(
                    wait_until, lambda: everybody_in_sync(cluster), WAIT_S, "everybody is in sync again"
                )
            assert not await consumer.poll(200)
        return read

    assert asyncio.run(asyncio.wait_for(run(), 120)) == [value for values in SENT for value in values]
