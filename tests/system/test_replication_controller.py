"""The controller is killed in the middle of its writes: what it began is finished or was not done, and all agree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.history_checker import Verdict
from kit.machine import scaled, scaled_ms
from kit.replicated import ReplicatedCluster
from kit.waiting import wait_until
from kit.wire import WireClient, request
from kit.workload import Workload
from raylog.broker.handlers import TABLE
from raylog.client.admin import Admin
from raylog.coordination.metadata import paths
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

KEYS = {row.name: row.key for row in TABLE}
BROKERS = 4
MANY, MOVED = 260, 12
"""So many partitions take the controller two writes."""
WAIT_S = 60.0
CONFIG = {"replica.lag.time.max.ms": "3000"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicatedCluster]:
    with ReplicatedCluster(
        tmp_path_factory.mktemp("cluster"), brokers=BROKERS, config=CONFIG, session_ms=scaled_ms(6_000)
    ) as running:
        yield running


def begin_creation(cluster: ReplicatedCluster, name: str) -> None:
    """Ask the controller for a topic of many partitions, and do not wait for its answer."""
    topic = {"name": name, "num_partitions": MANY, "replication_factor": 3}
    with WireClient(cluster.address(cluster.controller()), timeout_s=scaled(WAIT_S)) as client:
        client.send(request(KEYS["CreateTopics"], 5, topics=[topic], timeout_ms=scaled_ms(30_000)))


def state_paths(name: str) -> list[str]:
    return [paths.partition_state(TopicPartition(TopicName(name), PartitionIndex(index))) for index in range(MANY)]


def written(cluster: ReplicatedCluster, name: str) -> int:
    """How many partitions of the topic ZooKeeper has."""
    return sum(state is not None for state in cluster.store.get_many(state_paths(name)))


def led_everywhere(cluster: ReplicatedCluster, name: str) -> int | None:
    """How many partitions the topic has, by each broker that runs and all led; None if they do not agree."""
    counts = {partitions_at(cluster, broker_id, name) for broker_id in cluster.running}
    return counts.pop() if len(counts) == 1 else None


def partitions_at(cluster: ReplicatedCluster, broker_id: int, name: str) -> int:
    """As that broker tells; 0: it does not know the topic, -1: not all of them are led."""
    with Admin("{}:{}".format(*cluster.address(broker_id))) as admin:
        found = next((topic for topic in admin.list_topics() if topic.name == name), None)
    if found is None:
        return 0
    return len(found.partitions) if all(partition.leader >= 0 for partition in found.partitions) else -1


@pytest.mark.parametrize("when", ["at-once", "after-the-first-write"])
def test_a_creation_is_finished_or_was_not_begun(cluster: ReplicatedCluster, when: str) -> None:
    """There are all partitions or none, led, at every broker."""
    name = f"many-{when}"
    cluster.create_topic(f"before-{when}")  # the controller of the moment is at work
    first = state_paths(name)[0]
    begin_creation(cluster, name)
    if when != "at-once":
        wait_until(lambda: cluster.store.exists(first), WAIT_S, "the first partitions are written", interval_s=0)
    victim = cluster.controller()
    cluster.kill(victim)
    seen = written(cluster, name)
    settled = {MANY} if seen else {0, MANY}
    wait_until(lambda: led_everywhere(cluster, name) in settled, WAIT_S, "all partitions are led, or there are none")
    cluster.start(victim)
    cluster.wait_serving(victim)
    finished = MANY if written(cluster, name) else 0  # by now what the killed one had sent has arrived
    wait_until(
        lambda: led_everywhere(cluster, name) == finished,
        WAIT_S,
        f"every broker, the killed one, too, knows {finished} partitions",
        instead=lambda: [partitions_at(cluster, broker_id, name) for broker_id in cluster.running],
    )
    print(f"\ncontroller killed with {seen} of {MANY} partitions written: {finished} of them are there in the end")
    if seen:
        assert finished == MANY, "what a broker could have seen is not taken back"
    with Admin(cluster.bootstrap_servers) as admin:
        if not finished:
            admin.create_topic(name, MANY)
        admin.delete_topics([name])
    wait_until(lambda: led_everywhere(cluster, name) == 0, WAIT_S, "it is gone everywhere")


def test_reassignments_go_on_under_the_next_controller(cluster: ReplicatedCluster, tmp_path: Path) -> None:
    """Of a dozen partitions under load: each ends on the replicas that were asked for, and nothing is lost."""
    cluster.create_topic("moved", partitions=MOVED)
    targets = {p: [(p + n) % BROKERS for n in range(3)] for p in range(MOVED)}
    with Workload(cluster.bootstrap_servers, "moved", partitions=MOVED) as load:
        load.wait_acked_everywhere()
        with Admin(cluster.bootstrap_servers) as admin:
            refused = admin.alter_partition_reassignments({("moved", p): to for p, to in targets.items()})
        assert set(refused.values()) == {None}
        under_way = len(moving(cluster))
        victim = cluster.controller()
        cluster.kill(victim)
        cluster.start(victim)
        cluster.wait_serving(victim)
        wait_until(lambda: not moving(cluster), WAIT_S, "all moves are complete")
        load.wait_acked_everywhere()
    states = [cluster.state("moved", p) for p in range(MOVED)]
    assert [list(state.replicas) for state in states] == list(targets.values())
    judgement = load.judge(keep=tmp_path / "history.jsonl")
    print(f"\ncontroller killed with {under_way} of {MOVED} moves under way: all complete; {judgement}")
    assert judgement.verdict is Verdict.VALID, judgement.findings
    assert load.errors == []


def moving(cluster: ReplicatedCluster) -> list[TopicPartition]:
    with Admin(cluster.bootstrap_servers) as admin:
        return list(admin.list_partition_reassignments())


def test_a_topic_is_deleted_in_the_middle_of_its_move(cluster: ReplicatedCluster) -> None:
    """The move waits for a broker that is down; the topic goes, the move with it, and that broker's replica, too."""
    cluster.create_topic("doomed")
    replicas = cluster.state("doomed", 0).replicas
    [spare] = set(range(BROKERS)) - set(replicas)
    down = next(n for n in replicas if n not in (cluster.controller(), cluster.leader("doomed", 0)))
    cluster.kill(down)
    with Admin(cluster.bootstrap_servers) as admin:
        refused = admin.alter_partition_reassignments({("doomed", 0): [down, spare]})
        assert set(refused.values()) == {None}
        wait_until(lambda: spare in cluster.state("doomed", 0).isr, WAIT_S, "the new replica has caught up")
        assert moving(cluster) == [TopicPartition(TopicName("doomed"), PartitionIndex(0))]
        admin.delete_topics(["doomed"])
    wait_until(lambda: led_everywhere(cluster, "doomed") == 0, WAIT_S, "it is gone at every broker that runs")
    assert moving(cluster) == []
    cluster.start(down)
    cluster.wait_serving(down)
    wait_until(
        lambda: not any(cluster.partition_dir(n, "doomed", 0).exists() for n in range(BROKERS)),
        WAIT_S,
        "no broker has it on its disk",
    )
