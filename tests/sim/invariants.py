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
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from raylog.coordination.metadata import paths
from raylog.coordination.store.port import Create, Delete, Op, OpResult, Set
from raylog.protocol.ids import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    PartitionIndex,
    TopicId,
    TopicName,
    TopicPartition,
)

from .disk import Disk, Files, SimLog, Stored
from .engine import Engine, Violation
from .zookeeper import SESSION_TIMEOUT_MS

ACKED = "acked is kept"
ONE_LEADER = "one leader per epoch"
MATCHING = "log matching"
VISIBLE = "consumers see only committed"
DELETED = "what is deleted stays deleted"
ENDS = "ends never go back"
FENCED = "a fenced controller writes nothing"
INCARNATION = "a stale incarnation is refused"
ONCE = "exactly once, in order"
MIN_ISR = "acknowledged by min.insync.replicas"
IN_TIME = "nothing waits for long"
PROGRESS = "progress after healing"
TOLD = "what is set is told to every broker"


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
        self.start = 0
        """The highest start that any replica's log has."""
        self.deleted = 0
        """Up to where a client was told that records are deleted."""
        self.starts: dict[int, int] = {}
        """Where each broker told others that its log begins."""

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
        """As ZooKeeper has them now."""
        self.topics: dict[TopicName, TopicId] = {}
        self._lives: dict[tuple[TopicPartition, TopicId], Partition] = {}
        """One for each life of a topic: what is deleted and made anew has nothing to do with what was."""
        self.on_deleted: Callable[[TopicName], None] = lambda topic: None
        self.damaged: dict[int, int] = {}
        """The last incarnation of each broker in which its disk lost something."""
        self.broker_epochs: dict[int, int] = {}
        self.controller_epoch = 0
        self.leases: dict[tuple[int, int], int] = {}
        """Incarnations that were ended by others, and until when their lease may run: until then they may tell old
        ends."""
        self.elections = 0
        self.on_moment: Callable[[str, int, TopicPartition | None], None] = lambda name, broker, tp: None
        """Told of the steps for which faults wait (world.MOMENTS)."""
        self.heard_ms: Callable[[int], int] = lambda broker: 0
        """When ZooKeeper heard of the broker last."""
        self.on_new_partition: Callable[[TopicPartition], None] = lambda tp: None
        self.on_state: Callable[[TopicPartition, State, State], None] = lambda tp, old, new: None
        """Told of each state of a partition that was written, and which one was before."""
        self.configs: dict[TopicName, bytes] = {}
        """The overrides of each topic, as they were written last."""
        self.counts: Counter[str] = Counter()
        """How often what was seen."""

    # --- what ZooKeeper holds

    def stored(self, ops: Sequence[Op], results: Sequence[OpResult], session: int) -> None:
        """A multi was carried out."""
        for op, result in zip(ops, results, strict=True):
            if isinstance(op, Delete) and op.path.startswith(paths.BROKER_TOPICS):
                self._deleted(op.path)
            if not isinstance(op, (Set, Create)):
                continue
            if op.path == paths.CONTROLLER_EPOCH:
                self.controller_epoch = int(op.data)
            elif op.path == paths.CONTROLLER and isinstance(op, Create):
                self.on_moment("office", paths.decode_controller(op.data), None)
            elif op.path.startswith(paths.BROKER_EPOCHS) and isinstance(op, Set):
                assert isinstance(result, int)
                broker = int(op.path.rpartition("/")[2])
                if any(isinstance(other, Delete) for other in ops):
                    self.counts["incarnation fenced"] += 1
                    self.ended(broker)
                self.broker_epochs[broker] = result
            elif op.path.startswith(paths.BROKER_IDS + "/") and isinstance(op, Create):
                self.on_moment("registers", int(op.path.rpartition("/")[2]), None)
            elif op.path.startswith(paths.BROKER_TOPICS + "/") and op.path.count("/") == 3:
                name = TopicName(op.path.rpartition("/")[2])
                self.topics[name] = paths.decode_topic(name, op.data).topic_id
            elif op.path.startswith(paths.BROKER_TOPICS) and op.path.endswith("/state"):
                _, _, _, topic, _, index, _ = op.path.split("/")
                self._state(TopicPartition(TopicName(topic), PartitionIndex(int(index))), State.of(op.data))
            elif op.path.startswith(paths.CONFIG_TOPICS + "/"):
                self.configs[TopicName(op.path.rpartition("/")[2])] = op.data

    def ended(self, broker: int) -> None:
        """Somebody else ends the broker's incarnation; its lease began when ZooKeeper heard of it last, at most."""
        self.leases[broker, self.broker_epochs.get(broker, -1)] = self.heard_ms(broker) + SESSION_TIMEOUT_MS

    def of(self, tp: TopicPartition, topic_id: TopicId) -> Partition:
        """What is known of the partition in that life of its topic."""
        found = self._lives.get((tp, topic_id))
        if found is None:
            found = self._lives[tp, topic_id] = Partition()
        return found

    def _deleted(self, path: str) -> None:
        """A topic's node, or one below it, is gone."""
        _, _, _, topic, *below = path.split("/")
        if below[2:] == ["state"]:
            tp = TopicPartition(TopicName(topic), PartitionIndex(int(below[1])))
            self.partitions.pop(tp, None)
        elif not below:
            self.counts["topic deleted"] += 1
            self.topics.pop(TopicName(topic))
            self._engine.note(f"zookeeper: topic {topic} is gone")
            self.on_deleted(TopicName(topic))

    def _state(self, tp: TopicPartition, new: State) -> None:
        partition = self.partitions[tp] = self.of(tp, self.topics[tp.topic])
        old, partition.state = partition.state, new
        if old.leader_epoch < 0:
            self.on_new_partition(tp)
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
        self.on_state(tp, old, new)
        joined, left = sorted(set(new.isr) - set(old.isr)), sorted(set(old.isr) - set(new.isr))
        if joined:
            self._on_every_member(tp, partition)
            self.on_moment("grows", joined[0], tp)
        if left:
            self.on_moment("shrinks", left[0], tp)
        if new.leader != old.leader:
            self.elections += 1
            self.on_moment("elected", new.leader if new.leader != NO_LEADER else old.leader, tp)

    def sound(self, tp: TopicPartition, but: int = NO_LEADER) -> list[int]:
        """Members whose disk lost nothing since they were in sync, without ``but``."""
        state = self.partitions[tp].state
        return [broker for broker in self.undamaged(state) if broker != but]

    def undamaged(self, state: State) -> list[int]:
        """Members whose disk lost nothing since they were in sync."""
        members = (*state.isr, *state.elr)
        return [broker for broker in members if state.incarnations.get(broker, -1) > self.damaged.get(broker, -1)]

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
        self,
        tp: TopicPartition,
        broker: BrokerId,
        incarnation: BrokerEpoch,
        epoch: LeaderEpoch,
        files: Files,
        start: int,
    ) -> None:
        """A broker begins to lead; ``start``: where its log begins."""
        partition = self.of(tp, files.topic_id)
        self.on_moment("leads", broker, tp)
        if self._engine.lines is not None:
            self._engine.note(f"broker {broker}: leads {tp} in epoch {epoch}, log ends at {files.end}")
        me = (broker, incarnation)
        if partition.leaders.setdefault(epoch, me) != me:
            raise Violation(ONE_LEADER, f"{tp}: epoch {epoch} is led by {me} and {partition.leaders[epoch]}")
        if epoch < max(partition.leaders):
            return  # a late one: it will be fenced, and what was committed since need not be here
        self.holds(tp, files, len(partition.committed), f"broker {broker} leads in epoch {epoch}")
        if start < partition.deleted:
            raise Violation(
                DELETED,
                f"{tp}: broker {broker} leads in epoch {epoch} from {start} on, and all before {partition.deleted} "
                "was told to be deleted",
            )

    def holds(self, tp: TopicPartition, files: Files, count: int, who: str) -> None:
        """The log must have the first ``count`` committed batches; by log matching, the last one tells."""
        if not count:
            return
        last = self.of(tp, files.topic_id).committed[count - 1]
        if files.lacks(count - 1, last):
            end = files.end
            raise Violation(
                ACKED,
                f"{tp}: {who}, and lacks the batch committed at {last.base} (epoch {last.epoch}); it ends at {end}",
            )

    def appended(self, tp: TopicPartition, broker: BrokerId, log: SimLog, batches: Sequence[Stored]) -> None:
        partition = self.of(tp, log.files.topic_id)
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
        partition, hw = self.of(tp, log.files.topic_id), log.offsets.high_watermark.offset
        if log.offsets.start > partition.start:
            partition.start = log.offsets.start
            if hw > partition.committed_end or partition.start > partition.committed_end:
                raise Violation(DELETED, f"{tp}: broker {broker} deletes up to {partition.start}, nothing above "
                                f"{partition.committed_end} is committed")  # fmt: skip
        files = log.files
        count = bisect_right(partition.ends, hw)
        if count:
            self.holds(tp, files, count, f"broker {broker} has high watermark {hw}")
        if hw <= partition.committed_end:
            return
        if not leads:
            raise Violation(VISIBLE, f"{tp}: follower {broker} has high watermark {hw}, nothing above "
                            f"{partition.committed_end} is committed")  # fmt: skip
        for batch in islice(files.batches, count - files.skipped, None):
            if batch.end > hw:
                break
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
        if not partition.committed or partition is not self.partitions.get(tp):
            return
        count, last = len(partition.committed), partition.committed[-1]
        state = partition.state
        for broker in state.isr:
            if state.incarnations.get(broker, -1) <= self.damaged.get(broker, -1):
                continue
            files = self._disks[BrokerId(broker)].files.get(tp)
            is_here = files is not None and files.topic_id == self.topics.get(tp.topic)
            if files is None or not is_here or files.lacks(count - 1, last):
                raise Violation(
                    ACKED,
                    f"{tp}: committed up to {last.end}, and in-sync replica {broker} does not have the batch at "
                    f"{last.base} of epoch {last.epoch} ({state})",
                )

    def truncated(self, tp: TopicPartition, broker: BrokerId, log: SimLog, offset: int) -> None:
        """A log is about to lose everything from ``offset`` on."""
        if self._engine.lines is not None:
            self._engine.note(f"broker {broker}: {tp} truncated to {offset}, from {log.files.end}")
        self.on_moment("truncates", broker, tp)
        partition = self.of(tp, log.files.topic_id)
        if (
            partition is not self.partitions.get(tp)
            or broker not in partition.state.isr
            or broker not in self.sound(tp)
        ):
            return
        kept = bisect_right(partition.ends, max(offset, log.offsets.start))
        if kept < len(partition.committed) and not log.files.lacks(kept, partition.committed[kept]):
            raise Violation(ACKED, f"{tp}: in-sync replica {broker} truncates to {offset} what is committed there")

    def starts_anew(self, tp: TopicPartition, broker: BrokerId, log: SimLog, offset: int) -> int:
        """A log is dropped, to begin empty at ``offset``; how many of the partition's batches lie before it."""
        self.counts["logs begun anew"] += 1
        if self._engine.lines is not None:
            self._engine.note(f"broker {broker}: {tp} begins anew at {offset}, was {log.offsets}")
        return bisect_right(self.of(tp, log.files.topic_id).ends, offset)

    # --- what clients are told

    def acks(self, tp: TopicPartition, topic_id: TopicId, broker: BrokerId, offset: int) -> None:
        """A leader acknowledges, with acks=all, the batch that ends with ``offset`` of its log, or lies before it."""
        partition = self.of(tp, topic_id)
        index = bisect_right(partition.ends, offset)
        if index >= len(partition.committed):
            raise Violation(ACKED, f"{tp}: broker {broker} acknowledges {offset}, nothing there is committed")
        batch = partition.committed[index]
        holders = partition.holders[batch.base, batch.epoch]
        if len(holders) < self._min_isr:
            raise Violation(
                MIN_ISR,
                f"{tp}: broker {broker} acknowledges {offset}, which only {sorted(holders)} ever had; "
                f"min.insync.replicas is {self._min_isr}",
            )

    def heard_ack(self, tp: TopicPartition, topic_id: TopicId, offset: int, producer: int, sequence: int) -> None:
        """A producer has its answer: its batch must be committed at ``offset``."""
        partition = self.of(tp, topic_id)
        index = bisect_left(partition.ends, offset + 1)
        batch = partition.committed[index] if index < len(partition.committed) else None
        if batch is None or (batch.producer, batch.sequence, batch.base) != (producer, sequence, offset):
            raise Violation(
                ACKED,
                f"{tp}: sequence {sequence} of producer {producer} was acknowledged at {offset}, there is {batch}",
            )
        partition.known_end = max(partition.known_end, batch.end)

    def heard_duplicate(self, tp: TopicPartition, topic_id: TopicId, producer: int, sequence: int, end: int) -> None:
        """A producer has its answer, without an offset: its batch, up to the sequence ``end``, must be committed."""
        self.counts["duplicates without an offset"] += 1
        committed = self.of(tp, topic_id).next_sequence[producer]
        if end > committed:
            raise Violation(
                ACKED,
                f"{tp}: sequence {sequence} of producer {producer} was acknowledged as a duplicate, and only what "
                f"comes before its sequence {committed} is committed",
            )

    def consumed(self, tp: TopicPartition, topic_id: TopicId, position: int, batch: Stored) -> None:
        partition = self.of(tp, topic_id)
        index = bisect_left(partition.ends, position + 1)
        if index >= len(partition.committed) or partition.committed[index][:5] != batch[:5]:
            raise Violation(
                VISIBLE, f"{tp}: a consumer at {position} was given {batch[:5]}, which is not committed there"
            )
        partition.known_end = max(partition.known_end, batch.end)

    def heard_deleted(self, tp: TopicPartition, topic_id: TopicId, start: int) -> None:
        """An admin client has the answer that all before ``start`` is deleted."""
        self.counts["records deleted"] += 1
        partition = self.of(tp, topic_id)
        self.on_moment("deleted", partition.state.leader, tp)
        partition.deleted = max(partition.deleted, start)

    def tells_start(self, tp: TopicPartition, topic_id: TopicId, broker: BrokerId, start: int) -> None:
        """A broker tells others that its log begins at ``start``: a client may be told by it what is deleted."""
        starts = self.of(tp, topic_id).starts
        starts[broker] = max(starts.get(broker, 0), start)

    def opens(self, tp: TopicPartition, topic_id: TopicId, broker: BrokerId, start: int, *, is_new: bool) -> None:
        """A process opens a log, which begins at ``start``; a new one has nothing to remember."""
        starts = self.of(tp, topic_id).starts
        if is_new:
            starts.pop(broker, None)
        elif start < starts.get(broker, 0):
            raise Violation(
                DELETED,
                f"{tp}: the log of broker {broker} begins at {start}, and it told that it begins at {starts[broker]}",
            )

    def out_of_range(self, tp: TopicPartition, topic_id: TopicId, position: int, start: int, told: int) -> None:
        """A consumer that has read up to ``position`` is told that the log begins at ``start``; ``told``: what was
        deleted for all to know when it asked.
        """
        if not position < start <= self.of(tp, topic_id).start:
            raise Violation(VISIBLE, f"{tp}: OFFSET_OUT_OF_RANGE at {position}, up to where a consumer has read, "
                            f"by a replica that begins at {start}")  # fmt: skip
        if start < told:
            raise Violation(DELETED, f"{tp}: a log begins at {start}, and all before {told} was told to be deleted")
        self.counts["consumers found records deleted"] += 1

    def heard_end(
        self,
        tp: TopicPartition,
        topic_id: TopicId,
        end: int,
        who: tuple[int, int],
        asked: Partition,
        floor: int,
        since: int,
    ) -> None:
        """``floor``: what clients knew of ``asked``, the partition, when they asked at the time ``since``. An answer
        about a topic that was deleted meanwhile tells nothing.
        """
        partition = self.of(tp, topic_id)
        if partition is not asked:
            self.counts["ends of a topic that was deleted"] += 1
            return
        if end < floor and since > self.leases.get(who, -1):
            raise Violation(ENDS, f"{tp}: broker {who[0]} says that the log ends at {end}, and {floor} was told before")
        if end > partition.committed_end:
            raise Violation(VISIBLE, f"{tp}: broker {who[0]} says that the log ends at {end}, beyond what is committed")
        partition.known_end = max(partition.known_end, end)
