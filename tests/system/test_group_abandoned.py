"""Groups that nobody asks about: their coordinator and their members are gone at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.group_wire import WireMember
from kit.machine import scaled_ms
from kit.replicated import ReplicatedCluster
from kit.waiting import wait_until
from raylog.broker.groups.holding.held import read_group
from raylog.protocol.ids import GroupId

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

GROUP = GroupId("abandoned")
CONFIG = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "1"}
SESSION_MS = scaled_ms(2_000)
"""Of brokers with ZooKeeper."""
MEMBER_SESSION_MS = scaled_ms(3_000)
WAIT_S = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ReplicatedCluster]:
    with ReplicatedCluster(tmp_path, config=CONFIG, session_ms=SESSION_MS) as running:
        running.create_topic("t")
        yield running


def join(cluster: ReplicatedCluster) -> int:
    """A member that joins and is never heard of again; its coordinator."""

    def addresses() -> list[tuple[str, int]]:
        return [cluster.address(broker) for broker in cluster.running]

    with WireMember(GROUP, addresses, session_ms=MEMBER_SESSION_MS) as member:
        member.join()
        assert member.coordinator is not None
        return member.coordinator


def wait_empty(cluster: ReplicatedCluster) -> float:
    """Wait until it is stored that the group has no members, without asking any broker; how long that took, in s."""
    began = time.monotonic()
    assert read_group(cluster.store, GROUP).members
    wait_until(lambda: not read_group(cluster.store, GROUP).members, WAIT_S, "the member is given up")
    return time.monotonic() - began


def test_group_whose_coordinator_is_killed_becomes_empty(cluster: ReplicatedCluster) -> None:
    cluster.kill(join(cluster))
    print(f"\nan abandoned group is Empty after {wait_empty(cluster):.1f} s, sessions of {MEMBER_SESSION_MS} ms")


def test_group_becomes_empty_after_restart_of_all_brokers(cluster: ReplicatedCluster) -> None:
    join(cluster)
    brokers = list(cluster.running)
    for broker in brokers:
        cluster.kill(broker)
    for broker in brokers:
        cluster.start(broker)
    took_s = wait_empty(cluster)
    print(f"\nan abandoned group is Empty {took_s:.1f} s after all brokers were started again")
