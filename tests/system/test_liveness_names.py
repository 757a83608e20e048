"""Names of hosts: who asks for them never waits for a name server, neither do the hints of dead brokers."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator

import pytest

from kit.machine import scaled
from kit.waiting import wait_until
from raylog.broker.cluster.liveness import BrokerLiveness
from raylog.coordination.host.loops import Loops
from raylog.coordination.membership.host_names import Address, Names
from raylog.coordination.metadata.model import BrokerInfo, Endpoint
from raylog.protocol.ids import BrokerEpoch, BrokerId

pytestmark = pytest.mark.system

WAIT_S = 10.0
SLOW, PORT = "slow.example", 9092
HERE = Address(socket.AF_INET, ("127.0.0.1", PORT))


class NameServer:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[Address | OSError] = queue.SimpleQueue()

    def look_up(self, host: str, port: int) -> Address:
        self.asked.put((host, port))
        answer = self.answers.get()
        if isinstance(answer, OSError):
            raise answer
        return answer


@pytest.fixture
def server() -> Iterator[NameServer]:
    server = NameServer()
    yield server
    server.answers.put(OSError("the test is over"))


def test_a_name_has_no_address_until_the_server_answers(server: NameServer) -> None:
    names = Names(Loops(), server.look_up)
    assert names.address(SLOW, PORT) is None
    assert names.address(SLOW, PORT) is None
    assert server.asked.get(timeout=scaled(WAIT_S)) == (SLOW, PORT)
    server.answers.put(HERE)
    wait_until(lambda: names.address(SLOW, PORT) == HERE, WAIT_S, "the name is known")
    assert server.asked.empty(), "it is asked for once in a while"
    names.stop()


def test_a_name_that_is_not_found_has_none_and_holds_up_no_other(server: NameServer) -> None:
    names = Names(Loops(), server.look_up)
    assert names.address("nowhere.example", PORT) is None
    server.answers.put(OSError("not found"))
    assert names.address(SLOW, PORT) is None
    server.answers.put(HERE)
    wait_until(lambda: names.address(SLOW, PORT) == HERE, WAIT_S, "the other is known")
    assert names.address("nowhere.example", PORT) is None
    names.stop()


def test_names_are_looked_up_again_after_the_thread_has_ended(server: NameServer) -> None:
    ends = iter([SystemExit()])

    def before_step(thread: str) -> None:
        if (end := next(ends, None)) is not None:
            raise end

    loops = Loops(before_step=before_step)
    names = Names(loops, server.look_up)
    assert names.address("unlucky.example", PORT) is None
    wait_until(lambda: "names" in loops.troubles(), WAIT_S, "its thread has ended")
    server.answers.put(HERE)
    server.answers.put(HERE)
    wait_until(lambda: names.address(SLOW, PORT) == HERE, WAIT_S, "the name is known")
    assert names.address("unlucky.example", PORT) == HERE
    names.stop()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_numeric_addresses_need_no_server(server: NameServer, host: str) -> None:
    before = set(threading.enumerate())  # those of other tests may end meanwhile
    found = Names(Loops(), server.look_up).address(host, PORT)
    assert found is not None
    assert found.sockaddr[:2] == (host, PORT)
    assert not set(threading.enumerate()) - before
    assert server.asked.empty()


def test_a_name_server_that_hangs_holds_up_no_hint(server: NameServer) -> None:
    hints: queue.SimpleQueue[tuple[BrokerId, BrokerEpoch]] = queue.SimpleQueue()
    liveness = BrokerLiveness(BrokerId(1), lambda *who: hints.put(who), Loops(), Names(Loops(), server.look_up))
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(scaled(WAIT_S))
            at = {2: (SLOW, PORT), 3: listener.getsockname()}
            brokers = [
                BrokerInfo(BrokerId(b), BrokerEpoch(7), (Endpoint("PLAINTEXT", *where),)) for b, where in at.items()
            ]
            liveness.watch(brokers)
            assert server.asked.get(timeout=scaled(WAIT_S)) == (SLOW, PORT)
            connection, _ = listener.accept()
        connection.close()
        assert hints.get(timeout=scaled(WAIT_S)) == (3, 7)
    finally:
        liveness.stop()
