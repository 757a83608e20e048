"""A simulated broker's coordinator of groups: the product's own, whose threads' steps the engine calls.

Requests, the ticker and upkeep share the groups' locks, and here one engine thread: a lock that is held keeps the
others waiting, as it does there. Committers ask for their fence under the lock, so that their steps begin when that is
free, and write without it: what others do meanwhile comes in between, another group's commits as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from raylog.broker.config import BROKER_SETTINGS, OFFSETS_COMMIT_LINGER_MS
from raylog.broker.config.groups import GroupRules
from raylog.broker.groups.classic.claims import decode_claim, decode_group
from raylog.broker.groups.classic.messages import Identity, Join, Joined, Leaver, Sync
from raylog.broker.groups.coordinator import GroupCoordinator
from raylog.broker.groups.offsets.upkeep import GroupUpkeep
from raylog.coordination.metadata import group_paths
from raylog.coordination.metadata.group_model import CommittedOffset
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import BrokerId, GroupId, MemberId, MonotonicMs, TimestampMs, TopicId, TopicPartition
from raylog.protocol.settings import Settings

from .engine import Thread
from .group_invariants import CLIENTS, TOPIC, Settled
from .network import Answer

if TYPE_CHECKING:
    from .broker import SimBroker
    from .groups import GroupDesign

LOOK_MS = 50
"""How often it looks whether the ticker has something to do."""
UPKEEP_MS = 1_000
LINGERS_MS = (1, 5, 5, 20)
COMMITTERS = 2
RULES = GroupRules(min_session_timeout_ms=10, max_session_timeout_ms=60_000, initial_rebalance_delay_ms=100)
SETTINGS = Settings(BROKER_SETTINGS, {OFFSETS_COMMIT_LINGER_MS.name: 0})


class GroupRequest(NamedTuple):
    """What a client asks about a group."""

    group: GroupId
    about: Any


class FindCoordinator(NamedTuple):
    """FindCoordinator: who coordinates the group?"""


class Heartbeat(NamedTuple):
    who: Identity


class Leave(NamedTuple):
    leaver: Leaver


class Commit(NamedTuple):
    """OffsetCommit."""

    who: Identity
    offsets: dict[TopicPartition, CommittedOffset]
    topic: TopicId
    """Which topic was read, as requests name it since KIP-848."""


class FetchOffsets(NamedTuple):
    """OffsetFetch."""

    partitions: Sequence[TopicPartition]


class DeleteGroup(NamedTuple):
    """DeleteGroups."""


class NeverStops:
    """The event for which a loop waits between two passes: the engine has waited already."""

    def wait(self, timeout_s: float) -> bool:
        return False

    def is_set(self) -> bool:
        return False


def settled(data: bytes) -> Settled:
    """What a coordinator has stored, for the checker."""
    group = decode_group(group_paths.state(CLIENTS), data)
    return Settled(
        group.generation,
        {member.id: member.assignment for member in group.members},
        {member.id: member.instance_id or member.id for member in group.members},
    )


def coordinator(data: bytes) -> BrokerId:
    """Which broker has claimed the group, for the checker."""
    return decode_claim(group_paths.claim(CLIENTS), data).broker


class Coordinating:
    """See the module."""

    def __init__(self, broker: SimBroker, design: GroupDesign) -> None:
        self._broker = broker
        self._engine = broker.engine
        self._thread = Thread(broker.process)
        self._committing = [Thread(broker.process) for _ in range(COMMITTERS)]
        self._member_ids = 0
        failed = ("steps of groups' threads failed",)
        self._loops = design.loops(lambda: broker.world.counts.update(failed))
        self._groups: GroupCoordinator = design.coordinator(
            broker.id,
            broker.store,
            epoch=lambda: broker.epoch,
            cluster=lambda: broker.state,
            may_act=lambda: broker.may_act,
            rules=RULES,
            settings=lambda: SETTINGS,
            loops=self._loops,
            now_ms=broker.clock,
            new_member_id=self._new_member_id,
        )
        self._upkeep = GroupUpkeep(
            broker.store,
            self._groups,
            dict,
            state=lambda: broker.state,
            settings=lambda: SETTINGS,
            now_ms=broker.clock,
            age_ms=lambda: TimestampMs(broker.engine.now),
            loops=self._loops,
        )
        self._groups.start()
        self._engine.at(LOOK_MS, self._thread, self._tick)
        self._engine.at(UPKEEP_MS, self._thread, self._look_after)

    @property
    def is_busy(self) -> bool:
        """A step is under way; to stop, it has to be waited for."""
        return any(thread.busy for thread in (self._thread, *self._committing))

    def serve(self, request: GroupRequest, answer: Answer) -> None:
        """A client asks; any thread."""
        self._engine.at(0, self._thread, lambda: self._serve(request, answer))

    def fail_steps(self, count: int) -> None:
        """So many of the next steps of each of its threads fail."""
        self._loops.fail(count)

    def stop(self) -> None:
        """An orderly stop."""
        self._broker.store.thread = self._thread
        self._groups.stop()

    @property
    def _is_locked(self) -> bool:
        """A committer waits for ZooKeeper, under the lock of a group that it claims for its fence."""
        entries = self._groups._holder._table._entries
        return any(entry.lock.locked() for entry in entries.values())

    def _new_member_id(self, join: Join) -> MemberId:
        self._member_ids += 1
        return MemberId(f"{self._broker.process.name.split()[1]}-{self._member_ids}")

    # --- the thread that has the lock

    def _serve(self, request: GroupRequest, answer: Answer) -> None:
        if self._is_locked:
            self._engine.at(1, self._thread, lambda: self._serve(request, answer))
            return
        self._broker.store.thread = self._thread
        try:
            result = self._handle(request.group, request.about)
        except RaylogError as error:
            answer(error)
            return
        if isinstance(result, Future):
            result.add_done_callback(lambda done: self._answer(done, answer))
        else:
            answer(result)

    def _answer(self, done: Future[Any], answer: Answer) -> None:
        error = done.exception()
        if isinstance(done.exception() or done.result(), Joined):
            self._broker.world.moment("rebalances", self._broker.id)
        answer(error or done.result())

    def _handle(self, group: GroupId, about: Any) -> Any:
        groups = self._groups
        match about:
            case FindCoordinator():
                return groups.find_coordinator(group).id
            case Join():
                return groups.join(group, about)
            case Sync():
                return groups.sync(group, about)
            case Heartbeat(who):
                groups.heartbeat(group, who)
                return ()
            case Leave(leaver):
                [error] = groups.leave(group, [leaver])
                return error or ()
            case FetchOffsets(partitions):
                return groups.fetch_offsets(group, partitions)
            case DeleteGroup():
                groups.delete(group)
                return ()
            case Commit(who, offsets, topic):
                results = groups.commit_offsets(group, who, offsets, {TOPIC: topic})
                self._commit_later(self._engine.random.choice(LINGERS_MS))
                return results
        raise ValueError(f"nobody serves {about}")

    def _tick(self) -> None:
        self._engine.at(1 if self._is_locked else LOOK_MS, self._thread, self._tick)
        if self._is_locked:
            return
        self._broker.store.thread = self._thread
        while self._is_due(self._groups.next_tick_ms) and self._loops.turn("group-ticker"):
            pass

    def _look_after(self) -> None:
        self._engine.at(1 if self._is_locked else UPKEEP_MS, self._thread, self._look_after)
        if self._is_locked:
            return
        self._broker.store.thread = self._thread
        self._upkeep.turn(NeverStops())  # type: ignore[arg-type]
        self._groups.keeper.turn(NeverStops())  # type: ignore[arg-type]

    # --- the committers'

    def _commit_later(self, delay: int) -> None:
        thread = self._engine.random.choice(self._committing)
        self._engine.at(delay, thread, partial(self._commit, thread))

    def _commit(self, thread: Thread) -> None:
        """The step waits for the lock, where somebody has it."""
        if self._thread.busy:
            self._commit_later(1)
            return
        self._broker.store.thread = thread
        if self._is_due(self._groups.next_commit_ms) and self._loops.turn("offset-committer"):
            self._commit_later(1)  # another group's

    def _is_due(self, due_ms: MonotonicMs | None) -> bool:
        return due_ms is not None and due_ms <= self._broker.clock()
