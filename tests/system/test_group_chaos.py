"""Twenty members of a group in processes of their own, under load: they join, leave, are killed and are stopped.

What each told is judged by ``kit.group_history``. RAYLOG_GROUP_CHAOS_S=n makes the chaos n seconds long, SEED=n chooses
another one.
"""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from kit.broker_process import BrokerProcess
from kit.forms import NIGHTLY, some
from kit.group_load import Load, finished, told_since
from kit.group_processes import IN_DOUBT, Members
from kit.machine import scaled, scaled_ms
from kit.replicated import ReplicatedCluster
from kit.waiting import wait_until
from kit.zookeeper import running_zookeeper
from raylog.client.admin import Admin
from raylog.coordination.zookeeper.embedded import EmbeddedZooKeeper

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

MEMBERS, PARTITIONS = 20, 40
LEAST = 12
"""So many the chaos leaves."""
SESSION_MS = scaled_ms(3_000)
CHAOS_S = float(os.environ.get("RAYLOG_GROUP_CHAOS_S", "20" if NIGHTLY else "10"))
SEED = int(os.environ.get("SEED", "5"))
KILLS = 7 if NIGHTLY else 3
SIZES = (MEMBERS // 4, MEMBERS // 2, MEMBERS) if NIGHTLY else (MEMBERS // 2, MEMBERS)
"""Of groups whose costs are compared."""
STABLE_S = 1.0
"""The median, from the kill of a member to the last of its partitions with another."""
WAIT_S = 60.0


class Service(NamedTuple):
    """A broker and its ZooKeeper."""

    servers: str
    zookeeper: EmbeddedZooKeeper


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    root = tmp_path_factory.mktemp("service")
    with (
        running_zookeeper(root / "zookeeper") as zookeeper,
        BrokerProcess(root / "broker", zookeeper.address, session_ms=scaled_ms(6_000)) as broker,
    ):
        address = wait_until(lambda: broker.address, WAIT_S, "the broker serves")
        yield Service("{}:{}".format(*address), zookeeper)


def test_a_killed_member_is_replaced_at_once(service: Service, tmp_path: Path) -> None:
    """By proof of its death, not by the end of its session; and nobody else's partitions move."""
    topic = group = "killed"
    seconds, moved = [], 0
    with (
        Load(service.servers, topic, PARTITIONS) as load,
        Members(tmp_path, service.servers, topic, group, session_ms=scaled_ms(20_000)) as members,
    ):
        members.start(MEMBERS)
        members.wait_stable(PARTITIONS)
        for _ in range(KILLS):
            victim = random.choice(members.living)
            its = {partition for partition, owner in members.owners().items() if owner == victim}
            killed = members.kill(victim)
            members.wait_stable(PARTITIONS)
            assigned = told_since(members, killed, "assigned")
            moved += len(set(told_since(members, killed, "revoked", "lost")) | assigned.keys() - its)
            seconds.append(max(assigned[partition] for partition in its) - killed)
            members.start()
            members.wait_stable(PARTITIONS)
        judgement = finished(members, load, group)
    print(
        f"\n{KILLS} of {MEMBERS} members killed: stable again after {statistics.median(seconds):.2f} s (p50), at most "
        f"{max(seconds):.2f} s; partitions of others moved: {moved}; handed out {judgement.handed_out}, "
        f"again {judgement.repeated}"
    )
    assert judgement.findings == []
    assert moved == 0
    assert statistics.median(seconds) <= STABLE_S


def read_everywhere(members: Members, since: float, load: Load) -> bool:
    """Whether records of each partition were handed out by polls that began after ``since``."""
    polls = (event for event in members.events() if event.what == "poll" and event.v["begun"] > since)
    return len({partition for poll in polls for partition, _, _ in poll.v["ranges"]}) == load.partitions


class Chaos:
    """What happens to the members, one or two things at once."""

    def __init__(self, members: Members, zookeeper: EmbeddedZooKeeper, rng: random.Random) -> None:
        self._members = members
        self._zookeeper = zookeeper
        self._rng = rng
        self._in_hand: set[str] = set()
        self.done: Counter[str] = Counter()
        self.late = 0
        """How many were stopped with records in hand until their partitions were others'."""

    def round(self) -> None:
        self._members.wait_stable(PARTITIONS)
        for _ in range(self._rng.choice([1, 1, 2])):
            what = self._rng.choice(self._possible())
            what()
            self.done[what.__name__] += 1

    def _possible(self) -> list[Callable[[], None]]:
        possible: list[Callable[[], None]] = [self.bounce_zookeeper]
        if len(self._members.living) > LEAST:
            possible += [self.stop_before_commit, self.stop_before_poll, self.stop_at_once]
            possible += [self.kill, self.kill, self.leave, self.leave]
        if len(self._members.living) < MEMBERS:
            possible += [self.join, self.join]
        if self._members.stopped:
            possible += [self.resume, self.resume]
        return possible

    def kill(self) -> None:
        self._members.kill(self._rng.choice(self._members.living))

    def leave(self) -> None:
        self._members.leave(self._rng.choice(self._members.living))

    def join(self) -> None:
        self._members.start(self._rng.randint(1, 3))

    def stop_before_commit(self) -> None:
        name = self._owner()
        self._members.stop_in_hand(name, commits_first=True)
        self._in_hand.add(name)

    def stop_before_poll(self) -> None:
        self._members.stop_in_hand(self._owner(), commits_first=False)

    def stop_at_once(self) -> None:
        self._members.stop_at_once(self._rng.choice(self._members.living))

    def resume(self) -> None:
        """Not before others have its partitions: what it has in hand then is not its own any more."""
        self._members.wait_stable(PARTITIONS)
        for name in self._members.stopped:
            self._members.resume(name)
        self.late += len(self._in_hand)
        self._in_hand.clear()

    def _owner(self) -> str:
        return self._rng.choice(sorted(set(self._members.owners().values())))

    def bounce_zookeeper(self) -> None:
        """Kill it; its owner starts it again, with its data and sessions."""
        jvm = self._zookeeper.jvm
        if jvm is not None:  # else it is still on its way back
            os.kill(jvm.pid, signal.SIGKILL)


def test_members_that_come_and_go_lose_nothing(service: Service, tmp_path: Path) -> None:
    topic = group = "chaos"
    with (
        Load(service.servers, topic, PARTITIONS) as load,
        Members(tmp_path, service.servers, topic, group, session_ms=SESSION_MS) as members,
    ):
        members.start(MEMBERS)
        chaos = Chaos(members, service.zookeeper, random.Random(SEED))
        members.wait_stable(PARTITIONS)
        for _ in range(3):
            chaos.stop_before_commit()
            chaos.stop_before_poll()
        chaos.resume()
        ends = time.monotonic() + CHAOS_S
        while time.monotonic() < ends:
            chaos.round()
        if members.stopped:
            chaos.resume()
        members.wait_stable(PARTITIONS)
        judgement = finished(members, load, group)
    eras = sum(map(len, judgement.eras.values()))
    print(
        f"\n{CHAOS_S:g} s of chaos among {MEMBERS} members (SEED={SEED}): {dict(chaos.done)}; {eras} ownerships of "
        f"{PARTITIONS} partitions, overlaps 0; handed out {judgement.handed_out}, lost 0, again {judgement.repeated}; "
        f"commits {judgement.commits}, refused {dict(judgement.refused)}"
    )
    assert judgement.findings == []
    refused = sum(number for error, number in judgement.refused.items() if error != IN_DOUBT)
    assert refused >= chaos.late, "each had records in hand that it had to commit"


def test_a_group_reads_on_while_its_brokers_are_killed(tmp_path: Path) -> None:
    """One or two of three, each at night, with a member at the same time: three replicas of what is read, and one of
    the ZooKeeper."""
    topic = group = "brokers"
    with (
        ReplicatedCluster(tmp_path / "cluster") as cluster,
        Load(cluster.bootstrap_servers, topic, PARTITIONS // 4) as load,
        Members(tmp_path / "members", cluster.bootstrap_servers, topic, group, session_ms=SESSION_MS) as members,
    ):
        members.start(MEMBERS // 4)
        members.wait_stable(load.partitions)
        gaps = []
        for broker_id in some(cluster.running, 2):
            killed = cluster.kill(broker_id)
            members.kill(random.choice(members.living))
            members.start()
            members.wait_stable(load.partitions)
            wait_until(partial(read_everywhere, members, killed, load), WAIT_S, "all partitions are read on")
            gaps.append(time.monotonic() - killed)
            cluster.start(broker_id)
            cluster.wait_serving(broker_id)
            cluster.wait_in_sync(topic, load.partitions)
        judgement = finished(members, load, group)
    print(
        f"\n{len(gaps)} of 3 brokers killed, with a member of {MEMBERS // 4}: all partitions read on after at most "
        f"{max(gaps):.2f} s; handed out {judgement.handed_out}, lost 0, again {judgement.repeated}"
    )
    assert judgement.findings == []


# --- what a change costs


def operations(zookeeper: str) -> int:
    """Packets that ZooKeeper has received since its start."""
    host, _, port = zookeeper.partition(":")
    with socket.create_connection((host, int(port)), timeout=scaled(10)) as connection:
        connection.sendall(b"srvr")
        with connection.makefile("rb") as answer:
            found = re.search(rb"Received: (\d+)", answer.read())
    assert found is not None
    return int(found[1])


class Meter:
    """Counts operations beside those of an idle group, by their rate."""

    IDLE_S = 1.0

    def __init__(self, zookeeper: str) -> None:
        self._zookeeper = zookeeper
        self._begun, self._before = time.monotonic(), operations(zookeeper)
        wait_until(lambda: time.monotonic() >= self._begun + self.IDLE_S, WAIT_S, "the group was idle")
        now = operations(zookeeper)
        self._rate = (now - self._before) / (time.monotonic() - self._begun)
        self._begun, self._before = time.monotonic(), now

    def count(self) -> int:
        counted = operations(self._zookeeper) - self._before
        return round(counted - self._rate * (time.monotonic() - self._begun))


def test_what_a_change_costs_grows_with_the_members_no_faster(service: Service, tmp_path: Path) -> None:
    """ZooKeeper's operations when a member is killed and when one joins, in groups of several sizes whose members
    have about two partitions each.
    """
    costs: dict[int, int] = {}
    told = []
    for size in SIZES:
        topic = group = f"costs-{size}"
        partitions = 2 * size
        with Admin(service.servers) as admin:
            admin.create_topic(topic, partitions)
        with Members(tmp_path / group, service.servers, topic, group, session_ms=scaled_ms(20_000)) as members:
            members.start(size)
            members.wait_stable(partitions)
            meter = Meter(service.zookeeper.address)
            members.kill(members.living[-1])
            members.wait_stable(partitions)
            killed = meter.count()
            meter = Meter(service.zookeeper.address)
            members.start()
            members.wait_stable(partitions)
            joined = meter.count()
        costs[size] = killed + joined
        told.append(f"{size} members: {killed} and {joined}")
    print(f"\nZooKeeper operations when one member is killed, and when one joins: {'; '.join(told)}")
    assert costs[MEMBERS] <= 2.5 * costs[MEMBERS // 2], told
