"""How clients find brokers: names with several addresses, silent name servers, advertised addresses out of reach."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from kit.cluster import InProcessCluster
from kit.machine import scaled
from kit.waiting import wait_until
from raylog.client import Consumer, Producer
from raylog.client.config.client import PRODUCER_SETTINGS, client_settings
from raylog.client.network.connection import Address
from raylog.client.network.network import Network
from raylog.client.network.resolver import Candidate, LookUp
from raylog.coordination.host.free_ports import free_port
from raylog.protocol.errors import RaylogError

HOST = "broker.test"
FAILS_AT_ONCE = "255.255.255.255"
"""A broadcast address, to which the system makes no connection."""


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Of a broker at 127.0.0.1, and at no other address of this machine."""
    with InProcessCluster(tmp_path_factory.mktemp("cluster"), brokers=1) as running:
        yield int(running.bootstrap_servers.rpartition(":")[2])


@contextmanager
def client(port: int, look_up: LookUp, **config: object) -> Iterator[tuple[Network, Address]]:
    """A client that knows the broker by name."""
    settings = client_settings(PRODUCER_SETTINGS, f"{HOST}:{port}", config)
    network = Network(settings, look_up=look_up)
    try:
        yield network, Address(HOST, port)
    finally:
        network.close()


def answers(*hosts: str) -> LookUp:
    def look_up(host: str, port: int, _family: int, _flags: int) -> Sequence[Candidate]:
        assert host == HOST
        return [Candidate(socket.AF_INET, (target, port)) for target in hosts]

    return look_up


def is_ready(network: Network, address: Address) -> Callable[[], bool]:
    def ask() -> bool:
        found = network.ready(address)
        network.poll(10)
        return found

    return ask


def becomes_ready(network: Network, address: Address) -> None:
    wait_until(is_ready(network, address), 30, "connected")


@contextmanager
def black_hole(port: int) -> Iterator[str]:
    """An address whose packets are dropped: that of a listener that accepts nobody, once its queue is full."""
    host = "127.0.0.3"
    with socket.socket() as listener:
        listener.bind((host, port))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for sock in waiting:
            sock.setblocking(False)
            sock.connect_ex((host, port))
        try:
            yield host
        finally:
            for sock in waiting:
                sock.close()


@pytest.mark.parametrize(
    "hosts",
    [
        ("127.0.0.1",),
        ("127.0.0.2", "127.0.0.1"),
        (FAILS_AT_ONCE, "127.0.0.1"),
        ("127.0.0.2", FAILS_AT_ONCE, "127.0.0.1"),
        (FAILS_AT_ONCE, FAILS_AT_ONCE, "127.0.0.2", "127.0.0.1", FAILS_AT_ONCE),
    ],
)
def test_all_addresses_of_a_host_are_tried(port: int, hosts: tuple[str, ...]) -> None:
    with client(port, answers(*hosts)) as (network, address):
        becomes_ready(network, address)
        network.reset()
        becomes_ready(network, address)


@pytest.mark.parametrize("hosts", [("127.0.0.2", FAILS_AT_ONCE), (FAILS_AT_ONCE, "127.0.0.2"), (FAILS_AT_ONCE,), ()])
def test_a_host_without_an_address_that_answers_is_tried_again(port: int, hosts: tuple[str, ...]) -> None:
    found = [*hosts]
    with client(port, lambda *asked: answers(*found)(*asked), reconnect_backoff_ms=1) as (network, address):
        ask = is_ready(network, address)
        for _ in range(3):
            wait_until(lambda: not ask() and network.pool.problem(address), 30, "it cannot be reached")
        assert HOST in str(network.pool.problem(address))
        found.append("127.0.0.1")  # as when the broker has come back elsewhere
        becomes_ready(network, address)


def test_an_address_that_drops_packets_keeps_nobody_from_the_next(port: int) -> None:
    with (
        black_hole(port) as silent,
        client(port, answers(silent, "127.0.0.1"), socket_connection_setup_timeout_ms=200) as (network, address),
    ):
        becomes_ready(network, address)


def test_a_name_server_that_is_silent_holds_up_nobody(port: int) -> None:
    """The call that asks for the connection returns while the look-up hangs; it is told how long that has lasted."""
    answered = threading.Event()

    def look_up(*asked: object) -> Sequence[Candidate]:
        assert answered.wait(scaled(60))
        return answers("127.0.0.1")(*asked)  # type: ignore[arg-type]

    try:
        with client(port, look_up, socket_connection_setup_timeout_ms=50) as (network, address):
            ask = is_ready(network, address)
            wait_until(lambda: not ask() and network.pool.problem(address), 30, "that takes too long")
            assert "being looked up" in str(network.pool.problem(address))
            answered.set()
            becomes_ready(network, address)
    finally:
        answered.set()


@pytest.mark.parametrize("error", [socket.gaierror(-2, "Name or service not known"), UnicodeError("label too long")])
def test_a_name_that_is_not_known_is_told(port: int, error: Exception) -> None:
    def look_up(*_: object) -> Sequence[Candidate]:
        raise error

    with client(port, look_up) as (network, address):
        ask = is_ready(network, address)
        wait_until(lambda: not ask() and network.pool.problem(address), 30, "it cannot be looked up")
        assert f"{HOST}:{port}" in str(network.pool.problem(address))
        assert "check the host name" in str(network.pool.problem(address))


def test_only_addresses_of_the_wanted_family_are_asked_for(port: int) -> None:
    families = []

    def look_up(host: str, port: int, family: int, flags: int) -> Sequence[Candidate]:
        families.append(family)
        return answers("127.0.0.1")(host, port, family, flags)

    with client(port, look_up, broker_address_family="v4") as (network, address):
        becomes_ready(network, address)
    assert set(families) == {socket.AF_INET}


def test_an_advertised_address_out_of_reach_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    listens, advertises = f"127.0.0.1:{free_port('127.0.0.1')}", f"127.0.0.1:{free_port('127.0.0.1')}"
    config = {"listeners": f"PLAINTEXT://{listens}", "advertised.listeners": f"PLAINTEXT://{advertises}"}

    def told() -> list[str]:
        lines = [record.getMessage() for record in caplog.records if record.name.startswith("raylog.client")]
        return [line for line in lines if "advertised.listeners" in line]

    with InProcessCluster(tmp_path, brokers=1, config=config) as cluster:
        cluster.create_topic("t")
        with Producer(listens, delivery_timeout_ms=3_000, linger_ms=0) as producer:
            assert isinstance(producer.send("t", b"x").exception(scaled(20)), RaylogError)
        assert len(told()) == 1
        assert all(part in told()[0] for part in (listens, advertises, "broker 0"))
        with Consumer(listens, ["t"], auto_offset_reset="earliest") as consumer:
            wait_until(lambda: consumer.poll(100) or len(told()) == 2, 20, "the consumer tells it, too")
