"""Every kind of foreign node, at every place that raylog reads, over real ZooKeeper: all goes on beside them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.cluster import InProcessCluster
from kit.machine import scaled, scaled_ms
from kit.waiting import wait_until
from kit.zookeeper import running_zookeeper
from raylog.broker.cli.doctor import unreadable_nodes
from raylog.client import Admin, Consumer, Producer
from raylog.coordination.metadata import group_paths, paths
from raylog.coordination.store.port import MetadataStore
from raylog.coordination.zookeeper.store import ZkStore
from raylog.protocol.ids import GroupId, PartitionIndex, TopicName, TopicPartition

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

WAIT_S = 30.0
READERS = GroupId("readers")
TOPIC = TopicName("t")

BODIES = {
    "empty": b"",
    "no-json": b"{",
    "other-shape": b"[1]",
    "no-fields": b"{}",
    "wrong-types": b'{"version":"x","partitions":{"0":["a"]},"endpoints":7,"config":{"a":{}},"kind":[],"leader":"x",'
    b'"isr":"12",'
    b'"leader_epoch":Infinity,"controller_epoch":true,"members":7,"subscription":7,"entity_path":{},"offset":{}}',
    "not-utf-8": b"\xff\xfe",
    "newer": b'{"version":99,"what":"nobody knows"}',
    "huge": b"[" * 900_000,
}
PLACES = (
    paths.BROKER_IDS + "/{}",
    paths.BROKER_TOPICS + "/{}",
    paths.BROKER_TOPICS + "/t/{}",
    paths.BROKER_TOPICS + "/t/partitions/{}",
    paths.BROKER_TOPICS + "/t/partitions/0/{}",
    paths.CONFIG_TOPICS + "/{}",
    paths.CONFIG_BROKERS + "/{}",
    paths.CONFIG_CHANGES + "/{}",
    paths.DELETE_TOPICS + "/a {}",
    paths.BROKER_EPOCHS + "/{}",
    paths.RAYLOG_BROKERS + "/{}",
    group_paths.GROUPS + "/{}",
    group_paths.CONSUMERS + "/%{}",
    group_paths.group(READERS) + "/{}",
    group_paths.members(READERS) + "/!{}",
    group_paths.offsets(READERS) + "/{}",
    group_paths.offsets(READERS) + "/t/{}",
    group_paths.owners(READERS) + "/{}",
    group_paths.owners(READERS) + "/t/{}",
)
"""Where a foreign node stands, with the kind as its name."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server.address


def plant_all(store: MetadataStore) -> None:
    for place in PLACES:
        for kind, body in BODIES.items():
            store.create(place.format(kind), body, parents=True)
            store.create(f"{place.format(kind)}/child", body)
    store.create(f"{paths.CONFIG_CHANGES}/dots", b'{"version":2,"entity_path":"topics/.."}')
    store.create(f"{group_paths.CONSUMERS}/%", b"")


def test_foreign_nodes_stop_nothing(address: str, tmp_path: Path) -> None:
    with ZkStore(address) as store, InProcessCluster(tmp_path, brokers=3, zookeeper=address) as cluster:
        cluster.create_topic("t", partitions=3, config={"min.insync.replicas": "1"})
        cluster.create_topic("gone", partitions=2)
        servers = cluster.bootstrap_servers
        with (
            Producer(servers) as producer,
            Admin(servers, default_api_timeout_ms=scaled_ms(20_000)) as admin,
            Consumer(servers, ["t"], group_id=READERS, auto_offset_reset="earliest") as consumer,
        ):
            producer.send("t", b"before").result(scaled(WAIT_S))
            assert read(consumer) == [b"before"]
            plant_all(store)
            store.set(paths.partition_state(TopicPartition(TopicName("gone"), PartitionIndex(0))), b"\xff")
            store.set(paths.topic(TopicName("gone")), b"\xff")

            assert_goes_on(cluster, admin, producer, consumer, "first")
            with Consumer(servers, ["t"], group_id=READERS) as other:
                wait_until(lambda: other.poll(100) is not None and other.generation > 0, WAIT_S, "a newcomer's share")
            before = cluster.controller
            cluster.restart(before.broker_id)
            wait_until(lambda: cluster.controller is not before, WAIT_S, "another controller")
            assert_goes_on(cluster, admin, producer, consumer, "second")

            admin.delete_topics(["t"])
            wait_until(lambda: store.exists(paths.topic(TOPIC)) is None, WAIT_S, "all of the topic is gone")
        found = unreadable_nodes(store)
        assert {"/brokers/ids/huge", "/brokers/topics/empty", "/consumers/%", "/brokers/topics/gone"} <= found.keys()


def read(consumer: Consumer) -> list[object]:
    """The next values."""
    found: list[object] = []

    def polled() -> bool:
        found.extend(record.value for records in consumer.poll(200).values() for record in records)
        return bool(found)

    wait_until(polled, WAIT_S, "records")
    return found


def assert_goes_on(cluster: InProcessCluster, admin: Admin, producer: Producer, consumer: Consumer, name: str) -> None:
    cluster.create_topic(name)
    admin.alter_topic_configs("t", {"retention.ms": str(60_000 + len(name))})
    wait_until(
        lambda: all(
            broker.partitions.state().topics[TOPIC].configs.get("retention.ms") == str(60_000 + len(name))
            for broker in cluster.brokers.values()
        ),
        WAIT_S,
        "every broker has the new setting",
    )
    producer.send("t", name.encode()).result(scaled(WAIT_S))
    assert read(consumer) == [name.encode()]
    assert READERS in {listed.group_id for listed in admin.list_groups()}
