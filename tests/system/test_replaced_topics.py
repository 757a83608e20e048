"""Topics deleted and at once made anew under groups of both kinds: no record is skipped, no partition stays unread."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import Consumer as KafkaConsumer

from kit.cluster import InProcessCluster
from kit.waiting import wait_until
from kit.zookeeper import running_zookeeper
from raylog.client import Admin, Consumer, Producer
from raylog.client.groups.changes import Assigned
from raylog.client.groups.member import GroupMember
from raylog.coordination.groups.offsets import CommittedOffset, RegistryOffsetStore
from raylog.coordination.metadata import group_paths
from raylog.coordination.zookeeper.store import ZkStore
from raylog.protocol.ids import GroupId, Offset, PartitionIndex, TopicName, TopicPartition

pytestmark = pytest.mark.system

WAIT_S = 30.0
TOPICS = [f"t{number}" for number in range(10)]
OLD, NEW = 10, 25


class World:
    def __init__(self, cluster: InProcessCluster, zookeeper: str) -> None:
        self.servers = cluster.bootstrap_servers
        self.zookeeper = zookeeper

    def make(self, topics: list[str]) -> None:
        with Admin(self.servers) as admin:
            for topic in topics:
                admin.create_topic(topic, partitions=1, replication_factor=1)

    def delete(self, topics: list[str]) -> None:
        with Admin(self.servers) as admin:
            assert set(admin.delete_topics(topics).values()) == {None}

    def replace(self, topics: list[str]) -> None:
        for topic in topics:
            self.delete([topic])
            self.make([topic])

    def fill(self, topics: list[str], start: int, count: int) -> None:
        with Producer(self.servers, linger_ms=50) as producer:
            for topic in topics:
                for value in range(start, start + count):
                    producer.send(topic, b"%s:%d" % (topic.encode(), value), partition=0)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("replaced")
    config = {"auto.create.topics.enable": "false", "group.initial.rebalance.delay.ms": "0"}
    with (
        running_zookeeper(root / "zookeeper") as zookeeper,
        InProcessCluster(root / "brokers", brokers=2, config=config, zookeeper=zookeeper.address) as cluster,
    ):
        yield World(cluster, zookeeper.address)


def read_by_kafka_client(world: World, topics: list[str], count: int) -> set[bytes]:
    consumer = KafkaConsumer(
        {
            "bootstrap.servers": world.servers,
            "group.id": "clients",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    read: set[bytes] = set()
    with closing(consumer):
        consumer.subscribe(topics)

        def poll() -> bool:
            message = consumer.poll(0.2)
            if message is not None and not message.error():
                read.add(message.value())
            return len(read) >= count

        wait_until(poll, WAIT_S, f"{count} records")
        consumer.commit(asynchronous=False)
    return read


def values(topics: list[str], start: int, count: int) -> set[bytes]:
    return {b"%s:%d" % (topic.encode(), value) for topic in topics for value in range(start, start + count)}


def test_kafka_client_skips_nothing_of_replaced_topics(world: World) -> None:
    topics = [f"kafka-{topic}" for topic in TOPICS]
    world.make(topics)
    world.fill(topics, 0, OLD)
    assert read_by_kafka_client(world, topics, len(topics) * OLD) == values(topics, 0, OLD)
    for topic in topics:
        world.replace([topic])
        world.fill([topic], 100, NEW)
        assert read_by_kafka_client(world, [topic], NEW) == values([topic], 100, NEW)


def actor(world: World, topics: list[str]) -> Consumer[bytes, bytes]:
    return Consumer(world.servers, topics, group_id="actors", auto_offset_reset="latest", auto_commit_interval_ms=100)


def test_actors_at_latest_lose_no_commit_of_replaced_topics(world: World) -> None:
    """What is committed for the new topics outlasts the clearing away of what was for the old ones."""
    topics = [f"actors-{topic}" for topic in TOPICS]
    group, tps = GroupId("actors"), [TopicPartition(TopicName(topic), PartitionIndex(0)) for topic in topics]
    world.make(topics)
    read: list[bytes] = []
    with ZkStore(world.zookeeper) as store:
        offsets = RegistryOffsetStore(store)

        def polled_until_committed(consumer: Consumer[bytes, bytes], count: int) -> None:
            """All that it reads from now on is this many records of each topic, and that it has committed it."""

            def committed() -> bool:
                read.extend(each.value for records in consumer.poll(0.05).values() for each in records)
                found = offsets.fetch(group, tps)
                return [found[tp].offset if tp in found else -1 for tp in tps] == [count] * len(tps)

            wait_until(committed, WAIT_S, f"{count} records of each topic to be committed")

        with actor(world, topics) as consumer:
            polled_until_committed(consumer, 0)
            world.fill(topics, 0, OLD)
            polled_until_committed(consumer, OLD)
            world.replace(topics)
            polled_until_committed(consumer, 0)
            world.fill(topics, 100, NEW)
            polled_until_committed(consumer, NEW)
        world.fill(topics, 200, NEW)  # while nobody reads
        with actor(world, topics) as consumer:
            polled_until_committed(consumer, 2 * NEW)
    expected = values(topics, 0, OLD) | values(topics, 100, NEW) | values(topics, 200, NEW)
    assert (set(read), len(read)) == (expected, len(expected))


def test_slow_owner_of_deleted_topic_keeps_nobody_from_the_new_one(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Its user does nothing at all; its own process keeps its session alive."""
    topic, group = "slow", GroupId("slow-readers")
    tp = TopicPartition(TopicName(topic), PartitionIndex(0))
    world.make([topic])
    with ZkStore(world.zookeeper) as first_store, ZkStore(world.zookeeper) as second_store:
        first, second = (
            GroupMember(store, group, frozenset({tp.topic}), client_id=name)
            for store, name in ((first_store, "a"), (second_store, "b"))
        )
        first.start()
        wait_until(lambda: [type(each) for each in first.changes()] == [Assigned], WAIT_S, "the first member to own it")
        first.commit({tp: CommittedOffset(Offset(7))})
        second.start()
        world.delete([topic])
        owner = group_paths.owner(group, tp)
        wait_until(lambda: second_store.exists(owner) is None, WAIT_S, "the owner's node to be gone")
        world.make([topic])
        wait_until(lambda: len(first.owned | second.owned) == 1, WAIT_S, "one of them to own the new partition")
        assert first.leave(WAIT_S)
        wait_until(lambda: second.owned == {tp}, WAIT_S, "the second member to own it")
        assert isinstance(second.changes()[-1], Assigned)
        second.commit({tp: CommittedOffset(Offset(1))})
        assert RegistryOffsetStore(second_store).fetch(group)[tp].offset == 1
        assert second.leave(WAIT_S)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
