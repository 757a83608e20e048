"""ZooKeeper fails under three brokers: what their leases allow is served, nothing more, and all of it comes back.

Each test runs a load on every partition throughout and counts, at the end, the partitions that stay stuck. The
outage is 2.5 session timeouts long; ``RAYLOG_OUTAGE_S=60`` makes it a minute.
"""

from __future__ import annotations

import operator
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kit.cluster import InProcessCluster
from kit.machine import scaled, scaled_ms
from kit.waiting import wait_until
from kit.zookeeper import running_zookeeper
from raylog.broker.broker import Broker
from raylog.broker.config import SEGMENT_BYTES
from raylog.coordination.host.processes import ProcessRef
from raylog.coordination.metadata import configs
from raylog.coordination.store.port import StoreError
from raylog.coordination.zookeeper.embedded import EmbeddedZooKeeper
from raylog.coordination.zookeeper.store import ZkStore
from raylog.protocol.errors import NotLeaderOrFollower, RaylogError
from raylog.protocol.ids import TopicName
from raylog.protocol.records import Record, encode_batch

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

SESSION_S = scaled(2.0)
OUTAGE_S = float(os.environ.get("RAYLOG_OUTAGE_S", 2.5 * SESSION_S))
BROKERS, PARTITIONS = 3, 6
WAIT_S = 30.0
TOPIC = TopicName("t")


@dataclass
class Load:
    """Appends to every partition, one call after the other, and notes what each call came to: those that were
    acknowledged by when they began.
    """

    cluster: InProcessCluster
    leaders: dict[int, Broker]
    acked: dict[int, list[tuple[float, bytes]]] = field(default_factory=lambda: {p: [] for p in range(PARTITIONS)})
    refused: dict[int, list[float]] = field(default_factory=lambda: {p: [] for p in range(PARTITIONS)})
    stopping: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self.stopping.wait(0.02):
            for partition, leader in self.leaders.items():
                value = b"%d" % number
                number += 1
                begun = time.monotonic()  # of the call: its thread may be held up once it was served
                batch = encode_batch([Record(value, timestamp=1_000)])
                try:
                    leader.produce(TOPIC, partition, batch)
                except RaylogError:
                    self.refused[partition].append(time.monotonic())
                else:
                    self.acked[partition].append((begun, value))

    def stuck(self, since: float) -> list[int]:
        """The partitions that acknowledged nothing since then."""
        return [p for p, acked in self.acked.items() if not acked or acked[-1][0] < since]

    def served_during(self, begun: float, ended: float) -> float:
        """For how many seconds after ``begun`` a partition was still served, at most."""
        times = [when for acked in self.acked.values() for when, _ in acked.copy() if begun <= when < ended]
        return max(times, default=begun) - begun


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[EmbeddedZooKeeper]:
    with running_zookeeper(tmp_path / "zookeeper") as server:
        yield server


@pytest.fixture
def session_s() -> float:
    """How long the brokers' sessions are."""
    return SESSION_S


@pytest.fixture
def cluster(zookeeper: EmbeddedZooKeeper, tmp_path: Path, session_s: float) -> Iterator[InProcessCluster]:
    with InProcessCluster(
        tmp_path, brokers=BROKERS, zookeeper=zookeeper.address, session_timeout_ms=int(session_s * 1000)
    ) as running:
        running.create_topic(TOPIC, partitions=PARTITIONS)
        yield running


@pytest.fixture
def load(cluster: InProcessCluster) -> Iterator[Load]:
    with Load(cluster, {p: cluster.leader(TOPIC, p) for p in range(PARTITIONS)}) as running:
        wait_until(lambda: not running.stuck(0.0), WAIT_S, "the load runs")
        yield running


def processes_of(server: EmbeddedZooKeeper) -> list[ProcessRef]:
    return [process for process in (server.owner, server.jvm) if process is not None]


def epochs(cluster: InProcessCluster) -> list[int]:
    return [broker.describe()["broker_epoch"] for broker in cluster.brokers.values()]


def pause(seconds: float) -> None:
    """Let an outage last."""
    threading.Event().wait(seconds)


def change_behind_the_controllers_back(address: str) -> None:
    """What an older tool does: a topic's setting and its notice, written by a client that is connected at once."""
    with ZkStore(address, session_timeout_ms=scaled_ms(10_000)) as store:
        wait_until(lambda: written(store), WAIT_S, "the setting is written")


def written(store: ZkStore) -> bool:
    try:
        configs.alter_topic_configs(store, TOPIC, lambda old: {**old, SEGMENT_BYTES.name: "123456"})
    except StoreError:
        return False
    return True


def fetched(cluster: InProcessCluster, partition: int) -> list[bytes | None]:
    """All of the partition; nothing while its leader's lease has lapsed, as on a machine that stands still."""
    try:
        records, _ = cluster.leader(TOPIC, partition).fetch(TOPIC, partition, 0, 1 << 24)
    except NotLeaderOrFollower:
        return []
    return [record.value for record in records]


def check_recovery(what: str, cluster: InProcessCluster, load: Load, begun: float, over: float) -> None:
    """Every partition serves again, knows what changed meanwhile, and has all that was acknowledged, once, in order."""
    try:
        wait_until(lambda: not load.stuck(over), WAIT_S, "every partition serves again")
    finally:
        back = time.monotonic() - over
        print(
            f"\n{what}: served for {load.served_during(begun, over):.1f} s of {over - begun:.1f} s, "
            f"all again {back:.1f} s later; stuck partitions {len(load.stuck(over))}"
        )
    wait_until(
        lambda: all(b.partitions.topic(TOPIC)[SEGMENT_BYTES] == 123456 for b in cluster.brokers.values()),
        WAIT_S,
        "no change was missed",
    )
    cluster.create_topic("made-after", partitions=PARTITIONS)
    load.__exit__()
    for partition, acked in load.acked.items():
        found = wait_until(lambda p=partition: fetched(cluster, p), WAIT_S, f"partition {partition} is read")
        values = [value for _, value in acked]
        assert [value for value in found if value in set(values)] == values
        assert len(set(found)) == len(found)


def test_a_bounce_shorter_than_the_session_is_not_noticed(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> None:
    """The server is killed and its owner starts it again: same sessions, same epochs, and no change is missed."""
    with InProcessCluster(
        tmp_path, brokers=BROKERS, zookeeper=zookeeper.address, session_timeout_ms=scaled_ms(20_000)
    ) as cluster:
        cluster.create_topic(TOPIC, partitions=PARTITIONS)
        with Load(cluster, {p: cluster.leader(TOPIC, p) for p in range(PARTITIONS)}) as load:
            wait_until(lambda: not load.stuck(0.0), WAIT_S, "the load runs")
            before, jvm = epochs(cluster), zookeeper.jvm
            assert jvm is not None
            begun = time.monotonic()
            os.kill(jvm.pid, signal.SIGKILL)
            change_behind_the_controllers_back(zookeeper.address)
            over = time.monotonic()
            check_recovery("ZooKeeper killed", cluster, load, begun, over)
            assert epochs(cluster) == before
            assert load.refused == {partition: [] for partition in range(PARTITIONS)}


def test_zookeeper_down_for_longer_than_the_session(
    zookeeper: EmbeddedZooKeeper, cluster: InProcessCluster, load: Load, tmp_path: Path
) -> None:
    begun = time.monotonic()
    for process in processes_of(zookeeper):
        os.kill(process.pid, signal.SIGKILL)
    pause(OUTAGE_S)
    over = time.monotonic()
    assert 0 < load.served_during(begun, over) < SESSION_S, "what the lease allows, and no more"
    zookeeper.start()
    change_behind_the_controllers_back(zookeeper.address)
    check_recovery("ZooKeeper down", cluster, load, begun, over)


def test_zookeeper_stopped_past_the_sessions_and_continued(
    zookeeper: EmbeddedZooKeeper, cluster: InProcessCluster, load: Load, tmp_path: Path
) -> None:
    """When it goes on, ZooKeeper ends all sessions at once: every broker registers anew."""
    before, jvm = epochs(cluster), zookeeper.jvm
    assert jvm is not None
    begun = time.monotonic()
    os.kill(jvm.pid, signal.SIGSTOP)
    pause(OUTAGE_S)
    over = time.monotonic()
    assert 0 < load.served_during(begun, over) < SESSION_S, "what the lease allows, and no more"
    os.kill(jvm.pid, signal.SIGCONT)
    change_behind_the_controllers_back(zookeeper.address)
    check_recovery("ZooKeeper stopped and continued", cluster, load, begun, over)
    print(f"epochs {before} → {epochs(cluster)}")


@pytest.mark.parametrize("session_s", [scaled(20.0)], ids=["long"])  # none ends but those that the test ends
@pytest.mark.parametrize("victims", [1, BROKERS])
def test_expired_sessions_are_replaced(
    zookeeper: EmbeddedZooKeeper, cluster: InProcessCluster, load: Load, tmp_path: Path, victims: int
) -> None:
    before = epochs(cluster)
    begun = time.monotonic()
    sessions = [expired(broker) for broker in list(cluster.brokers.values())[:victims]]
    with ZkStore(zookeeper.address, session_timeout_ms=scaled_ms(10_000)) as other:
        for end in sessions:
            end(other)
    wait_until(lambda: all(map(operator.gt, epochs(cluster)[:victims], before)), WAIT_S, "registered anew")
    over = time.monotonic()
    change_behind_the_controllers_back(zookeeper.address)
    check_recovery(f"{victims} sessions expired", cluster, load, begun, over)
    assert epochs(cluster)[victims:] == before[victims:]


def expired(broker: Broker) -> Callable[[ZkStore], None]:
    """Ends the broker's session as the server does, when called with another client."""
    session = broker._store.session
    return lambda other: other.end_session(session)
