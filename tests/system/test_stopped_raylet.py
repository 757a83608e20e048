"""A raylet that hangs: Ray replaces its node's broker elsewhere while the old process still runs, and one writes."""

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
from kit.machine import scaled, scaled_ms
from kit.waiting import wait_until
from kit.wire import WireClient
from raylog.broker.launch.local_ray import PLACE_LABEL
from raylog.client.admin import Admin
from raylog.coordination.host.processes import ProcessRef
from raylog.protocol.records import Record, encode_batch

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

WAIT_S = 60.0
NOTICED_SOON = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": scaled_ms(1_000),
    "health_check_failure_threshold": 4,
}
"""Soon, but later than a raylet that a busy machine holds up for two seconds."""
BATCH = encode_batch([Record(b"value", timestamp=1_000)])


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A Ray cluster of a head and whatever is added, all on this machine."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    cluster = Cluster(initialize_head=True, head_node_args=_node("head") | {"_system_config": NOTICED_SOON})
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def _node(place: str) -> dict[str, Any]:
    return {"num_cpus": 1, "labels": {PLACE_LABEL: place}}


@pytest.fixture
def cluster(nodes: Cluster, tmp_path: Path) -> Iterator[RunningCluster]:
    running = RunningCluster(tmp_path / "home", tmp_path / "data")
    try:
        yield running
    finally:
        running.raylog("down", check=False)


def produced(address: tuple[str, int]) -> int | None:
    """The offset of one more record; None if it is refused or not answered soon: it may be in the log all the same."""
    try:
        with WireClient(address, timeout_s=scaled(5)) as client:
            [topic] = client.produce("t", BATCH).topics
    except (OSError, EOFError):
        return None
    [partition] = topic.partitions
    return partition.base_offset if partition.error_code == 0 else None


def produced_beyond(address: tuple[str, int], offset: int, what: str) -> int:
    """The offset of a record that is acknowledged, once one is: it lies beyond that of one acknowledged before."""
    answers: list[int | None] = []
    wait_until(lambda: answers.append(produced(address)) or answers[-1] is not None, WAIT_S, what)
    assert answers[-1] is not None
    assert answers[-1] > offset, f"{what}: {answers}"
    return answers[-1]


def test_the_broker_of_a_hung_raylet_is_replaced_once_it_is_gone(nodes: Cluster, cluster: RunningCluster) -> None:
    hung = nodes.add_node(**_node("a"))
    cluster.raylog("up", "--address", nodes.address, "--brokers", "1")
    [broker] = cluster.status()["brokers"]
    assert broker["place"] == "a"
    first = ProcessRef.of(broker["pid"])
    assert first is not None
    address = (broker["host"], broker["port"])
    with Admin(f"{address[0]}:{address[1]}") as admin:
        admin.create_topic("t", 1)
    acked = produced_beyond(address, -1, "the first serves")

    raylet = hung.all_processes["raylet"][0].process
    os.kill(raylet.pid, signal.SIGSTOP)
    try:
        nodes.add_node(**_node("a"))

        def waits() -> str:
            told = cluster.here("status", "--output", "json", check=False).stdout
            return told if '"starting"' in told and "in use by another broker" in told else ""

        wait_until(waits, WAIT_S, "Ray has started the broker anew, and it waits", interval_s=0.5)
        acked = produced_beyond(address, acked, "the first still serves")
        assert first.is_alive
    finally:
        os.kill(raylet.pid, signal.SIGCONT)
    raylet.wait(scaled(WAIT_S))  # its workers go by whether it has a process table entry
    wait_until(lambda: not first.is_alive, WAIT_S, "the first is gone with its raylet")
    gone = time.monotonic()
    produced_beyond(address, acked, "the second serves, on from what the first acknowledged")
    print(
        f"\na hung raylet: overlap 0 s; the second broker serves {time.monotonic() - gone:.1f} s after the first's end"
    )
    assert cluster.status()["brokers"][0]["pid"] != broker["pid"]
