"""How long clients wait when a leader is killed: until the next acknowledged record, by the session or by the hint.

RAYLOG_KILLS=n makes each loop n kills long.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from statistics import median

import pytest

from kit.history_checker import Verdict
from kit.replicated import ReplicatedCluster
from kit.waiting import wait_until
from kit.workload import Workload

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

PARTITIONS = 3
FAILOVERS = int(os.environ.get("RAYLOG_KILLS", "5"))
SESSION_FAILOVERS = 3
HINTED_P50_S = 0.5
SESSION_MS = 2_000
WAIT_S = 30.0
REBALANCE = {"leader.imbalance.check.interval.seconds": "1", "leader.imbalance.per.broker.percentage": "0"}
"""Leaders return to the preferred replicas soon, so that each broker has something to lose again."""


def checked(what: str, load: Workload, tmp_path: Path) -> None:
    """The history is valid, no send was given up, and no reader was told to start anew."""
    judgement = load.judge(keep=tmp_path / "history.jsonl")
    print(
        f"\n{what}: acked {judgement.acked}, lost {judgement.lost}; longest gap {load.longest_gap():.2f} s; {judgement}"
    )
    assert judgement.verdict is Verdict.VALID, judgement.findings
    assert load.errors == []
    assert load.resets == []


def failovers(cluster: ReplicatedCluster, load: Workload, *, of_controller: bool, kills: int) -> list[float]:
    """Seconds from each kill to the next acknowledged record of the partition that the victim led."""
    seconds = []
    for _ in range(kills):
        wait_until(lambda: preferred_lead(cluster), WAIT_S, "leaders are back at the preferred replicas")
        controller = cluster.controller()
        partition = next(p for p in range(PARTITIONS) if (cluster.leader("t", p) == controller) is of_controller)
        load.wait_acked_everywhere(time.monotonic())
        victim = cluster.leader("t", partition)
        killed = cluster.kill(victim)
        load.wait_acked_everywhere(killed)
        acked = load.acked_since(partition, killed)
        assert acked is not None
        seconds.append(acked - killed)
        cluster.start(victim)
        cluster.wait_serving(victim)
        cluster.wait_in_sync("t", PARTITIONS)
    return seconds


def preferred_lead(cluster: ReplicatedCluster) -> bool:
    states = [cluster.state("t", partition) for partition in range(PARTITIONS)]
    return all(state.leader == state.replicas[0] for state in states)


@pytest.mark.parametrize("of_controller", [False, True], ids=["leader", "leader-and-controller"])
def test_failover_by_the_session(tmp_path: Path, of_controller: bool) -> None:
    config = {**REBALANCE, "raylog.liveness.hints": "false"}
    with ReplicatedCluster(tmp_path, session_ms=SESSION_MS, config=config) as cluster:
        cluster.create_topic("t", partitions=PARTITIONS)
        with Workload(cluster.bootstrap_servers, "t", partitions=PARTITIONS) as load:
            seconds = failovers(cluster, load, of_controller=of_controller, kills=SESSION_FAILOVERS)
        who = "a leader that is the controller" if of_controller else "a leader"
        checked(
            f"kill -9 of {who}, next acked record by the session of {SESSION_MS / 1000:g} s: "
            f"p50 {median(seconds):.2f} s, max {max(seconds):.2f} s",
            load,
            tmp_path,
        )
        assert median(seconds) <= SESSION_MS / 1000 + 1, seconds


@pytest.mark.parametrize("of_controller", [False, True], ids=["leader", "leader-and-controller"])
def test_failover_by_the_connection_hint(tmp_path: Path, of_controller: bool) -> None:
    with ReplicatedCluster(tmp_path, session_ms=6_000, config=REBALANCE) as cluster:
        cluster.create_topic("t", partitions=PARTITIONS)
        with Workload(cluster.bootstrap_servers, "t", partitions=PARTITIONS) as load:
            seconds = failovers(cluster, load, of_controller=of_controller, kills=FAILOVERS)
        who = "a leader that is the controller" if of_controller else "a leader"
        checked(
            f"kill -9 of {who}, next acked record by hint: p50 {median(seconds):.2f} s, max {max(seconds):.2f} s "
            f"of {len(seconds)}",
            load,
            tmp_path,
        )
        assert median(seconds) <= HINTED_P50_S, seconds
