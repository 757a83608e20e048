"""Clients whose metadata is old are told by brokers who leads now (KIP-951), and go there at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kit.cluster import InProcessCluster
from raylog.client import Consumer, Producer
from raylog.coordination.peer_control import Ack, AckStatus, UpdateState
from raylog.protocol.ids import BrokerId, ControllerEpoch, LeaderEpoch, PartitionIndex, TopicName, TopicPartition

TP = TopicPartition(TopicName("t"), PartitionIndex(0))
PATIENCE = {"retry_backoff_ms": 8_000, "retry_backoff_max_ms": 8_000}
"""Without the hint nothing happens for so long."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    with InProcessCluster(tmp_path, brokers=2) as running:
        running.create_topic("t")
        yield running


def move_leader(cluster: InProcessCluster) -> None:
    """Tell all brokers that the other one leads, in the name of a controller that fences the real one."""
    before = cluster.leader(*TP)
    state = before.partitions.state()
    topic = state.topic(TP.topic)
    assert topic is not None
    [partition] = topic.partitions
    other = BrokerId(1 - partition.leader)
    moved = replace(
        partition, replicas=(other,), isr=(other,), leader=other, leader_epoch=LeaderEpoch(partition.leader_epoch + 1)
    )
    for broker in cluster.brokers.values():
        known = broker.partitions.state()
        message = UpdateState(
            controller_id=other,
            controller_epoch=ControllerEpoch(1_000),
            broker_epoch=known.brokers[broker.broker_id].epoch,
            sequence=1,
            full=True,
            cluster_id=known.cluster_id,
            brokers=tuple(known.brokers.values()),
            topics=(replace(topic, partitions=(moved,)),),
        )
        ack = Ack.decode(broker.control(message.encode()))
        assert ack.status is AckStatus.OK, ack
    assert cluster.leader(*TP) is not before


def test_producer_and_consumer_go_where_the_old_leader_sends_them(cluster: InProcessCluster) -> None:
    servers = cluster.bootstrap_servers
    with (
        Producer(servers, linger_ms=0, **PATIENCE) as producer,
        Consumer(servers, ["t"], auto_offset_reset="earliest", fetch_max_wait_ms=50, **PATIENCE) as consumer,
    ):
        producer.send("t", b"before").result(10)
        assert [record.value for records in consumer.poll(10_000).values() for record in records] == [b"before"]
        move_leader(cluster)
        begun = time.monotonic()
        # The new leader's log is empty: there is no replication yet.
        assert producer.send("t", b"not seen").result(20).offset == 0
        assert producer.send("t", b"after").result(20).offset == 1
        assert [record.value for records in consumer.poll(20_000).values() for record in records] == [b"after"]
        assert time.monotonic() - begun < PATIENCE["retry_backoff_ms"] / 2_000
