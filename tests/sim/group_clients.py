"""Simulated members of a group of Kafka clients: they follow the classic protocol, as librdkafka and Java's do.

One request is under way at a time besides a commit. An answer that comes late, after its time, is nobody's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raylog.broker.groups.classic.messages import Identity, Join, Joined, Leaver, MemberIdIs, Protocol, Sync, Synced
from raylog.coordination.metadata.group_model import CommittedOffset
from raylog.protocol.errors import (
    FencedInstanceId,
    IllegalGeneration,
    RaylogError,
    RebalanceInProgress,
    UnknownMemberId,
)
from raylog.protocol.ids import (
    NO_GENERATION,
    NO_MEMBER,
    NO_OFFSET,
    BrokerId,
    Generation,
    GroupId,
    InstanceId,
    MemberId,
    Offset,
    TopicPartition,
)

from .engine import Process, Thread
from .group_coordinator import Commit, FetchOffsets, FindCoordinator, GroupRequest, Heartbeat, Leave
from .group_invariants import CLIENTS, PARTITIONS, Author, topic_id
from .network import Answer

if TYPE_CHECKING:
    from .groups import SimGroups

SESSION_MS = 1_500
REBALANCE_MS = 2_000
HEARTBEAT_MS = 300
REQUEST_TIMEOUT_MS = 1_000
BACKOFFS_MS = (10, 50, 150)
WORK_MS = 60
COMMIT_MS = 200
PROTOCOL = "range"


class SimClient:
    """See the module."""

    def __init__(self, groups: SimGroups, node: int, instance: InstanceId | None, group: GroupId = CLIENTS) -> None:
        self.node = node
        self.group = group
        self.groups = groups
        self.engine = groups.engine
        self.instance = instance
        self.process = Process(f"client {node}")
        self._thread = Thread(self.process)
        self.is_leaving = False
        self.ended_ms = -SESSION_MS - REBALANCE_MS
        """When its process ended."""
        self._coordinator: BrokerId | None = None
        self.member_id = NO_MEMBER
        self.generation = NO_GENERATION
        self.positions: dict[TopicPartition, Offset] = {}
        """Of what it was assigned: the next record."""
        self.is_settled = False
        self._is_committing = False
        self.life = groups.checker.life
        """Of the topic that it reads."""

    def sees_topic(self, life: int) -> None:
        """Soon its metadata tell of a topic that was made anew: it begins at the beginning."""

        def see() -> None:
            self.life = life
            self.positions = dict.fromkeys(self.positions, Offset(0))

        self.engine.at(self.engine.random.randrange(300), self._thread, see)

    @property
    def _reads_nothing(self) -> bool:
        """The topic that it knows is deleted."""
        checker = self.groups.checker
        return self.life != checker.life or not checker.is_there

    @property
    def who(self) -> Identity:
        return Identity(self.member_id, self.generation, self.instance)

    def start(self) -> None:
        self.engine.at(1, self._thread, self._find)
        if self.group == CLIENTS:
            self.engine.at(WORK_MS, self._thread, self._work)
            self.engine.at(COMMIT_MS, self._thread, self._commit_now_and_then)

    def crash(self) -> None:
        self.process.alive = False
        self.ended_ms = self.engine.now

    def leave(self) -> None:
        """In good order."""
        self.is_leaving = True

    # --- asking

    def _ask(self, target: BrokerId, request: Any, done: Answer, timeout_ms: int = REQUEST_TIMEOUT_MS) -> None:
        self.groups.world.network.call(
            self.node, self._thread, target, "group", GroupRequest(self.group, request), timeout_ms, done
        )

    def _soon(self, action: Any) -> None:
        self.engine.at(self.engine.random.choice(BACKOFFS_MS), self._thread, action)

    def _find(self) -> None:
        def found(answer: BrokerId | RaylogError | None) -> None:
            if answer is None or isinstance(answer, RaylogError):
                self._soon(self._find)
                return
            self._coordinator = answer
            if self.is_settled:
                self._heartbeat()
            else:
                self._join()

        self._ask(self.engine.random.choice(self.groups.world.ids), FindCoordinator(), found)

    def _failed(self, answer: RaylogError | None) -> None:
        """What an error says to do."""
        match answer:
            case UnknownMemberId() | FencedInstanceId():
                self.member_id, self.generation = NO_MEMBER, NO_GENERATION
                self._rejoin()
            case IllegalGeneration() | RebalanceInProgress():
                self._rejoin()
            case _:  # the coordinator is another one, or does not answer
                self._coordinator = None
                self._soon(self._find)

    def _rejoin(self) -> None:
        self.is_settled = False
        self.positions.clear()
        self._soon(self._join)

    # --- the protocol

    def _join(self) -> None:
        if self._coordinator is None:
            self._find()
            return
        if self.is_leaving:
            self._sign_off()
            return
        self.is_settled = False
        self.positions.clear()
        join = Join(
            self.member_id, self.instance, "sim", f"node {self.node}", SESSION_MS, REBALANCE_MS, "consumer",
            (Protocol(PROTOCOL, b"rides"),),
        )  # fmt: skip

        def done(answer: Joined | MemberIdIs | RaylogError | None) -> None:
            match answer:
                case MemberIdIs(member_id):
                    self.member_id = member_id
                    self._join()
                case Joined():
                    self.member_id, self.generation = answer.member_id, answer.generation
                    self._sync(answer)
                case _:
                    self._failed(answer)

        self._ask(self._coordinator, join, done, REBALANCE_MS + REQUEST_TIMEOUT_MS)

    def _sync(self, joined: Joined) -> None:
        names = [member.member_id for member in joined.members]
        shares = tuple((name, self._share(names, place)) for place, name in enumerate(names))
        generation, member_id = joined.generation, joined.member_id

        def done(answer: Synced | RaylogError | None) -> None:
            if isinstance(answer, Synced):
                self._assigned(member_id, generation, answer.assignment)
            else:
                self._failed(answer)

        assert self._coordinator is not None
        assignments = () if joined.skip_assignment else shares
        sync = Sync(self.who, assignments, joined.protocol_type, joined.protocol)
        self._ask(self._coordinator, sync, done, REBALANCE_MS + REQUEST_TIMEOUT_MS)

    @staticmethod
    def _share(names: list[MemberId], place: int) -> bytes:
        return bytes(tp.partition for tp in PARTITIONS if tp.partition % len(names) == place)

    def _assigned(self, member_id: MemberId, generation: Generation, share: bytes) -> None:
        if self.group != CLIENTS:
            self.is_settled = True
            self._heartbeat()
            return
        self.groups.checker.told(member_id, generation, share)
        partitions = [PARTITIONS[index] for index in share]

        def done(answer: dict[TopicPartition, CommittedOffset] | RaylogError | None) -> None:
            if answer is None or isinstance(answer, RaylogError):
                self._failed(answer)
                return
            committed = {tp: answer.get(tp) for tp in partitions}
            for tp, at in committed.items():
                self.groups.checker.reads(CLIENTS, tp, NO_OFFSET if at is None else at.offset, asked[tp])
            self.positions = {tp: at.offset if at is not None else Offset(0) for tp, at in committed.items()}
            self.is_settled = True
            self._heartbeat()

        asked = self.groups.checker.asks(CLIENTS, partitions)
        assert self._coordinator is not None
        self._ask(self._coordinator, FetchOffsets(partitions), done)

    def _heartbeat(self) -> None:
        if self._coordinator is None:
            self._find()
            return
        if self.is_leaving:
            self._sign_off()
            return

        def done(answer: tuple[()] | RaylogError | None) -> None:
            if answer == ():
                self.engine.at(HEARTBEAT_MS, self._thread, self._heartbeat)
            elif isinstance(answer, RebalanceInProgress):
                self._commit(self._rejoin)
            else:
                assert answer is None or isinstance(answer, RaylogError)
                self._failed(answer)

        self._ask(self._coordinator, Heartbeat(self.who), done)

    def _sign_off(self) -> None:
        def done(answer: Any) -> None:
            self.crash()

        assert self._coordinator is not None
        self._ask(self._coordinator, Leave(Leaver(self.member_id, self.instance)), done)

    # --- the work

    def _work(self) -> None:
        self.engine.at(WORK_MS, self._thread, self._work)
        if self.is_settled and not self._reads_nothing:
            for tp in sorted(self.positions):
                self.groups.checker.works(CLIENTS, tp, self.positions[tp], ())
                self.positions[tp] = Offset(self.positions[tp] + 1)

    def _commit_now_and_then(self) -> None:
        self.engine.at(COMMIT_MS, self._thread, self._commit_now_and_then)
        if self.is_settled and not self._is_committing:
            self._commit(lambda: None)

    def _commit(self, then: Any) -> None:
        """What it has worked on; a refusal is told by the next heartbeat, too."""
        if self._coordinator is None or not self.positions or self._reads_nothing:
            then()
            return
        author = str(Author(self.member_id, self.generation, self.life))
        offsets = {tp: CommittedOffset(at, metadata=author) for tp, at in self.positions.items()}

        def done(answer: Any) -> None:
            self._is_committing = False
            then()

        self._is_committing = True
        self._ask(self._coordinator, Commit(self.who, offsets, topic_id(self.life)), done)
