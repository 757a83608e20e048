"""A rolling restart under load: each broker is stopped in an orderly way and started again, and clients go on."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kit.history_checker import Verdict
from kit.machine import scaled_ms
from kit.replicated import ReplicatedCluster
from kit.waiting import wait_until
from kit.workload import Workload

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

PARTITIONS = 3
QUIET_S = 2.0
LEAST_AVAILABILITY = 0.5
"""As a share of that of the quiet seconds before: a busy machine does not acknowledge in each tenth of a second."""
WAIT_S = 30.0


def test_clients_hardly_notice_a_rolling_restart(tmp_path: Path) -> None:
    """The next one is stopped when all replicas are in sync again, the controller last (docs/operations.md)."""
    with ReplicatedCluster(tmp_path / "cluster", session_ms=scaled_ms(6_000)) as cluster:
        cluster.create_topic("t", partitions=PARTITIONS)
        with Workload(cluster.bootstrap_servers, "t", partitions=PARTITIONS) as load:
            load.wait_acked_everywhere()
            before = [cluster.epoch(broker_id) for broker_id in range(cluster.size)]
            quiet = time.monotonic()
            wait_until(lambda: time.monotonic() > quiet + QUIET_S, WAIT_S, "what is usual was seen")
            begun = time.monotonic()
            controller = cluster.controller()
            for broker_id in sorted(range(cluster.size), key=lambda broker_id: broker_id == controller):
                cluster.stop(broker_id)
                cluster.start(broker_id)
                cluster.wait_serving(broker_id)
                cluster.wait_in_sync("t", PARTITIONS)
            ended = time.monotonic()
            assert all(cluster.intact_since(n) <= before[n] for n in range(cluster.size)), (
                "an orderly stop loses nothing"
            )
            load.wait_acked_everywhere(ended)
        judgement = load.judge(keep=tmp_path / "history.jsonl")
        usual, availability = load.availability(quiet, begun), load.availability(begun, ended)
    print(
        f"\nrolling restart of {cluster.size} brokers in {ended - begun:.1f} s: availability {availability:.1%} "
        f"(before it {usual:.1%}), longest gap {load.longest_gap():.2f} s; acked {judgement.acked}, lost "
        f"{judgement.lost}, errors {len(load.errors)}; {judgement}"
    )
    assert judgement.verdict is Verdict.VALID, judgement.findings
    assert load.errors == []
    assert load.resets == []
    assert availability >= LEAST_AVAILABILITY * usual
