"""Three brokers in one process that replicate over their sockets: what is acknowledged by all of them outlives each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.cluster import InProcessCluster
from kit.waiting import wait_until
from raylog.broker.broker import Broker
from raylog.broker.partition import Partition
from raylog.client import Consumer, Producer
from raylog.protocol.ids import BrokerId, PartitionIndex, TopicName, TopicPartition

WAIT_S = 20.0
TP = TopicPartition(TopicName("t"), PartitionIndex(0))
CONFIG = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "1000",
    "replica.fetch.backoff.ms": "50",
    "auto.create.topics.enable": "false",
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    with InProcessCluster(tmp_path, brokers=3, config=CONFIG) as running:
        yield running


def isr_of(broker: Broker, tp: TopicPartition = TP) -> set[BrokerId]:
    state = broker.partitions.state().partition(tp)
    return set() if state is None else set(state.isr)


def replicas(cluster: InProcessCluster, tp: TopicPartition = TP) -> dict[int, Partition]:
    """The partition at each broker that runs."""
    found = {}
    for broker_id, broker in cluster.brokers.items():
        local = {**broker.partitions.led(), **broker.partitions.followed()}
        if tp in local:
            found[broker_id] = local[tp]
    return found


def same_everywhere(cluster: InProcessCluster, tp: TopicPartition = TP) -> bool:
    copies = replicas(cluster, tp).values()
    return len({(copy.log_end_offset, copy.high_watermark) for copy in copies}) == 1


def log_bytes(cluster: InProcessCluster, tp: TopicPartition = TP) -> list[bytes]:
    """The log's content at each broker."""
    return [
        b"".join(path.read_bytes() for path in sorted(copy.log.directory.glob("*.log")))
        for copy in replicas(cluster, tp).values()
    ]


def send(cluster: InProcessCluster, *values: bytes) -> None:
    with Producer(cluster.bootstrap_servers, acks="all", linger_ms=0) as producer:
        for future in [producer.send("t", value) for value in values]:
            future.result(WAIT_S)


def consumed(cluster: InProcessCluster, count: int) -> list[bytes | None]:
    """The first ``count`` values of the topic, by a consumer that begins at the beginning."""
    values: list[bytes | None] = []
    with Consumer(cluster.bootstrap_servers, ["t"], auto_offset_reset="earliest", fetch_max_wait_ms=50) as consumer:

        def enough() -> bool:
            for records in consumer.poll(500).values():
                values.extend(record.value for record in records)
            return len(values) >= count

        wait_until(enough, WAIT_S, f"{count} records")
    return values


def test_what_all_acknowledged_is_in_every_log_byte_for_byte(cluster: InProcessCluster) -> None:
    cluster.create_topic("t")
    sent = [b"%d" % number for number in range(500)]
    send(cluster, *sent)
    assert consumed(cluster, 500) == sent
    wait_until(lambda: same_everywhere(cluster), WAIT_S, "followers know the high watermark")
    first, *others = log_bytes(cluster)
    assert first
    assert others == [first, first]
    assert all(isr_of(broker) == {0, 1, 2} for broker in cluster.brokers.values())


def test_nothing_is_lost_when_leaders_stop_one_after_another(cluster: InProcessCluster) -> None:
    cluster.create_topic("t")
    sent: list[bytes] = []
    for round_number in range(3):
        values = [b"%d.%d" % (round_number, number) for number in range(50)]
        send(cluster, *values)
        sent += values
        leader = cluster.leader(*TP).broker_id
        cluster.stop(leader)
        assert cluster.leader(*TP).broker_id != leader
        send(cluster, b"without %d" % leader)
        sent.append(b"without %d" % leader)
        cluster.start(leader)
        wait_until(lambda: isr_of(cluster.leader(*TP)) == {0, 1, 2}, WAIT_S, "everybody is in sync again")
    assert consumed(cluster, len(sent)) == sent
    wait_until(lambda: same_everywhere(cluster), WAIT_S, "followers know the high watermark")
    first, *others = log_bytes(cluster)
    assert others == [first, first]
