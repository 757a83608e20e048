"""The partitions of a simulated broker: the product's table, with what ``replicas.fetchers``, ``isr_changes`` and the
Fetch handler do in a real one.

Followers ask for one partition at a time, over and over; a request waits at the leader until there is something, as
Fetch does. A request that was overtaken still arrives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from raylog.broker.config import (
    BROKER_SETTINGS,
    LOG_FLUSH_INTERVAL_MESSAGES,
    MIN_INSYNC_REPLICAS_BROKER,
    REPLICA_LAG_TIME_MAX_MS,
    topic_settings,
)
from raylog.broker.partition.partition import Isolation, Partition
from raylog.broker.partition.table import PartitionTable
from raylog.broker.partition.types import Subscriptions
from raylog.coordination.control.peer_control import Lead
from raylog.coordination.control.proposals import (
    IsrAnswer,
    IsrChange,
    OfflineReplica,
    Outcome,
    ProposeIsr,
    ReplicasOffline,
    Verdict,
)
from raylog.coordination.metadata.model import BrokerInfo
from raylog.protocol.errors import (
    OffsetNotAvailable,
    OffsetOutOfRange,
    RaylogError,
    StaleBrokerEpoch,
    UnknownTopicOrPartition,
)
from raylog.protocol.ids import BrokerEpoch, BrokerId, LeaderEpoch, Offset, TimestampMs, TopicId, TopicPartition
from raylog.protocol.settings import Settings
from raylog.protocol.wire.fetch import NO_EPOCH_END, EpochEndOffset, FetchedPartition

from .clients import Consumed, ConsumeRequest, DeleteRequest, Ends, EndsRequest, OutOfRange
from .local import SimLogs, SimPartitions, StepFailed
from .network import Answer

if TYPE_CHECKING:
    from .broker import SimBroker

WAIT_MS = 300
BACKOFF_MS = 100
PROPOSE_TIMEOUT_MS = 1_000
MAX_BYTES = 400
"""Four to six batches, so that followers catch up in several steps."""


class ReplicaFetch(NamedTuple):
    """A follower's request for one partition (Fetch v15+)."""

    tp: TopicPartition
    topic_id: TopicId
    replica: BrokerId
    epoch: BrokerEpoch
    offset: Offset
    leader_epoch: LeaderEpoch
    last_fetched_epoch: LeaderEpoch
    log_start: Offset


@dataclass
class Parked:
    """A fetch that waits at its leader until something is there."""

    tp: TopicPartition
    request: Any
    answer: Answer
    deadline: int


@dataclass
class Followed:
    """Whom a partition follows. Another one takes its place when that changes."""

    leader: BrokerInfo
    leader_epoch: LeaderEpoch


class SimTable(PartitionTable):
    """Shows what invariants look at."""

    @property
    def partitions(self) -> dict[TopicPartition, Partition]:
        return self._partitions

    def errors(self) -> dict[TopicPartition, Exception]:
        """What keeps partitions from being as the controller wants them."""
        return {tp: failure.error for tp, failure in self._local.failures.items()}


class WaitingRequests:
    """Stands in for DelayedFetches and DelayedOperations: all that wait look again."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.interrupt = self.changed = lambda tp: wake()
        self.appended = lambda tp, size: wake()
        self.advanced = lambda tp, readable: wake()


class Replicas:
    """One broker's."""

    def __init__(self, broker: SimBroker) -> None:
        self._broker = broker
        self._engine = broker.engine
        world = broker.world
        self._broker_settings = Settings(
            BROKER_SETTINGS,
            {REPLICA_LAG_TIME_MAX_MS.name: world.lag_ms, MIN_INSYNC_REPLICAS_BROKER.name: world.min_isr}
            | ({LOG_FLUSH_INTERVAL_MESSAGES.name: 1} if world.flushes else {}),
        )
        self.fails = 0
        """So many of the next steps fail that a message of the controller asks for."""
        logs = SimLogs(
            broker.disk, topic_settings(self._broker_settings), self._may_fail, world.design.log, self._opens
        )
        waiting: Any = WaitingRequests(self._wake_soon)
        self.table = SimTable(
            broker.id,
            "sim",
            self._broker_settings,
            logs,  # type: ignore[arg-type]
            waiting,
            waiting,
            waiting,
            self,
            lambda: TimestampMs(0),
            self._open,
            uptime_ms=broker.clock,
            receiver=world.design.receiver,
            local=self._make_local,
        )
        self.table.on_caught_up = lambda tp: self._engine.at(0, broker.serving, lambda: self._propose(tp))
        self.partitions = self.table.partitions
        self._followed: dict[TopicPartition, Followed] = {}
        self._parked: list[Parked] = []
        self._wakes_soon = False
        self._proposing: set[TopicPartition] = set()

    def start(self) -> None:
        self._engine.at(self._broker.world.lag_ms // 2, self._broker.serving, self._look_at_isrs)

    # --- the controller's word

    def _make_local(self, *args: Any) -> SimPartitions:
        local: SimPartitions = self._broker.world.design.local(*args)
        local.may_fail, local.on_lead, local.on_follow = self._may_fail, self._leads, self._follows
        return local

    def control(self, payload: bytes) -> bytes:
        """Take one message of the controller in. Raises StepFailed where that failed as a whole."""
        answer = self.table.control(payload)
        for tp, error in self.table.errors().items():
            if not isinstance(error, RaylogError | StepFailed):
                raise error
            self._engine.note(f"broker {self._broker.id}: cannot do what is asked of {tp}, {error}")
        return answer

    def _may_fail(self, tp: TopicPartition) -> None:
        if self.fails:
            self.fails -= 1
            self._broker.world.counts["steps failed"] += 1
            raise StepFailed("can't start new thread")

    def _opens(self, tp: TopicPartition, topic_id: TopicId, start: Offset, is_new: bool) -> None:
        self._broker.world.checker.opens(tp, topic_id, self._broker.id, start, is_new=is_new)

    def _leads(self, lead: Lead) -> None:
        broker, partition = self._broker, self.partitions[lead.tp]
        broker.world.checker.leads(
            lead.tp,
            broker.id,
            broker.epoch,
            lead.partition.leader_epoch,
            broker.disk.files[lead.tp],
            partition.log_start_offset,
        )

    def _follows(self, tp: TopicPartition) -> None:
        self._broker.world.moment("follows", self._broker.id, tp)

    # --- the port of LocalPartitions to its fetchers

    def follow(self, partition: Partition, leader: BrokerInfo, leader_epoch: LeaderEpoch) -> None:
        tp = partition.tp
        self._may_fail(tp)
        self._followed[tp] = followed = Followed(leader, leader_epoch)
        self._fetch(tp, followed)

    def unfollow(self, tp: TopicPartition) -> None:
        self._followed.pop(tp, None)

    def start_moved(self, tp: TopicPartition) -> None:
        """Each fetch tells it here."""

    def resign_all(self) -> None:
        self.table.resign_all()

    def _open(
        self, tp: TopicPartition, topic_id: TopicId, log: Any, settings: Settings, subscriptions: Subscriptions
    ) -> Partition:
        broker, checker = self._broker, self._broker.world.checker
        partition: Partition = broker.world.design.partition(tp, topic_id, log, settings, subscriptions)
        log.on_append = lambda log, batches: checker.appended(tp, broker.id, log, batches)
        log.on_start_anew = lambda log, offset: checker.starts_anew(tp, broker.id, log, offset)
        log.on_truncate = lambda log, offset: checker.truncated(tp, broker.id, log, offset)
        log.on_publish = lambda log: checker.published(tp, broker.id, log, leads=partition.role.is_leader)
        return partition

    # --- leading: Fetch and ListOffsets

    def replicate(self, request: ReplicaFetch, answer: Answer) -> None:
        self._try(Parked(request.tp, request, answer, self._engine.now + WAIT_MS), is_first=True)

    def consume(self, request: ConsumeRequest, answer: Answer) -> None:
        self._try(Parked(request.tp, request, answer, self._engine.now + request.max_wait_ms), is_first=True)

    def _try(self, parked: Parked, *, is_first: bool) -> bool:
        """Answer a fetch, or let it wait."""
        request, broker = parked.request, self._broker
        try:
            broker.check_lease()
            found: FetchedPartition[memoryview] | Consumed
            if isinstance(request, ReplicaFetch):
                found = self._read_for_replica(request, is_first=is_first)
            else:
                found = self._read_for_consumer(request)
            broker.check_lease()
        except RaylogError as error:
            parked.answer(self._as_answer(request, error))
            return True
        if not _has_some(found) and self._engine.now < parked.deadline:
            if is_first:
                self._parked.append(parked)
                self._engine.at(parked.deadline - self._engine.now, broker.serving, self._wake)
            return False
        parked.answer(found)
        return True

    def _as_answer(self, request: ReplicaFetch | ConsumeRequest, error: RaylogError) -> Any:
        """The log's start goes with it, as in Fetch."""
        partition = self.partitions.get(request.tp)
        if not isinstance(error, OffsetOutOfRange) or partition is None:
            return error
        return OutOfRange(partition.log_start_offset, error)

    def _read_for_replica(self, request: ReplicaFetch, *, is_first: bool) -> FetchedPartition[memoryview]:
        broker = self._broker
        known = broker.state.brokers.get(request.replica)
        if known is not None and request.epoch < known.epoch:
            raise StaleBrokerEpoch(f"broker {request.replica} fetched in incarnation {request.epoch}")
        partition = self.table.get(request.tp, request.topic_id)
        read = partition.read(
            request.offset,
            MAX_BYTES,
            isolation=Isolation.LOG_END,
            current_leader_epoch=request.leader_epoch,
            last_fetched_epoch=request.last_fetched_epoch,
        )
        if is_first and read.diverging is None:
            partition.role.replica_fetched(
                request.replica,
                request.epoch,
                request.offset,
                request.log_start,
                broker.clock(),
                leader_epoch=request.leader_epoch,
            )
            broker.settle()
        diverging = NO_EPOCH_END if read.diverging is None else EpochEndOffset(*read.diverging)
        hw = partition.high_watermark
        data = None if read.data is None else memoryview(bytearray(read.data.read()))
        return FetchedPartition(request.tp.partition, 0, hw, hw, read.log_start_offset, data, diverging_epoch=diverging)

    def _read_for_consumer(self, request: ConsumeRequest) -> Consumed:
        partition = self.partitions.get(request.tp)
        if partition is None or partition.topic_id != request.topic_id:
            raise UnknownTopicOrPartition(f"{request.tp} is not here")
        read = partition.read(request.offset, MAX_BYTES, current_leader_epoch=request.leader_epoch)
        return Consumed(b"" if read.data is None else read.data.read(), read.high_watermark)

    def ends(self, request: EndsRequest) -> Ends:
        """As the ListOffsets handler (KIP-207). Raises OffsetNotAvailable and what has the client look elsewhere."""
        partition = self.table.get(request.tp)
        partition.role.check_leader_epoch(request.leader_epoch)
        end = partition.high_watermark
        if end < partition.role.epoch_start_offset:
            raise OffsetNotAvailable(f"{request.tp}: {end} is below {partition.role.epoch_start_offset}")
        return Ends(end, (self._broker.id, self._broker.epoch), partition.topic_id)

    def _wake_soon(self) -> None:
        if not self._wakes_soon:
            self._wakes_soon = True
            self._engine.at(0, self._broker.serving, self._wake)

    def _wake(self) -> None:
        """Look at the fetches that wait again."""
        self._wakes_soon = False
        if self._parked:
            parked, self._parked = self._parked, []
            self._parked += [each for each in parked if not self._try(each, is_first=False)]
        self._broker.settle()

    # --- following

    def _fetch(self, tp: TopicPartition, followed: Followed) -> None:
        broker, partition = self._broker, self.partitions.get(tp)
        if partition is None or self._followed.get(tp) is not followed:
            return
        request = ReplicaFetch(
            tp,
            partition.topic_id,
            broker.id,
            broker.epoch,
            partition.log_end_offset,
            followed.leader_epoch,
            partition.role.last_fetched_epoch,
            partition.durable_start,
        )

        broker.world.checker.tells_start(tp, partition.topic_id, broker.id, request.log_start)

        def done(answer: FetchedPartition[memoryview] | OutOfRange | RaylogError | None) -> None:
            if self._followed.get(tp) is followed:
                self._fetched(tp, partition, followed, answer)

        broker.network.call(broker.id, broker.serving, followed.leader.id, "replicate", request, 1_000, done)

    def _fetched(
        self,
        tp: TopicPartition,
        partition: Partition,
        followed: Followed,
        answer: FetchedPartition[memoryview] | OutOfRange | RaylogError | None,
    ) -> None:
        pause = 0
        try:
            match answer:
                case None:
                    pause = BACKOFF_MS
                case OutOfRange(start, error):
                    found = FetchedPartition[memoryview](tp.partition, log_start_offset=start)
                    partition.role.fetch_failed(error, found, followed.leader_epoch, TimestampMs(0))
                case RaylogError():
                    found = FetchedPartition(tp.partition)
                    partition.role.fetch_failed(answer, found, followed.leader_epoch, TimestampMs(0))
                case _:
                    partition.role.fetched(answer, followed.leader_epoch, TimestampMs(0))
                    partition.role.settle()
        except RaylogError:
            pause = BACKOFF_MS
        self._engine.at(pause, self._broker.serving, lambda: self._fetch(tp, followed))

    # --- deleting records

    def delete_records(self, request: DeleteRequest, answer: Answer) -> None:
        """As the DeleteRecords handler: durable here, then known to have come to all in-sync replicas."""
        broker = self._broker
        try:
            broker.check_lease()
            partition = self.table.get(request.tp)
            asked = partition.high_watermark if request.offset < 0 else request.offset
            start = partition.delete_records(asked)
            partition.save_start()
            broker.world.checker.tells_start(request.tp, partition.topic_id, broker.id, start)
        except RaylogError as error:
            answer(error)
            return
        self._await_deleted(partition, start, self._engine.now + request.timeout_ms, answer)

    def _await_deleted(self, partition: Partition, start: Offset, deadline: int, answer: Answer) -> None:
        try:
            is_everywhere = partition.role.low_watermark >= start
        except RaylogError as error:
            answer(error)
            return
        if is_everywhere:
            answer((start, partition.topic_id))
        elif self._engine.now < deadline:
            again = partial(self._await_deleted, partition, start, deadline, answer)
            self._engine.at(20, self._broker.serving, again)
        else:
            answer(None)

    # --- failed disks

    def give_up_failed(self) -> None:
        """As IsrChanges: lead and fetch nothing any more, and tell the controller, who counts on this broker still."""
        broker, state = self._broker, self._broker.state
        failed = self.table.give_up_failed()
        lost = tuple(
            OfflineReplica(tp, topic_id)
            for tp, (topic_id, _) in failed.items()
            if (known := state.partition(tp, topic_id)) is not None
            and broker.id in (known.leader, *known.isr, *known.elr)
        )
        if lost:
            [reason, *_] = (reason for _, reason in failed.values())
            message = ReplicasOffline(broker.id, broker.epoch, state.controller_epoch, lost, reason)
            controller, payload = state.controller_id, message.encode()
            broker.network.call(
                broker.id, broker.serving, controller, "propose", payload, PROPOSE_TIMEOUT_MS, lambda answer: None
            )

    # --- proposing

    def _look_at_isrs(self) -> None:
        self.table.retry()
        self.give_up_failed()
        for tp, partition in self.partitions.items():
            if partition.role.is_leader:
                self._propose(tp)
        self._engine.at(self._broker.world.lag_ms // 2, self._broker.serving, self._look_at_isrs)

    def _propose(self, tp: TopicPartition) -> None:
        broker, partition = self._broker, self.partitions.get(tp)
        if partition is None or not partition.role.is_leader or tp in self._proposing:
            return
        state = broker.state
        found = partition.role.proposal(broker.clock(), {each.id: each.epoch for each in state.brokers.values()})
        if found is None:
            return
        change = found
        message = ProposeIsr(broker.id, broker.epoch, state.controller_epoch, (change,))
        self._proposing.add(tp)
        if self._engine.lines is not None:
            self._engine.note(f"broker {broker.id}: proposes isr {change.isr} for {tp} in epoch {change.leader_epoch}")

        def done(answer: bytes | None) -> None:
            self._proposing.discard(tp)
            outcome = Outcome(tp, Verdict.UNAVAILABLE) if answer is None else IsrAnswer.decode(answer).outcomes[0]
            self._take_outcome(change, outcome)

        broker.network.call(
            broker.id, broker.serving, state.controller_id, "propose", message.encode(), PROPOSE_TIMEOUT_MS, done
        )

    def _take_outcome(self, change: IsrChange, outcome: Outcome) -> None:
        partition = self.partitions.get(change.tp)
        if partition is None or not partition.role.is_leader or partition.topic_id != change.topic_id:
            return
        if outcome.state is not None:
            self.table.isr_answered(change.tp, change.topic_id, outcome.state)
        if outcome.verdict is not Verdict.OK:
            partition.role.refused(change.version)
        self._wake()
        if outcome.verdict in (Verdict.UNAVAILABLE, Verdict.NOT_CONTROLLER, Verdict.STALE):
            self._engine.at(BACKOFF_MS, self._broker.serving, lambda: self._propose(change.tp))


def _has_some(found: FetchedPartition[memoryview] | Consumed) -> bool:
    """Whether a fetch has what it need not wait for."""
    if isinstance(found, Consumed):
        return bool(found.data)
    return bool(found.records) or found.diverging_epoch.epoch >= 0
