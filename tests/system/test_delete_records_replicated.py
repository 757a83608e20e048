"""DeleteRecords waits for the in-sync replicas, and is woken by them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.cluster import InProcessCluster
from kit.machine import scaled
from raylog.client.admin import Admin
from raylog.client.producer import Producer
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition

pytestmark = pytest.mark.system

CONFIG = {"default.replication.factor": "3", "replica.lag.time.max.ms": "60000"}
PARTITIONS = 3
WAIT_S = 20.0


def test_what_is_told_to_be_deleted_is_deleted_on_all_in_sync_replicas(tmp_path: Path) -> None:
    with InProcessCluster(tmp_path, brokers=3, config=CONFIG) as cluster, Admin(cluster.bootstrap_servers) as admin:
        cluster.create_topic("t", partitions=PARTITIONS)
        with Producer(cluster.bootstrap_servers, acks="all") as producer:
            for number in range(30):
                producer.send("t", b"%d" % number, partition=number % PARTITIONS).result(scaled(WAIT_S))
        for start in (3, 7):
            wanted = {("t", index): start for index in range(PARTITIONS)}
            assert admin.delete_records(wanted) == wanted
            for index in range(PARTITIONS):
                tp = TopicPartition(TopicName("t"), PartitionIndex(index))
                starts = [broker.partitions.replica(tp).log_start_offset for broker in cluster.brokers.values()]
                assert starts == [start] * 3
