"""ZooKeeper sessions under a replicated load: ended, bounced, outlasted. Brokers register anew where they must, miss no
change, and lose nothing.

RAYLOG_OUTAGE_S=60 makes the outage a minute instead of 2.5 sessions.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.history_checker import Verdict
from kit.machine import scaled_ms
from kit.replicated import ReplicatedCluster
from kit.waiting import wait_until
from kit.workload import Workload
from raylog.client.admin import Admin
from raylog.coordination.metadata.model import PartitionState
from raylog.coordination.zookeeper.embedded import EmbeddedZooKeeper
from raylog.protocol.errors import RaylogError

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

PARTITIONS = 3
WAIT_S = 30.0
SESSION_MS = scaled_ms(4_000)
CONFIG = {"replica.lag.time.max.ms": "20000"}
"""No follower leaves the in-sync replicas for being slow: what changes, sessions have changed."""
OUTAGE_S = float(os.environ.get("RAYLOG_OUTAGE_S", 2.5 * SESSION_MS / 1000))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicatedCluster]:
    with ReplicatedCluster(tmp_path_factory.mktemp("cluster"), session_ms=SESSION_MS, config=CONFIG) as running:
        yield running


@pytest.fixture
def topic(cluster: ReplicatedCluster, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own, with all its replicas in sync."""
    name: str = request.node.originalname
    cluster.create_topic(name, partitions=PARTITIONS)
    return name


def load_on(cluster: ReplicatedCluster, topic: str) -> Workload:
    return Workload(cluster.bootstrap_servers, topic, partitions=PARTITIONS)


def kill_server(zookeeper: EmbeddedZooKeeper, *, with_owner: bool) -> None:
    """The server; its owner, which would start it again, before it."""
    for process in (zookeeper.owner if with_owner else None, zookeeper.jvm):
        if process is not None:
            os.kill(process.pid, signal.SIGKILL)


def epochs(cluster: ReplicatedCluster) -> list[int]:
    return [cluster.epoch(broker_id) for broker_id in range(cluster.size)]


def states(cluster: ReplicatedCluster, topic: str) -> list[PartitionState]:
    return [cluster.state(topic, partition) for partition in range(PARTITIONS)]


def seconds_to_serve(load: Workload, since: float) -> float:
    """Until every partition acknowledged what was sent after ``since``: none is stuck."""
    load.wait_acked_everywhere(since)
    return max(filter(None, (load.acked_since(partition, since) for partition in range(PARTITIONS)))) - since


def change_a_setting(cluster: ReplicatedCluster, topic: str) -> None:
    """As soon as ZooKeeper takes it."""
    with Admin(cluster.bootstrap_servers) as admin:

        def changed() -> bool:
            try:
                admin.alter_topic_configs(topic, {"segment.bytes": "123456"})
            except RaylogError:
                return False
            return True

        wait_until(changed, WAIT_S, "the setting is changed")


def check_the_change_is_known(cluster: ReplicatedCluster, topic: str) -> None:
    """By every broker."""

    def known(broker_id: int) -> bool:
        with Admin("{}:{}".format(*cluster.address(broker_id))) as admin:
            return any(
                entry.name == "segment.bytes" and entry.value == "123456"
                for entry in admin.describe_topic_configs(topic)
            )

    wait_until(lambda: all(map(known, range(cluster.size))), WAIT_S, "every broker knows the change")


def checked(what: str, load: Workload, tmp_path: Path) -> None:
    judgement = load.judge(keep=tmp_path / "history.jsonl")
    print(
        f"\n{what}: stuck partitions 0; acked {judgement.acked}, lost {judgement.lost}; longest gap "
        f"{load.longest_gap():.2f} s; {judgement}"
    )
    assert judgement.verdict is Verdict.VALID, judgement.findings
    assert load.errors == []
    assert load.resets == []


@pytest.mark.parametrize("victims", [1, 3])
def test_sessions_end_while_brokers_run(cluster: ReplicatedCluster, tmp_path: Path, victims: int) -> None:
    """That of the leader, who is the controller where it comes so; that of all at once."""
    topic = f"sessions-of-{victims}"
    cluster.create_topic(topic, partitions=PARTITIONS)
    leader = cluster.leader(topic, 0)
    ended_ids = [leader] if victims == 1 else list(range(cluster.size))
    with load_on(cluster, topic) as load:
        load.wait_acked_everywhere()
        before = epochs(cluster)
        for broker_id in ended_ids:
            cluster.expire_session(broker_id)
        wait_until(
            lambda: all(cluster.epoch(broker_id) > before[broker_id] for broker_id in ended_ids),
            WAIT_S,
            "they registered anew",
        )
        back = seconds_to_serve(load, time.monotonic())
        cluster.wait_in_sync(topic, PARTITIONS)
    after = epochs(cluster)
    assert all(after[n] == before[n] for n in range(cluster.size) if n not in ended_ids), "the others keep theirs"
    checked(
        f"{victims} of {cluster.size} sessions ended: acknowledged {back:.2f} s after the new registrations",
        load,
        tmp_path,
    )


def test_a_bounce_shorter_than_the_session(cluster: ReplicatedCluster, topic: str, tmp_path: Path) -> None:
    """Nobody loses an epoch or a leadership; a change made right after it reaches every broker."""
    with load_on(cluster, topic) as load:
        load.wait_acked_everywhere()
        before, led = epochs(cluster), states(cluster, topic)
        bounced = time.monotonic()
        kill_server(cluster.zookeeper, with_owner=False)
        change_a_setting(cluster, topic)
        changed = time.monotonic() - bounced
        back = seconds_to_serve(load, time.monotonic())
    check_the_change_is_known(cluster, topic)
    assert (epochs(cluster), states(cluster, topic)) == (before, led)
    checked(
        f"ZooKeeper bounced: writes again after {changed:.1f} s, sessions of {SESSION_MS / 1000:g} s; acknowledged "
        f"{back:.2f} s after",
        load,
        tmp_path,
    )


def test_zookeeper_is_away_for_longer_than_the_sessions(cluster: ReplicatedCluster, topic: str, tmp_path: Path) -> None:
    """Leases lapse and brokers refuse; afterwards all partitions serve again, with what was acknowledged."""
    with load_on(cluster, topic) as load:
        load.wait_acked_everywhere()
        down = time.monotonic()
        kill_server(cluster.zookeeper, with_owner=True)
        wait_until(lambda: time.monotonic() > down + OUTAGE_S, OUTAGE_S + WAIT_S, "the outage has lasted")
        cluster.zookeeper.start()
        up = time.monotonic()
        back = seconds_to_serve(load, up)
        change_a_setting(cluster, topic)
        cluster.wait_in_sync(topic, PARTITIONS)
    check_the_change_is_known(cluster, topic)
    checked(f"ZooKeeper down for {up - down:.1f} s: all again {back:.1f} s after its start", load, tmp_path)
