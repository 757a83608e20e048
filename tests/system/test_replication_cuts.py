"""Cut networks under replicas, each broker in a network namespace of its own: safe always, available where it can be.

What is cut is cut in one direction or in both; RAYLOG_CUT_S=n makes each cut n seconds long. Availability is the share
of tenths of a second, during the cut, in which something was acknowledged, for the partition whose leader is cut off.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit import namespaces
from kit.history_checker import Verdict
from kit.namespaces import Network
from kit.replicated import ReplicatedCluster
from kit.waiting import wait_until
from kit.workload import Workload

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not namespaces.available(), reason="network namespaces need root"),
]

SESSION_MS = 2_000
CUT_S = float(os.environ.get("RAYLOG_CUT_S", "5"))
WAIT_S = 40.0


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with Network() as running:
        yield running


@pytest.fixture(scope="module")
def cluster(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicatedCluster]:
    with ReplicatedCluster(tmp_path_factory.mktemp("cluster"), network=network, session_ms=SESSION_MS) as running:
        yield running


def leader_from_zookeeper(network: Network, leader: int, others: list[int]) -> None:
    network.cut(leader, network.services)


def leader_from_followers(network: Network, leader: int, others: list[int]) -> None:
    for other in others:
        network.cut(leader, network.address(other))
        network.cut(other, network.address(leader))


def leader_to_followers(network: Network, leader: int, others: list[int]) -> None:
    for other in others:
        network.cut(leader, network.address(other))


def followers_to_leader(network: Network, leader: int, others: list[int]) -> None:
    for other in others:
        network.cut(other, network.address(leader))


def one_follower_from_leader(network: Network, leader: int, others: list[int]) -> None:
    network.cut(others[0], network.address(leader))
    network.cut(leader, network.address(others[0]))


def leader_to_clients(network: Network, leader: int, others: list[int]) -> None:
    network.cut(leader, network.clients)


def leader_from_all(network: Network, leader: int, others: list[int]) -> None:
    leader_from_zookeeper(network, leader, others)
    leader_from_followers(network, leader, others)
    leader_to_clients(network, leader, others)


CUTS: dict[Callable[[Network, int, list[int]], None], float] = {
    leader_from_zookeeper: 0.2,  # while its lease runs; then it is up to the client whom it asks who leads
    leader_from_followers: 0.0,
    leader_to_followers: 0.0,
    followers_to_leader: 0.0,
    one_follower_from_leader: 0.4,
    leader_to_clients: 0.0,
    leader_from_all: 0.2,
}
"""What is cut, and the least availability meanwhile. None is promised where the leader keeps its session and has too
few followers (it refuses: below min ISR nothing is acknowledged by all), or where its clients do not hear it.
"""
ATTEMPTS = 3
"""A machine that is busy with other things gets as many cuts, one of which must hold it; nothing is lost by any."""


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.__name__)
def test_nothing_is_lost_by_a_cut(
    cut: Callable[[Network, int, list[int]], None], cluster: ReplicatedCluster, network: Network, tmp_path: Path
) -> None:
    topic = cut.__name__
    cluster.create_topic(topic)
    found: list[tuple[float, float]] = []
    with Workload(cluster.bootstrap_servers, topic, partitions=1) as load:
        while len(found) < ATTEMPTS and not any(availability >= CUTS[cut] for availability, _ in found):
            found.append(cut_once(cut, cluster, network, topic, load))
    availability, back = max(found)
    judgement = load.judge(keep=tmp_path / "history.jsonl")
    print(
        f"\n{topic}, {CUT_S:g} s: availability {availability:.0%}, acknowledges {back:.1f} s after (cut {len(found)}); "
        f"acked {judgement.acked}, lost {judgement.lost}; {judgement}"
    )
    assert judgement.verdict is Verdict.VALID, judgement.findings
    assert load.resets == []
    assert availability >= CUTS[cut], found


def cut_once(
    cut: Callable[[Network, int, list[int]], None],
    cluster: ReplicatedCluster,
    network: Network,
    topic: str,
    load: Workload,
) -> tuple[float, float]:
    """Availability during the cut, and the seconds from its end to the next acknowledged record."""
    load.wait_acked_everywhere(time.monotonic())
    leader = cluster.leader(topic, 0)
    controller = cluster.controller()  # the last to be cut off: it takes the proposal that a follower has left
    others = sorted(set(cluster.running) - {leader}, key=lambda broker_id: broker_id == controller)
    begun = time.monotonic()
    cut(network, leader, others)
    try:
        wait_until(lambda: time.monotonic() > begun + CUT_S, CUT_S + WAIT_S, "the cut has lasted")
    finally:
        network.heal()
    healed = time.monotonic()
    load.wait_acked_everywhere(healed, WAIT_S)
    acked = load.acked_since(0, healed)
    assert acked is not None
    cluster.wait_in_sync(topic, 1)
    return load.availability(begun, begun + CUT_S), acked - healed
