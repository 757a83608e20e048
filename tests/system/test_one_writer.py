"""One writer per log directory: taken twice, copied, or under a broker that was stopped and goes on."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.broker_process import BROKER_ID, BrokerProcess
from kit.machine import scaled, scaled_ms
from kit.waiting import wait_until
from kit.wire import WireClient, produce_request
from kit.zookeeper import running_zookeeper
from raylog.client.admin import Admin
from raylog.coordination.metadata import paths
from raylog.coordination.zookeeper.embedded import EmbeddedZooKeeper
from raylog.coordination.zookeeper.store import ZkStore
from raylog.protocol.errors import ErrorCode
from raylog.protocol.ids import BrokerId
from raylog.protocol.records import Record, encode_batch
from raylog.protocol.wire.produce import ProducedPartition, parse_produce_response

pytestmark = pytest.mark.system

SESSION_MS = scaled_ms(2_000)
WAIT_S = 30.0
TOPIC = "t"
PRODUCE_VERSION = 9
LATEST = -1
BATCH = encode_batch([Record(b"value", timestamp=1_000)])


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[EmbeddedZooKeeper]:
    with running_zookeeper(tmp_path / "zookeeper") as server:
        yield server


@pytest.fixture
def broker(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> Iterator[BrokerProcess]:
    """The first on the directory ``broker``, with one topic."""
    with BrokerProcess(tmp_path / "broker", zookeeper.address, session_ms=SESSION_MS) as process:
        address_of(process)
        with admin(process) as client:
            client.create_topic(TOPIC, 1)
        yield process


def another(zookeeper: EmbeddedZooKeeper, directory: Path) -> BrokerProcess:
    return BrokerProcess(directory, zookeeper.address, session_ms=SESSION_MS)


def address_of(process: BrokerProcess) -> tuple[str, int]:
    address = wait_until(lambda: process.address, WAIT_S, "the broker serves")
    assert address is not None
    return address


def admin(process: BrokerProcess) -> Admin:
    host, port = address_of(process)
    return Admin(f"{host}:{port}")


def produce(process: BrokerProcess) -> int:
    """Append one record, once it is taken: while the lease has lapsed, as on a machine that stands still, nothing is
    appended; its offset.
    """
    answers: list[ProducedPartition] = []

    def taken() -> bool:
        [topic] = client.produce(TOPIC, BATCH).topics
        answers.extend(topic.partitions)
        return answers[-1].error_code == 0

    with WireClient(address_of(process), timeout_s=scaled(WAIT_S)) as client:
        wait_until(taken, WAIT_S, "the record is taken", instead=lambda: answers[-1])
        return answers[-1].base_offset


def refusal(process: BrokerProcess) -> str:
    wait_until(lambda: process.refusals, WAIT_S, "the broker is refused")
    assert process.address is None
    return process.refusals[-1]


def registered(zookeeper: EmbeddedZooKeeper) -> bool:
    with ZkStore(zookeeper.address) as store:
        return store.exists(paths.broker(BrokerId(BROKER_ID))) is not None


def copy_of(broker_dir: Path, copy: Path) -> Path:
    """A copy as it would be on another machine, where the ports are free."""
    passing = shutil.ignore_patterns("ports.json", "*.new", "*.tmp")  # files in the making are renamed meanwhile
    shutil.copytree(broker_dir, copy, ignore=passing)
    return copy


def test_a_directory_taken_twice_has_one_broker_at_a_time(
    zookeeper: EmbeddedZooKeeper, broker: BrokerProcess, tmp_path: Path
) -> None:
    assert produce(broker) == 0
    with another(zookeeper, tmp_path / "broker") as second:
        assert "is in use by another broker" in refusal(second)
        assert produce(broker) == 1
        broker.kill()
        ended = time.monotonic()
        assert produce(second) == 2
        print(
            f"\nthe same directory twice: overlap 0 s; the second serves {time.monotonic() - ended:.1f} s after the end"
        )


def test_a_copied_directory_waits_for_the_end_of_the_first_brokers_session(
    zookeeper: EmbeddedZooKeeper, broker: BrokerProcess, tmp_path: Path
) -> None:
    """And when the first was only stopped, it finds itself replaced: what reached it meanwhile is not acknowledged."""
    assert produce(broker) == 0
    with another(zookeeper, copy_of(tmp_path / "broker", tmp_path / "copy")) as copy:
        assert f"broker id {BROKER_ID} is registered by" in refusal(copy)
        assert produce(broker) == 1
        with WireClient(address_of(broker), timeout_s=scaled(WAIT_S)) as client:
            broker.signal(signal.SIGSTOP)
            try:
                stopped = time.monotonic()
                taken_over = produce(copy)
                waited = time.monotonic() - stopped
                for number in range(3):
                    client.send(produce_request(TOPIC, BATCH, version=PRODUCE_VERSION, correlation_id=number))
            finally:
                broker.signal(signal.SIGCONT)
            codes = []
            for _ in range(3):
                [topic] = parse_produce_response(PRODUCE_VERSION, client.receive())[1].topics
                codes.append(topic.partitions[0].error_code)
            stale = client.ask(
                2, 5, topics=[{"name": TOPIC, "partitions": [{"partition_index": 0, "timestamp": LATEST}]}]
            )
        zombie_acks = codes.count(0)
        print(
            f"\na copied directory, the first broker stopped: taken over after {waited:.1f} s of a session of "
            f"{SESSION_MS / 1000:g} s; zombie acks {zombie_acks}, overlap 0 s"
        )
        assert taken_over == 1, "the copy was made before the second record"
        assert waited >= 0.9 * SESSION_MS / 1000
        assert codes == [ErrorCode.not_leader_or_follower.value] * 3
        [listed] = stale.topics[0].partitions
        assert listed.error_code is ErrorCode.not_leader_or_follower
        assert produce(copy) == 2


def test_a_stopped_broker_goes_on_with_a_new_epoch(zookeeper: EmbeddedZooKeeper, broker: BrokerProcess) -> None:
    with WireClient(address_of(broker), timeout_s=scaled(WAIT_S)) as client:
        broker.signal(signal.SIGSTOP)
        try:
            wait_until(lambda: not registered(zookeeper), WAIT_S, "its session has ended")
            for number in range(20):
                client.send(produce_request(TOPIC, BATCH, version=PRODUCE_VERSION, correlation_id=number))
        finally:
            broker.signal(signal.SIGCONT)
        went_on = time.monotonic()
        codes = []
        for _ in range(20):
            [topic] = parse_produce_response(PRODUCE_VERSION, client.receive())[1].topics
            codes.append(topic.partitions[0].error_code)
        assert codes[0] == ErrorCode.not_leader_or_follower.value
        wait_until(
            lambda: client.produce(TOPIC, BATCH).topics[0].partitions[0].error_code == 0, WAIT_S, "it serves again"
        )
    print(f"\na broker stopped past its session: serves again {time.monotonic() - went_on:.2f} s after it went on")
