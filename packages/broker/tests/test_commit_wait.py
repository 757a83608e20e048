"""The wait of a produce over several partitions, whose commits come at any moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import cast

from kit.waiting import wait_until
from raylog.broker.handlers.records.commit_wait import Appended, CommitWait
from raylog.broker.partition.partition import AppendInfo, Partition
from raylog.broker.replication.delayed_operations import DelayedOperation, DelayedOperations
from raylog.protocol.errors import NotLeaderOrFollower, RequestTimedOut
from raylog.protocol.ids import NO_TIMESTAMP, LeaderEpoch, Offset, PartitionIndex, TopicName, TopicPartition

TIMEOUT_MS = 5_000


class Led:
    """A led partition, as far as a wait looks at it, and its role."""

    def __init__(self, table: DelayedOperations, index: int) -> None:
        self.tp = TopicPartition(TopicName("t"), PartitionIndex(index))
        self._table = table
        self._high_watermark = Offset(0)
        self.role = self

    def commit(self) -> None:
        self._high_watermark = Offset(1)
        self._table.advanced(self.tp, self._high_watermark)

    def check_committed(self, info: AppendInfo) -> bool:
        return self._high_watermark > info.last_offset


class Table(DelayedOperations):
    """Something happens just before a wait is entered in the table."""

    def __init__(self) -> None:
        super().__init__(threading.Lock())
        self.before_arming: list[Callable[[], None]] = []

    def arm(self, required: Mapping[TopicPartition, Offset], wake: Callable[[], None]) -> DelayedOperation:
        if self.before_arming:
            self.before_arming.pop(0)()
        return super().arm(required, wake)


def appended(partition: Led) -> Appended:
    info = AppendInfo(Offset(0), Offset(0), NO_TIMESTAMP, Offset(0), duplicate=False, leader_epoch=LeaderEpoch(0))
    return Appended(cast(Partition, partition), info)


def test_what_was_committed_before_the_wait_was_entered_does_not_hold_it_up() -> None:
    """The one partition's high watermark moves no more, and must not be waited for once the other's has moved."""
    table = Table()
    first, second = Led(table, 0), Led(table, 1)
    table.before_arming.append(first.commit)
    wait = CommitWait(table, [appended(first), appended(second)], TIMEOUT_MS)
    assert not wait.is_over()
    second.commit()
    assert wait.is_over()
    assert wait.errors == {}
    assert table.waiting == 0


def test_what_is_committed_while_the_wait_is_entered_again_does_not_hold_it_up() -> None:
    table = Table()
    partitions = [Led(table, index) for index in range(3)]
    wait = CommitWait(table, [appended(partition) for partition in partitions], TIMEOUT_MS)
    table.before_arming.append(partitions[1].commit)
    table.interrupt(partitions[0].tp)
    assert not wait.is_over()
    partitions[0].commit()
    partitions[2].commit()
    assert wait.is_over()
    assert wait.errors == {}


def test_wait_without_news_lasts_as_long_as_it_may() -> None:
    wait = CommitWait(Table(), [appended(Led(DelayedOperations(threading.Lock()), 0))], TIMEOUT_MS)
    began = time.monotonic()
    assert not wait.wait(0.05)
    assert 0.05 <= time.monotonic() - began < TIMEOUT_MS / 1000
    assert wait.errors == {}


def test_news_end_a_wait() -> None:
    table = Table()
    led = Led(table, 0)
    wait = CommitWait(table, [appended(led)], TIMEOUT_MS)
    led.commit()
    began = time.monotonic()
    assert wait.wait(TIMEOUT_MS / 1000)
    assert time.monotonic() - began < TIMEOUT_MS / 1000
    assert wait.errors == {}


def test_what_is_not_committed_in_time_is_timed_out_by_name() -> None:
    table = Table()
    first, second = Led(table, 0), Led(table, 1)
    wait = CommitWait(table, [appended(first), appended(second)], 50)
    first.commit()
    assert not wait.wait(0)
    wait_until(lambda: wait.wait(0.01), 10, "the wait's end")
    assert {number: type(error) for number, error in wait.errors.items()} == {1: RequestTimedOut}
    assert "t-1: appended up to offset 0" in str(wait.errors[1])
    assert table.waiting == 0


def test_abandoned_wait_is_in_no_table() -> None:
    table = Table()
    wait = CommitWait(table, [appended(Led(table, 0))], TIMEOUT_MS)
    assert table.waiting == 1
    wait.abandon()
    assert table.waiting == 0
    assert wait.is_over()


class Refused(Led):
    def check_committed(self, info: AppendInfo) -> bool:
        raise NotLeaderOrFollower(f"{self.tp}")


def test_partition_that_lost_its_leader_holds_up_no_other() -> None:
    table = Table()
    led = Led(table, 1)
    wait = CommitWait(table, [appended(Refused(table, 0)), appended(led)], TIMEOUT_MS)
    assert not wait.is_over()
    led.commit()
    assert wait.is_over()
    assert {number: type(error) for number, error in wait.errors.items()} == {0: NotLeaderOrFollower}
