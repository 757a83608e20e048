"""The ways in through Ray: broker actors by their handles, beside clients on the socket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import ray

from kit.cli import RunningCluster
from kit.machine import scaled
from kit.waiting import wait_until
from raylog.client import Admin, Cluster, connect
from raylog.coordination.host.ray_token import ray_token
from raylog.protocol.errors import BrokerNotAvailable, InvalidConfig, NotLeaderOrFollower, UnknownTopicOrPartition
from raylog.protocol.records import Batches, Record

pytestmark = pytest.mark.system


@pytest.fixture
def cluster(three_brokers: RunningCluster) -> Iterator[Cluster]:
    """The cluster of three broker actors; this process leaves its Ray cluster again."""
    try:
        yield connect(data_dir=three_brokers.data_dir)
    finally:
        ray.shutdown()


def test_a_cluster_is_found_by_its_directory_and_through_ray(three_brokers: RunningCluster, cluster: Cluster) -> None:
    facts = three_brokers.file()
    assert cluster.bootstrap_servers == facts["bootstrap_servers"]
    assert cluster.ray_address == facts["ray"]["address"]
    with ray_token(facts["ray"]["auth_token_path"]):
        through_ray = connect(address=facts["ray"]["address"])
    assert through_ray.bootstrap_servers == cluster.bootstrap_servers
    assert connect().bootstrap_servers == cluster.bootstrap_servers  # this process is connected to Ray now
    assert ray.get_runtime_context().namespace != facts["namespace"]


def leads(broker: Any, topic: str) -> bool:
    """Whether it leads the first partition: a broker knows of a topic a moment before that."""
    try:
        ray.get(broker.fetch.remote(topic, 0))
    except (NotLeaderOrFollower, UnknownTopicOrPartition):
        return False
    return True


def test_batches_go_through_the_actor_and_come_out_of_the_socket(cluster: Cluster) -> None:
    with cluster.admin() as admin:
        admin.create_topic("by-handle", 3)
        leaders = [partition.leader for partition in admin.describe_topic("by-handle").partitions]
    broker = cluster.leader("by-handle", 0)
    assert broker.broker_id == leaders[0]
    with pytest.raises(UnknownTopicOrPartition, match="by-handle-3"):
        cluster.leader("by-handle", 3)
    wait_until(lambda: leads(broker, "by-handle"), 20, "the broker leads, as all know already")
    rows = [Record(b"1", b"UA", [("h", None)], 5), Record(None, None)]
    assert ray.get(broker.produce.remote("by-handle", 0, rows, acks="all", compression="zstd")) == (0, 1)
    assert ray.get(broker.produce.remote("by-handle", 0, [Record(b"3")])) == (2, 2)

    batches = ray.get(broker.fetch.remote("by-handle", 0, offset=1, max_bytes=1 << 20))
    assert isinstance(batches, Batches)
    records, high_watermark = batches
    assert isinstance(records, list)
    assert high_watermark == 3
    assert [(record.offset, record.value) for record in records] == [(1, None), (2, b"3")]
    assert records[0].timestamp > 0

    with cluster.consumer("by-handle", auto_offset_reset="earliest") as consumer:
        assert [record.value for record in consumer.iterate(until_end=True)] == [b"1", None, b"3"]
    assert ray.get(broker.describe.remote())["id"] == leaders[0]


def test_what_a_handle_cannot_do_is_told(cluster: Cluster) -> None:
    with pytest.raises(BrokerNotAvailable, match="broker 99"):
        cluster.broker(99)
    with pytest.raises(BrokerNotAvailable, match="only addresses are known"):
        connect(cluster.bootstrap_servers).broker(0)
    broker = cluster.broker(0)
    with pytest.raises(InvalidConfig, match=r"compression\.type"):
        broker.produce.remote("by-handle", 0, [Record(b"")], compression="brotli")
    with pytest.raises(UnknownTopicOrPartition):
        ray.get(broker.fetch.remote("nosuch", 0))


def test_clients_take_settings(cluster: Cluster) -> None:
    with cluster.admin(client_id="me") as admin, cluster.producer(linger_ms=1) as producer:
        assert isinstance(admin, Admin)
        admin.create_topic("with-settings", 1)
        assert producer.send("with-settings", b"v").result(scaled(20)).offset == 0
