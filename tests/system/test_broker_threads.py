"""Every long-lived thread of a broker fails: the log, metrics and doctor tell it, and the thread recovers.

Or it ends, and the broker does not serve as if nothing had happened.
"""

from __future__ import annotations

import ast
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.failing_threads import FaultyThreads, FaultyThreadsCluster, kind_of
from kit.group_wire import WireMember
from kit.machine import scaled_ms
from kit.waiting import wait_until
from kit.wire import WireClient
from raylog.broker.broker import Broker
from raylog.broker.cli import doctor_checks
from raylog.broker.cli.doctor_checks import State
from raylog.coordination.controller.events import CreatedTopic, NewTopic
from raylog.coordination.metadata.model import BrokerInfo, Endpoint
from raylog.protocol.errors import BrokerNotAvailable, NotLeaderOrFollower, RaylogError, code_of
from raylog.protocol.ids import BrokerEpoch, BrokerId, TopicName
from raylog.protocol.records import Record, encode_batch

WAIT_S = 30.0
SOURCES = Path(__file__).parents[2] / "packages"
THREADS = (
    "membership", "controller", "control-to", "isr-changes", "fetcher", "group-ticker", "offset-committer", "net",
    "net-watch", "maintenance", "scrubber", "group-upkeep", "group-keeper", "liveness", "names", "auto-create",
)  # fmt: skip
"""All of a broker's, without what follows in their names: a broker."""
ELSEWHERE = {"drain", "log", "start", "metrics", "group", "liveness-listener", "zookeeper-restart"}
"""Of a broker that stops, of the actor around it, of members of groups and of ZooKeeper's client: tested elsewhere."""
SEVERAL = 2
"""How often a thread fails in a row."""


def addresses(cluster: FaultyThreadsCluster) -> list[tuple[str, int]]:
    return [broker.endpoints["PLAINTEXT"] for broker in cluster.brokers.values()]


class Usage:
    """Uses a cluster such that each thread has something to do."""

    def __init__(self, cluster: FaultyThreadsCluster) -> None:
        self.cluster = cluster
        self._numbers = itertools.count(1)

    def works(self) -> bool:
        """Whether all of it goes well now."""
        try:
            return self._all_goes_well(next(self._numbers))
        except (RaylogError, OSError, EOFError):
            return False

    def _all_goes_well(self, number: int) -> bool:
        self._look_for_others(number)
        for address in addresses(self.cluster):
            with WireClient(address) as client:
                client.ask(3, 9, topics=[{"name": f"auto-{number}"}], allow_auto_topic_creation=True)
        new = NewTopic(TopicName(f"t-{number}"), 2, replication_factor=2, configs={"min.insync.replicas": "2"})
        [made] = self.cluster.controller.topics.create_topics([new], timeout_ms=scaled_ms(5_000), validate_only=False)
        if not isinstance(made, CreatedTopic):
            return False
        batch = encode_batch([Record(b"x", timestamp=1_000)])
        for partition in range(2):
            leader = next((b for b in self._brokers() if (new.name, partition) in b.partitions.led()), None)
            if leader is None:
                return False  # the controller's message is under way
            leader.produce(new.name, partition, batch)  # acks=all: every fetcher has to fetch it
        with WireMember("g", lambda: addresses(self.cluster), timeout_s=5.0) as member:
            code = member.commit(number, generation=-1)
        return code is not None and code.value == 0

    def _brokers(self) -> list[Broker]:
        return list(self.cluster.brokers.values())

    def _look_for_others(self, number: int) -> None:
        """Also for one at an address that must be looked up, so that names and liveness have work."""
        for broker in self._brokers():
            known = broker.partitions.state().brokers.values()
            strange = BrokerInfo(BrokerId(99), BrokerEpoch(number), (Endpoint("PLAINTEXT", "localhost", number),))
            broker.partitions.on_brokers([*known, strange])
            broker.partitions.on_brokers(known)


def new_cluster(tmp_path: Path, faults: FaultyThreads, brokers: int) -> FaultyThreadsCluster:
    config = {"offsets.retention.check.interval.ms": "1000", "num.partitions": "1", "auto.create.topics.enable": "true"}
    return FaultyThreadsCluster(tmp_path, faults, brokers=brokers, config=config)


@pytest.fixture(scope="module")
def faults() -> FaultyThreads:
    return FaultyThreads()


@pytest.fixture(scope="module")
def usage(tmp_path_factory: pytest.TempPathFactory, faults: FaultyThreads) -> Iterator[Usage]:
    with new_cluster(tmp_path_factory.mktemp("threads"), faults, 2) as cluster:
        cluster.create_topic("t")
        usage = Usage(cluster)
        wait_until(usage.works, WAIT_S, "all goes well before anything fails")
        yield usage


def failures(cluster: FaultyThreadsCluster, kind: str) -> float:
    """As metrics tell it, of all brokers."""
    return sum(
        value
        for broker in cluster.brokers.values()
        for metric, labels, value in broker.metrics()
        if metric.name == "raylog_thread_failures_total" and kind_of(labels[0]) == kind
    )


@pytest.mark.parametrize("kind", THREADS)
def test_thread_that_fails_is_told_and_recovers(
    usage: Usage, faults: FaultyThreads, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, before = usage.cluster, failures(usage.cluster, kind)
    faults.arm(kind, SEVERAL)
    wait_until(lambda: usage.works() and not faults.left(kind), WAIT_S, f"{kind} has failed")
    wait_until(usage.works, WAIT_S, "all goes well again")
    assert failures(cluster, kind) == before + SEVERAL
    told = [record for record in caplog.records if getattr(record, "event", "") == "thread failed, trying again"]
    assert {kind_of(record.fields["loop"]) for record in told} == {kind}  # type: ignore[attr-defined]
    assert all(record.exc_info for record in told)
    wait_until(
        lambda: usage.works() and not any(loops.troubles() for loops in cluster.loops.values()),
        WAIT_S,
        "no thread fails any more",
    )
    assert cluster.gone == {}


def test_every_thread_of_the_sources_is_in_this_test() -> None:
    """Whoever makes a new one adds it to THREADS."""
    named = set()
    for path in [*SOURCES.glob("broker/src/**/*.py"), *SOURCES.glob("coordination/src/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and called(node.func) in {"loop", "once", "DueGroups"}:
                named.add(literal(node.args[0]))
    named.discard("")  # of those that do what may wait: see test_net_threads
    assert named == set(THREADS) | ELSEWHERE - {"group"}


def called(function: ast.expr) -> str:
    match function:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def literal(node: ast.expr) -> str:
    """The first literal part of a name."""
    if isinstance(node, ast.JoinedStr):
        node = node.values[0]
    return node.value.rstrip("-") if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def test_failing_thread_is_described_as_long_as_it_fails(tmp_path: Path) -> None:
    faults = FaultyThreads()
    with new_cluster(tmp_path, faults, 1) as cluster:
        broker = cluster.brokers[0]
        faults.arm("maintenance", 10**6)
        described = wait_until(
            lambda: found if (found := broker.describe())["failing_threads"] else None, WAIT_S, "it is described"
        )
        assert described is not None
        assert described["failing_threads"] == {"maintenance": "Injected: injected into maintenance"}
        assert "thread maintenance: Injected" in described["trouble"]
        findings = list(doctor_checks.brokers({0: {"state": "serving", **described}}, {}))
        [thread] = [finding for finding in findings if finding.check == "thread"]
        assert thread.state is State.FAIL
        assert "maintenance" in thread.found
        faults.arm("maintenance", 0)
        wait_until(lambda: not broker.describe()["failing_threads"], WAIT_S, "it works again")
        assert broker.describe()["trouble"] == ""


@pytest.mark.parametrize("kind", ["membership", "controller", "maintenance", "isr-changes", "group-ticker"])
def test_broker_without_a_vital_thread_does_not_serve(tmp_path: Path, kind: str) -> None:
    faults = FaultyThreads()
    with new_cluster(tmp_path, faults, 1) as cluster:
        broker = cluster.brokers[0]
        cluster.create_topic("t")
        leader = cluster.leader("t", 0)
        batch = encode_batch([Record(b"x", timestamp=1_000)])
        leader.produce("t", 0, batch)
        faults.arm(kind, 1, SystemExit)
        wait_until(lambda: cluster.gone, WAIT_S, "its end is told")
        assert cluster.gone[0] == broker.failure == f"thread {kind} has ended by SystemExit: injected into {kind}"
        with pytest.raises(BrokerNotAvailable, match=f"thread {kind} has ended"):
            broker.produce("t", 0, batch)
        with WireClient(broker.endpoints["PLAINTEXT"]) as client:
            [answer] = client.produce("t", batch).topics
            assert answer.partitions[0].error_code == code_of(NotLeaderOrFollower(""))
        assert broker.describe()["failing_threads"] == {kind: broker.failure}
        assert not broker.describe()["lease_held"]


def test_controller_that_meets_a_defect_is_replaced(tmp_path: Path) -> None:
    faults = FaultyThreads()
    with new_cluster(tmp_path, faults, 2) as cluster:
        before = cluster.controller.broker_id
        faults.arm("controller", 1, only=before)
        wait_until(lambda: cluster.brokers[1 - before].is_controller, WAIT_S, "the other broker is elected")
        wait_until(lambda: not cluster.brokers[before].is_controller, WAIT_S, "it knows that it is none any more")
        usage = Usage(cluster)
        cluster.create_topic("t")
        wait_until(usage.works, WAIT_S, "all goes well")


def test_session_file_that_cannot_be_written_ends_no_membership(tmp_path: Path) -> None:
    """As on a full disk. The session ends meanwhile; the broker registers again as soon as it can be written."""
    with new_cluster(tmp_path, FaultyThreads(), 1) as cluster:
        broker = cluster.brokers[0]
        cluster.create_topic("t")
        batch = encode_batch([Record(b"x", timestamp=1_000)])
        assert cluster.leader("t", 0).produce("t", 0, batch) == (0, 0)
        in_the_way = tmp_path / "broker-0" / f".session.json.{os.getpid()}"  # where it is written first
        in_the_way.mkdir()
        cluster.tree.expire(cluster.stores[0].session.id)
        wait_until(lambda: broker.describe()["failing_threads"], WAIT_S, "it is told")
        told = broker.describe()
        assert "Is a directory" in told["failing_threads"]["membership"]
        assert not told["lease_held"]
        with pytest.raises(NotLeaderOrFollower):
            broker.produce("t", 0, batch)
        in_the_way.rmdir()
        wait_until(lambda: broker.describe()["lease_held"], WAIT_S, "it is registered again")
        wait_until(lambda: cluster.leader("t", 0).produce("t", 0, batch), WAIT_S, "it leads again")
        wait_until(lambda: not broker.describe()["trouble"], WAIT_S, "nothing is told any more")


def test_broker_without_its_scrubber_serves(tmp_path: Path) -> None:
    faults = FaultyThreads()
    with new_cluster(tmp_path, faults, 1) as cluster:
        cluster.create_topic("t")
        faults.arm("scrubber", 1, SystemExit)
        wait_until(lambda: "scrubber" in cluster.brokers[0].describe()["failing_threads"], WAIT_S, "it is told")
        assert cluster.leader("t", 0).produce("t", 0, encode_batch([Record(b"x", timestamp=1_000)])) == (0, 0)
        assert cluster.gone == {}


def test_drain_that_fails_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    faults = FaultyThreads()
    with new_cluster(tmp_path, faults, 2) as cluster:
        faults.arm("drain", 1)
        cluster.stop(0)
        assert faults.left("drain") == 0
        assert cluster.loops[0].failures()["drain"] == 1
