"""How long clients wait when a leader is killed: until the next acknowledged record, by the session or by the hint.

A round has fewer kills for a change than at night; RAYLOG_KILLS=n makes each round n kills long. A machine that is busy
with other things gets ROUNDS rounds, one of which must hold the bound; nothing may be lost in any.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import pytest

from kit.forms import NIGHTLY
from kit.history_checker import Verdict
from kit.machine import scaled, scaled_ms
from kit.replicated import ReplicatedCluster
from kit.waiting import wait_until
from kit.workload import Workload

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

PARTITIONS = 3
HINTED_KILLS = int(os.environ.get("RAYLOG_KILLS", "5" if NIGHTLY else "3"))
SESSION_KILLS = int(os.environ.get("RAYLOG_KILLS", "2" if NIGHTLY else "1"))
ROUNDS = 3
HINTED_P50_S = scaled(0.5)
SESSION_MS = scaled_ms(2_000)
SESSION_MAX_S = SESSION_MS / 1000 + scaled(1.0)
WAIT_S = 60.0
REBALANCE = {"leader.imbalance.check.interval.seconds": "1", "leader.imbalance.per.broker.percentage": "0"}
"""Leaders return to the preferred replicas soon, so that each broker has something to lose again."""
VICTIMS = pytest.mark.parametrize("of_controller", [False, True], ids=["leader", "leader-and-controller"])


@pytest.fixture(scope="module")
def without_hints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicatedCluster]:
    config = {**REBALANCE, "raylog.liveness.hints": "false"}
    with ReplicatedCluster(tmp_path_factory.mktemp("session"), session_ms=SESSION_MS, config=config) as running:
        yield running


@pytest.fixture(scope="module")
def with_hints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicatedCluster]:
    with ReplicatedCluster(tmp_path_factory.mktemp("hint"), session_ms=scaled_ms(6_000), config=REBALANCE) as running:
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


def failovers(
    cluster: ReplicatedCluster, topic: str, load: Workload, *, of_controller: bool, kills: int
) -> list[float]:
    """Seconds from each kill to the next acknowledged record of the partition that the victim led."""
    seconds = []
    for _ in range(kills):
        wait_until(lambda: preferred_lead(cluster, topic), WAIT_S, "leaders are back at the preferred replicas")
        controller = cluster.controller()
        partition = next(p for p in range(PARTITIONS) if (cluster.leader(topic, p) == controller) is of_controller)
        load.wait_acked_everywhere(time.monotonic())
        victim = cluster.leader(topic, partition)
        killed = cluster.kill(victim)
        load.wait_acked_everywhere(killed)
        acked = load.acked_since(partition, killed)
        assert acked is not None
        seconds.append(acked - killed)
        cluster.start(victim)
        cluster.wait_serving(victim)
        cluster.wait_in_sync(topic, PARTITIONS)
    return seconds


def preferred_lead(cluster: ReplicatedCluster, topic: str) -> bool:
    states = [cluster.state(topic, partition) for partition in range(PARTITIONS)]
    return all(state.leader == state.replicas[0] for state in states)


def check_failover(
    cluster: ReplicatedCluster,
    tmp_path: Path,
    how: str,
    *,
    of_controller: bool,
    kills: int,
    bound_s: float,
    figure: Callable[[list[float]], float],
) -> None:
    """Kill in rounds, until one holds the bound."""
    who = "a leader that is the controller" if of_controller else "a leader"
    topic = "t-controller" if of_controller else "t"
    cluster.create_topic(topic, partitions=PARTITIONS)
    rounds: list[list[float]] = []
    with Workload(cluster.bootstrap_servers, topic, partitions=PARTITIONS) as load:
        while len(rounds) < ROUNDS and not any(figure(seconds) <= bound_s for seconds in rounds):
            rounds.append(failovers(cluster, topic, load, of_controller=of_controller, kills=kills))
    best = min(rounds, key=figure)
    checked(
        f"kill -9 of {who}, next acked record {how}: p50 {median(best):.2f} s, max {max(best):.2f} s of {kills}, "
        f"round {len(rounds)}",
        load,
        tmp_path,
    )
    assert figure(best) <= bound_s, rounds


@VICTIMS
def test_failover_by_the_session(without_hints: ReplicatedCluster, tmp_path: Path, of_controller: bool) -> None:
    """Each within the session and a second."""
    how = f"by the session of {SESSION_MS / 1000:g} s"
    check_failover(
        without_hints,
        tmp_path,
        how,
        of_controller=of_controller,
        kills=SESSION_KILLS,
        bound_s=SESSION_MAX_S,
        figure=max,
    )


@VICTIMS
def test_failover_by_the_connection_hint(with_hints: ReplicatedCluster, tmp_path: Path, of_controller: bool) -> None:
    check_failover(
        with_hints,
        tmp_path,
        "by hint",
        of_controller=of_controller,
        kills=HINTED_KILLS,
        bound_s=HINTED_P50_S,
        figure=median,
    )
