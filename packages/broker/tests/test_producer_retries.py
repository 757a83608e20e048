"""Retries with acks=all: whatever happened to the log since, a batch is acknowledged once it is committed, not before,
and one that was perhaps never appended is out of order.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kit.partitions import NOW, TOPIC_ID, TP, batch
from raylog.broker.config import BROKER_SETTINGS, topic_settings
from raylog.broker.partition.partition import AppendInfo, Isolation, Partition
from raylog.broker.partition.types import ACKS_ALL
from raylog.broker.storage.directories.log_dirs import LogDirs
from raylog.broker.storage.disk.files import RealFileSystem
from raylog.coordination.metadata.model import PartitionState
from raylog.protocol.errors import DuplicateSequence, OutOfOrderSequence
from raylog.protocol.ids import BrokerEpoch, BrokerId, LeaderEpoch, MonotonicMs, Offset
from raylog.protocol.wire.fetch import FetchedPartition

MEMBERS = (BrokerId(1), BrokerId(2))
FIRST = 5
"""The first sequence that the partition ever saw of the producer."""
COUNT = 7
"""Batches of one record, all sent before one was acknowledged."""


class Replica:
    """Broker 1's replica, which leads with broker 2 in the ISR, and can be stopped and started."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.epoch = LeaderEpoch(0)
        self.open()
        self.lead()

    def open(self) -> None:
        settings = BROKER_SETTINGS.settings({"log.dirs": str(self.path)})
        self.dirs = LogDirs(settings, RealFileSystem(), "cluster-of-tests", BrokerId(1))
        self.dirs.open(NOW)
        self.settings = settings
        log = self.dirs.create(TP, TOPIC_ID, NOW)
        self.partition = Partition(TP, TOPIC_ID, log, topic_settings(settings, {"min.insync.replicas": "2"}))

    def lead(self) -> None:
        self.epoch = LeaderEpoch(self.epoch + 1)
        state = PartitionState(MEMBERS, BrokerId(1), self.epoch, MEMBERS, version=self.epoch)
        self.partition.role.become_leader(state, MonotonicMs(0))

    def follow(self) -> None:
        self.epoch = LeaderEpoch(self.epoch + 1)
        self.partition.role.become_follower(self.epoch)

    def send(self, sequence: int) -> AppendInfo:
        data = batch(b"v", producer=(7, 0, sequence))
        return self.partition.append(data, acks=ACKS_ALL, now_ms=NOW)

    def replicate(self, offset: int) -> None:
        """Broker 2 has all before ``offset``."""
        self.partition.role.replica_fetched(
            BrokerId(2), BrokerEpoch(0), Offset(offset), Offset(0), MonotonicMs(0), leader_epoch=self.epoch
        )


def nothing(replica: Replica) -> None: ...


def roll(replica: Replica) -> None:
    with replica.partition.log.lock:
        replica.partition.log.roll(NOW)


def restart(replica: Replica) -> None:
    replica.dirs.close()
    replica.open()
    replica.lead()


def crash(replica: Replica) -> None:
    replica.dirs.abandon()
    replica.open()
    replica.lead()


def truncation(replica: Replica) -> None:
    """Another leader had the first batches only; those after them are cut off."""
    for extra in range(3):
        replica.send(FIRST + COUNT + extra)
    replica.follow()
    replica.partition.log.truncate(Offset(COUNT), NOW)
    replica.lead()


def another_leader(replica: Replica) -> None:
    """A follower that fetched everything leads from now on."""
    read = replica.partition.read(Offset(0), 1 << 20, isolation=Isolation.LOG_END)
    assert read.data is not None
    fetched = memoryview(bytearray(read.data.read()))
    read.data.release()
    replica.dirs.close()
    replica.path = replica.path.with_name("other")
    replica.open()
    replica.follow()
    replica.partition.role.fetched(FetchedPartition(0, 0, 0, 0, 0, fetched), replica.epoch, NOW)
    replica.lead()


Event = Callable[[Replica], None]
EVENTS: tuple[tuple[Event, ...], ...] = (
    (nothing,),
    *((one,) for one in (roll, restart, crash, truncation, another_leader)),
    *((one, other) for one in (roll, restart, crash, another_leader) for other in (restart, crash, truncation)),
    (roll, truncation, crash, restart),
)


def name_of(events: tuple[Event, ...]) -> str:
    return " ".join(event.__name__ for event in events)


@pytest.fixture(params=EVENTS, ids=name_of)
def replica(request: pytest.FixtureRequest, tmp_path: Path) -> Replica:
    replica = Replica(tmp_path / "log")
    for n in range(COUNT):
        replica.send(FIRST + n)
    for event in request.param:
        event(replica)
    assert (replica.partition.high_watermark, replica.partition.log_end_offset) == (0, COUNT)
    return replica


def test_a_retry_is_acknowledged_when_committed_not_before(replica: Replica) -> None:
    retries = [replica.send(FIRST + n) for n in range(COUNT)]
    assert all(info.duplicate for info in retries)
    for committed in range(COUNT):
        acknowledged = [n for n, info in enumerate(retries) if replica.partition.role.check_committed(info)]
        assert all(n < committed for n in acknowledged)
        replica.replicate(committed + 1)
    assert all(replica.partition.role.check_committed(info) for info in retries)
    assert [info.base_offset for info in retries] == [-1, -1, 2, 3, 4, 5, 6], "the last five have their offsets"
    assert [type(info.failure(TP)) for info in retries[:3]] == [DuplicateSequence, DuplicateSequence, type(None)]
    assert replica.partition.log_end_offset == COUNT
    replica.dirs.close()


def test_what_was_never_appended_is_out_of_order(replica: Replica) -> None:
    for sequence in (0, FIRST - 1, FIRST + COUNT + 1):
        with pytest.raises(OutOfOrderSequence):
            replica.send(sequence)
    assert replica.send(FIRST + COUNT).base_offset == COUNT
    replica.dirs.close()


@pytest.mark.parametrize("sequence", [FIRST, FIRST + COUNT - 1])
def test_a_retry_is_flushed_where_that_is_asked_for(replica: Replica, sequence: int) -> None:
    topic = {"min.insync.replicas": "2", "flush.messages": "1"}
    replica.partition.configure(topic_settings(replica.settings, topic))
    replica.send(sequence)
    assert replica.partition.log.recovery_point == COUNT
    replica.dirs.close()
