"""Replicated broker actors on Ray nodes of their own, under load: killed by process, and with their node."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from kit.cli import RunningCluster
from kit.forms import some
from kit.history_checker import Verdict
from kit.machine import scaled, scaled_ms
from kit.waiting import wait_until
from kit.workload import Workload
from raylog.broker.launch.local_ray import PLACE_LABEL
from raylog.client.admin import Admin

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

BROKERS, PARTITIONS = 3, 3
WAIT_S = 60.0
CONFIG = ("default.replication.factor=3", "min.insync.replicas=2", "replica.lag.time.max.ms=1500")
NOTICED_SOON = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": scaled_ms(1_000),
    "health_check_failure_threshold": 4,
}


def _node(place: int) -> dict[str, Any]:
    return {"num_cpus": 1, "labels": {PLACE_LABEL: f"place-{place}"}}


class Nodes:
    """A Ray cluster of three nodes, all on this machine; the first has Ray's GCS."""

    def __init__(self) -> None:
        self.ray = Cluster(initialize_head=True, head_node_args=_node(0) | {"_system_config": NOTICED_SOON})
        self._raylets: dict[int, subprocess.Popen[bytes]] = {}
        for place in range(1, BROKERS):
            self.add(place)

    def add(self, place: int) -> None:
        """A node, where there is none or only a dead one."""
        node = self.ray.add_node(**_node(place))
        self._raylets[place] = node.all_processes["raylet"][0].process

    def kill(self, place: int) -> None:
        """SIGKILL to the raylet, and wait for its end: its workers go by its entry in the process table."""
        self._raylets[place].kill()
        self._raylets[place].wait(scaled(WAIT_S))


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_AUTH_MODE", "disabled")
        running = Nodes()
        try:
            yield running
        finally:
            ray.shutdown()
            running.ray.shutdown()


@pytest.fixture(scope="module")
def cluster(nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    root = tmp_path_factory.mktemp("up")
    running = RunningCluster(root / "home", root / "data")
    settings = [argument for setting in CONFIG for argument in ("--config", setting)]
    try:
        running.raylog("up", "--brokers", str(BROKERS), "--address", nodes.ray.address, *settings)
        yield running
    finally:
        running.raylog("down", check=False)


@pytest.fixture
def admin(cluster: RunningCluster) -> Iterator[Admin]:
    with Admin(cluster.file()["bootstrap_servers"]) as client:
        yield client


def load_on(cluster: RunningCluster, admin: Admin, topic: str) -> Workload:
    """A load on a new topic, whose replicas are all in sync."""
    admin.create_topic(topic, PARTITIONS)
    wait_in_sync(admin, topic)
    return Workload(cluster.file()["bootstrap_servers"], topic, partitions=PARTITIONS)


def wait_in_sync(admin: Admin, topic: str) -> None:
    def in_sync() -> bool:
        return all(len(partition.isr) == BROKERS for partition in admin.describe_topic(topic).partitions)

    wait_until(in_sync, WAIT_S, "all replicas are in sync")


def brokers(cluster: RunningCluster) -> dict[int, dict[str, Any]]:
    """By place."""
    return {int(broker["place"].rpartition("-")[2]): broker for broker in cluster.status()["brokers"]}


def wait_serving(cluster: RunningCluster) -> None:
    """To look takes a process that asks Ray: let a cheaper wait come first."""

    def serving() -> bool:
        return all(broker["state"] == "serving" for broker in cluster.status()["brokers"])

    wait_until(serving, WAIT_S, "all brokers serve")


def seconds_to_ack(load: Workload, since: float) -> float:
    load.wait_acked_everywhere(since, WAIT_S)
    return max(filter(None, (load.acked_since(partition, since) for partition in range(PARTITIONS)))) - since


def checked(what: str, load: Workload, seconds: list[float], tmp_path: Path) -> None:
    judgement = load.judge(keep=tmp_path / "history.jsonl")
    print(
        f"\n{what}: acked {judgement.acked}, lost {judgement.lost}; up to {max(seconds):.2f} s to the next "
        f"acknowledged record; {judgement}"
    )
    assert judgement.verdict is Verdict.VALID, judgement.findings
    assert load.errors == []
    assert load.resets == []


def test_killed_actors_lose_nothing(cluster: RunningCluster, admin: Admin, tmp_path: Path) -> None:
    """Each leads a partition and follows. At night all are killed, the controller among them."""
    found = brokers(cluster)
    assert len({broker["node"] for broker in found.values()}) == BROKERS
    seconds = []
    with load_on(cluster, admin, "actors") as load:
        load.wait_acked_everywhere()
        for place in some(range(BROKERS), 2):
            killed = time.monotonic()
            os.kill(brokers(cluster)[place]["pid"], signal.SIGKILL)
            seconds.append(seconds_to_ack(load, killed))
            wait_in_sync(admin, "actors")
            wait_serving(cluster)
    checked(f"kill -9 of {len(seconds)} of {BROKERS} broker actors on Ray nodes of their own", load, seconds, tmp_path)


def test_killed_raylets_lose_nothing(cluster: RunningCluster, nodes: Nodes, admin: Admin, tmp_path: Path) -> None:
    """The broker goes with its node, and comes back, with its records, with one that replaces it at the same place."""
    seconds = []
    with load_on(cluster, admin, "raylets") as load:
        load.wait_acked_everywhere()
        for place in some(range(1, BROKERS), 2):
            killed = time.monotonic()
            nodes.kill(place)
            seconds.append(seconds_to_ack(load, killed))
            nodes.add(place)
            wait_in_sync(admin, "raylets")
            wait_serving(cluster)
    checked(f"kill -9 of {len(seconds)} raylets, one after the other", load, seconds, tmp_path)
