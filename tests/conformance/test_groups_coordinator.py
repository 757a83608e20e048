"""Clients that others wrote, while their group's coordinator goes; Kafka's own tool; and groups of actors beside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import confluent_kafka
import pytest

from kit.demanded import java_left_out
from kit.foreign_groups import JAVA, PYTHON, ForeignMember, Traffic, wait_all_read, wait_shared
from kit.kafka_java import KafkaTools
from kit.replicated import ReplicatedCluster
from kit.waiting import wait_until
from raylog.broker.groups.classic.claims import decode_claim
from raylog.client import Consumer
from raylog.coordination.metadata import group_paths
from raylog.protocol.ids import GroupId

from .foreign import absent

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(200)]

PARTITIONS = 4
WAIT_S = 60.0
CONFIG = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "1000"}
GROUPS = "consumer.group.ConsumerGroupCommand"
needs_java = pytest.mark.skipif(java_left_out(), reason="java and mvn are not installed")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicatedCluster]:
    with ReplicatedCluster(tmp_path_factory.mktemp("coordinators"), config=CONFIG) as running:
        yield running


@pytest.fixture(scope="module")
def tools(cluster: ReplicatedCluster) -> Iterator[KafkaTools]:
    with KafkaTools(lambda: cluster.bootstrap_servers) as running:
        yield running


def coordinator(cluster: ReplicatedCluster, group: str) -> int:
    node = group_paths.claim(GroupId(group))
    found = cluster.store.get(node)
    assert found is not None
    return decode_claim(node, found.data).broker


def takes_part(actor: Consumer) -> bool:
    actor.poll(100)
    return len(actor.assignment()) == 2


def test_a_group_goes_on_when_its_coordinator_is_killed_or_stops(cluster: ReplicatedCluster) -> None:
    """One group of all kinds of clients. Nothing is lost, nobody meets an error, and commits go on."""
    kinds = [client for client in (*PYTHON, JAVA[0]) if not absent(client)]
    cluster.create_topic("moved", partitions=PARTITIONS)
    with ExitStack() as stack:
        traffic = stack.enter_context(Traffic(cluster.bootstrap_servers, "moved", PARTITIONS))
        servers = cluster.bootstrap_servers
        members = [stack.enter_context(ForeignMember(client, servers, "moved", "g-moved")) for client in kinds]
        wait_shared(members, PARTITIONS)
        for move in (cluster.kill, cluster.stop):
            gone = coordinator(cluster, "g-moved")
            move(gone)
            wait_until(lambda gone=gone: coordinator(cluster, "g-moved") != gone, WAIT_S, "another coordinates")
            marks = [(member, member.commits) for member in members]
            wait_until(
                lambda marks=marks: all(member.commits > mark for member, mark in marks),
                WAIT_S,
                "every member reads and commits on",
            )
            cluster.start(gone)
            cluster.wait_serving(gone)
        wait_shared(members, PARTITIONS)
        wait_all_read(members, traffic)
        assert [member.errors for member in members] == [[] for _ in members]


@needs_java
def test_kafkas_tool_lists_describes_resets_and_deletes_groups(cluster: ReplicatedCluster, tools: KafkaTools) -> None:
    cluster.create_topic("tooled", partitions=2)
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for partition in (0, 1):
        for number in range(5):
            producer.produce("tooled", b"%d" % number, partition=partition)
    assert producer.flush(WAIT_S) == 0
    with ForeignMember("confluent-kafka", cluster.bootstrap_servers, "tooled", "g-tooled") as member:
        wait_until(lambda: member.commits == 10, WAIT_S, "all is committed")
        assert "g-tooled" in tools.run(GROUPS, "--list").lines
        rows = [line.split()[:6] for line in tools.run(GROUPS, "--describe", "--group", "g-tooled").lines]
        assert ["g-tooled", "tooled", "0", "5", "5", "0"] in rows
        assert ["g-tooled", "tooled", "1", "5", "5", "0"] in rows
        members = tools.run(GROUPS, "--describe", "--group", "g-tooled", "--members", "--verbose").text
        assert "rdkafka" in members
        assert "tooled:0,1" in members
        state = tools.run(GROUPS, "--describe", "--group", "g-tooled", "--state").text
        assert "range" in state
        assert "Stable" in state
        earliest = ("--reset-offsets", "--group", "g-tooled", "--topic", "tooled", "--to-earliest")
        refused = tools.run(GROUPS, *earliest, "--execute").text.replace("\n", " ")
        assert "Assignments can only be reset if the group 'g-tooled' is inactive" in refused
        assert "The group is not empty" in tools.run(GROUPS, "--delete", "--group", "g-tooled").text
        member.leave()
    reset = [line.split() for line in tools.run(GROUPS, *earliest, "--execute").lines if line.startswith("g-tooled")]
    assert sorted(reset) == [["g-tooled", "tooled", "0", "0"], ["g-tooled", "tooled", "1", "0"]]
    assert "Empty" in tools.run(GROUPS, "--describe", "--group", "g-tooled", "--state").text
    assert tools.run(GROUPS, "--delete-offsets", "--group", "g-tooled", "--topic", "tooled:1").code == 0
    rows = [line.split()[:4] for line in tools.run(GROUPS, "--describe", "--group", "g-tooled").lines]
    assert ["g-tooled", "tooled", "0", "0"] in rows
    assert ["g-tooled", "tooled", "1", "0"] not in rows
    tools.run(GROUPS, "--delete", "--group", "g-tooled")
    assert "g-tooled" not in tools.run(GROUPS, "--list").lines


def test_a_client_of_kafka_is_refused_in_a_group_of_actors(cluster: ReplicatedCluster) -> None:
    """INCONSISTENT_GROUP_PROTOCOL while actors are in it; once they have left, the group is the client's."""
    cluster.create_topic("acted", partitions=2)
    with Consumer(cluster.bootstrap_servers, ["acted"], group_id="g-acted") as actor:
        wait_until(lambda: takes_part(actor), WAIT_S, "the actor takes part")
        with ForeignMember("confluent-kafka", cluster.bootstrap_servers, "acted", "g-acted") as refused:
            wait_until(lambda: refused.errors, WAIT_S, "it is refused")
            assert "nconsistent" in refused.errors[0]
    with ForeignMember("confluent-kafka", cluster.bootstrap_servers, "acted", "g-acted") as member:
        member.wait_owns(2)


@needs_java
def test_kafkas_tool_sees_a_group_of_actors(cluster: ReplicatedCluster, tools: KafkaTools) -> None:
    cluster.create_topic("seen", partitions=2)
    with Consumer(cluster.bootstrap_servers, ["seen"], group_id="g-seen") as actor:
        wait_until(lambda: takes_part(actor), WAIT_S, "the actor takes part")
        assert "g-seen" in tools.run(GROUPS, "--list").lines
        members = tools.run(GROUPS, "--describe", "--group", "g-seen", "--members").text
        assert actor.member_id in members
