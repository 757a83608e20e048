"""kill -9 of replicated brokers under load: nothing acknowledged is lost, and clients hardly notice.

RAYLOG_KILLS=n makes each loop n kills long.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.history_checker import Verdict
from kit.machine import scaled_ms
from kit.replicated import ReplicatedCluster
from kit.workload import Workload

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

PARTITIONS = 3
KILLS = int(os.environ.get("RAYLOG_KILLS", "3"))
SESSION_MS = scaled_ms(2_000)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ReplicatedCluster]:
    with ReplicatedCluster(tmp_path, session_ms=SESSION_MS) as running:
        running.create_topic("t", partitions=PARTITIONS)
        yield running


def checked(what: str, load: Workload, tmp_path: Path) -> None:
    """The history is valid, no send was given up, and no reader was told to start anew."""
    judgement = load.judge(keep=tmp_path / "history.jsonl")
    print(
        f"\n{what}: acked {judgement.acked}, lost {judgement.lost}; longest gap {load.longest_gap():.2f} s; {judgement}"
    )
    assert judgement.verdict is Verdict.VALID, judgement.findings
    assert load.errors == []
    assert load.resets == []


def test_leaders_followers_and_controllers_killed_in_a_loop(cluster: ReplicatedCluster, tmp_path: Path) -> None:
    with Workload(cluster.bootstrap_servers, "t", partitions=PARTITIONS) as load:
        load.wait_acked_everywhere()
        for number in range(KILLS):
            leader = cluster.leader("t", 0)
            victim = [leader, (leader + 1) % cluster.size, cluster.controller()][number % 3]
            killed = cluster.kill(victim)
            load.wait_acked_everywhere(killed)
            cluster.start(victim)
            cluster.wait_serving(victim)
            cluster.wait_in_sync("t", PARTITIONS)
    checked(f"{KILLS} times kill -9 of leader, follower, controller", load, tmp_path)


def test_everything_is_killed(cluster: ReplicatedCluster, tmp_path: Path) -> None:
    with Workload(cluster.bootstrap_servers, "t", partitions=PARTITIONS) as load:
        load.wait_acked_everywhere()
        for process in filter(None, (cluster.zookeeper.owner, cluster.zookeeper.jvm)):
            os.kill(process.pid, signal.SIGKILL)
        for broker_id in cluster.running:
            cluster.kill(broker_id)
        begun = time.monotonic()
        cluster.zookeeper.start()
        for broker_id in range(cluster.size):
            cluster.start(broker_id)
        load.wait_acked_everywhere(begun)
        served = max(filter(None, (load.acked_since(partition, begun) for partition in range(PARTITIONS)))) - begun
        cluster.wait_in_sync("t", PARTITIONS)
    checked(f"kill -9 of ZooKeeper and all brokers: serves {served:.1f} s after the start", load, tmp_path)
