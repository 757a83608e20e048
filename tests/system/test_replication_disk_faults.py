"""A disk that fails under a replica: a follower leaves the in-sync replicas, a leader gives its leadership up."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.cluster import InProcessCluster
from kit.faulty_files import FailingFileSystem
from kit.waiting import wait_until
from raylog.broker.broker import Broker
from raylog.broker.storage.files import RealFileSystem
from raylog.client import Producer
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
        producer.send("t", b"before").result(WAIT_S)
        with caplog.at_level(logging.INFO):
            fail_writes(fs, victim, code)
            assert producer.send("t", b"after").result(WAIT_S).offset == 1
            wait_until(
                lambda: state_of(leader) == (leader.broker_id, set(cluster.brokers) - {victim}), WAIT_S, "it is out"
            )
    [(path, reason)] = cluster.brokers[victim].describe()["offline_log_dirs"].items()
    assert f"broker-{victim}" in path
    assert "append to t-0" in reason
    told = [record.getMessage() for record in caplog.records]
    assert any("log directory offline" in line and f"broker-{victim}" in line for line in told)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_leaders_full_disk(
    cluster: InProcessCluster, fs: FailingFileSystem, code: int, record_property: Callable[[str, object], None]
) -> None:
    victim = cluster.leader(*TP).broker_id
    others = set(cluster.brokers) - {victim}
    with Producer(cluster.bootstrap_servers, acks="all", linger_ms=0, retry_backoff_ms=20) as producer:
        producer.send("t", b"before").result(WAIT_S)
        fail_writes(fs, victim, code)
        begun = time.monotonic()
        assert producer.send("t", b"after").result(WAIT_S).offset == 1
        record_property("seconds until another broker leads and acknowledges", time.monotonic() - begun)
    new_leader, isr = state_of(cluster.controller)
    assert new_leader in others
    assert isr == others


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
            producer.send("u", b"x", partition=partition).result(WAIT_S)
