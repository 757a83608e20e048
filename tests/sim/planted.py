"""Designs, each with one mistake that somebody has made: what the simulator must be able to find.

They are test-only subclasses of the cores; nothing in the product can be switched to them. Each names the invariants
whose violation shows it: a design that is found by another one is found by accident.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from raylog.broker.partition.partition import Partition
from raylog.broker.partition.role import Role
from raylog.broker.partition.types import AppendInfo, ReadInfo
from raylog.broker.replication.follower import Follower, ReplicaLog
from raylog.broker.replication.leader import Leadership, Replica
from raylog.broker.storage.state.producers import Producers
from raylog.coordination.control.peer_control import Ack, Act, Receiver
from raylog.coordination.controller.controller import Controller
from raylog.coordination.controller.events import Write
from raylog.coordination.controller.office import Job, Office, WriteOutcome
from raylog.coordination.controller.writes import Writes
from raylog.coordination.membership.registration import BrokerRegistration
from raylog.coordination.metadata import paths
from raylog.coordination.metadata.model import BrokerInfo, ClusterState, PartitionState
from raylog.coordination.store.port import NoNode, Op
from raylog.coordination.store.unreadable import collecting
from raylog.protocol.errors import DuplicateSequence, NotLeaderOrFollower, OutOfOrderSequence, RaylogError
from raylog.protocol.ids import (
    NO_EPOCH,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    TopicId,
    TopicPartition,
)
from raylog.protocol.records import read_header

from .apart import CHOSEN, TAKEN_OVER
from .disk import SimLog
from .group_planted import GROUP_BUGS, EndlessLease
from .invariants import (
    ACKED,
    DELETED,
    ENDS,
    FENCED,
    IN_TIME,
    INCARNATION,
    MATCHING,
    MIN_ISR,
    ONCE,
    ONE_LEADER,
    PROGRESS,
    TOLD,
    VISIBLE,
)
from .local import SimPartitions
from .loops import EndsByAnError, RunningLoop, RunningLoops
from .world import Design, controller


class Planted(NamedTuple):
    """A design and what it must violate."""

    design: Design
    invariants: frozenset[str]
    among: frozenset[str] = frozenset()
    """Faults of which one at least must be planned, in the runs in which it must be found."""


# --- replication


class TruncatesToHighWatermark(Follower):
    """Before KIP-101: what is above the high watermark goes, though it may be committed."""

    def first_offset(self, log: ReplicaLog) -> Offset:
        return log.high_watermark


class TruncatingRole(Role):
    follower = TruncatesToHighWatermark()


class JoinsAtHighWatermark(Leadership):
    """A new leader's high watermark is old: who has that may lack what the leader before had committed."""

    def may_join(self, replica: Replica) -> bool:
        return replica.end >= self.high_watermark


class JoiningRole(Role):
    leadership = JoinsAtHighWatermark


class JoinsWithDeleted(Leadership):
    """What a follower keeps that others have deleted is of no interest, nor is it in one that joins meanwhile."""

    def low_watermark(self, log_start: Offset) -> Offset:
        members = [self.followers.get(member) for member in (*self.isr, *self.elr)]
        return min([log_start, *(replica.log_start for replica in members if replica is not None)])


class KeepingRole(Role):
    leadership = JoinsWithDeleted


class BelievesAnyFetch(Leadership):
    """A fetch from before the follower truncated, or lost its disk, counts as well."""

    def check_broker_epoch(self, broker_id: BrokerId, replica: Replica, epoch: BrokerEpoch) -> None: ...


class FetchedWithoutEpochRole(Role):
    leadership = BelievesAnyFetch

    def replica_fetched(
        self,
        replica: BrokerId,
        broker_epoch: BrokerEpoch,
        offset: Offset,
        log_start: Offset,
        now_ms: MonotonicMs,
        *,
        leader_epoch: LeaderEpoch,
    ) -> None:
        super().replica_fetched(replica, broker_epoch, offset, log_start, now_ms, leader_epoch=LeaderEpoch(NO_EPOCH))


class FetchedWithoutEpoch(Partition):
    """Fetches name no epoch, neither the leader's nor that of the last record."""

    def read(self, *args: object, **more: object) -> ReadInfo:
        return super().read(*args, **(more | {"current_leader_epoch": NO_EPOCH, "last_fetched_epoch": NO_EPOCH}))  # type: ignore[arg-type]


class ForgetsThePending(Leadership):
    """The high watermark counts the ISR as written, while another may be by now."""

    @property
    def maximal_isr(self) -> Iterable[BrokerId]:
        return self.isr


class ForgettingRole(Role):
    leadership = ForgetsThePending


class AcksWithTooFew(Leadership):
    """min.insync.replicas is not looked at."""

    @property
    def is_frozen(self) -> bool:
        return False

    def check_enough(self) -> None: ...

    def is_committed(self, high_watermark: Offset, required: Offset, leader_epoch: LeaderEpoch) -> bool:
        if leader_epoch != self.leader_epoch:
            raise NotLeaderOrFollower("the epoch is over")
        return high_watermark >= required


class AckingRole(Role):
    leadership = AcksWithTooFew


class ForgetsProducers(Role):
    """Sequence numbers are only in the leader's memory: a new one starts without any."""

    def become_leader(self, state: PartitionState, now_ms: MonotonicMs) -> None:
        if not self.is_leader or state.leader_epoch != self.leader_epoch:
            self.log.producers = Producers()
        super().become_leader(state, now_ms)


class AcksDuplicatesAtOnce(Role):
    """A retry of what is in the log is acknowledged, though the log of the leader is the only one."""

    def check_committed(self, info: AppendInfo) -> bool:
        return info.duplicate or super().check_committed(info)


class KnowsTheNewestBatchRole(Role):
    def become_leader(self, state: PartitionState, now_ms: MonotonicMs) -> None:
        for producer in self.log.producers:
            newest = producer.batches[-1]
            producer.begin(producer.epoch)
            producer.add(newest)
        super().become_leader(state, now_ms)


class KnowsTheNewestBatch(Partition):
    """Producers are known by their newest batch, as Kafka's snapshots have them, and what is older is called a
    duplicate.
    """

    def append(self, batches: memoryview, *args: Any, **more: Any) -> AppendInfo:
        try:
            return super().append(batches, *args, **more)
        except OutOfOrderSequence:
            header = read_header(batches)
            for producer in self.log.producers:
                if producer.id == header.producer_id and header.base_sequence < producer.next_sequence:
                    raise DuplicateSequence("this batch was appended before") from None
            raise


# --- the disk


class StartInAnEpochRow(SimLog):
    """What is deleted is known from where the first leader epoch begins, and from nothing else: an epoch without
    records gives way to the next one, and the start goes with it.
    """

    def save_epochs(self) -> None:
        super().save_epochs()
        files = self.files
        first = files.batches[0].base if files.batches else files.origin
        files.start = files.epochs[0][1] if files.epochs else first

    def save_start(self) -> None:
        self.epochs.truncate_from_start(self.offsets.start)
        self.save_epochs()


# --- the controller's word


class StoresFirst(Receiver):
    """The new state is in force before it was acted on: a repetition finds nothing to do."""

    def receive(self, payload: bytes, act: Act) -> Ack:
        before = self.state
        ack = super().receive(payload, lambda before, after: None)
        if self.state is not before:
            act(before, self.state)
        return ack


class StopsAtTheFirstFailure(SimPartitions):
    """What nobody expected of one partition ends the message, and nobody remembers what was left."""

    def _step(self, what: str, tp: TopicPartition, topic_id: TopicId, do: Callable[[], None]) -> None:
        try:
            do()
        except RaylogError as error:
            self._note(what, tp, topic_id, error)


# --- fencing


class RacingRegistration(BrokerRegistration):
    """The broker is there before its incarnation is raised: who looks in between takes it for its former life."""

    def operations(self, broker: BrokerInfo, epoch_version: int) -> list[Op]:
        *there, raised = super().operations(broker, epoch_version)
        self._store.multi(there)
        return [raised]


class KeepsEverything(BrokerRegistration):
    """A broker whose disk was lost registers as if it were intact."""

    def intact_since(self, broker: BrokerInfo, former: paths.FormerLife | None) -> BrokerEpoch:
        return broker.epoch if former is None else former.intact_since


class UncheckedWrites(Writes):
    """A deposed controller's writes go through."""

    def checks(self, partitions: Iterable[PartitionState], state: ClusterState) -> list[Op]:
        return []

    def mandate(self) -> tuple[Op, ...]:
        return ()


# --- the controller's work


class FencesNobody(Controller):
    """Who is registered is given work, and waited for, though it has not answered for long."""

    def _note_fenced(self) -> None: ...


class RemovesNoticesUnchecked(Controller):
    """Notices of changed overrides are removed though another controller was elected, which has not read them."""

    def _remove(self, notices: tuple[str, ...]) -> Job:
        if notices:
            self._office.token += 1
            yield Write(self._office.token, tuple(self._office.writes.removal(notices)))


class DeletesWhatItKnows(Office):
    """A topic's nodes are deleted, those that are ours; another one below them is in the way, and what comes after the
    deletion waits for it.
    """

    def remove(self, *nodes: str, **more: Any) -> WriteOutcome:
        topics = [topic for topic in self.state.topics.values() if paths.topic(topic.name) in nodes]
        known = [*nodes]
        for topic in topics:
            below = [
                node for tp, _ in topic.topic_partitions() for node in (paths.partition_state(tp), paths.partition(tp))
            ]
            known = [*below, paths.topic_partitions(topic.name), *known]
        error = yield from self.write(self.writes.removal(known), expected=(NoNode,))
        return None if error is None else (yield from super().remove(*nodes, **more))


class StopsAtOrphans(Controller):
    def _enter(self, *args: Any) -> None:
        super()._enter(*args)
        self._office.__class__ = DeletesWhatItKnows


@contextmanager
def stops_at_odd_nodes() -> Iterator[None]:
    """What cannot be understood ends the reading of all."""
    with collecting() as found:
        found.tell = _refuse  # type: ignore[method-assign]
        yield


def _refuse(error: paths.CorruptMetadata) -> None:
    raise error


class EndingLoop(EndsByAnError, RunningLoop): ...


class EndingLoops(RunningLoops):
    """Membership's thread ends by what it does not foresee."""

    kind = EndingLoop


def _planted(name: str, *invariants: str, **cores: object) -> Planted:
    return Planted(Design(name, **cores), frozenset(invariants), frozenset(AMONG.get(name, ())))  # type: ignore[arg-type]


AMONG = {
    "cut-off-is-chosen": ("apart",),
    "coordinates-though-cut-off": ("apart",),
    "odd-node-stops-all": ("foreign",),
    "orphan-stops-all": ("orphan",),
    "notices-unchecked": ("zkfar",),
    "delete-in-two-steps": ("g-delete",),
    "joins-with-deleted": ("trim",),
}
"""Faults that few runs have, by what is planted where they strike."""

NOTHING_DECIDED = (IN_TIME, TAKEN_OVER, TOLD, PROGRESS)
"""What shows that no controller decides anything, whichever is looked at first: a consumer waits for a leader or for an
ISR that may commit; or, once all is healed, others have not taken over, brokers are not told, or partitions not well.
"""


PLANTED = {
    planted.design.name: planted
    for planted in (
        _planted("truncate-to-hw", ACKED, partition=partial(Partition, role=TruncatingRole)),
        _planted("isr-joined-at-hw", ACKED, partition=partial(Partition, role=JoiningRole)),
        _planted(
            "no-epoch-on-fetch",
            ACKED,
            MATCHING,
            VISIBLE,
            MIN_ISR,
            PROGRESS,
            IN_TIME,
            partition=partial(FetchedWithoutEpoch, role=FetchedWithoutEpochRole),
        ),
        _planted("hw-without-pending-union", ACKED, partition=partial(Partition, role=ForgettingRole)),
        _planted(
            "registration-race",
            ONE_LEADER,
            INCARNATION,
            ACKED,
            MATCHING,
            ONCE,
            PROGRESS,
            registration=RacingRegistration,
        ),
        _planted("unchecked-writes", FENCED, INCARNATION, controller=partial(controller, writes=UncheckedWrites)),
        _planted("no-lease", ENDS, lease=EndlessLease),
        _planted("sequence-reset", ONCE, partition=partial(Partition, role=ForgetsProducers)),
        _planted("duplicate-acked-at-once", ACKED, MIN_ISR, partition=partial(Partition, role=AcksDuplicatesAtOnce)),
        _planted("older-is-duplicate", ACKED, partition=partial(KnowsTheNewestBatch, role=KnowsTheNewestBatchRole)),
        _planted("joins-with-deleted", DELETED, partition=partial(Partition, role=KeepingRole)),
        _planted("start-in-an-epoch-row", DELETED, log=StartInAnEpochRow),
        _planted("state-before-its-effects", PROGRESS, IN_TIME, receiver=StoresFirst, local=StopsAtTheFirstFailure),
        _planted("membership-ends-by-an-error", PROGRESS, IN_TIME, loops=EndingLoops),
        _planted("empty-disk-leads", ACKED, MATCHING, registration=KeepsEverything),
        _planted("ack-below-min-isr", MIN_ISR, partition=partial(Partition, role=AckingRole)),
        _planted("cut-off-is-chosen", CHOSEN, TAKEN_OVER, controller=partial(controller, machine=FencesNobody)),
        _planted("odd-node-stops-all", *NOTHING_DECIDED, reading=stops_at_odd_nodes),
        _planted("orphan-stops-all", *NOTHING_DECIDED, controller=partial(controller, machine=StopsAtOrphans)),
        _planted("notices-unchecked", TOLD, controller=partial(controller, machine=RemovesNoticesUnchecked)),
        *(_planted(name, *invariants, groups=design) for name, design, invariants in GROUP_BUGS),
    )
}
