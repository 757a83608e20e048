"""Coordinators of many groups after a rolling restart, and once there is a new broker: each broker has its share."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from kit.group_wire import LOOK_FURTHER, WireMember
from kit.machine import scaled_ms
from kit.replicated import ReplicatedCluster
from kit.waiting import wait_until
from raylog.broker.groups.classic.claims import decode_claim
from raylog.coordination.groups.kinds import GroupKind, settle_kind
from raylog.coordination.metadata import group_paths
from raylog.protocol.ids import GroupId, PartitionIndex, TopicName, TopicPartition

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

CONFIG = {"group.initial.rebalance.delay.ms": "0"}
GROUPS = int(os.environ.get("RAYLOG_GROUPS", "120"))
"""Without members; RAYLOG_GROUPS for more."""
TP = TopicPartition(TopicName("t"), PartitionIndex(0))
MEMBERS = 6
WAIT_S = 300.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ReplicatedCluster]:
    with ReplicatedCluster(tmp_path, config=CONFIG, session_ms=scaled_ms(4_000)) as running:
        running.create_topic("t")
        yield running


class Spread:
    """Who has claimed how many groups, by the store; the members heartbeat whenever it looks."""

    def __init__(self, cluster: ReplicatedCluster, members: Sequence[WireMember], groups: Sequence[GroupId]) -> None:
        self._cluster = cluster
        self._members = members
        self._claims = [group_paths.claim(group) for group in groups]

    def now(self) -> Counter[int]:
        for member in self._members:
            member.heartbeat()
        found = self._cluster.store.get_many(self._claims)
        claims = (
            decode_claim(path, each.data if each else b"") for path, each in zip(self._claims, found, strict=True)
        )
        return Counter(int(claim.broker) for claim in claims)

    def wait(self, holds: Callable[[Counter[int]], bool], what: str) -> tuple[Counter[int], float]:
        """The counts once they are so, and after how many seconds."""
        began, seen = time.monotonic(), self.now()

        def is_so() -> bool:
            nonlocal seen
            seen = self.now()
            return holds(seen)

        wait_until(is_so, WAIT_S, what, interval_s=0.5, instead=lambda: seen)
        return seen, time.monotonic() - began


def test_groups_spread_after_rolling_restart_and_onto_new_broker(cluster: ReplicatedCluster) -> None:
    groups = [GroupId(f"idle-{number}") for number in range(GROUPS)]
    for group in groups:
        settle_kind(cluster.store, group, GroupKind.CLIENTS)
        cluster.store.create(group_paths.state(group))
        cluster.store.create(group_paths.offset(group, TP), b"5", parents=True)  # else it would be forgotten soon
    with ExitStack() as stack:

        def addresses() -> list[tuple[str, int]]:
            return [cluster.address(broker) for broker in cluster.running]

        members = [
            stack.enter_context(WireMember(f"m-{n}", addresses, session_ms=scaled_ms(60_000))) for n in range(MEMBERS)
        ]
        for member in members:
            member.join()
            member.codes.clear()
        generations = [member.generation for member in members]
        spread = Spread(cluster, members, [*groups, *(GroupId(member.group) for member in members)])
        before, _ = spread.wait(lambda seen: set(seen) == {0, 1, 2}, "all are claimed")
        for broker in (0, 1, 2):
            cluster.stop(broker)
            spread.wait(lambda seen, gone=broker: not seen[gone] and not seen[-1], "others take over")
            cluster.start(broker)
            cluster.wait_serving(broker)
        restarted = spread.now()
        after, back_s = spread.wait(lambda seen: seen == before, "each has its share again")
        cluster.start(3)
        cluster.wait_serving(3)
        fair = sum(before.values()) / 4
        wider, new_s = spread.wait(lambda seen: not seen[-1] and seen[3] > fair * 0.7, "the new broker has its share")
        for member in members:
            wait_until(lambda m=member: m.heartbeat() is ErrorCode.none, WAIT_S, "it is heard")
        assert [member.generation for member in members] == generations
        assert {code for member in members for code in member.codes} <= LOOK_FURTHER
    print(
        f"\n{sum(before.values())} groups on three brokers: {sorted(before.items())}, after a rolling restart "
        f"{sorted(restarted.items())}, {back_s:.0f} s later {sorted(after.items())}; {new_s:.0f} s after a fourth came "
        f"{sorted(wider.items())}"
    )
