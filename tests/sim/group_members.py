"""Simulated members of a group of actors: one life of a process each, around the real machine and its registry.

A member has two threads: its own, which speaks with ZooKeeper and may wait for it, and the user's, which works
meanwhile, as long as the member may deliver.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from raylog.coordination.assignors import Assignor
from raylog.coordination.group import Member
from raylog.coordination.group_events import (
    Begin,
    Cease,
    ClaimLost,
    Died,
    Drop,
    Effect,
    Event,
    Leave,
    Noticed,
    Quiet,
    SessionLost,
    Started,
    Tick,
)
from raylog.coordination.group_model import CommittedOffset, Registered
from raylog.coordination.group_registry import GroupRegistry
from raylog.coordination.store import NodeEvent, SessionEvent, SessionState, StoreError, StoreEvent
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import NO_OFFSET, MemberId, MonotonicMs, Offset, TimestampMs, TopicPartition

from .engine import Process, Thread
from .group_invariants import ACTORS, TOPIC, Author
from .zookeeper import SESSION_TIMEOUT_MS, SimStore

if TYPE_CHECKING:
    from .groups import SimGroups

GONE = -1
"""In the place of a topic's life: it was deleted already when the partition was begun."""
WORK_MS = 60
RENEW_MS = SESSION_TIMEOUT_MS // 10
COMMIT_MS = 200


class SimMember:
    """See the module."""

    def __init__(self, groups: SimGroups, node: int, name: MemberId) -> None:
        """``node``: where it is in the network; ``name``: its member id, which nobody has had before."""
        self.node = node
        self.name = name
        self.groups = groups
        self.engine = groups.engine
        self.process = Process(f"member {name}")
        self.is_leaving = False
        self._thread = Thread(self.process)
        self._user = Thread(self.process)
        self._offset = node * 70_000
        world = groups.world
        self.store = SimStore(world.ensemble, world.weather, self._thread, self.clock)
        self._sink = world.ensemble.sink(self._thread, self._store_event)
        self.lease = groups.design.member_lease()
        self.machine: Member = groups.design.member(name, Assignor.STICKY, self.engine.random.random)
        registered = Registered(frozenset({TOPIC}), None)
        self.registry: GroupRegistry = groups.design.registry(
            self.store, ACTORS, name, registered, self._sink, lambda: TimestampMs(0)
        )
        self.positions: dict[TopicPartition, Offset] = {}
        """Of what the user works on: the next record."""
        self._lives: dict[TopicPartition, int] = {}
        """Which life of the topic that is."""
        self._ceasing: set[TopicPartition] = set()
        self._is_ticking = False

    def clock(self) -> MonotonicMs:
        return MonotonicMs(self.engine.now + self._offset)

    @property
    def is_settled(self) -> bool:
        return self.machine.is_settled and self.positions.keys() == self.machine.owned

    def may_deliver(self, tp: TopicPartition) -> bool:
        """Whether the user may be given records of ``tp`` at this very moment."""
        return (
            tp in self.machine.owned
            and self.registry.session_id == self.store.session.id
            and self.lease.held(self.clock())
        )

    # --- its life

    def start(self) -> None:
        self.engine.at(1, self._thread, self._start)

    def _start(self) -> None:
        self.store.start()
        self.store.watch_session(self._sink)
        self._feed(Started())
        self._keep()
        self.engine.at(WORK_MS, self._user, self._work)
        self.engine.at(COMMIT_MS, self._thread, self._commit)

    def crash(self) -> None:
        """kill -9."""
        self.process.alive = False
        self.store.abandon()

    def leave(self) -> None:
        """In good order; its process ends once nothing is left to give up."""
        self.is_leaving = True
        self.engine.at(0, self._thread, lambda: self._feed(Leave()))

    def heard_of_death(self, name: MemberId) -> None:
        """Its process is gone: a connection to it is refused."""
        self.engine.at(2, self._thread, lambda: self._hear(Died(name)))

    def _hear(self, died: Died) -> None:
        self.registry.seems_dead(died.member)
        self._feed(died)

    def _keep(self) -> None:
        self.engine.at(RENEW_MS, self._thread, self._keep)
        self._renew()
        self._give_up_deleted()
        self._tick()

    def _give_up_deleted(self) -> None:
        """As MemberThread: of topics that are deleted."""
        self.store.thread = self._thread
        for tp in self.registry.of_deleted_topics():
            self._feed(ClaimLost(tp))

    def _renew(self) -> None:
        self.store.thread = self._thread
        try:
            self.lease.renew(self.store.heartbeat(), self.store.session_timeout_ms)
        except StoreError:
            pass

    def _tick(self) -> None:
        due = self.machine.next_tick_ms()
        if due is None:
            return
        if due <= self.clock():
            self._feed(Tick())
        elif not self._is_ticking:
            self._is_ticking = True
            self.engine.at(due - self.clock(), self._thread, self._tick_later)

    def _tick_later(self) -> None:
        self._is_ticking = False
        self._tick()

    def _store_event(self, event: StoreEvent) -> None:
        """As GroupThread: what is told late of a session that was followed by another is old."""
        registered = self.registry.session_id
        match event:
            case SessionEvent(SessionState.LOST, session_id) if registered in (0, session_id):
                self.groups.hears(self.name)
                self.lease.revoke()
                self.registry.session_lost()
                self._feed(SessionLost())
            case SessionEvent(SessionState.CONNECTED, session_id):
                self.groups.hears(self.name)
                self.registry.watches_lost()
                self._renew()
                if registered == session_id:
                    self._feed(Noticed())
                elif not self.is_leaving:
                    self._feed(Started())
            case NodeEvent():
                self.registry.noticed(event)
                self._feed(Noticed())
                self._give_up_deleted()

    # --- the user

    def _work(self) -> None:
        """Hand out one record of each partition, and finish what ceases."""
        self.engine.at(WORK_MS, self._user, self._work)
        for tp in sorted(self.positions):
            if tp in self._ceasing:
                self._ceasing.discard(tp)
                position = CommittedOffset(self.positions.pop(tp), metadata=self._author(tp))
                self.engine.at(0, self._thread, lambda tp=tp, at=position: self._feed(Quiet(tp, at)))
            elif self.may_deliver(tp) and self._lives[tp] == self.groups.checker.life and self.groups.checker.is_there:
                self.groups.works(self, tp, self.positions[tp])
                self.positions[tp] = Offset(self.positions[tp] + 1)

    def _author(self, tp: TopicPartition) -> str:
        return str(Author(self.name, self.machine.generation, self._lives[tp]))

    def _commit(self) -> None:
        self.engine.at(COMMIT_MS, self._thread, self._commit)
        self.store.thread = self._thread
        for tp in sorted(self.positions):
            if tp not in self.machine.owned:
                continue
            position = CommittedOffset(self.positions[tp], metadata=self._author(tp))
            try:
                self.registry.claims.commit({tp: position})
            except RaylogError:  # or not registered any more, or no answer: it is tried again
                if tp in self.machine.owned and self.registry.claims.get(tp) is None:
                    self._feed(ClaimLost(tp))

    # --- the machine's effects

    def _feed(self, event: Event) -> None:
        """Take the event in, and what follows from what follows from it."""
        todo = deque(self.machine.on(event, self.clock()))
        while todo:
            outcome = self._carry_out(todo.popleft())
            if outcome is not None:
                todo.extendleft(reversed(self.machine.on(outcome, self.clock())))
        if self.is_leaving and self.machine.has_left:
            self.store.close()
            self.process.alive = False
        else:
            self._tick()

    def _carry_out(self, effect: Effect) -> Event | None:
        match effect:
            case Begin(tp):
                claim = self.registry.claims.get(tp)
                committed = claim.committed if claim is not None else None
                checker = self.groups.checker
                is_new = claim is not None and claim.topic_id == self.groups.topic_id
                self._lives[tp] = checker.life if is_new else GONE
                if is_new:
                    [(_, now)] = checker.asks(ACTORS, [tp]).items()
                    checker.reads(ACTORS, tp, NO_OFFSET if committed is None else committed.offset, now)
                self.positions[tp] = committed.offset if committed is not None else Offset(0)
            case Cease(tp):
                self._ceasing.add(tp)
            case Drop(tp):
                self.positions.pop(tp, None)
                self._ceasing.discard(tp)
            case _:
                self.store.thread = self._thread
                return self.registry.carry_out(effect)
        return None
