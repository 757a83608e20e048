"""Liveness connections: a listener that goes away with its process is a hint, everything else is none."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from kit.cluster import InProcessCluster
from kit.machine import scaled
from kit.waiting import wait_until
from raylog.broker.cluster.liveness import BrokerLiveness
from raylog.coordination.host.loops import Loops
from raylog.coordination.membership.liveness import (
    REPEAT_S,
    LivenessConnections,
    LivenessListener,
    Peer,
    address_towards,
    machine_id,
)
from raylog.coordination.metadata.model import BrokerInfo, Endpoint
from raylog.protocol.ids import BrokerEpoch, BrokerId

pytestmark = pytest.mark.system

US, OTHER = BrokerId(1), BrokerId(2)
WAIT_S = 10.0
QUIET_S = 1.5 * REPEAT_S
"""How long nothing must be told: a hint takes some milliseconds, and is repeated by then."""

GREETING = b"member 1\n"
T = TypeVar("T")
Hints = queue.SimpleQueue[tuple[BrokerId, BrokerEpoch]]


def nothing_told(hints: queue.SimpleQueue[T]) -> bool:
    try:
        hints.get(timeout=QUIET_S)
    except queue.Empty:
        return True
    return False


class Watch:
    """Watches one broker, whose listener is the test's."""

    def __init__(self) -> None:
        self.hints: Hints = queue.SimpleQueue()
        self.liveness = BrokerLiveness(US, lambda broker, epoch: self.hints.put((broker, epoch)), Loops())

    def watch(self, listener: socket.socket, epoch: int = 1) -> None:
        host, port = listener.getsockname()
        self.liveness.watch([BrokerInfo(OTHER, BrokerEpoch(epoch), (Endpoint("PLAINTEXT", host, port),))])

    def nothing_told(self) -> bool:
        return nothing_told(self.hints)


@pytest.fixture
def watch() -> Iterator[Watch]:
    watch = Watch()
    try:
        yield watch
    finally:
        watch.liveness.stop()


def listener(port: int = 0) -> socket.socket:
    sock = socket.create_server(("127.0.0.1", port))
    sock.settimeout(scaled(WAIT_S))
    return sock


def test_a_process_that_dies_is_told_as_long_as_it_is_watched(watch: Watch) -> None:
    ours = listener()
    watch.watch(ours, epoch=7)
    connection, _ = ours.accept()
    ours.close()
    connection.close()
    for _ in range(2):
        assert watch.hints.get(timeout=scaled(WAIT_S)) == (OTHER, 7)
    watch.liveness.watch([])
    wait_until(watch.nothing_told, WAIT_S, "no more hints")


def test_a_listener_that_is_back_is_no_hint_any_more(watch: Watch) -> None:
    ours = listener()
    port = ours.getsockname()[1]
    watch.watch(ours)
    connection, _ = ours.accept()
    ours.close()
    connection.close()
    assert watch.hints.get(timeout=scaled(WAIT_S)) == (OTHER, 1)
    with listener(port) as back:
        again, _ = back.accept()
        with again:
            wait_until(watch.nothing_told, WAIT_S, "no more hints")
    assert watch.hints.get(timeout=scaled(WAIT_S)) == (OTHER, 1), "its death after that is told again"


def test_a_connection_closed_by_the_server_is_made_anew(watch: Watch) -> None:
    with listener() as ours:
        watch.watch(ours)
        for _ in range(3):  # as for its idleness, or when it takes no more connections
            connection, _ = ours.accept()
            connection.close()
        again, _ = ours.accept()
        with again:
            assert watch.nothing_told()


def test_who_was_never_reached_is_not_told(watch: Watch) -> None:
    ours = listener()
    address = ours.getsockname()
    ours.close()
    watch.liveness.watch([BrokerInfo(OTHER, BrokerEpoch(1), (Endpoint("PLAINTEXT", *address),))])
    assert watch.nothing_told()
    with listener(address[1]) as late:
        connection, _ = late.accept()
        connection.close()


def test_a_new_incarnation_is_watched_anew(watch: Watch) -> None:
    ours = listener()
    watch.watch(ours, epoch=1)
    first, _ = ours.accept()
    watch.watch(ours, epoch=2)
    second, _ = ours.accept()
    assert first.recv(1) == b"", "the old connection was closed"
    ours.close()
    first.close()
    second.close()
    assert watch.hints.get(timeout=scaled(WAIT_S)) == (OTHER, 2)


def test_who_is_not_watched_any_more_is_not_told(watch: Watch) -> None:
    ours = listener()
    watch.watch(ours)
    connection, _ = ours.accept()
    watch.liveness.watch([])
    assert connection.recv(1) == b""
    connection.close()
    ours.close()
    assert watch.nothing_told()


def test_a_wrong_hint_costs_a_registration(tmp_path: Path) -> None:
    """The broker lives: it loses its incarnation, registers anew, and is in sync again."""
    with InProcessCluster(tmp_path, brokers=3) as cluster:
        cluster.create_topic("t", partitions=3)
        controller = cluster.controller
        other = next(broker for broker in cluster.brokers.values() if broker is not controller)
        before = other.describe()["broker_epoch"]
        controller.take_for_dead(other.broker_id, BrokerEpoch(before))
        wait_until(lambda: other.describe()["broker_epoch"] > before, WAIT_S, "it registered anew")
        wait_until(lambda: other.describe()["lease_held"], WAIT_S, "it serves again")
        now = other.describe()["broker_epoch"]
        controller.take_for_dead(other.broker_id, BrokerEpoch(before))
        wait_until(lambda: len(controller.partitions.state().brokers) == 3, WAIT_S, "all three are known")
        assert other.describe()["broker_epoch"] == now, "a hint about an earlier incarnation changes nothing"


def test_a_wrong_hint_about_the_controller_deposes_it(tmp_path: Path) -> None:
    with InProcessCluster(tmp_path, brokers=3) as cluster:
        first = cluster.controller
        other = next(broker for broker in cluster.brokers.values() if broker is not first)
        other.take_for_dead(first.broker_id, BrokerEpoch(first.describe()["broker_epoch"]))
        wait_until(lambda: other.is_controller and not first.is_controller, WAIT_S, "another controller")
        wait_until(
            lambda: all(
                broker.partitions.controller_id == other.broker_id and broker.describe()["lease_held"]
                for broker in cluster.brokers.values()
            ),
            WAIT_S,
            "every broker follows it, the deposed one, too",
        )
        cluster.create_topic("t", partitions=3)


class Members:
    """Watches one process that says a greeting."""

    def __init__(self) -> None:
        self.hints: queue.SimpleQueue[tuple[Peer, bool]] = queue.SimpleQueue()
        self.connections = LivenessConnections(lambda peer, is_first: self.hints.put((peer, is_first)), Loops())


@pytest.fixture
def members() -> Iterator[Members]:
    members = Members()
    try:
        yield members
    finally:
        members.connections.stop()


def test_who_has_said_who_he_is_is_told_of_when_he_listens_no_more(members: Members) -> None:
    ours = LivenessListener("127.0.0.1", GREETING, Loops())
    peer = Peer("us", ours.host, ours.port, GREETING)
    members.connections.watch([peer])
    with socket.create_connection((ours.host, ours.port), WAIT_S) as other:
        assert other.recv(100) == GREETING
        assert nothing_told(members.hints)
        ours.stop()
        assert other.recv(100) == b""
    assert [members.hints.get(timeout=scaled(WAIT_S)) for _ in range(2)] == [(peer, True), (peer, False)]


@pytest.mark.parametrize("said", [b"somebody else\n", GREETING[:-1], b""])
def test_whoever_else_listens_there_is_not_the_one_who_is_watched(members: Members, said: bytes) -> None:
    """The port of a process that died before we watched it may be another's by now, and that one dies, too."""
    other = listener()
    members.connections.watch([Peer("us", *other.getsockname(), GREETING)])
    connection, _ = other.accept()
    connection.sendall(said)
    other.close()
    connection.close()
    assert nothing_told(members.hints)


def test_who_was_never_reached_is_told_of_if_he_should_be_here(members: Members) -> None:
    ours = listener()
    host, port = ours.getsockname()
    ours.close()
    elsewhere = "192.0.2.1"  # of no machine (RFC 5737)
    members.connections.watch(
        [Peer("here", host, port, GREETING, True), Peer("moved", elsewhere, port, GREETING, True)]
    )
    told = [members.hints.get(timeout=scaled(WAIT_S)) for _ in range(3)]
    assert {peer.key for peer, _ in told} == {"here"}
    assert machine_id() == machine_id() != ""


def test_a_listener_takes_nothing_and_lets_go_who_leaves() -> None:
    ours = LivenessListener("::1", GREETING, Loops())
    try:
        with socket.create_connection((ours.host, ours.port), WAIT_S) as other:
            other.sendall(b"x" * 100_000)
            assert other.recv(100) == GREETING
            wait_until(lambda: len(ours._held) == 1, WAIT_S, "it holds the connection")
        wait_until(lambda: not ours._held, WAIT_S, "it lets it go")
    finally:
        ours.stop()
        ours.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((ours.host, ours.port), WAIT_S)


def test_the_address_towards_this_machine_is_its_own() -> None:
    assert address_towards("127.0.0.1", 9092) == "127.0.0.1"
    assert address_towards("::1", 9092) == "::1"
