"""What must hold after every step (docs/invariants.md), told by somebody who sees all disks and all of ZooKeeper.

Most checks are incremental: what happens (an append, a high watermark that moved, a write to ZooKeeper, an answer to a
client) is judged when it happens, against what is known to be committed. The checker keeps for each partition

- ``committed``: the batches below any high watermark that any leader ever had, in order: the truth that no later leader
  may contradict, and that is on the disk of every in-sync replica;
- ``written``: what each (offset, epoch) is: log matching;
- ``leaders``: who led in which epoch;
- ``state``: the partition's state as ZooKeeper holds it.

*Sound* is a member of a partition's ISR or ELR whose disk lost nothing since the incarnation in which ZooKeeper calls
it in sync. While at most min.insync.replicas - 1 members are not, nothing that was acknowledged may be lost; faults
that would leave more are not injected.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from raylog.coordination import paths
from raylog.coordination.store import Create, Op, OpResult, Set
from raylog.protocol.ids import NO_LEADER, BrokerEpoch, BrokerId, LeaderEpoch, PartitionIndex, TopicName, TopicPartition

from .disk import Disk, Files, SimLog, Stored
from .engine import Engine, Violation

ACKED = "acked is kept"
ONE_LEADER = "one leader per epoch"
MATCHING = "log matching"
VISIBLE = "consumers see only committed"
ENDS = "ends never go back"
FENCED = "a fenced controller writes nothing"
INCARNATION = "a stale incarnation is refused"
ONCE = "exactly once, in order"
MIN_ISR = "acknowledged by min.insync.replicas"
PROGRESS = "progress after healing"


@dataclass
class State:
    """A partition's state node."""

    leader: int = NO_LEADER
    leader_epoch: int = -1
    isr: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    controller_epoch: int = -1
    incarnations: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, data: bytes) -> State:
        value = json.loads(data)
        return cls(
            value["leader"],
            value["leader_epoch"],
            tuple(value["isr"]),
            tuple(value.get("elr", ())),
            value["controller_epoch"],
            {int(broker): epoch for broker, epoch in value.get("incarnations", {}).items()},
        )

    def __str__(self) -> str:
        members = " ".join(f"{b}@{self.incarnations.get(b, '?')}" for b in self.isr)
        elr = f" elr {self.elr}" if self.elr else ""
        return f"leader {self.leader} epoch {self.leader_epoch} isr [{members}]{elr}"


class Partition:
    """What is known of one partition."""

    def __init__(self) -> None:
        self.state = State()
        self.committed: list[Stored] = []
        self.ends: list[int] = []
        self.written: dict[tuple[int, int], tuple[int, int, int]] = {}
        self.holders: dict[tuple[int, int], set[int]] = defaultdict(set)
        self.leaders: dict[int, tuple[int, int]] = {}
        self.next_sequence: dict[int, int] = defaultdict(int)
        self.known_end = 0
        """The highest end that any client knows of."""

    @property
    def committed_end(self) -> int:
        return self.ends[-1] if self.ends else 0


class Checker:
    """Raises Violation."""

    def __init__(self, engine: Engine, disks: Mapping[BrokerId, Disk], min_isr: int) -> None:
        self._engine = engine
        self._disks = disks
        self._min_isr = min_isr
        self.partitions: dict[TopicPartition, Partition] = defaultdict(Partition)
        self.damaged: dict[int, int] = {}
        """The last incarnation of each broker in which its disk lost something."""
        self.broker_epochs: dict[int, int] = {}
        self.controller_epoch = 0
        self.wrongly_fenced: set[tuple[int, int]] = set()
        """Incarnations that a wrong hint fenced: until they learn of it, they may tell old ends."""
        self.moved: set[tuple[TopicPartition, tuple[int, int]]] = set()
        """Leaders that were replaced in life, by a drain or a reassignment: their lease runs until they hear of it."""
        self.is_registered: Callable[[int], bool] = lambda broker: False
        self.elections = 0

    # --- what ZooKeeper holds

    def stored(self, ops: Sequence[Op], results: Sequence[OpResult], session: int) -> None:
        """A multi was carried out."""
        for op, result in zip(ops, results, strict=True):
            if not isinstance(op, (Set, Create)):
                continue
            if op.path == paths.CONTROLLER_EPOCH:
                self.controller_epoch = int(op.data)
            elif op.path.startswith(paths.BROKER_EPOCHS) and isinstance(op, Set):
                assert isinstance(result, int)
                self.broker_epochs[int(op.path.rpartition("/")[2])] = result
            elif op.path.endswith("/state"):
                _, _, _, topic, _, index, _ = op.path.split("/")
                self._state(TopicPartition(TopicName(topic), PartitionIndex(int(index))), State.of(op.data))

    def _state(self, tp: TopicPartition, new: State) -> None:
        partition = self.partitions[tp]
        old, partition.state = partition.state, new
        if self._engine.lines is not None:
            self._engine.note(f"zookeeper: {tp} {new}, by controller epoch {new.controller_epoch}")
        if new.controller_epoch != self.controller_epoch or new.controller_epoch < old.controller_epoch:
            raise Violation(
                FENCED, f"{tp}: {new} written in controller epoch {new.controller_epoch}, it is {self.controller_epoch}"
            )
        if new.leader_epoch < old.leader_epoch:
            raise Violation(ONE_LEADER, f"{tp}: the leader epoch went back, {old} to {new}")
        if new.leader != NO_LEADER and new.leader not in new.isr:
            raise Violation(ONE_LEADER, f"{tp}: the leader is not in the ISR: {new}")
        if (
            new.leader_epoch == old.leader_epoch
            and NO_LEADER not in (old.leader, new.leader)
            and old.leader != new.leader
        ):
            raise Violation(ONE_LEADER, f"{tp}: two leaders in one epoch: {old} and {new}")
        for broker in new.isr:
            epoch = new.incarnations.get(broker)
            if epoch == old.incarnations.get(broker) and broker in old.isr:
                continue
            if epoch != self.broker_epochs.get(broker):
                raise Violation(
                    INCARNATION,
                    f"{tp}: broker {broker} is in sync as incarnation {epoch}, it is {self.broker_epochs.get(broker)}",
                )
        if old.leader not in (NO_LEADER, new.leader) and self.is_registered(old.leader):
            self.moved.add((tp, (old.leader, old.incarnations.get(old.leader, -1))))
        if set(new.isr) - set(old.isr):
            self._on_every_member(tp, partition)
        if new.leader != old.leader:
            self.elections += 1

    def sound(self, tp: TopicPartition, but: int = NO_LEADER) -> list[int]:
        """Members whose disk lost nothing since they were in sync, without ``but``."""
        state = self.partitions[tp].state
        return [
            broker
            for broker in (*state.isr, *state.elr)
            if broker != but and state.incarnations.get(broker, -1) > self.damaged.get(broker, -1)
        ]

    def may_damage(self, broker: int) -> bool:
        """Whether a disk may lose data: of a partition's members at most min.insync.replicas - 1 have lost some then.

        With more, no protocol could help: those that are left may have to do without the last sound member, if it goes
        before they are known to be damaged.
        """
        for tp, partition in self.partitions.items():
            members = {*partition.state.isr, *partition.state.elr}
            sound = self.sound(tp, but=broker)
            if members and (not sound or len(members) - len(sound) > self._min_isr - 1):
                return False
        return True

    # --- what happens in logs

    def leads(
        self, tp: TopicPartition, broker: BrokerId, incarnation: BrokerEpoch, epoch: LeaderEpoch, files: Files
    ) -> None:
        """A broker begins to lead."""
        partition = self.partitions[tp]
        if self._engine.lines is not None:
            self._engine.note(f"broker {broker}: leads {tp} in epoch {epoch}, log ends at {files.end}")
        me = (broker, incarnation)
        if partition.leaders.setdefault(epoch, me) != me:
            raise Violation(ONE_LEADER, f"{tp}: epoch {epoch} is led by {me} and {partition.leaders[epoch]}")
        if epoch < max(partition.leaders):
            return  # a late one: it will be fenced, and what was committed since need not be here
        self.holds(tp, files, len(partition.committed), f"broker {broker} leads in epoch {epoch}")

    def holds(self, tp: TopicPartition, files: Files, count: int, who: str) -> None:
        """The log must have the first ``count`` committed batches; by log matching, the last one tells."""
        if not count:
            return
        last, batches = self.partitions[tp].committed[count - 1], files.batches
        if len(batches) < count or batches[count - 1][:3] != last[:3]:
            end = files.end
            raise Violation(
                ACKED,
                f"{tp}: {who}, and lacks the batch committed at {last.base} (epoch {last.epoch}); it ends at {end}",
            )

    def appended(self, tp: TopicPartition, broker: BrokerId, batches: Sequence[Stored]) -> None:
        partition = self.partitions[tp]
        for batch in batches:
            key, value = (batch.base, batch.epoch), (batch.end, batch.producer, batch.sequence)
            if partition.written.setdefault(key, value) != value:
                raise Violation(
                    MATCHING,
                    f"{tp}: offset {batch.base} in epoch {batch.epoch} is {value} at broker {broker}, "
                    f"and {partition.written[key]} elsewhere (end, producer, sequence)",
                )
            partition.holders[key].add(broker)

    def published(self, tp: TopicPartition, broker: BrokerId, log: SimLog, *, leads: bool) -> None:
        """A high watermark moved."""
        partition, hw = self.partitions[tp], log.offsets.high_watermark.offset
        batches = log.files.batches
        count = bisect_right(partition.ends, hw)
        if count and (len(batches) < count or batches[count - 1][:3] != partition.committed[count - 1][:3]):
            self.holds(tp, log.files, count, f"broker {broker} has high watermark {hw}")
        if hw <= partition.committed_end:
            return
        if not leads:
            raise Violation(VISIBLE, f"{tp}: follower {broker} has high watermark {hw}, nothing above "
                            f"{partition.committed_end} is committed")  # fmt: skip
        fresh = batches[count : bisect_right([batch.end for batch in batches], hw)]
        for batch in fresh:
            self._commit(tp, partition, batch)
        if self._engine.lines is not None:
            self._engine.note(f"broker {broker}: {tp} is committed up to {hw}")
        self._on_every_member(tp, partition)

    def _commit(self, tp: TopicPartition, partition: Partition, batch: Stored) -> None:
        expected = partition.next_sequence[batch.producer]
        if batch.sequence != expected:
            what = "a duplicate" if batch.sequence < expected else "a gap"
            raise Violation(
                ONCE,
                f"{tp}: {what} at {batch.base}: producer {batch.producer}, sequence {batch.sequence}, not {expected}",
            )
        partition.next_sequence[batch.producer] = batch.sequence + batch.end - batch.base
        partition.committed.append(batch)
        partition.ends.append(batch.end)

    def _on_every_member(self, tp: TopicPartition, partition: Partition) -> None:
        """What is committed is on the disk of every sound member of the ISR that ZooKeeper knows."""
        if not partition.committed:
            return
        count, last = len(partition.committed), partition.committed[-1]
        state = partition.state
        for broker in state.isr:
            if state.incarnations.get(broker, -1) <= self.damaged.get(broker, -1):
                continue
            files = self._disks[BrokerId(broker)].files.get(tp)
            batches = files.batches if files else []
            if len(batches) < count or batches[count - 1][:3] != last[:3]:
                raise Violation(
                    ACKED,
                    f"{tp}: committed up to {last.end}, and in-sync replica {broker} does not have the batch at "
                    f"{last.base} of epoch {last.epoch} ({state})",
                )

    def truncated(self, tp: TopicPartition, broker: BrokerId, log: SimLog, offset: int) -> None:
        """A log is about to lose everything from ``offset`` on."""
        if self._engine.lines is not None:
            self._engine.note(f"broker {broker}: {tp} truncated to {offset}, from {log.files.end}")
        partition = self.partitions[tp]
        if broker not in partition.state.isr or broker not in self.sound(tp):
            return
        kept = bisect_right(partition.ends, offset)
        batches = log.files.batches
        if kept < min(len(partition.committed), len(batches)) and batches[kept][:3] == partition.committed[kept][:3]:
            raise Violation(ACKED, f"{tp}: in-sync replica {broker} truncates to {offset} what is committed there")

    # --- what clients are told

    def acks(self, tp: TopicPartition, broker: BrokerId, base: int) -> None:
        """A leader acknowledges, with acks=all, the batch at ``base`` of its log."""
        partition = self.partitions[tp]
        index = bisect_right(partition.ends, base)
        if index >= len(partition.committed):
            raise Violation(ACKED, f"{tp}: broker {broker} acknowledges {base}, nothing there is committed")
        batch = partition.committed[index]
        holders = partition.holders[batch.base, batch.epoch]
        if len(holders) < self._min_isr:
            raise Violation(
                MIN_ISR,
                f"{tp}: broker {broker} acknowledges {base}, which only {sorted(holders)} ever had; "
                f"min.insync.replicas is {self._min_isr}",
            )

    def heard_ack(self, tp: TopicPartition, offset: int, producer: int, sequence: int) -> None:
        """A producer has its answer: its batch must be committed at ``offset``."""
        partition = self.partitions[tp]
        index = bisect_left(partition.ends, offset + 1)
        batch = partition.committed[index] if index < len(partition.committed) else None
        if batch is None or (batch.producer, batch.sequence, batch.base) != (producer, sequence, offset):
            raise Violation(
                ACKED,
                f"{tp}: sequence {sequence} of producer {producer} was acknowledged at {offset}, there is {batch}",
            )
        partition.known_end = max(partition.known_end, batch.end)

    def consumed(self, tp: TopicPartition, position: int, batch: Stored) -> None:
        partition = self.partitions[tp]
        index = bisect_left(partition.ends, position + 1)
        if index >= len(partition.committed) or partition.committed[index][:5] != batch[:5]:
            raise Violation(
                VISIBLE, f"{tp}: a consumer at {position} was given {batch[:5]}, which is not committed there"
            )
        partition.known_end = max(partition.known_end, batch.end)

    def known_end(self, tp: TopicPartition) -> int:
        return self.partitions[tp].known_end

    def heard_end(self, tp: TopicPartition, end: int, who: tuple[int, int], floor: int) -> None:
        """``floor``: what clients knew when they asked."""
        if end < floor and who not in self.wrongly_fenced and (tp, who) not in self.moved:
            raise Violation(ENDS, f"{tp}: broker {who[0]} says that the log ends at {end}, and {floor} was told before")
        if end > self.partitions[tp].committed_end:
            raise Violation(VISIBLE, f"{tp}: broker {who[0]} says that the log ends at {end}, beyond what is committed")
        self.partitions[tp].known_end = max(self.partitions[tp].known_end, end)
