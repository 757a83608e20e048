"""A disk that fails under a replica, or brings back other bytes than were written: a follower leaves the in-sync
replicas, a leader gives its leadership up; what is damaged is not served, and fetched anew.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit import segments
from kit.cluster import InProcessCluster
from kit.faulty_files import FailingFileSystem
from kit.machine import scaled, scaled_ms
from kit.waiting import wait_until
from raylog.broker.broker import Broker
from raylog.broker.storage.disk.files import RealFileSystem
from raylog.client import Consumer, Producer
from raylog.protocol.errors import CorruptMessage
from raylog.protocol.ids import BrokerId, PartitionIndex, TopicName, TopicPartition

WAIT_S = 20.0
TP = TopicPartition(TopicName("t"), PartitionIndex(0))
CONFIG = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "60000",  # so that nobody leaves for being slow
    "auto.create.topics.enable": "false",
}


@pytest.fixture
def fs() -> FailingFileSystem:
    return FailingFileSystem(RealFileSystem())


@pytest.fixture
def cluster(tmp_path: Path, fs: FailingFileSystem) -> Iterator[InProcessCluster]:
    with InProcessCluster(tmp_path, brokers=3, config=CONFIG, fs=fs) as running:
        running.create_topic("t")
        yield running


def state_of(broker: Broker) -> tuple[BrokerId, set[BrokerId]]:
    state = broker.partitions.state().partition(TP)
    assert state is not None
    return state.leader, set(state.isr)


def fail_writes(fs: FailingFileSystem, broker_id: int, code: int) -> None:
    fs.fail("pwritev", code, f"broker-{broker_id}/log/t-0/{0:020d}.log")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_followers_full_disk(
    cluster: InProcessCluster, fs: FailingFileSystem, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    leader = cluster.leader(*TP)
    victim = next(broker_id for broker_id in cluster.brokers if broker_id != leader.broker_id)
    with Producer(cluster.bootstrap_servers, acks="all", linger_ms=0) as producer:
        producer.send("t", b"before").result(scaled(WAIT_S))
        with caplog.at_level(logging.INFO):
            fail_writes(fs, victim, code)
            assert producer.send("t", b"after").result(scaled(WAIT_S)).offset == 1
            wait_until(
                lambda: state_of(leader) == (leader.broker_id, set(cluster.brokers) - {victim}), WAIT_S, "it is out"
            )
    [(path, reason)] = cluster.brokers[victim].describe()["offline_log_dirs"].items()
    assert f"broker-{victim}" in path
    assert "append to t-0" in reason
    wait_told(caplog, "log directory offline")
    assert any("log directory offline" in line and f"broker-{victim}" in line for line in caplog.messages)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_leaders_full_disk(
    cluster: InProcessCluster, fs: FailingFileSystem, code: int, record_property: Callable[[str, object], None]
) -> None:
    victim = cluster.leader(*TP).broker_id
    others = set(cluster.brokers) - {victim}
    with Producer(cluster.bootstrap_servers, acks="all", linger_ms=0, retry_backoff_ms=20) as producer:
        producer.send("t", b"before").result(scaled(WAIT_S))
        fail_writes(fs, victim, code)
        begun = time.monotonic()
        assert producer.send("t", b"after").result(scaled(WAIT_S)).offset == 1
        record_property("seconds until another broker leads and acknowledges", time.monotonic() - begun)
    wait_until(
        lambda: state_of(cluster.controller)[1] == others,
        WAIT_S,
        "the others are in sync, as the controller's broker knows",
        instead=lambda: state_of(cluster.controller),
    )
    assert state_of(cluster.controller)[0] in others


def test_a_leader_that_cannot_open_its_log_gives_up_at_once(cluster: InProcessCluster, fs: FailingFileSystem) -> None:
    """The new topic's directory cannot be made on one broker: others lead all of it."""
    fs.fail("make_dirs", errno.EIO, "broker-1/log/u-0")
    cluster.create_topic("u", partitions=3)
    wait_until(
        lambda: all(
            state is not None and state.leader != 1 and 1 not in state.isr
            for index in range(3)
            for state in [
                cluster.controller.partitions.state().partition(TopicPartition(TopicName("u"), PartitionIndex(index)))
            ]
        ),
        WAIT_S,
        "broker 1 leads nothing",
    )
    with Producer(cluster.bootstrap_servers, acks="all", linger_ms=0, retry_backoff_ms=20) as producer:
        for partition in range(3):
            producer.send("u", b"x", partition=partition).result(scaled(WAIT_S))


# --- damage

RECORD = b"x" * 900
MANY = 120
"""Records in a partition: some closed segments."""
ON_DEMAND = pytest.mark.parametrize("rate", [0])
"""Nothing is read before somebody asks for it."""


@pytest.fixture
def rate() -> int:
    """How fast brokers read in the background."""
    return 16 * 1024**2


@pytest.fixture
def filled(tmp_path: Path, rate: int) -> Iterator[InProcessCluster]:
    """Three brokers with records in some segments."""
    config = {**CONFIG, "log.segment.bytes": "16384", "raylog.log.scrub.bytes.per.second": str(rate)}
    with InProcessCluster(tmp_path, brokers=3, config=config) as running:
        running.create_topic("t")
        with Producer(running.bootstrap_servers, acks="all", linger_ms=0) as producer:
            for n in range(MANY):
                producer.send("t", b"%d" % n + RECORD)
            producer.flush()
        yield running


def partition_dir(cluster: InProcessCluster, broker_id: int) -> Path:
    return cluster.root / f"broker-{broker_id}" / "log" / "t-0"


def log_bytes(cluster: InProcessCluster, broker_id: int) -> bytes:
    return segments.log_bytes(partition_dir(cluster, broker_id))


def flip_in_the_middle(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def wait_mended(cluster: InProcessCluster) -> None:
    """All are in sync again, and have the same bytes."""
    wait_until(lambda: state_of(cluster.controller)[1] == set(cluster.brokers), WAIT_S, "all are in sync")
    wait_until(
        lambda: len({log_bytes(cluster, broker_id) for broker_id in cluster.brokers}) == 1, WAIT_S, "all have the same"
    )


def wait_told(caplog: pytest.LogCaptureFixture, *events: str) -> None:
    """These are told, each after the one before it; a broker tells of a change after it can be seen."""

    def told_in_order() -> bool:
        told = iter(list(caplog.messages))
        return all(any(event in line for line in told) for event in events)

    wait_until(told_in_order, WAIT_S, "all of it is told, in this order", instead=lambda: caplog.messages)


def read_back(cluster: InProcessCluster) -> list[object]:
    """All values, from a consumer that asks again when it is refused."""
    found: list[object] = []
    with Consumer(cluster.bootstrap_servers, ["t"], auto_offset_reset="earliest") as consumer:

        def have_all() -> bool:
            try:
                for records in consumer.poll(200).values():
                    found.extend(record.value for record in records)
            except CorruptMessage:
                pass
            return len(found) >= MANY

        wait_until(have_all, WAIT_S, "all records")
    return found


EXPECTED = [b"%d" % n + RECORD for n in range(MANY)]


def leader_epoch_of(cluster: InProcessCluster) -> int:
    state = cluster.controller.partitions.state().partition(TP)
    assert state is not None
    return state.leader_epoch


@pytest.mark.parametrize("segment", ["closed", "active"])
def test_a_follower_that_was_damaged_while_it_did_not_run_mends_itself(
    filled: InProcessCluster, segment: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody reads from it: it finds the damage, leaves the ISR, truncates, and fetches anew."""
    victim = next(broker_id for broker_id in filled.brokers if broker_id != filled.leader(*TP).broker_id)
    filled.stop(victim)
    files = sorted(partition_dir(filled, victim).glob("*.log"))
    flip_in_the_middle(files[0] if segment == "closed" else files[-1])
    caplog.set_level(logging.INFO)
    epoch = leader_epoch_of(filled)
    filled.start(victim)
    wait_until(lambda: leader_epoch_of(filled) > epoch, WAIT_S, "it is out, in a new leader epoch")
    wait_mended(filled)
    wait_told(
        caplog, "replica damaged", "replicas are damaged: others lead", "damaged log truncated", "in-sync replicas"
    )

    def left() -> tuple[object, object]:
        broker = filled.brokers[victim].describe()
        return broker["damaged"], broker["unread_bytes"]

    wait_until(lambda: left() == ({}, 0), WAIT_S, "all is mended, and all is read", instead=left)


@ON_DEMAND
def test_a_leader_that_is_damaged_gives_way_before_it_is_mended(
    filled: InProcessCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """It leads, and a consumer meets the damage: it reads on from another, every record."""
    victim = filled.leader(*TP).broker_id
    filled.stop(victim)
    flip_in_the_middle(min(partition_dir(filled, victim).glob("*.log")))
    filled.start(victim)
    wait_until(lambda: state_of(filled.controller)[1] == set(filled.brokers), WAIT_S, "it is in sync")
    [elected] = filled.controller.topics.elect_leaders([TP], unclean=False, timeout_ms=scaled_ms(10_000))
    assert elected == TP
    wait_until(lambda: filled.leader(*TP).broker_id == victim, WAIT_S, "it leads")
    caplog.set_level(logging.INFO)
    assert read_back(filled) == EXPECTED
    wait_until(lambda: state_of(filled.controller)[0] != victim, WAIT_S, "another leads")
    wait_mended(filled)
    wait_told(caplog, "corrupt batch", "replica damaged", "damaged log truncated")


@ON_DEMAND
def test_the_last_in_sync_keeps_what_it_has_and_serves_what_is_good(filled: InProcessCluster) -> None:
    """Nothing is deleted; the others, which have it all, come back, and it is mended from them."""
    victim = filled.leader(*TP).broker_id
    others = set(filled.brokers) - {victim}
    filled.stop(victim)
    flip_in_the_middle(min(partition_dir(filled, victim).glob("*.log")))
    whole = log_bytes(filled, victim)
    filled.start(victim)
    wait_until(lambda: state_of(filled.controller)[1] == set(filled.brokers), WAIT_S, "it is in sync")
    for broker_id in others:
        filled.stop(broker_id)
    broker = filled.brokers[victim]
    wait_until(lambda: state_of(broker) == (victim, {victim}), WAIT_S, "it is to lead alone")
    wait_until(lambda: TP in broker.partitions.led(), WAIT_S, "it does")
    served = refused = 0
    for offset in range(MANY):
        try:
            found = broker.fetch("t", 0, offset, 1)
        except CorruptMessage:
            refused += 1
        else:
            served += 1
            assert found.records()[0].value == EXPECTED[offset]
    assert served > refused > 0
    wait_until(lambda: broker.describe()["damaged"], WAIT_S, "it knows")
    assert "t-0" in broker.describe()["damaged"]
    assert log_bytes(filled, victim) == whole
    for broker_id in others:
        filled.start(broker_id)
    wait_mended(filled)
    assert read_back(filled) == EXPECTED
