"""What a leader makes of the controller's answer to its proposal."""

from __future__ import annotations

from pathlib import Path
from typing import cast
from uuid import UUID

from kit.partitions import TP, open_shelf
from kit.waiting import wait_until
from raylog.broker.partition.partition import Partition
from raylog.broker.partition.table import PartitionTable
from raylog.broker.partition.types import Subscriptions
from raylog.broker.replicas.isr_changes import IsrChanges
from raylog.coordination.control.proposals import IsrAnswer, Outcome, ProposeIsr, Verdict, decode_proposal
from raylog.coordination.host.loops import Loops
from raylog.coordination.metadata.model import BrokerInfo, ClusterState, PartitionState
from raylog.protocol.ids import BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, MonotonicMs, Offset, TopicId
from raylog.protocol.ids import TopicPartition as Tp

LEADER, DRAINED = BrokerId(1), BrokerId(2)
LIVE = {broker: BrokerInfo(broker, BrokerEpoch(1), ()) for broker in (LEADER, DRAINED)}
STATE = PartitionState((LEADER, DRAINED), LEADER, LeaderEpoch(1), (LEADER,), version=0)
WAIT_S = 10.0


class Table:
    """A partition table with one led partition."""

    broker_id = controller_id = LEADER

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.answered = 0

    def state(self) -> ClusterState:
        return ClusterState(brokers=LIVE)

    def led(self) -> dict[Tp, Partition]:
        return {}  # nothing to look at every so often

    def led_partition(self, tp: Tp) -> Partition:
        return self._partition

    def isr_answered(self, tp: Tp, topic_id: TopicId, state: PartitionState) -> None:
        self._partition.role.update(state, MonotonicMs(0))
        self.answered += 1

    def give_up_failed(self) -> dict[Tp, tuple[TopicId, str]]:
        return {}

    def damaged(self) -> dict[Tp, Partition]:
        return {}


class Refuses:
    """A controller that lets nobody in, and says how the state is."""

    def send(self, broker_id: BrokerId, payload: bytes) -> bytes:
        raise AssertionError("nothing goes down")

    def propose(self, controller_id: BrokerId, payload: bytes) -> bytes:
        proposal = decode_proposal(payload)
        assert isinstance(proposal, ProposeIsr)
        outcomes = tuple(Outcome(change.tp, Verdict.REFUSED, STATE, "it is drained") for change in proposal.changes)
        return IsrAnswer(ControllerEpoch(1), outcomes).encode()


def test_who_was_refused_is_not_proposed_with_each_of_its_fetches(tmp_path: Path) -> None:
    caught_up: list[Tp] = []

    def note(tp: Tp) -> None:
        caught_up.append(tp)
        changes.caught_up(tp)

    shelf = open_shelf(tmp_path, epoch=0, subscriptions=Subscriptions(on_caught_up=note))
    partition = shelf.partition
    partition.role.become_leader(STATE, MonotonicMs(0))
    table = Table(partition)
    changes = IsrChanges(cast(PartitionTable, table), Refuses(), lambda: BrokerEpoch(1), lag_ms=60_000, loops=Loops())

    def fetch() -> None:
        partition.role.replica_fetched(
            DRAINED, BrokerEpoch(1), Offset(0), Offset(0), MonotonicMs(0), leader_epoch=LeaderEpoch(1)
        )

    changes.start()
    try:
        fetch()
        wait_until(lambda: table.answered == 1, WAIT_S, "the controller has refused")
        for _ in range(20):
            fetch()
        assert caught_up == [TP]
    finally:
        changes.stop()
        shelf.dirs.close()


def test_proposal_that_meets_a_defect_is_made_again(tmp_path: Path) -> None:
    """Else the partition would wait for its answer, and its in-sync replicas would stay as they are."""

    class FailsFirst(Refuses):
        asked = 0

        def propose(self, controller_id: BrokerId, payload: bytes) -> bytes:
            self.asked += 1
            if self.asked == 1:
                raise RuntimeError("a defect on the way")
            return super().propose(controller_id, payload)

    shelf = open_shelf(tmp_path, epoch=0)
    shelf.partition.role.become_leader(STATE, MonotonicMs(0))
    shelf.partition.role.replica_fetched(
        DRAINED, BrokerEpoch(1), Offset(0), Offset(0), MonotonicMs(0), leader_epoch=LeaderEpoch(1)
    )
    table = Table(shelf.partition)
    changes = IsrChanges(
        cast(PartitionTable, table), FailsFirst(), lambda: BrokerEpoch(1), lag_ms=60_000, loops=Loops()
    )
    changes.start()
    try:
        changes.caught_up(TP)
        wait_until(lambda: table.answered == 1, WAIT_S, "the controller was asked again, and has answered")
    finally:
        changes.stop()
        shelf.dirs.close()


def test_refusal_is_not_taken_for_one_of_another_topic(tmp_path: Path) -> None:
    """The topic gave way to another one of its name while the controller was asked."""
    first = open_shelf(tmp_path / "1", epoch=0)
    second = open_shelf(tmp_path / "2", epoch=0, topic_id=TopicId(UUID(int=77)))
    for shelf in (first, second):
        shelf.partition.role.become_leader(STATE, MonotonicMs(0))
        shelf.partition.role.replica_fetched(
            DRAINED, BrokerEpoch(1), Offset(0), Offset(0), MonotonicMs(0), leader_epoch=LeaderEpoch(1)
        )
    live = {broker: info.epoch for broker, info in LIVE.items()}
    assert second.partition.role.proposal(MonotonicMs(0), live) is not None

    class Replaced(Table):
        def led(self) -> dict[Tp, Partition]:
            return {} if self.answered else {TP: self._partition}

        def isr_answered(self, tp: Tp, topic_id: TopicId, state: PartitionState) -> None:
            self.answered += 1

    class RefusesLate(Refuses):
        def propose(self, controller_id: BrokerId, payload: bytes) -> bytes:
            table._partition = second.partition
            return super().propose(controller_id, payload)

    table = Replaced(first.partition)
    changes = IsrChanges(
        cast(PartitionTable, table), RefusesLate(), lambda: BrokerEpoch(1), lag_ms=60_000, loops=Loops()
    )
    changes.start()
    try:
        wait_until(lambda: table.answered == 1, WAIT_S, "the controller has refused")
        assert second.partition.describe()["replication"]["proposed"] == [LEADER, DRAINED]
    finally:
        changes.stop()
        first.dirs.close()
        second.dirs.close()
