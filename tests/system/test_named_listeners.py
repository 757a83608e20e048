"""Several named listeners: each client is told the addresses of the listener that it came through."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kit.cluster import InProcessCluster
from kit.machine import scaled
from kit.wire import WireClient
from raylog.protocol.records import Record, encode_batch

pytestmark = pytest.mark.system

WAIT_S = 20.0
METADATA, DESCRIBE_CLUSTER = 3, 60
CONFIG = {"listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.2:0,WIDE://:0"}
HOSTS = {"INSIDE": "127.0.0.1", "OUTSIDE": "127.0.0.2", "WIDE": "127.0.0.1"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessCluster]:
    with InProcessCluster(tmp_path_factory.mktemp("listeners"), brokers=2, config=CONFIG) as running:
        running.create_topic("t", partitions=2)
        yield running


def addresses(cluster: InProcessCluster, listener: str) -> dict[int, tuple[str, int]]:
    """Where each broker is reached through the listener."""
    return {broker_id: broker.endpoints[listener] for broker_id, broker in cluster.brokers.items()}


@pytest.mark.parametrize("listener", HOSTS)
def test_metadata_answers_with_the_listener_that_was_asked(cluster: InProcessCluster, listener: str) -> None:
    expected = addresses(cluster, listener)
    assert {host for host, _ in expected.values()} == {HOSTS[listener]}
    with WireClient(expected[0]) as client:
        for version in (1, 12):
            brokers = client.ask(METADATA, version, topics=None).brokers
            assert {broker.node_id: (broker.host, broker.port) for broker in brokers} == expected
        nodes = client.ask(DESCRIBE_CLUSTER, 1, endpoint_type=1).brokers
        assert {node.broker_id: (node.host, node.port) for node in nodes} == expected


@pytest.mark.parametrize("listener", HOSTS)
def test_who_leads_is_told_with_the_listener_that_was_asked(cluster: InProcessCluster, listener: str) -> None:
    """KIP-951: the endpoint beside NOT_LEADER_OR_FOLLOWER."""
    leader = cluster.leader("t", 0).broker_id
    expected = addresses(cluster, listener)
    batch = encode_batch([Record(b"a", timestamp=1_000)])
    with WireClient(expected[1 - leader]) as client:
        answer = client.produce("t", batch, version=10)
        assert answer.topics[0].partitions[0].leader_id == leader
        assert [(node.node_id, (node.host, node.port)) for node in answer.node_endpoints] == [
            (leader, expected[leader])
        ]


@pytest.mark.parametrize("listener", HOSTS)
def test_a_client_works_through_any_listener(cluster: InProcessCluster, listener: str) -> None:
    host, port = addresses(cluster, listener)[0]
    servers = {"bootstrap.servers": f"{host}:{port}"}
    known = AdminClient(servers).list_topics(timeout=scaled(WAIT_S))
    assert {broker.host for broker in known.brokers.values()} == {HOSTS[listener]}
    producer = Producer(servers)
    offsets: dict[int, int] = {}
    for partition in range(2):
        producer.produce(
            "t",
            listener.encode(),
            partition=partition,
            on_delivery=lambda error, message: offsets.update({message.partition(): message.offset()}),
        )
    assert producer.flush(WAIT_S) == 0
    consumer = Consumer(servers | {"group.id": "unused", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition("t", partition, offset) for partition, offset in offsets.items()])
        values = {consumer.poll(WAIT_S).value() for _ in range(2)}  # type: ignore[union-attr]
    finally:
        consumer.close()
    assert values == {listener.encode()}
