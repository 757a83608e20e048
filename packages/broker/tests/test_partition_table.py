"""What the partition table answers while the controller's word is carried out on the log dirs."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from kit.partitions import NOW, TOPIC_ID, TP, append
from raylog.broker.config import BROKER_SETTINGS
from raylog.broker.partition import Partition
from raylog.broker.partitions import PartitionTable
from raylog.broker.replication.delayed import DelayedFetches
from raylog.broker.replication.delayed_operations import DelayedOperations
from raylog.broker.storage.checkpoint import read_topic_id
from raylog.broker.storage.files import RealFileSystem
from raylog.broker.storage.log_dirs import LogDirs
from raylog.coordination.model import NO_LEADER, BrokerInfo, PartitionState, TopicState
from raylog.coordination.peer_control import Ack, AckStatus, UpdateState
from raylog.protocol.errors import RaylogError, StorageError
from raylog.protocol.ids import BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, Offset, TopicPartition

B1 = BrokerId(1)


class NobodyToFollow:
    """The fetchers of a broker that has no other to copy from."""

    def follow(self, partition: Partition, leader: BrokerInfo, leader_epoch: LeaderEpoch) -> None:
        raise AssertionError(f"{partition.tp} follows {leader}")

    def unfollow(self, tp: TopicPartition) -> None:
        pass


class Table:
    """A partition table, and the controller's messages to it."""

    def __init__(self, path: Path) -> None:
        settings = BROKER_SETTINGS.settings({"log.dirs": str(path)})
        self.dirs = LogDirs(settings, RealFileSystem(), "cluster-of-tests", B1)
        self.dirs.open(NOW)
        self.produces = DelayedOperations(threading.Lock())
        fetches, deletes = DelayedFetches(threading.Lock()), DelayedOperations(threading.Lock())
        self.table = PartitionTable(
            B1, "cluster-of-tests", settings, self.dirs, fetches, self.produces, deletes, NobodyToFollow(), lambda: NOW
        )
        self.table.register_with(lambda: BrokerEpoch(1))
        self._sequence = 0

    def tell(self, leader: BrokerId, leader_epoch: int) -> None:
        """The controller's word on who leads the one partition there is."""
        state = PartitionState((B1,), leader, LeaderEpoch(leader_epoch), (B1,), version=leader_epoch)
        self._sequence += 1
        message = UpdateState(
            controller_id=B1,
            controller_epoch=ControllerEpoch(1),
            broker_epoch=BrokerEpoch(1),
            sequence=self._sequence,
            full=self._sequence == 1,
            cluster_id="cluster-of-tests",
            brokers=(BrokerInfo(B1, BrokerEpoch(1), ()),),
            topics=(TopicState(TP.topic, TOPIC_ID, (state,)),),
        )
        assert Ack.decode(self.table.control(message.encode())).status is AckStatus.OK

    def fail_disk(self) -> None:
        self.table.get(TP).log.health.fail(OSError(errno.EIO, "the disk is gone"), "a write")


@pytest.fixture
def led(tmp_path: Path) -> Table:
    table = Table(tmp_path / "log")
    table.tell(B1, 0)
    return table


def test_a_partition_on_a_failed_disk_is_a_storage_error_even_while_its_leader_resigns(led: Table) -> None:
    """Requests that waited are woken as soon as leadership ends, and must not take that for a mere move."""
    answers: list[RaylogError] = []

    def woken() -> None:
        with pytest.raises(RaylogError) as refused:
            led.table.get(TP)
        answers.append(refused.value)

    led.produces.arm({TP: Offset(1)}, woken)
    led.fail_disk()
    led.tell(NO_LEADER, 1)
    assert [type(answer) for answer in answers] == [StorageError]
    with pytest.raises(StorageError, match="the disk is gone"):
        led.table.get(TP)


def test_who_tells_of_a_failed_disk_serves_nothing_from_it_any_more(led: Table) -> None:
    """From the telling on others may lead, who do not wait until this broker has heard of them."""
    partition = led.table.get(TP)
    assert not led.table.give_up_failed()
    led.fail_disk()
    assert list(led.table.give_up_failed()) == [TP]
    assert not partition.is_leader
    assert not led.table.led()
    with pytest.raises(StorageError, match="the disk is gone"):
        led.table.get(TP)
    assert list(led.table.give_up_failed()) == [TP], "until the state shows it"


def test_a_log_whose_topic_id_was_lost_is_still_the_topics(tmp_path: Path) -> None:
    """Others count on what it holds: an empty one in its place could lead, and they would lose theirs."""
    before = Table(tmp_path / "log")
    before.tell(B1, 0)
    append(before.table.get(TP), b"a", b"b")
    before.dirs.close()
    metadata = tmp_path / "log" / str(TP) / "partition.metadata"
    metadata.write_bytes(metadata.read_bytes()[:5])
    after = Table(tmp_path / "log")
    after.tell(B1, 0)
    assert after.table.get(TP).log_end_offset == 2
    assert read_topic_id(RealFileSystem(), metadata.parent) == TOPIC_ID
