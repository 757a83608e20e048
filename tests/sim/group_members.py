"""Simulated members of a group of actors: one life of a process each, with the product's own thread (``MemberThread``).

That thread speaks with ZooKeeper and may wait for it. The user's thread works meanwhile, as long as the member may
deliver, and is here, as ``GroupMember`` and a consumer have it.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from raylog.client.groups.changes import Assigned, Change, Lost, Revoked
from raylog.client.groups.member_thread import MemberThread
from raylog.client.groups.ports import MemberPorts
from raylog.client.groups.requests import Commit, GoodBye, PolledAgain, Quieted
from raylog.coordination.groups.assignors import Assignor
from raylog.coordination.metadata.group_events import Assign, ClaimPartition, Died, Effect, Event
from raylog.coordination.metadata.group_model import CommittedOffset, Registered
from raylog.coordination.store.port import SessionEvent
from raylog.protocol.errors import FencedInstanceId
from raylog.protocol.ids import NO_OFFSET, InstanceId, MemberId, MonotonicMs, Offset, TimestampMs, TopicPartition

from .engine import Process, Thread
from .group_invariants import ACTORS, TOPIC, Author, topic_id
from .zookeeper import SimStore

if TYPE_CHECKING:
    from .groups import SimGroups

GONE = -1
"""In the place of a topic's life: it was deleted already when the partition was begun."""
WORK_MS = 60
COMMIT_MS = 200
MAX_POLL_MS = 3_000
AGAIN_MS = 300
"""When another takes the place of a member whose membership has failed."""


class Unwatched:
    """The liveness connections of a simulated member: the world tells of deaths (``SimMember.heard_of_death``)."""

    def __init__(self, *_: object) -> None: ...

    def watch(self, peers: Iterable[object]) -> None: ...

    def stop(self) -> None: ...


class SimThread(MemberThread):
    """Tells what invariants and faults want to know."""

    member: SimMember

    def _carry_out(self, effect: Effect) -> Event | None:
        if isinstance(effect, ClaimPartition):
            self.member.claims(effect.tp)
        elif isinstance(effect, Assign):
            self.member.begins(effect.tp, self._registry.claims.get(effect.tp))
        return super()._carry_out(effect)

    def _session_changed(self, event: SessionEvent) -> None:
        self.member.groups.hears(self.member.name)
        super()._session_changed(event)

    def _end(self) -> None:
        super()._end()
        self.member.ended()

    @property
    def is_settled(self) -> bool:
        return self._machine.is_settled


class SimMember:
    """See the module."""

    def __init__(self, groups: SimGroups, node: int, name: MemberId, instance: InstanceId | None) -> None:
        """``node``: where it is in the network; ``name``: its member id, which nobody has had before; ``instance``: the
        group.instance.id of a static one."""
        self.node = node
        self.name = name
        self.instance = instance
        self.groups = groups
        self.engine = groups.engine
        self.process = Process(f"member {name}")
        self.is_leaving = False
        self._thread = Thread(self.process)
        self._user = Thread(self.process)
        self._offset = node * 70_000
        self._asked: dict[TopicPartition, int] = {}
        """Claims that were asked for, with the checker's mark of that moment."""
        self.stuck_until = 0
        """Until then the user does nothing."""
        world, design = groups.world, groups.design
        self.store = SimStore(world.ensemble, world.weather, self._thread, self.clock)
        ports = MemberPorts(self.clock, lambda: TimestampMs(0), design.member_lease, design.registry, Unwatched)
        self._loops = design.member_loops(self.store, world.ensemble, self._thread)
        self.thread: SimThread = design.member_thread(
            self.store,
            ACTORS,
            design.member(name, Assignor.STICKY, self.engine.random.random),
            Registered(frozenset({TOPIC}), None, instance=instance),
            MAX_POLL_MS,
            lambda: None,
            self._loops,
            ports,
        )
        self.thread.member = self
        self.positions: dict[TopicPartition, Offset] = {}
        """Of what the user works on: the next record."""
        self._lives: dict[TopicPartition, int] = {}
        """Which life of the topic that is."""
        self._revoked: set[TopicPartition] = set()
        self._committing: Future[None] | None = None

    def clock(self) -> MonotonicMs:
        return MonotonicMs(self.engine.now + self._offset)

    @property
    def is_settled(self) -> bool:
        return self.thread.is_settled and self.positions.keys() == self.thread.owned

    def may_deliver(self, tp: TopicPartition) -> bool:
        """As GroupMember: whether the user may be given records of ``tp`` at this very moment."""
        return self.thread.owns(tp) and self.thread.lease.held(self.clock())

    @property
    def is_stuck(self) -> bool:
        return self.stuck_until > self.engine.now or self.thread.is_stuck

    # --- its life

    def start(self) -> None:
        self.engine.at(1, self._thread, self._start)

    def _start(self) -> None:
        self.store.start()
        self.thread.start()
        self.engine.at(WORK_MS, self._user, self._work)
        self.engine.at(COMMIT_MS, self._user, self._commit)

    def crash(self) -> None:
        """kill -9."""
        self.process.alive = False
        self.store.abandon()

    def leave(self) -> None:
        """In good order; its process ends once nothing is left to give up."""
        self.is_leaving = True
        self.engine.at(0, self._user, self._leave)

    def heard_of_death(self, name: MemberId) -> None:
        """Its process is gone: a connection to it is refused."""
        self.engine.at(2, self._user, lambda: self.thread.post(Died(name)))

    def fail_thread(self, count: int) -> None:
        """So many of the next steps of its thread fail, or of the calls to ZooKeeper in a later one."""
        if count % 2:
            self._loops.fail(count)
        else:
            self.store.odd_calls = {self._thread: count}

    # --- what its thread tells

    def claims(self, tp: TopicPartition) -> None:
        """It asks for the partition, with the offset that is committed; others may take it before the answer comes."""
        self._asked |= self.groups.checker.asks(ACTORS, [tp])

    def begins(self, tp: TopicPartition, claim: Any) -> None:
        """It has claimed the partition."""
        if claim is not None and claim.topic_id == self.groups.topic_id:
            checker, committed = self.groups.checker, claim.committed
            asked = self._asked.pop(tp, None) or checker.asks(ACTORS, [tp])[tp]
            checker.reads(ACTORS, tp, NO_OFFSET if committed is None else committed.offset, asked)

    def ended(self) -> None:
        """Its membership is over: the process ends, in good order or not, and another one takes its place then."""
        if self.instance is None or self.thread.failure is not None:
            self.store.close()
        else:
            self.store.abandon()
        self.process.alive = False
        if self.thread.failure is not None:
            self.engine.note(f"{self.process.name}: {self.thread.failure}")
            if not isinstance(self.thread.failure, FencedInstanceId):  # else another has its place
                self.groups.replace(self, AGAIN_MS)

    # --- the user

    def _work(self) -> None:
        """As a consumer polls: hear what has changed, hand out one record of each partition, finish what is revoked."""
        self.engine.at(max(WORK_MS, self.stuck_until - self.engine.now), self._user, self._work)
        if self.is_leaving or self.stuck_until > self.engine.now:
            return
        self.thread.polled_ms = self.clock()
        if self.thread.is_stuck:
            self.thread.post(PolledAgain())
        for change in self.thread.changes.take():
            self._hear(change)
        for tp in sorted(self.positions):
            if tp in self._revoked:
                self._give_up(tp)
            elif self.may_deliver(tp) and self._lives[tp] == self.groups.checker.life and self.groups.checker.is_there:
                self.groups.works(self, tp, self.positions[tp])
                self.positions[tp] = Offset(self.positions[tp] + 1)

    def _hear(self, change: Change) -> None:
        match change:
            case Assigned(tp, committed, topic):
                life = self.groups.checker.life
                self._lives[tp] = next((n for n in range(life, -1, -1) if topic_id(n) == topic), GONE)
                self.positions[tp] = committed.offset if committed is not None else Offset(0)
            case Revoked(tp):
                self._revoked.add(tp)
            case Lost(tp):
                self.positions.pop(tp, None)
                self._revoked.discard(tp)

    def _give_up(self, tp: TopicPartition) -> None:
        self._revoked.discard(tp)
        position = CommittedOffset(self.positions.pop(tp), metadata=self._author(tp))
        tenure = self.thread.changes.quiet(tp)
        if tenure is not None:
            self.thread.post(Quieted(tp, position, tenure))

    def _author(self, tp: TopicPartition) -> str:
        return str(Author(self.name, self.thread.generation, self._lives[tp]))

    def _worked_on(self) -> dict[TopicPartition, CommittedOffset]:
        return {tp: CommittedOffset(at, metadata=self._author(tp)) for tp, at in sorted(self.positions.items())}

    def _commit(self) -> None:
        self.engine.at(COMMIT_MS, self._user, self._commit)
        if (
            self.positions
            and not self.is_leaving
            and not self.is_stuck
            and (self._committing is None or self._committing.done())
        ):
            offsets, self._committing = self._worked_on(), Future()
            self.thread.post(Commit(offsets, self.thread.changes.tenures(offsets), self._committing))

    def _leave(self) -> None:
        offsets = self._worked_on()
        self.thread.post(GoodBye(offsets, self.thread.changes.tenures(offsets)))
        self.positions.clear()
