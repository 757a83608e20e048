"""Liveness connections: a listener that goes away with its process is a hint, everything else is none."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.cluster import InProcessCluster
from kit.waiting import wait_until
from raylog.broker.net.liveness import BrokerLiveness
from raylog.coordination.liveness import REPEAT_S
from raylog.coordination.model import BrokerInfo, Endpoint
from raylog.protocol.ids import BrokerEpoch, BrokerId

pytestmark = pytest.mark.system

US, OTHER = BrokerId(1), BrokerId(2)
WAIT_S = 10.0
QUIET_S = 1.5 * REPEAT_S
"""How long nothing must be told: a hint takes some milliseconds, and is repeated by then."""

Hints = queue.SimpleQueue[tuple[BrokerId, BrokerEpoch]]


class Watch:
    """Watches one broker, whose listener is the test's."""

    def __init__(self) -> None:
        self.hints: Hints = queue.SimpleQueue()
        self.liveness = BrokerLiveness(US, lambda broker, epoch: self.hints.put((broker, epoch)))

    def watch(self, listener: socket.socket, epoch: int = 1) -> None:
        host, port = listener.getsockname()
        self.liveness.watch([BrokerInfo(OTHER, BrokerEpoch(epoch), (Endpoint("PLAINTEXT", host, port),))])

    def nothing_told(self) -> bool:
        try:
            self.hints.get(timeout=QUIET_S)
        except queue.Empty:
            return True
        return False


@pytest.fixture
def watch() -> Iterator[Watch]:
    watch = Watch()
    try:
        yield watch
    finally:
        watch.liveness.stop()


def listener(port: int = 0) -> socket.socket:
    sock = socket.create_server(("127.0.0.1", port))
    sock.settimeout(WAIT_S)
    return sock


def test_a_process_that_dies_is_told_as_long_as_it_is_watched(watch: Watch) -> None:
    ours = listener()
    watch.watch(ours, epoch=7)
    connection, _ = ours.accept()
    ours.close()
    connection.close()
    for _ in range(2):
        assert watch.hints.get(timeout=WAIT_S) == (OTHER, 7)
    watch.liveness.watch([])
    wait_until(watch.nothing_told, WAIT_S, "no more hints")


def test_a_listener_that_is_back_is_no_hint_any_more(watch: Watch) -> None:
    ours = listener()
    port = ours.getsockname()[1]
    watch.watch(ours)
    connection, _ = ours.accept()
    ours.close()
    connection.close()
    assert watch.hints.get(timeout=WAIT_S) == (OTHER, 1)
    with listener(port) as back:
        again, _ = back.accept()
        with again:
            wait_until(watch.nothing_told, WAIT_S, "no more hints")
    assert watch.hints.get(timeout=WAIT_S) == (OTHER, 1), "its death after that is told again"


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
    assert watch.hints.get(timeout=WAIT_S) == (OTHER, 2)


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
