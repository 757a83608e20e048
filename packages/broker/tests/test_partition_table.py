"""What the partition table answers while the controller's word is carried out on the log dirs."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kit.partitions import NOW, TOPIC_ID, TP, append
from raylog.broker.config import BROKER_SETTINGS
from raylog.broker.partition.partition import Partition
from raylog.broker.partition.role import Role
from raylog.broker.partition.table import PartitionTable
from raylog.broker.replication.delayed import DelayedFetches
from raylog.broker.replication.delayed_operations import DelayedOperations
from raylog.broker.storage.directories.log_dirs import LogDirs
from raylog.broker.storage.disk.checkpoint import read_topic_id
from raylog.broker.storage.disk.files import RealFileSystem
from raylog.broker.storage.log.contents import Damage
from raylog.broker.storage.log.log import Log
from raylog.coordination.control.peer_control import Ack, AckStatus, UpdateState
from raylog.coordination.metadata.model import NO_LEADER, BrokerInfo, PartitionState, TopicState
from raylog.protocol.errors import (
    NotLeaderOrFollower,
    RaylogError,
    StorageError,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from raylog.protocol.ids import (
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    FilePosition,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    PartitionIndex,
    TimestampMs,
    TopicId,
    TopicName,
    TopicPartition,
)
from raylog.protocol.settings import Settings

B1, B2 = BrokerId(1), BrokerId(2)
A, B, C = (TopicPartition(TopicName(name), PartitionIndex(0)) for name in "abc")
NO_THREAD = RuntimeError("can't start new thread")
Trouble = dict[tuple[str, TopicPartition], Exception]
"""What raises, by the step and the partition."""


class Fetching:
    """The fetchers of a broker; whom it follows."""

    def __init__(self, trouble: Trouble) -> None:
        self.followed: dict[TopicPartition, tuple[Partition, BrokerInfo, LeaderEpoch]] = {}
        self._trouble = trouble

    def follow(self, partition: Partition, leader: BrokerInfo, leader_epoch: LeaderEpoch) -> None:
        assert partition.tp not in self.followed
        raise_for(self._trouble, "follow", partition.tp)
        self.followed[partition.tp] = (partition, leader, leader_epoch)

    def unfollow(self, tp: TopicPartition) -> None:
        self.followed.pop(tp, None)
        raise_for(self._trouble, "unfollow", tp)

    def start_moved(self, tp: TopicPartition) -> None:
        raise AssertionError(f"the log of {tp} begins elsewhere")


class Dirs(LogDirs):
    """Log directories in which a step may fail before it has done anything."""

    trouble: Trouble

    def create(self, tp: TopicPartition, topic_id: TopicId, now_ms: TimestampMs) -> Log:
        raise_for(self.trouble, "create", tp)
        return super().create(tp, topic_id, now_ms)

    def delete(self, tp: TopicPartition) -> None:
        raise_for(self.trouble, "delete", tp)
        super().delete(tp)

    def set_aside(self, tp: TopicPartition, reason: str) -> None:
        raise_for(self.trouble, "set_aside", tp)
        super().set_aside(tp, reason)


class TroubledRole(Role):
    """A role in which a step may fail."""

    def __init__(self, trouble: Trouble, *args: Any) -> None:
        super().__init__(*args)
        self.trouble = trouble

    def become_leader(self, state: PartitionState, now_ms: MonotonicMs) -> None:
        raise_for(self.trouble, "lead", self.tp)
        super().become_leader(state, now_ms)

    def become_follower(self, leader_epoch: LeaderEpoch) -> None:
        raise_for(self.trouble, "become_follower", self.tp)
        super().become_follower(leader_epoch)

    def update(self, state: PartitionState, now_ms: MonotonicMs) -> None:
        raise_for(self.trouble, "update", self.tp)
        super().update(state, now_ms)


class Part(Partition):
    """A partition that may fail to take its settings, and whose role may fail."""

    def __init__(self, trouble: Trouble, *args: Any) -> None:
        self.trouble: Trouble = {}  # while it is being made
        super().__init__(*args, role=partial(TroubledRole, trouble))
        self.trouble = trouble

    def configure(self, settings: Settings) -> None:
        raise_for(self.trouble, "configure", self.tp)
        super().configure(settings)


def raise_for(trouble: Trouble, step: str, tp: TopicPartition) -> None:
    error = trouble.get((step, tp))
    if error is not None:
        raise error


class Table:
    """A partition table, and the controller's messages to it."""

    def __init__(self, path: Path) -> None:
        settings = BROKER_SETTINGS.settings({"log.dirs": str(path)})
        self.trouble: Trouble = {}
        self.dirs = Dirs(settings, RealFileSystem(), "cluster-of-tests", B1)
        self.dirs.trouble = self.trouble
        self.dirs.open(NOW)
        self.fetching = Fetching(self.trouble)
        self.produces = DelayedOperations(threading.Lock())
        fetches, deletes = DelayedFetches(threading.Lock()), DelayedOperations(threading.Lock())
        self.table = PartitionTable(
            B1, "cluster-of-tests", settings, self.dirs, fetches, self.produces, deletes, self.fetching, lambda: NOW,
            self._partition,
        )  # fmt: skip
        self.brokers: tuple[BrokerInfo, ...] = (BrokerInfo(B1, BrokerEpoch(1), ()), BrokerInfo(B2, BrokerEpoch(1), ()))
        self.broker_configs: Mapping[str, Mapping[str, str]] = {}
        self.epoch = BrokerEpoch(1)
        self.register(self.epoch)
        self._sequence = 0

    def _partition(self, tp: TopicPartition, *args: Any) -> Partition:
        raise_for(self.trouble, "open", tp)
        return Part(self.trouble, tp, *args)

    def register(self, epoch: BrokerEpoch) -> None:
        self.epoch = epoch
        self.table.register_with(lambda: epoch)

    def tell(self, leader: BrokerId, leader_epoch: int) -> None:
        """The controller's word on who leads the one partition there is."""
        self.send(topic(TP, leader=leader, epoch=leader_epoch, topic_id=TOPIC_ID))

    def send(
        self,
        *topics: TopicState,
        full: bool | None = None,
        deleted: Iterable[TopicName] = (),
        again: bool = False,
        unreadable: Iterable[TopicName] = (),
    ) -> None:
        """A message, full if it is the first one; ``again``: with the sequence number of the last one."""
        self._sequence += not again
        message = UpdateState(
            controller_id=B1,
            controller_epoch=ControllerEpoch(1),
            broker_epoch=self.epoch,
            sequence=self._sequence,
            full=self._sequence == 1 if full is None else full,
            cluster_id="cluster-of-tests",
            brokers=self.brokers,
            topics=topics,
            deleted=tuple(deleted),
            broker_configs=self.broker_configs,
            unreadable=frozenset(unreadable),
        )
        assert Ack.decode(self.table.control(message.encode())).status is AckStatus.OK

    def fail_disk(self) -> None:
        self.table.get(TP).log.health.fail(OSError(errno.EIO, "the disk is gone"), "a write")

    def leads(self, *tps: TopicPartition) -> bool:
        return all(self.table.get(tp).role.is_leader for tp in tps)


def topic(
    tp: TopicPartition,
    *,
    leader: int = B1,
    epoch: int = 0,
    version: int | None = None,
    topic_id: UUID | None = None,
    replicas: tuple[BrokerId, ...] | None = None,
    configs: Mapping[str, str] | None = None,
) -> TopicState:
    """A topic of one partition, of broker 1 alone where that leads; else of both, 2 being in sync."""
    kept = replicas or ((B1,) if leader in (B1, NO_LEADER) else (B1, B2))
    state = PartitionState(
        kept, BrokerId(leader), LeaderEpoch(epoch), kept[-1:], version=epoch if version is None else version
    )
    return TopicState(tp.topic, TopicId(topic_id or UUID(int=ord(tp.topic[0]))), (state,), configs or {})


@pytest.fixture
def led(tmp_path: Path) -> Table:
    table = Table(tmp_path / "log")
    table.tell(B1, 0)
    return table


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Nothing is there yet."""
    table = Table(tmp_path / "log")
    table.send()
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
    assert not partition.role.is_leader
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


# --- a step that fails: the others are taken, and it is taken again

LED = (topic(A), topic(B), topic(C))
FOLLOWED = (topic(A, leader=B2), topic(B, leader=B2), topic(C, leader=B2))


def again(table: Table, *topics: TopicState) -> None:
    """The message is repeated, as the controller's beats are: without its content."""
    table.send(again=True)


def full(table: Table, *topics: TopicState) -> None:
    """The controller sends everything, as after a message without an answer."""
    table.send(*topics, full=True)


def delta(table: Table, *topics: TopicState) -> None:
    """The next message is about something else."""
    table.send(topic(TP, topic_id=TOPIC_ID))


def tick(table: Table, *topics: TopicState) -> None:
    table.table.retry()


RETRIES = [again, full, delta, tick]
Retry = Callable[..., None]


@pytest.mark.parametrize("retry", RETRIES)
@pytest.mark.parametrize("step", ["create", "open", "lead", "unfollow"])
def test_failed_lead_stops_no_other_and_is_retried(table: Table, step: str, retry: Retry) -> None:
    table.trouble[step, B] = NO_THREAD
    table.send(*LED)
    assert table.leads(A, C)
    assert table.table.failures() == {B: "can't start new thread"}
    with pytest.raises(NotLeaderOrFollower, match="broker 1 leads it, which cannot: can't start new thread"):
        table.table.get(B)
    retry(table, *LED)
    assert table.table.failures() == {B: "can't start new thread"}, "it goes on failing"
    table.trouble.clear()
    retry(table, *LED)
    assert table.leads(A, B, C)
    assert not table.table.failures()


@pytest.mark.parametrize("retry", RETRIES)
@pytest.mark.parametrize("step", ["create", "become_follower", "follow", "unfollow"])
def test_failed_follow_stops_no_other_and_is_retried(table: Table, step: str, retry: Retry) -> None:
    table.trouble[step, B] = NO_THREAD
    table.send(*FOLLOWED)
    assert set(table.fetching.followed) == set(table.table.followed()) == {A, C}
    assert table.table.failures() == {B: "can't start new thread"}
    table.trouble.clear()
    retry(table, *FOLLOWED)
    assert set(table.fetching.followed) == set(table.table.followed()) == {A, B, C}
    assert not table.table.failures()


@pytest.mark.parametrize("retry", RETRIES)
@pytest.mark.parametrize("step", ["delete", "unfollow"])
def test_failed_delete_stops_no_other_and_is_retried(table: Table, step: str, retry: Retry) -> None:
    table.send(*LED)
    table.trouble[step, A] = OSError(errno.ENOTEMPTY, "not empty")
    table.send(deleted=[A.topic, B.topic])
    assert [*table.dirs.partitions()] == [A, C]
    assert "not empty" in table.table.failures()[A]
    with pytest.raises(UnknownTopicOrPartition):
        table.table.get(A)
    table.trouble.clear()
    retry(table, topic(C))
    assert A not in table.dirs.partitions()
    assert not table.table.failures()
    assert table.leads(C)


def test_failed_delete_gives_way_to_a_topic_of_its_name(table: Table) -> None:
    table.send(*LED)
    table.trouble["delete", A] = NO_THREAD
    anew = topic(A, topic_id=UUID(int=77))
    table.send(anew)
    assert A in table.table.failures()
    with pytest.raises(NotLeaderOrFollower, match="can't start new thread"):
        table.table.get(A, anew.id)
    table.trouble.clear()
    table.send(again=True)
    assert table.table.get(A).topic_id == anew.id


@pytest.mark.parametrize("retry", RETRIES)
def test_failed_configure_stops_no_other_and_is_retried(table: Table, retry: Retry) -> None:
    table.send(*LED)
    table.trouble["configure", A] = NO_THREAD
    topics = [topic(tp, configs={"retention.ms": "5"}) for tp in (A, B, C)]
    table.send(*topics)
    assert [table.table.get(tp).log.config.retention_ms for tp in (B, C)] == [5, 5]
    assert table.leads(A), "by the settings that it had"
    assert table.table.failures() == {A: "can't start new thread"}
    table.trouble.clear()
    retry(table, *topics)
    assert table.table.get(A).log.config.retention_ms == 5
    assert not table.table.failures()


@pytest.mark.parametrize("retry", RETRIES)
def test_failed_broker_settings_reach_every_topic_later(table: Table, retry: Retry) -> None:
    table.send(*LED)
    table.trouble["configure", B] = NO_THREAD
    table.broker_configs = {"<default>": {"log.retention.ms": "7"}}
    table.send()
    assert [table.table.get(tp).log.config.retention_ms for tp in (A, C)] == [7, 7]
    table.trouble.clear()
    retry(table, *LED)
    assert table.table.get(B).log.config.retention_ms == 7


@pytest.mark.parametrize("retry", RETRIES)
def test_failed_update_stops_no_other_and_is_retried(table: Table, retry: Retry) -> None:
    table.send(*LED)
    table.trouble["update", A] = NO_THREAD
    grown = [topic(tp, version=5, replicas=(B2, B1)) for tp in (A, B, C)]
    table.send(*grown)
    assert table.leads(A, B, C)
    assert table.table.get(B).describe()["replication"]["version"] == 5
    assert table.table.failures() == {A: "can't start new thread"}
    table.trouble.clear()
    retry(table, *grown)
    assert table.table.get(A).describe()["replication"]["version"] == 5
    assert not table.table.failures()


def test_leader_whose_next_epoch_fails_does_not_lead_in_the_last(table: Table) -> None:
    table.send(topic(A))
    partition = table.table.get(A)
    table.trouble["lead", A] = NO_THREAD
    table.send(topic(A, epoch=1))
    assert not partition.role.is_leader
    table.trouble.clear()
    table.table.retry()
    assert table.table.get(A).role.leader_epoch == 1


@pytest.mark.parametrize("retry", RETRIES)
def test_failed_resignation_is_retried_and_stops_no_other(table: Table, retry: Retry) -> None:
    table.send(*LED)
    table.trouble["unfollow", A] = NO_THREAD
    offline = [topic(tp, leader=NO_LEADER, epoch=1) for tp in (A, B, C)]
    table.send(*offline)
    assert not table.table.led()
    assert A in table.table.failures()
    table.trouble.clear()
    retry(table, *offline)
    assert not table.table.failures()
    assert not table.table.led().keys() & {A, B, C}


def test_failed_stray_stops_nothing_and_is_set_aside_later(tmp_path: Path) -> None:
    before = Table(tmp_path / "log")
    before.send(topic(TP, topic_id=TOPIC_ID), topic(A))
    before.dirs.close()
    after = Table(tmp_path / "log")
    after.trouble["set_aside", TP] = NO_THREAD
    after.send(topic(A), topic(B))
    assert after.leads(A, B)
    assert TP in after.dirs.partitions()
    after.trouble.clear()
    after.send(again=True)
    assert set(after.dirs.partitions()) == {A, B}
    assert [path.name for path in (tmp_path / "log").glob("t-0.*-stray")]


def test_stray_on_failed_disk_stops_nothing(tmp_path: Path) -> None:
    before = Table(tmp_path / "log")
    before.send(topic(TP, topic_id=TOPIC_ID))
    before.dirs.close()
    after = Table(tmp_path / "log")
    after.trouble["set_aside", TP] = StorageError("the log directory is offline")
    after.send(topic(A))
    assert after.leads(A)


@pytest.mark.parametrize("full", [False, True])
def test_deleted_topic_that_was_unreadable_leaves_no_log(table: Table, full: bool) -> None:
    table.send(topic(A), topic(B))
    table.send(topic(B), full=full, deleted=[A.topic], unreadable=[A.topic])
    assert set(table.dirs.partitions()) == {A, B}
    table.send(topic(B), full=full)
    assert set(table.dirs.partitions()) == {B}


def test_topic_that_can_be_read_again_keeps_its_log(table: Table) -> None:
    table.send(topic(A))
    table.send(deleted=[A.topic], unreadable=[A.topic])
    table.send(topic(A))
    assert set(table.dirs.partitions()) == {A}
    assert table.leads(A)


def test_stray_that_was_followed_is_written_no_more(table: Table) -> None:
    """Its log is closed: a fetcher that writes on would meet a closed file, which looks like a failed disk."""
    table.send(topic(A, leader=B2))
    table.register(BrokerEpoch(2))
    table.brokers = (BrokerInfo(B1, BrokerEpoch(2), ()), *table.brokers[1:])
    table.send(topic(B), full=True)
    assert not table.fetching.followed
    assert not table.table.followed()
    assert table.leads(B)


def test_failed_callbacks_lose_nothing_and_are_called_again(table: Table) -> None:
    told: list[list[BrokerId]] = []

    def on_brokers(brokers: Iterable[BrokerInfo]) -> None:
        told.append([broker.id for broker in brokers])
        if len(told) == 1:
            raise NO_THREAD

    table.table.on_brokers = on_brokers
    table.brokers = table.brokers[:1]
    table.send(topic(A))
    assert table.leads(A)
    assert table.table.state().topic(A.topic)
    table.table.retry()
    table.table.retry()
    assert told == [[B1], [B1]]


def test_failed_wakeup_of_a_request_wakes_the_others(table: Table) -> None:
    woken: list[TopicPartition] = []

    def wake(tp: TopicPartition) -> None:
        woken.append(tp)
        raise RuntimeError("release unlocked lock")

    table.send(*LED)
    for tp in (A, B):
        table.produces.arm({tp: Offset(1)}, lambda tp=tp: wake(tp))  # type: ignore[misc]
    table.send(*(topic(tp, leader=NO_LEADER, epoch=1) for tp in (A, B)))
    assert woken == [A, B]


def test_failed_disk_is_not_retried_before_the_controller_decides(table: Table) -> None:
    """It is told that others may lead: whoever led all the same would lead beside them."""
    table.trouble["lead", A] = StorageError("the disk is gone")
    table.send(*LED)
    assert table.leads(B, C)
    assert [*table.table.give_up_failed()] == [A]
    table.trouble.clear()
    for retry in RETRIES:
        retry(table, *LED)
        with pytest.raises(StorageError, match="the disk is gone"):
            table.table.get(A)
    table.send(topic(A, epoch=1))
    assert table.leads(A)


def test_nothing_is_retried_for_a_former_incarnation(table: Table) -> None:
    table.trouble["lead", A] = NO_THREAD
    table.send(*LED)
    table.trouble.clear()
    table.register(BrokerEpoch(2))
    table.table.retry()
    with pytest.raises(NotLeaderOrFollower):
        table.table.get(A)
    assert not table.table.is_synced


# --- what others see, and when


def test_state_is_shown_after_it_was_acted_on(table: Table) -> None:
    """Whoever hears of a topic finds its leader."""
    seen: list[bool] = []
    table.table.on_brokers = lambda brokers: seen.append(table.table.state().topic(A.topic) is not None)
    table.brokers = table.brokers[:1]
    table.send(topic(A))
    assert seen == [False]
    assert table.table.wait_for(lambda state: state.topic(A.topic) is not None, 0)


def test_request_that_is_woken_sees_the_new_state(led: Table) -> None:
    """It answers by it who leads now."""
    leaders: list[BrokerId] = []
    led.produces.arm({TP: Offset(1)}, lambda: leaders.append(led.table.state().leader_of(TP)))
    led.tell(B2, 1)
    assert leaders == [B2]


# --- topic ids


@pytest.mark.parametrize("look_up", ["get", "replica"])
def test_lookup_by_id_refuses_another_topic_of_the_name(table: Table, look_up: str) -> None:
    first, second = topic(A), topic(A, topic_id=UUID(int=77))
    find = getattr(table.table, look_up)
    table.send(first)
    assert find(A, first.id).topic_id == find(A).topic_id == first.id
    with pytest.raises(UnknownTopicId):
        find(A, second.id)
    table.send(second)
    assert find(A, second.id).topic_id == second.id
    with pytest.raises(UnknownTopicId):
        find(A, first.id)


def test_lookup_by_id_while_the_topic_is_replaced(table: Table) -> None:
    """Between the moment at which the new one's partition is there and the one at which others see its topic."""
    first, second = topic(A), topic(A, topic_id=UUID(int=77))
    refused: list[TopicId] = []

    def on_brokers(brokers: Iterable[BrokerInfo]) -> None:
        assert table.table.get(A).topic_id == second.id
        known = table.table.state().topic(A.topic)
        assert known is not None
        assert known.id == first.id
        with pytest.raises(UnknownTopicId):
            table.table.get(A, known.id)
        refused.append(known.id)

    table.send(first)
    table.table.on_brokers = on_brokers
    table.brokers = table.brokers[:1]
    table.send(second)
    assert refused == [first.id]


def test_lookup_by_id_of_a_deleted_topic_is_unknown(table: Table) -> None:
    first = topic(A)
    table.send(first)
    table.send(deleted=[A.topic])
    with pytest.raises(UnknownTopicId):
        table.table.get(A, first.id)
    with pytest.raises(UnknownTopicOrPartition):
        table.table.get(A)


def test_follower_is_found_by_its_topics_id_only(table: Table) -> None:
    followed = topic(A, leader=B2)
    table.send(followed)
    assert table.table.replica(A, followed.id).role.is_follower
    with pytest.raises(UnknownTopicId):
        table.table.replica(A, TOPIC_ID)
    with pytest.raises(NotLeaderOrFollower):
        table.table.get(A, followed.id)


def test_answer_to_a_proposal_of_another_topic_changes_nothing(table: Table) -> None:
    table.send(topic(A))
    [state] = topic(A, version=9).partitions
    table.table.isr_answered(A, TOPIC_ID, state)
    assert table.table.get(A).describe()["replication"]["version"] == 0
    table.table.isr_answered(A, topic(A).id, state)
    assert table.table.get(A).describe()["replication"]["version"] == 9


def test_damaged_partitions_are_told(table: Table) -> None:
    table.send(topic(A), topic(B))
    log = table.table.get(B).log
    log.damage = Damage(log.segments[0], FilePosition(0), Offset(0), "a bit is flipped")
    assert table.table.damaged() == {B: table.table.get(B)}
