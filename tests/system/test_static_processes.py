"""Static members (KIP-345) of a group of actors in processes of their own, under load: killed, away, and replaced."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from kit.broker_process import BrokerProcess
from kit.group_history import Anomaly
from kit.group_load import Load, finished, told_since
from kit.group_processes import Members
from kit.machine import scaled, scaled_ms
from kit.waiting import wait_until
from kit.zookeeper import running_zookeeper

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

INSTANCES = ("a", "b", "c", "d")
PARTITIONS = 12
SESSION_MS = scaled_ms(6_000)
WAIT_S = 60.0
MOST_QUIET_S = scaled(2.0)
"""Of a member that nothing happens to: records come all the time, and the machine has other work, too."""
CHANGES = ("assigned", "revoked", "lost")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("service")
    with (
        running_zookeeper(root / "zookeeper") as zookeeper,
        BrokerProcess(root / "broker", zookeeper.address, session_ms=scaled_ms(10_000)) as broker,
    ):
        yield "{}:{}".format(*wait_until(lambda: broker.address, WAIT_S, "the broker serves"))


class Group:
    """Members, and which instance each has."""

    def __init__(self, members: Members) -> None:
        self.members = members
        self.names: dict[str, str] = {}
        for instance in INSTANCES:
            self.start(instance)
        members.wait_stable(PARTITIONS)

    def start(self, instance: str) -> str:
        [self.names[instance]] = self.members.start(instance=instance)
        return self.names[instance]

    def owned(self, name: str) -> set[int]:
        return {partition for partition, owner in self.members.owners().items() if owner == name}

    def heard_by_others(self, instance: str, since: float) -> list[str]:
        """What members of other instances were told of their partitions."""
        others = {name for other, name in self.names.items() if other != instance}
        return [
            event.what
            for event in self.members.events()
            if event.t > since and event.what in CHANGES and event.member in others
        ]

    def longest_pause(self, instance: str, begin: float, end: float) -> float:
        """Between two polls, of each other member, that handed something out."""
        pauses = [0.0]
        for other, name in self.names.items():
            polls = [event.t for event in self.members.events() if event.member == name and event.what == "poll"]
            near = [begin, *(t for t in polls if begin < t < end), end]
            pauses += [] if other == instance else [late - early for early, late in pairwise(near)]
        return max(pauses)


def test_killed_member_is_back_with_its_partitions_and_no_other_notices(servers: str, tmp_path: Path) -> None:
    topic = group_id = "restarts"
    seconds, pauses = [], []
    with (
        Load(servers, topic, PARTITIONS) as load,
        Members(tmp_path, servers, topic, group_id, session_ms=SESSION_MS) as members,
    ):
        group = Group(members)
        for instance in (*INSTANCES, *INSTANCES):
            had = group.owned(group.names[instance])
            killed = members.kill(group.names[instance])
            name = group.start(instance)
            wait_until(lambda: group.owned(name) == had, WAIT_S, f"{name} has {had}")  # noqa: B023
            back = max(told_since(members, killed, "assigned").values())
            seconds.append(back - killed)
            pauses.append(group.longest_pause(instance, killed, back))
            assert group.heard_by_others(instance, killed) == []
        judgement = finished(members, load, group_id)
    print(
        f"\n{len(seconds)} static members killed and started again: back after {statistics.median(seconds):.2f} s "
        f"(p50), at most {max(seconds):.2f} s; longest pause of the others {max(pauses):.2f} s; moved of theirs: 0; "
        f"handed out {judgement.handed_out}, again {judgement.repeated}"
    )
    assert judgement.findings == []
    assert max(pauses) < MOST_QUIET_S


def test_partitions_of_member_that_stays_away_move_after_its_session(servers: str, tmp_path: Path) -> None:
    topic = group_id = "away"
    with (
        Load(servers, topic, PARTITIONS) as load,
        Members(tmp_path, servers, topic, group_id, session_ms=SESSION_MS) as members,
    ):
        group = Group(members)
        for goes in (members.kill, members.leave):
            name = members.living[0]
            left = max(event.t for event in members.events())
            goes(name)
            members.wait_stable(PARTITIONS)
            moved = [t - left for t in told_since(members, left, "assigned").values()]
            print(f"\n{goes.__name__}: its partitions moved after {min(moved):.2f} to {max(moved):.2f} s")
            assert min(moved) > 0.8 * SESSION_MS / 1_000
        assert sorted(group.names.values())[-2:] == sorted(members.living)
        judgement = finished(members, load, group_id)
    assert judgement.findings == []


@pytest.mark.parametrize("commits_first", [True, False])
def test_stopped_member_that_was_replaced_is_fenced(servers: str, tmp_path: Path, commits_first: bool) -> None:
    """It has records in hand when it goes on. Where it polls before it commits, it may be handed some that were fetched
    already: until it hears that it was replaced. Its commits are refused in any case.
    """
    topic = group_id = f"fenced-{commits_first}"
    with (
        Load(servers, topic, PARTITIONS) as load,
        Members(tmp_path, servers, topic, group_id, session_ms=scaled_ms(60_000)) as members,
    ):
        group = Group(members)
        old = group.names["a"]
        had = group.owned(old)
        members.stop_in_hand(old, commits_first=commits_first)
        stopped = max(event.t for event in members.events())
        new = group.start("a")
        wait_until(lambda: group.owned(new) == had, WAIT_S, "the new one has what the old one had")
        assert group.heard_by_others("a", stopped) == []
        members.resume(old)
        assert "FencedInstanceId" in members.await_end(old)
        refused = {event.v["refused"] for event in members.events() if event.member == old and event.what == "commit"}
        if commits_first:
            assert "FencedInstanceId" in refused
        judgement = finished(members, load, group_id)
    assert judgement.anomalies <= (set() if commits_first else {Anomaly.OVERLAP})
