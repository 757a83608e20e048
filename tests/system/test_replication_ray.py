"""Replicated broker actors on Ray nodes of their own, killed under load: by process, and with their node."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from kit.cli import RunningCluster
from kit.history_checker import Verdict
from kit.waiting import wait_until
from kit.workload import Workload
from raylog.broker.local_ray import PLACE_LABEL
from raylog.client.admin import Admin

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

BROKERS, PARTITIONS = 3, 3
WAIT_S = 60.0
CONFIG = ("default.replication.factor=3", "min.insync.replicas=2", "replica.lag.time.max.ms=1500")


def _node(place: int) -> dict[str, Any]:
    return {"num_cpus": 1, "labels": {PLACE_LABEL: f"place-{place}"}}


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A Ray cluster of three nodes, all on this machine."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    cluster = Cluster(initialize_head=True, head_node_args=_node(0))
    try:
        for place in range(1, BROKERS):
            cluster.add_node(**_node(place))
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def cluster(nodes: Cluster, tmp_path: Path) -> Iterator[RunningCluster]:
    running = RunningCluster(tmp_path / "home", tmp_path / "data")
    settings = [argument for setting in CONFIG for argument in ("--config", setting)]
    try:
        running.raylog("up", "--brokers", str(BROKERS), "--address", nodes.address, *settings)
        yield running
    finally:
        running.raylog("down", check=False)


def in_sync(admin: Admin) -> bool:
    return all(len(partition.isr) == BROKERS for partition in admin.describe_topic("t").partitions)


def serving(cluster: RunningCluster) -> bool:
    return all(broker["state"] == "serving" for broker in cluster.status()["brokers"])


def test_killed_actors_on_separate_nodes_lose_nothing(cluster: RunningCluster, tmp_path: Path) -> None:
    status = cluster.status()
    brokers = {broker["id"]: broker for broker in status["brokers"]}
    assert len({broker["node"] for broker in brokers.values()}) == BROKERS
    servers = status["bootstrap_servers"]
    with Admin(servers) as admin:
        admin.create_topic("t", PARTITIONS)
        seconds = []
        with Workload(servers, "t", partitions=PARTITIONS) as load:
            load.wait_acked_everywhere()
            for victim in range(BROKERS):  # one of them is the controller, and each leads a partition or follows
                wait_until(lambda: in_sync(admin), WAIT_S, "all replicas are in sync")
                pid = next(b["pid"] for b in cluster.status()["brokers"] if b["id"] == victim)
                os.kill(pid, signal.SIGKILL)
                killed = time.monotonic()
                load.wait_acked_everywhere(killed, WAIT_S)
                seconds += [acked - killed for p in range(PARTITIONS) if (acked := load.acked_since(p, killed))]
                wait_until(lambda: serving(cluster), WAIT_S, "the killed broker serves again")
            wait_until(lambda: in_sync(admin), WAIT_S, "all replicas are in sync")
    judgement = load.judge(keep=tmp_path / "history.jsonl")
    print(
        f"\nkill -9 of each of {BROKERS} broker actors on Ray nodes of their own: acked {judgement.acked}, "
        f"lost {judgement.lost}; up to {max(seconds):.2f} s to the next acknowledged record; {judgement}"
    )
    assert judgement.verdict is Verdict.VALID, judgement.findings
    assert load.errors == []
    assert load.resets == []
