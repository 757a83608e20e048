"""Kafka's own tools find partitions in trouble, elect leaders, move partitions and compare replicas of ours."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from kit.cluster import InProcessCluster
from kit.demanded import java_left_out
from kit.kafka_java import KafkaTools, Told, replica_lags
from kit.machine import scaled, scaled_ms
from kit.waiting import wait_until
from raylog.client import Producer
from raylog.coordination.controller.events import NewTopic
from raylog.coordination.metadata.model import PartitionState
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import BrokerId, PartitionIndex, TopicName, TopicPartition

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.timeout(180),
    pytest.mark.skipif(java_left_out(), reason="java and mvn are not installed"),
]

WAIT_S = 30.0
TOPICS, ELECTION, OFFSETS = "TopicCommand", "LeaderElectionCommand", "GetOffsetShell"
REASSIGN = "reassign.ReassignPartitionsCommand"
CONFIG = {
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "30000",
    "replica.fetch.backoff.ms": "50",
    "auto.create.topics.enable": "false",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessCluster]:
    root = tmp_path_factory.mktemp("tools")
    with InProcessCluster(root, brokers=4, config=CONFIG, racks=("a", "b", "c", "a")) as running:
        yield running


@pytest.fixture(scope="module")
def tools(cluster: InProcessCluster) -> Iterator[KafkaTools]:
    with KafkaTools(lambda: cluster.bootstrap_servers) as running:
        yield running


def create_topic(
    cluster: InProcessCluster, name: str, *replicas: int, configs: Mapping[str, str] | None = None
) -> TopicPartition:
    """One partition on these brokers; all of them are in sync when this returns."""
    topic = NewTopic(TopicName(name), assignments={0: tuple(map(BrokerId, replicas))}, configs=dict(configs or {}))
    [made] = cluster.controller.topics.create_topics([topic], timeout_ms=scaled_ms(10_000), validate_only=False)
    assert not isinstance(made, RaylogError), made
    tp = TopicPartition(topic.name, PartitionIndex(0))
    wait_until(lambda: cluster.leader(*tp), WAIT_S, f"{tp} is led")
    return tp


def state(cluster: InProcessCluster, tp: TopicPartition) -> PartitionState:
    found = cluster.controller.partitions.state().partition(tp)
    assert found is not None
    return found


@contextmanager
def all_back(cluster: InProcessCluster) -> Iterator[None]:
    """At the end every broker runs, and every replica of every topic is in sync."""

    def in_sync() -> bool:
        states = [partition for _, partition in cluster.controller.partitions.state().partitions()]
        return all(set(each.isr) == set(each.replicas) and each.is_online for each in states)

    try:
        yield
    finally:
        for broker_id in set(range(4)) - set(cluster.brokers):
            cluster.start(broker_id)
        wait_until(in_sync, WAIT_S, "every replica is in sync")


def fill(cluster: InProcessCluster, topic: str, records: int, size: int) -> None:
    with Producer(cluster.bootstrap_servers, batch_size=2 * size) as producer:
        for sent in [producer.send(topic, b"x" * size) for _ in range(records)]:
            sent.result(scaled(WAIT_S))


def told_of(told: Told, tp: TopicPartition) -> str:
    """What a description says of the partition: its line, its names and values with a space between; "" without one."""
    assert told.code == 0, told.text
    lines = [line for line in told.lines if line.startswith(f"\tTopic: {tp.topic}\t")]
    return " ".join(lines[0].split()) if lines else ""


def test_kafka_topics_finds_partitions_in_trouble(cluster: InProcessCluster, tools: KafkaTools) -> None:
    watched = create_topic(cluster, "watched", 0, 1, 2)
    alone = create_topic(cluster, "alone", 3, configs={"min.insync.replicas": "1"})

    def found(*kinds: str) -> list[str]:
        return [told_of(tools.run(TOPICS, "--describe", f"--{kind}-partitions"), watched) for kind in kinds]

    whole = "Topic: watched Partition: 0 Leader: 0 Replicas: 0,1,2 Isr: {} Elr:{} LastKnownElr:"
    kinds = ("under-replicated", "at-min-isr", "under-min-isr", "unavailable")
    with all_back(cluster):
        assert found(*kinds) == ["", "", "", ""]
        cluster.stop(2)
        assert found(*kinds) == [whole.format("0,1", ""), whole.format("0,1", ""), "", ""]
        cluster.stop(1)
        short = whole.format("0", " 1")
        assert found(*kinds) == [short, "", short, ""], "who left while min.insync.replicas held may lead (KIP-966)"
        cluster.stop(3)
        dead = tools.run(TOPICS, "--describe", "--unavailable-partitions")
        assert "Leader: none" in told_of(dead, alone)
        assert told_of(dead, watched) == ""


def test_kafka_leader_election_lets_preferred_replicas_lead(
    cluster: InProcessCluster, tools: KafkaTools, tmp_path: Path
) -> None:
    preferred = ("--election-type", "preferred")
    tps = [create_topic(cluster, name, 1, 2, 0) for name in ("elected", "elected-from-a-file", "elected-with-all")]
    with all_back(cluster):
        cluster.stop(1)
        assert {state(cluster, tp).leader for tp in tps} == {2}
        refused = tools.run(ELECTION, *preferred, "--topic", "elected", "--partition", 0)
        assert refused.code == 1
        assert "PreferredLeaderNotAvailableException: the preferred replica of elected-0" in refused.text
    one = tools.run(ELECTION, *preferred, "--topic", "elected", "--partition", 0)
    assert one == Told(0, ["Successfully completed leader election (PREFERRED) for partitions elected-0"])
    chosen = tmp_path / "partitions.json"
    chosen.write_text(json.dumps({"partitions": [{"topic": "elected-from-a-file", "partition": 0}]}))
    some = tools.run(ELECTION, *preferred, "--path-to-json-file", chosen)
    assert some == Told(0, ["Successfully completed leader election (PREFERRED) for partitions elected-from-a-file-0"])
    rest = tools.run(ELECTION, *preferred, "--all-topic-partitions")
    assert rest.code == 0, rest.text
    assert "elected-with-all-0" in rest.text
    assert {state(cluster, tp).leader for tp in tps} == {1}
    assert tools.run(ELECTION, *preferred, "--all-topic-partitions") == Told(0, [])
    again = tools.run(ELECTION, *preferred, "--topic", "elected", "--partition", 0)
    assert again == Told(0, ["Valid replica already elected for partitions elected-0"])
    nowhere = tools.run(ELECTION, *preferred, "--topic", "elected", "--partition", 7)
    assert nowhere.code == 1
    assert "UnknownTopicOrPartitionException: there is no partition elected-7" in nowhere.text


def test_kafka_leader_election_gives_up_records_when_told_to(cluster: InProcessCluster, tools: KafkaTools) -> None:
    lossy = create_topic(cluster, "lossy", 1, 2, configs={"min.insync.replicas": "1"})
    unclean = ("--election-type", "unclean", "--topic", "lossy", "--partition", 0)
    with all_back(cluster):
        cluster.stop(1)
        fill(cluster, "lossy", 1, 10)
        cluster.stop(2)
        refused = tools.run(ELECTION, *unclean)
        assert refused.code == 1
        assert (
            "EligibleLeadersNotAvailableException: none of the brokers that have lossy-0 is alive: start one of 1, 2"
            in refused.text
        )
        cluster.start(1)
        assert state(cluster, lossy).leader == -1
        told = tools.run(ELECTION, *unclean)
        assert told == Told(0, ["Successfully completed leader election (UNCLEAN) for partitions lossy-0"])
        assert state(cluster, lossy).leader == 1
        assert tools.run(OFFSETS, "--topic", "lossy") == Told(0, ["lossy:0:0"])


class Mover:
    """kafka-reassign-partitions for one partition."""

    def __init__(self, tools: KafkaTools, tp: TopicPartition, directory: Path) -> None:
        self._tools = tools
        self._tp = tp
        self._plan = directory / "plan.json"
        self.topics = directory / "topics.json"
        self.topics.write_text(json.dumps({"version": 1, "topics": [{"topic": tp.topic}]}))

    def to(self, *replicas: int) -> None:
        """Where it shall move."""
        move = {"topic": self._tp.topic, "partition": self._tp.partition, "replicas": replicas}
        self._plan.write_text(json.dumps({"version": 1, "partitions": [move]}))

    def run(self, action: str, *options: object) -> Told:
        told = self._tools.run(REASSIGN, f"--{action}", "--reassignment-json-file", self._plan, *options)
        assert told.code == 0, told.text
        return told

    def under_way(self) -> list[str]:
        """As ``--list`` has it, of this partition."""
        told = self._tools.run(REASSIGN, "--list")
        assert told.code == 0, told.text
        return [line for line in told.lines if line.startswith(f"{self._tp}:")]


def throttles(cluster: InProcessCluster) -> set[str]:
    """The settings that slow replication, of any broker and topic."""
    now = cluster.controller.partitions.state()
    names = [name for topic in now.topics.values() for name in topic.configs]
    names += [name for configs in now.broker_configs.values() for name in configs]
    return {name for name in names if "replication.throttled" in name}


def test_kafka_reassign_partitions_moves_slowly_and_fast_and_goes_back(
    cluster: InProcessCluster, tools: KafkaTools, tmp_path: Path
) -> None:
    tp = create_topic(cluster, "moving", 0, 1, 2)
    fill(cluster, "moving", 40, 100_000)
    mover = Mover(tools, tp, tmp_path)
    proposed = tools.run(REASSIGN, "--generate", "--topics-to-move-json-file", mover.topics, "--broker-list", "1,2,3")
    assert proposed.code == 0, proposed.text
    replicas = json.loads(proposed.lines[-1])["partitions"][0]["replicas"]
    assert sorted(replicas) == [1, 2, 3], "racks b, c, a"

    mover.to(0, 1, 3)
    assert (
        "Successfully started partition reassignment for moving-0" in mover.run("execute", "--throttle", 100_000).text
    )
    assert mover.under_way() == ["moving-0: replicas: 0,1,3,2. adding: 3. removing: 2."]
    assert "moving-0 is still in progress" in mover.run("verify", "--preserve-throttles").text
    told = told_of(tools.run(TOPICS, "--describe", "--topic", "moving"), tp)
    assert "Adding Replicas: 3 Removing Replicas: 2" in told
    assert told_of(tools.run(TOPICS, "--describe", "--under-replicated-partitions"), tp) == "", "the new one is no loss"
    assert len(throttles(cluster)) == 4
    mover.run("execute", "--additional", "--throttle", 1_000_000_000)
    wait_until(lambda: not mover.under_way(), WAIT_S, "the partition has moved", interval_s=0.2)
    assert "moving-0 is completed" in mover.run("verify").text
    assert throttles(cluster) == set()
    assert state(cluster, tp).replicas == (0, 1, 3)

    mover.to(0, 1, 2)
    mover.run("execute", "--throttle", 100_000)
    assert "Successfully cancelled partition reassignment for: moving-0" in mover.run("cancel").text
    assert mover.under_way() == []
    assert throttles(cluster) == set()
    assert state(cluster, tp).replicas == (0, 1, 3)

    mover.to(0, 1, 9)
    with pytest.raises(AssertionError, match="Unknown broker id 9"):
        mover.run("execute")


def test_kafka_get_offsets_tells_ends_and_starts(cluster: InProcessCluster, tools: KafkaTools) -> None:
    create_topic(cluster, "counted", 0, 1)
    fill(cluster, "counted", 3, 10)
    assert tools.run(OFFSETS, "--topic", "counted") == Told(0, ["counted:0:3"])
    assert tools.run(OFFSETS, "--topic", "counted", "--time", "earliest") == Told(0, ["counted:0:0"])
    assert tools.run(OFFSETS, "--topic-partitions", "counted:0", "--time", "max-timestamp").code == 0


def test_kafka_replica_verification_reads_followers(cluster: InProcessCluster) -> None:
    """It compares what all replicas have; as long as one does not answer, it calls everything a lag."""
    create_topic(cluster, "compared", 0, 1, 2)
    fill(cluster, "compared", 5, 10)
    assert any(lag == 0 for lag, _ in zip(replica_lags(cluster.bootstrap_servers, "compared"), range(50), strict=False))
