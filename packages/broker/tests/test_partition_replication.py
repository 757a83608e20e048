"""Partitions that lead and follow, on real logs: replication, failover, truncation, and what producers notice of it."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.partitions import NOW, TP, Heard, Shelf, append, batch, open_shelf, values
from kit.waiting import wait_until
from raylog.broker.partition.partition import Isolation, Partition
from raylog.broker.partition.types import ACKS_ALL
from raylog.coordination.metadata.model import PartitionState
from raylog.protocol.errors import (
    CorruptMessage,
    FencedLeaderEpoch,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    OffsetOutOfRange,
    OutOfOrderSequence,
    StaleBrokerEpoch,
    UnknownLeaderEpoch,
)
from raylog.protocol.ids import BrokerEpoch, BrokerId, LeaderEpoch, MonotonicMs, Offset, TopicPartition
from raylog.protocol.records import decode_batches
from raylog.protocol.wire.fetch import NO_EPOCH_END, EpochEndOffset, FetchedPartition

BROKERS = (1, 2, 3)
START = MonotonicMs(0)
LIVE = {BrokerId(broker): BrokerEpoch(0) for broker in BROKERS}


class Group:
    """Replicas of one partition, and the state that a controller wrote of it."""

    def __init__(self, directory: Path, replicas: tuple[int, ...] = BROKERS, **topic: object) -> None:
        self.shelves: dict[int, Shelf] = {}
        self.heard = {broker: Heard() for broker in replicas}
        for broker, heard in self.heard.items():
            self.shelves[broker] = open_shelf(
                directory / str(broker), topic=topic, epoch=0, subscriptions=heard.subscriptions()
            )
        members = tuple(map(BrokerId, replicas))
        self.state = PartitionState(members, members[0], LeaderEpoch(0), members, version=0)

    def __getitem__(self, broker: int) -> Partition:
        return self.shelves[broker].partition

    @property
    def leader(self) -> Partition:
        return self[self.state.leader]

    def elect(self, broker: int, *isr: int) -> None:
        """``broker`` leads from now on, all others follow it."""
        before = self.state
        self.state = PartitionState(
            before.replicas,
            BrokerId(broker),
            LeaderEpoch(before.leader_epoch + 1),
            tuple(map(BrokerId, isr or before.replicas)),
            version=before.version + 1,
        )
        for other in self.shelves:
            if other != broker:
                self[other].role.become_follower(self.state.leader_epoch)
        self.leader.role.become_leader(self.state, START)

    def change_isr(self, *isr: int) -> None:
        before = self.state
        self.state = PartitionState(
            before.replicas, before.leader, before.leader_epoch, tuple(map(BrokerId, isr)), version=before.version + 1
        )
        self.leader.role.update(self.state, START)

    def ask(self, broker: int, max_bytes: int = 1 << 20) -> FetchedPartition[memoryview]:
        """What the leader answers to a fetch of ``broker``. Raises what it answers as an error."""
        return self.ask_in(self[broker].role.leader_epoch, broker, max_bytes)

    def ask_in(self, epoch: LeaderEpoch, broker: int, max_bytes: int) -> FetchedPartition[memoryview]:
        follower, leader = self[broker], self.leader
        read = leader.read(
            follower.log_end_offset,
            max_bytes,
            isolation=Isolation.LOG_END,
            current_leader_epoch=epoch,
            last_fetched_epoch=follower.role.last_fetched_epoch,
        )
        if read.diverging is None:
            leader.role.replica_fetched(
                BrokerId(broker),
                BrokerEpoch(0),
                follower.log_end_offset,
                follower.log_start_offset,
                START,
                leader_epoch=epoch,
            )
        data = None
        if read.data is not None:
            data = memoryview(bytearray(read.data.read()))
            read.data.release()
        diverging = NO_EPOCH_END if read.diverging is None else EpochEndOffset(*read.diverging)
        hw = leader.high_watermark
        return FetchedPartition(0, 0, hw, hw, read.log_start_offset, data, diverging_epoch=diverging)

    def fetch(self, broker: int, max_bytes: int = 1 << 20) -> FetchedPartition[memoryview]:
        """One fetch of ``broker``, taken in."""
        follower = self[broker]
        epoch = follower.role.leader_epoch
        try:
            found = self.ask_in(epoch, broker, max_bytes)
        except OffsetOutOfRange as error:
            found = FetchedPartition(0, 1, log_start_offset=self.leader.log_start_offset)
            follower.role.fetch_failed(error, found, epoch, NOW)
        else:
            follower.role.fetched(found, epoch, NOW)
        follower.role.settle()
        return found

    def replicate(self, *brokers: int) -> None:
        """Fetch until all (or ``brokers``) have everything and know what is committed."""
        followers = [broker for broker in brokers or self.shelves if broker != self.state.leader]
        for _ in range(20):
            answers = [self.fetch(broker) for broker in followers]
            committed = {self[broker].high_watermark for broker in followers} == {self.leader.high_watermark}
            if committed and not any(found.records or found.diverging_epoch.epoch >= 0 for found in answers):
                break

    def log(self, broker: int) -> list[bytes | None]:
        """All records of a replica, committed or not, read as consumers would if they were."""
        partition = self[broker]
        with partition.log.lock:
            end, found = partition.log.offsets.end, []
            at = partition.log_start_offset
            while (data := partition.log.read(at, 1 << 20, end, min_one_batch=True)) is not None:
                records = decode_batches(data.read(), from_offset=at)
                data.release()
                found += [record.value for record in records]
                at = Offset(records[-1].offset + 1)
        return found

    def files(self, broker: int) -> bytes:
        paths = sorted(self.shelves[broker].directory.glob("*.log"))
        return b"".join(path.read_bytes() for path in paths)

    def close(self) -> None:
        for shelf in self.shelves.values():
            shelf.dirs.close()


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    group = Group(tmp_path)
    group.elect(1)
    yield group
    group.close()


# --- copies --------------------------------------------------------------------------------------------------


def test_followers_have_the_leaders_bytes_epochs_and_high_watermark(group: Group) -> None:
    append(group.leader, b"a", b"b")
    append(group.leader, b"c")
    group.replicate()
    for broker in (2, 3):
        assert group.files(broker) == group.files(1)
        assert group[broker].log.epochs.rows() == group.leader.log.epochs.rows() == [(1, 0)]
        assert group[broker].high_watermark == 3
    assert values(group.leader) == [b"a", b"b", b"c"]


def test_nothing_is_committed_before_all_members_have_it(group: Group) -> None:
    heard = group.heard[1]
    append(group.leader, b"a")
    group.fetch(2)
    group.fetch(2)
    group.fetch(3)
    assert (group.leader.high_watermark, values(group.leader), heard.of("advance")) == (0, [], [])
    group.fetch(3)
    assert (group.leader.high_watermark, values(group.leader)) == (1, [b"a"])
    assert heard.of("advance") == [("advance", TP, len(batch(b"a")), 1)]


def test_appends_wake_followers_and_commits_wake_consumers_with_their_bytes(group: Group) -> None:
    size = len(batch(b"a"))
    append(group.leader, b"a")
    append(group.leader, b"a")
    group.replicate()
    told = group.heard[1].of("append", "advance")
    assert told == [("append", TP, size), ("append", TP, size), ("advance", TP, 2 * size, 2)]


def test_nothing_is_asked_of_the_controller_without_need(group: Group) -> None:
    group.replicate()
    assert group.leader.role.proposal(START, LIVE) is None


def test_follower_wakes_its_consumers_when_more_is_committed(group: Group) -> None:
    def told() -> list[tuple[TopicPartition, int]]:
        return [(tp, high_watermark) for _, tp, _, high_watermark in group.heard[2].of("advance")]

    append(group.leader, b"a")
    group.fetch(2)
    group.fetch(3)
    assert told() == []
    group.fetch(2)
    group.fetch(3)
    group.fetch(2)
    assert (group[2].high_watermark, told()) == (1, [(TP, 1)])
    group.fetch(2)
    assert told() == [(TP, 1)]


def test_an_answer_that_comes_twice_does_no_harm(group: Group) -> None:
    append(group.leader, b"a")
    append(group.leader, b"b")
    found = group.ask(2)
    for _ in range(2):
        group[2].role.fetched(found, LeaderEpoch(1), NOW)
    append(group.leader, b"c")
    group.replicate()
    group[2].role.fetched(found, LeaderEpoch(1), NOW)
    assert group.files(2) == group.files(1)


def test_a_cut_batch_is_left_for_the_next_fetch(group: Group) -> None:
    append(group.leader, b"a")
    append(group.leader, b"b")
    group.fetch(2, len(batch(b"a")) + 10)
    assert group[2].log_end_offset == 1
    group.fetch(2)
    assert group[2].log_end_offset == 2


def test_damaged_bytes_are_not_appended(group: Group) -> None:
    append(group.leader, b"a")
    found = group.ask(2)
    assert found.records is not None
    found.records[-1] ^= 1
    with pytest.raises(CorruptMessage):
        group[2].role.fetched(found, LeaderEpoch(1), NOW)
    assert group[2].log_end_offset == 0


def test_late_answers_of_a_former_leader_are_refused(group: Group) -> None:
    append(group.leader, b"a")
    found = group.ask(2)
    group.elect(3)
    with pytest.raises(NotLeaderOrFollower):
        group[2].role.fetched(found, LeaderEpoch(1), NOW)
    group[2].role.resign()
    with pytest.raises(NotLeaderOrFollower):
        group[2].role.fetched(found, LeaderEpoch(2), NOW)
    assert (group[2].log_end_offset, group.files(2)) == (0, b""), "nothing of them is stored"


def test_fetches_are_fenced_by_both_epochs(group: Group) -> None:
    def fetched(broker_epoch: int, leader_epoch: int) -> None:
        leader, offset = LeaderEpoch(leader_epoch), Offset(0)
        group.leader.role.replica_fetched(
            BrokerId(2), BrokerEpoch(broker_epoch), offset, offset, START, leader_epoch=leader
        )

    fetched(4, 1)
    with pytest.raises(StaleBrokerEpoch):
        fetched(3, 1)
    with pytest.raises(FencedLeaderEpoch):
        fetched(4, 0)
    with pytest.raises(UnknownLeaderEpoch):
        fetched(4, 2)
    append(group.leader, b"a")
    group.leader.role.replica_fetched(
        BrokerId(3), BrokerEpoch(4), Offset(1), Offset(0), START, leader_epoch=LeaderEpoch(1)
    )
    for stale in (3, 4):
        with contextlib.suppress(StaleBrokerEpoch, FencedLeaderEpoch):
            group.leader.role.replica_fetched(
                BrokerId(2), BrokerEpoch(stale), Offset(1), Offset(0), START, leader_epoch=LeaderEpoch(4 - stale)
            )
    assert group.leader.high_watermark == 0, "a fenced fetch tells nothing of its replica"


def test_followers_flush_as_asked_before_they_fetch_on(tmp_path: Path) -> None:
    group = Group(tmp_path, **{"flush.messages": 2})
    group.elect(1)
    append(group.leader, b"a")
    group.fetch(2)
    assert group[2].log.recovery_point == 0
    append(group.leader, b"b")
    group.fetch(2)
    assert group[2].log.recovery_point == 2
    group.close()


def test_followers_follow_the_start_of_the_log(group: Group) -> None:
    for value in (b"a", b"b", b"c"):
        append(group.leader, value)
    group.replicate()
    heard = group.heard[1]
    heard.calls.clear()
    group.leader.delete_records(Offset(2))
    group.replicate()
    assert heard.of("low watermark") == [], "followers say with the next fetch where they begin"
    group.replicate()
    assert [group[broker].log_start_offset for broker in BROKERS] == [2, 2, 2]
    assert group.leader.role.low_watermark == 2
    told = [("low watermark", TP, 0), ("low watermark", TP, 2)]
    assert heard.of("low watermark") == told, "when the one has told, and when both have"
    group.replicate()
    assert len(heard.of("low watermark")) == 2


def test_records_are_deleted_once_eligible_replicas_know_it_too(group: Group) -> None:
    """They may lead next, though they are not in sync at the moment (KIP-966)."""
    for value in (b"a", b"b", b"c"):
        append(group.leader, value)
    group.replicate()
    group.replicate()
    assert group.leader.role.low_watermark == 0
    before = group.state
    group.state = replace(before, isr=(BrokerId(1),), elr=(BrokerId(2),), version=before.version + 1)
    group.leader.role.update(group.state, START)
    group.leader.delete_records(Offset(2))
    assert group.leader.role.low_watermark == 0
    group.fetch(2)
    group.fetch(2)
    assert group.leader.role.low_watermark == 2


def test_a_follower_that_said_where_its_log_begins_keeps_to_it_after_a_crash(tmp_path: Path) -> None:
    """It may lead next: what a client was told is deleted must not come back with it."""
    group = Group(tmp_path)
    group.elect(1)
    for value in (b"a", b"b", b"c"):
        append(group.leader, value)
    group.replicate()
    group.leader.delete_records(Offset(2))
    group.replicate()
    assert group[2].log_start_offset == 2
    directory = group.shelves[2].directory
    group.shelves[2].dirs.abandon()
    again = open_shelf(directory.parent, epoch=9)
    assert again.partition.log_start_offset == 2
    again.dirs.close()
    for broker in (1, 3):
        group.shelves[broker].dirs.close()


def test_a_follower_below_the_leaders_start_begins_anew(tmp_path: Path) -> None:
    group = Group(tmp_path, **{"segment.bytes": 200})
    group.elect(1, 1, 2)
    append(group.leader, b"old", producer=(1, 0, 0))
    group.replicate()
    for number in range(5):
        append(group.leader, b"x" * 50, producer=(2, 0, number))
    group.replicate(2)
    group.leader.delete_records(Offset(4))
    group.replicate()
    lagging = group[3]
    assert (lagging.log_start_offset, lagging.log_end_offset, lagging.high_watermark) == (4, 6, 6)
    assert group.log(3) == group.log(1)
    assert [facts.id for facts in lagging.log.producers.describe()] == [2]
    directory = group.shelves[3].directory
    group.shelves[3].dirs.close()
    again = open_shelf(directory.parent, epoch=9)
    assert again.partition.log_start_offset == 4
    assert values(again.partition) == group.log(1)
    again.dirs.close()
    for broker in (1, 2):
        group.shelves[broker].dirs.close()


def test_a_follower_takes_a_batch_whole_in_which_the_leaders_log_begins(group: Group) -> None:
    group.change_isr(1)
    append(group.leader, b"a")
    group.replicate(2)
    append(group.leader, b"b", b"c", b"d")
    group.leader.delete_records(Offset(2))
    group.replicate()
    assert group[3].log_start_offset == 2
    assert group.log(3) == group.log(2) == [b"c", b"d"]


# --- failover ------------------------------------------------------------------------------------------------


def test_a_new_leader_commits_what_it_has_and_knows_late_how_far(group: Group) -> None:
    append(group.leader, b"a")
    append(group.leader, b"b")
    for broker in (2, 3):
        group.fetch(broker)
    assert group[2].high_watermark == 0
    group.elect(2)
    assert group.leader.role.epoch_start_offset == 2
    assert group.leader.high_watermark == 0
    group.replicate()
    assert values(group.leader) == [b"a", b"b"]


def test_a_deposed_leader_truncates_to_where_logs_agree_and_not_to_its_high_watermark(group: Group) -> None:
    append(group.leader, b"a")
    group.replicate()
    append(group.leader, b"b")
    group.fetch(2)  # it has b, and does not know whether that is committed
    append(group.leader, b"lost")
    group.elect(2)
    append(group.leader, b"c")
    group.replicate()
    assert group.log(1) == group.log(2) == group.log(3) == [b"a", b"b", b"c"]
    assert group.files(1) == group.files(2)
    assert group[1].log.epochs.rows() == [(1, 0), (2, 2)]


def test_epochs_without_records_do_not_stand_in_the_way(group: Group) -> None:
    append(group.leader, b"a")
    group.fetch(2)
    group.elect(3)  # it has nothing, and writes nothing
    group.elect(2)
    append(group.leader, b"b")
    group.replicate()
    assert [group.log(broker) for broker in BROKERS] == [[b"a", b"b"]] * 3
    assert [group[broker].log.epochs.rows() for broker in BROKERS] == [[(1, 0), (3, 1)]] * 3


def test_truncation_survives_a_restart(group: Group) -> None:
    append(group.leader, b"a")
    group.replicate()
    append(group.leader, b"lost")
    group[1].flush()
    group.elect(2)
    group.fetch(1)
    assert group[1].log_end_offset == 1
    assert group[1].log.recovery_point == 1
    shelf = group.shelves[1]
    shelf.dirs.abandon()
    again = group.shelves[1] = open_shelf(shelf.directory.parent, epoch=0)
    assert again.partition.log_end_offset == 1
    assert not again.dirs.lost_data


def test_retries_are_recognised_by_the_next_leader(group: Group) -> None:
    first = bytes(batch(b"a", producer=(7, 0, 0)))
    group.leader.append(memoryview(bytearray(first)), now_ms=NOW)
    append(group.leader, b"b", producer=(7, 0, 1))
    group.replicate()
    group.elect(3)
    again = group.leader.append(memoryview(bytearray(first)), now_ms=NOW)
    assert (again.base_offset, again.duplicate, again.leader_epoch) == (0, True, 2)
    assert append(group.leader, b"c", producer=(7, 0, 2)) == 2
    with pytest.raises(OutOfOrderSequence):
        append(group.leader, b"e", producer=(7, 0, 4))


@pytest.mark.parametrize("segment_bytes", [150, 1 << 20])
def test_truncation_forgets_what_producers_lost_and_nothing_else(tmp_path: Path, segment_bytes: int) -> None:
    """With a roll after each batch the state comes from snapshots, without from the log."""
    group = Group(tmp_path, **{"segment.bytes": segment_bytes})
    group.elect(1)
    for sequence in range(4):
        append(group.leader, b"kept", producer=(7, 0, sequence))
    group.replicate()
    for sequence in range(4, 7):
        append(group.leader, b"lost", producer=(7, 0, sequence))
    append(group.leader, b"lost", producer=(8, 0, 0))
    group.elect(2)
    group.replicate()
    facts = {facts.id: facts.last_sequence for facts in group[1].log.producers.describe()}
    assert facts == {7: 3}
    group.elect(1)
    assert append(group.leader, b"again", producer=(7, 0, 4)) == 4
    group.replicate()
    assert group.files(2) == group.files(1)
    group.close()


def test_roles_are_fenced_by_leader_epoch(group: Group) -> None:
    group.elect(2)
    with pytest.raises(FencedLeaderEpoch):
        group[1].role.become_leader(PartitionState((BrokerId(1),), BrokerId(1), LeaderEpoch(1)), START)
    with pytest.raises(FencedLeaderEpoch):
        group[2].role.become_follower(LeaderEpoch(1))
    with pytest.raises(NotLeaderOrFollower):
        append(group[1], b"a")
    assert (group[1].role.is_leader, group[1].role.is_follower) == (False, True)
    group[2].role.become_leader(group.state, START)
    assert group[2].role.is_leader


# --- acks=all ------------------------------------------------------------------------------------------------


def test_acks_all_waits_for_the_in_sync_replicas(tmp_path: Path) -> None:
    group = Group(tmp_path, **{"min.insync.replicas": 2})
    group.elect(1)
    info = group.leader.append(batch(b"a"), acks=ACKS_ALL, now_ms=NOW)
    assert not group.leader.role.check_committed(info)
    group.change_isr(1, 2)
    group.replicate(2)
    assert group.leader.role.check_committed(info)
    late = group.leader.append(batch(b"b"), acks=ACKS_ALL, now_ms=NOW)
    group.change_isr(1)
    with pytest.raises(NotEnoughReplicasAfterAppend):
        group.leader.role.check_committed(late)
    assert group.leader.high_watermark == 1, "it stands still below min.insync.replicas"
    with pytest.raises(NotEnoughReplicas):
        group.leader.append(batch(b"c"), acks=ACKS_ALL, now_ms=NOW)
    assert append(group.leader, b"c") == 2, "acks=1 is not refused"
    group.close()


def test_an_append_is_not_acknowledged_in_another_leader_epoch(group: Group) -> None:
    info = group.leader.append(batch(b"a"), acks=ACKS_ALL, now_ms=NOW)
    was_leader = group.leader
    group.elect(2)
    with pytest.raises(NotLeaderOrFollower):
        was_leader.role.check_committed(info)
    append(group.leader, b"other")
    group.replicate()
    group.elect(1)
    group.replicate()
    assert group.leader.high_watermark == 1
    with pytest.raises(NotLeaderOrFollower):
        group.leader.role.check_committed(info)


def test_a_leader_without_followers_commits_at_once_and_goes_on_when_some_come(tmp_path: Path) -> None:
    group = Group(tmp_path, (1, 2))
    alone = PartitionState((BrokerId(1),), BrokerId(1), LeaderEpoch(1), (BrokerId(1),), version=1)
    group[1].role.become_leader(alone, START)
    info = group[1].append(batch(b"a"), acks=ACKS_ALL, now_ms=NOW)
    assert group[1].role.check_committed(info)
    both, me = (BrokerId(1), BrokerId(2)), BrokerId(1)
    group.state = PartitionState(both, me, LeaderEpoch(1), (me,), version=2)
    group[1].role.update(group.state, START)
    append(group[1], b"b")
    assert group[1].high_watermark == 2
    group[2].role.become_follower(LeaderEpoch(1))
    group.replicate()
    assert group[1].role.wants_proposal
    change = group[1].role.proposal(START, {broker: BrokerEpoch(0) for broker in both})
    assert change is not None
    assert [member for member, _ in change.isr] == [1, 2]
    group.change_isr(1, 2)
    append(group[1], b"c")
    assert group[1].high_watermark == 2
    group[1].role.update(PartitionState((me,), me, LeaderEpoch(1), (me,), version=9), START)
    assert group[1].high_watermark == 3
    group.close()


# --- consumers at followers ----------------------------------------------------------------------------------


def test_followers_serve_consumers_below_their_own_high_watermark(group: Group) -> None:
    append(group.leader, b"a")
    group.replicate()
    append(group.leader, b"b")
    group.fetch(2)
    follower = group[2]
    assert follower.log_end_offset == 2
    assert values(follower) == [b"a"]
    with pytest.raises(OffsetNotAvailable):
        follower.read(Offset(3), 100)
    with pytest.raises(FencedLeaderEpoch):
        follower.read(Offset(0), 100, current_leader_epoch=LeaderEpoch(0))
    with pytest.raises(UnknownLeaderEpoch):
        follower.read(Offset(0), 100, current_leader_epoch=LeaderEpoch(5))
    with pytest.raises(NotLeaderOrFollower):
        follower.read(Offset(0), 100, isolation=Isolation.LOG_END)


# --- at random -----------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3)),
        st.tuples(st.just("fetch"), st.sampled_from(BROKERS)),
        st.tuples(st.just("elect"), st.sampled_from(BROKERS)),
    ),
    max_size=40,
)


@given(steps=STEPS)
@settings(max_examples=25, deadline=None)
def test_whatever_happens_all_come_to_the_leaders_log(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    """Elections may be unclean here: who lacks records may lead, and then they are gone everywhere."""
    group = Group(tmp_path_factory.mktemp("group"))
    group.elect(1)
    numbers = itertools.count()
    for step, argument in steps:
        match step:
            case "append":
                append(group.leader, *(b"%d" % next(numbers) for _ in range(argument)), producer=None)
            case "fetch" if argument != group.state.leader:
                group.fetch(argument)
            case "elect":
                group.elect(argument)
    group.replicate()
    for broker in BROKERS:
        assert group.files(broker) == group.files(group.state.leader)
        epochs = [row for row in group[broker].log.epochs.rows() if row[1] < group[broker].log_end_offset]
        expected = [row for row in group.leader.log.epochs.rows() if row[1] < group.leader.log_end_offset]
        assert epochs == expected
        assert group[broker].high_watermark == group.leader.log_end_offset
    group.close()


# --- many threads --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flush_messages", [None, 1])
def test_roles_change_under_appends_and_fetches(tmp_path: Path, flush_messages: int | None) -> None:
    """Whoever was told that a record is committed finds it again: elections here are clean, the ISR has all."""
    group = Group(tmp_path, **({} if flush_messages is None else {"flush.messages": flush_messages}))
    group.elect(1)
    expected = (NotLeaderOrFollower, FencedLeaderEpoch, UnknownLeaderEpoch)
    defects: list[BaseException] = []
    acknowledged: set[bytes] = set()
    stop = threading.Event()

    def run(work: Callable[[], None]) -> None:
        try:
            while not stop.is_set():
                with contextlib.suppress(*expected):
                    work()
        except BaseException as defect:
            defects.append(defect)
            raise

    numbers = itertools.count()

    def produce() -> None:
        value = b"%d" % next(numbers)
        leader = group.leader
        info = leader.append(batch(value), acks=ACKS_ALL, now_ms=NOW)
        deadline = time.monotonic() + 10
        while not leader.role.check_committed(info) and time.monotonic() < deadline and not stop.is_set():
            os.sched_yield()
        if leader.role.check_committed(info):
            acknowledged.add(value)

    def follow(broker: int) -> Callable[[], None]:
        def fetch() -> None:
            if broker != group.state.leader:
                group.fetch(broker)

        return fetch

    def wait_for_more() -> None:
        known = len(acknowledged)
        try:
            wait_until(lambda: len(acknowledged) > known + 5 or defects, 20, "records acknowledged with acks=all")
        except BaseException:
            stop.set()
            raise

    works = [produce, produce, *map(follow, BROKERS)]
    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for leader in (2, 3, 1, 2, 1, 3):
        wait_for_more()
        for shelf in group.shelves.values():
            shelf.partition.role.resign()
        group.elect(leader)
    wait_for_more()
    stop.set()
    for thread in threads:
        thread.join()
    assert not defects
    group.replicate()
    assert acknowledged <= set(group.log(1))
    assert group.files(1) == group.files(2) == group.files(3)
    group.close()


def test_same_word_again_leaves_what_is_known_of_followers(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.elect(1)
    append(group.leader, b"a")
    group.ask(2)
    assert group.leader.role.readable_replicas(Offset(0)) == [(2, 0)]
    group.leader.role.become_leader(group.state, START)
    assert group.leader.role.readable_replicas(Offset(0)) == [(2, 0)]


def beside_the_isr(group: Group) -> None:
    """Replica 2 has all of three records, and is not in sync as far as the controller has decided."""
    for value in (b"a", b"b", b"c"):
        append(group.leader, value)
    before = group.state
    group.state = replace(before, isr=(BrokerId(1),), version=before.version + 1)
    group.leader.role.update(group.state, START)
    group.fetch(2)
    group.fetch(2)


def test_no_replica_joins_that_keeps_what_was_told_to_be_deleted(group: Group) -> None:
    """It may lead next, and what was deleted would come back with it."""
    beside_the_isr(group)
    group.leader.delete_records(Offset(2))
    assert group.leader.role.low_watermark == 2, "all that are in sync have deleted them"
    assert group.leader.role.proposal(START, LIVE) is None, "replica 2 has all records, and begins at 0"
    group.fetch(2)  # with the answer it learns where the log begins
    group.fetch(2)
    change = group.leader.role.proposal(START, LIVE)
    assert change is not None
    assert [member for member, _ in change.isr] == [1, 2]


def test_records_are_deleted_once_replicas_that_may_be_in_sync_know_it(group: Group) -> None:
    """The controller may have taken the proposal in already."""
    beside_the_isr(group)
    assert group.leader.role.proposal(START, LIVE) is not None
    group.leader.delete_records(Offset(2))
    assert group.leader.role.low_watermark == 0
    group.fetch(2)
    group.fetch(2)
    assert group.leader.role.low_watermark == 2
