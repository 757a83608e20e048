"""Consumer groups of clients that others wrote: they join, share, leave, are killed, come back under their instance id.

Numbers of partitions tell who has what; offsets tell that nothing is left out. A record that was read and whose commit
came too late may be read twice, by the next owner: at least once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import confluent_kafka
import pytest

from kit.cluster import InProcessCluster
from kit.foreign_groups import JAVA, PYTHON, ForeignMember, Traffic, wait_all_read, wait_shared
from kit.machine import scaled
from kit.waiting import wait_until

from .foreign import absent

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(200)]

PARTITIONS = 6
WAIT_S = 60.0
CONFIG = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "1000"}
SESSION_MS = 45_000
"""Of static members, as Kafka's clients have it: time enough to start again on a busy machine."""
NEWEST = ("confluent-kafka", "kafka-python", "aiokafka", JAVA[0])
COOPERATIVE = ("confluent-kafka", "kafka-python", JAVA[0])
"""aiokafka has no cooperative assignor."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessCluster]:
    with InProcessCluster(tmp_path_factory.mktemp("groups"), brokers=3, config=CONFIG) as cluster:
        yield cluster


def start(stack: ExitStack, cluster: InProcessCluster, client: str, topic: str, **more: Any) -> ForeignMember:
    return stack.enter_context(ForeignMember(client, cluster.bootstrap_servers, topic, f"g-{topic}", **more))


def committed(cluster: InProcessCluster, topic: str) -> dict[int, int]:
    """By partition, of the group that reads ``topic``."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": f"g-{topic}"})
    try:
        tps = [confluent_kafka.TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        return {tp.partition: tp.offset for tp in consumer.committed(tps, timeout=scaled(WAIT_S))}
    finally:
        consumer.close()


def skip_where_absent(*clients: str) -> None:
    for client in clients:
        if absent(client):
            pytest.skip(f"{client} is not installed")


@pytest.mark.parametrize("client", [*PYTHON, *JAVA])
def test_members_share_take_over_from_who_leaves_or_is_killed_and_lose_nothing(
    cluster: InProcessCluster, client: str
) -> None:
    skip_where_absent(client)
    topic = f"shared-{client}"
    cluster.create_topic(topic, partitions=PARTITIONS)
    with ExitStack() as stack:
        traffic = stack.enter_context(Traffic(cluster.bootstrap_servers, topic, PARTITIONS))
        first = start(stack, cluster, client, topic)
        first.wait_owns(PARTITIONS)
        second = start(stack, cluster, client, topic)
        third = start(stack, cluster, client, topic)
        wait_shared([first, second, third], PARTITIONS)
        second.leave()
        wait_shared([first, third], PARTITIONS)
        third.kill()
        first.wait_owns(PARTITIONS)
        members = [first, second, third]
        wait_all_read(members, traffic)
        ends = dict.fromkeys(range(PARTITIONS), 0)
        for partition, offset in traffic.written:
            ends[partition] = max(ends[partition], offset + 1)
        wait_until(lambda: committed(cluster, topic) == ends, WAIT_S, "all that was read is committed")
        assert [member.errors for member in members] == [[], [], []]
        first.leave()


def test_clients_of_all_kinds_share_one_group(cluster: InProcessCluster) -> None:
    """They understand each other's subscriptions and assignments, whoever of them leads."""
    cluster.create_topic("mixed", partitions=PARTITIONS)
    kinds = [client for client in (*PYTHON, *JAVA) if not absent(client)]
    with ExitStack() as stack:
        traffic = stack.enter_context(Traffic(cluster.bootstrap_servers, "mixed", PARTITIONS))
        members = [start(stack, cluster, client, "mixed") for client in kinds]
        wait_shared(members, PARTITIONS)
        for leaver in range(1, len(members)):
            members[leaver - 1].leave()
            wait_shared(members[leaver:], PARTITIONS)
        wait_all_read(members, traffic)
        assert [member.errors for member in members] == [[] for _ in members]


@pytest.mark.parametrize("client", COOPERATIVE)
def test_a_cooperative_group_moves_only_what_it_must(cluster: InProcessCluster, client: str) -> None:
    """KIP-429: a newcomer gets its share, and what stays is read on meanwhile."""
    skip_where_absent(client)
    topic = f"cooperative-{client}"
    cluster.create_topic(topic, partitions=PARTITIONS)
    with ExitStack() as stack:
        traffic = stack.enter_context(Traffic(cluster.bootstrap_servers, topic, PARTITIONS))
        first = start(stack, cluster, client, topic, strategy="cooperative-sticky")
        first.wait_owns(PARTITIONS)
        second = start(stack, cluster, client, topic, strategy="cooperative-sticky")
        wait_shared([first, second], PARTITIONS)
        assert len(first.gave) == PARTITIONS // 2
        second.leave()
        first.wait_owns(PARTITIONS)
        assert len(first.gave) == PARTITIONS // 2
        wait_all_read([first, second], traffic)
        assert first.errors == second.errors == []


@pytest.mark.parametrize("client", NEWEST)
def test_a_static_member_comes_back_without_a_rebalance(cluster: InProcessCluster, client: str) -> None:
    """KIP-345: killed and started again within its session, it goes on with what it had; the other notices nothing."""
    skip_where_absent(client)
    topic = f"static-{client}"
    cluster.create_topic(topic, partitions=PARTITIONS)
    with ExitStack() as stack:
        traffic = stack.enter_context(Traffic(cluster.bootstrap_servers, topic, PARTITIONS))
        first = start(stack, cluster, client, topic, instance="one", session_ms=SESSION_MS)
        second = start(stack, cluster, client, topic, instance="two", session_ms=SESSION_MS)
        wait_shared([first, second], PARTITIONS)
        owned, assigned = second.owned, first.assigned
        second.kill()
        again = start(stack, cluster, client, topic, instance="two", session_ms=SESSION_MS)
        again.wait_owns(PARTITIONS // 2)
        assert again.owned == owned
        assert first.assigned == assigned
        wait_all_read([first, second, again], traffic)
        assert first.errors == again.errors == []


@pytest.mark.parametrize("client", ["confluent-kafka", JAVA[0]])
def test_a_second_member_with_the_same_instance_id_fences_the_first(cluster: InProcessCluster, client: str) -> None:
    skip_where_absent(client)
    topic = f"fenced-{client}"
    cluster.create_topic(topic, partitions=PARTITIONS)
    with ExitStack() as stack:
        first = start(stack, cluster, client, topic, instance="one")
        first.wait_owns(PARTITIONS)
        second = start(stack, cluster, client, topic, instance="one")
        second.wait_owns(PARTITIONS)
        wait_until(lambda: first.errors, WAIT_S, f"{first} is told that it is fenced")
        assert "fenced" in first.errors[0].lower() or "FencedInstanceId" in first.errors[0]
        assert second.errors == []
