"""Members of a group of actors under any order of events: no partition is ever worked on by two, and once nothing
happens any more all are shared out."""

from __future__ import annotations

import random
from collections import deque
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from raylog.coordination.assignors import Assignor
from raylog.coordination.group import Member
from raylog.coordination.group_events import (
    Begin,
    Cease,
    Claimed,
    ClaimPartition,
    ClaimRefused,
    Deregister,
    Died,
    Drop,
    Effect,
    Event,
    Evict,
    Leave,
    Look,
    Looked,
    LookFailed,
    Noticed,
    Publish,
    Published,
    Quiet,
    Register,
    Registered,
    RegistrationFailed,
    Release,
    Released,
    ReleaseFailed,
    SessionLost,
    Shares,
    Started,
    Tick,
    View,
)
from raylog.protocol.ids import MemberId, MonotonicMs, PartitionIndex, TopicName, TopicPartition

TOPIC = TopicName("t")
NAMES = tuple(MemberId(f"m{n}") for n in range(4))
name = st.sampled_from(NAMES)


class World:
    """The registries, which forget what a session that ended has made."""

    def __init__(self) -> None:
        self.partitions = 5
        self.shares: Shares | None = None
        self.version = -1
        self.ids: dict[MemberId, int] = {}
        self.owners: dict[TopicPartition, tuple[MemberId, int]] = {}

    def view(self) -> View:
        members = dict.fromkeys(self.ids, frozenset({TOPIC}))
        return View(self.shares, self.version, members, {TOPIC: self.partitions})

    def end(self, session: int) -> None:
        self.ids = {member: s for member, s in self.ids.items() if s != session}
        self.owners = {tp: owner for tp, owner in self.owners.items() if owner[1] != session}


class Actor:
    """One member's shell: it carries one effect out at a time, so that others come in between."""

    def __init__(self, name: MemberId, world: World, sessions: count[int]) -> None:
        self.world = world
        self.sessions = sessions
        self.session = next(sessions)
        self.machine = Member(name, Assignor.STICKY, random.Random(name).random)
        self.todo: deque[Effect] = deque()
        self.events: deque[Event] = deque([Started()])
        self.works_on: set[TopicPartition] = set()
        self.ceasing: set[TopicPartition] = set()
        self.lapsed = False
        self.alive = True
        self.seen: View | None = None

    @property
    def name(self) -> MemberId:
        return self.machine.id

    def step(self, now: int, fails: bool = False) -> None:
        """Carry one effect out and take its event in, or take one event in."""
        if self.todo:
            event = self.carry_out(self.todo.popleft(), fails)
            self.todo.extendleft(reversed(self.machine.on(event, MonotonicMs(now)) if event is not None else []))
        elif self.events:
            self.todo.extend(self.machine.on(self.events.popleft(), MonotonicMs(now)))
        elif self.seen is not None and self.seen != self.world.view():
            self.seen = None  # the watches tell once
            self.events.append(Noticed())
        elif (due := self.machine.next_tick_ms()) is not None and due <= now:
            self.todo.extend(self.machine.on(Tick(), MonotonicMs(now)))

    def carry_out(self, effect: Effect, fails: bool) -> Event | None:
        world, valid = self.world, self.session > 0
        match effect:
            case Begin(tp):
                self.works_on.add(tp)
            case Cease(tp):
                self.ceasing.add(tp)
            case Drop(tp):
                self.works_on.discard(tp)
                self.ceasing.discard(tp)
            case Register():
                if fails or not valid:
                    return RegistrationFailed()
                world.ids[self.name] = self.session
                return Registered()
            case Deregister():
                world.end(self.session)
            case Look():
                if fails or not valid:
                    return LookFailed()
                self.seen = world.view()
                return Looked(self.seen)
            case Publish(shares, version):
                if fails or not valid:
                    return LookFailed()
                if version == world.version:
                    assert world.shares is None or shares.generation > world.shares.generation
                    world.shares, world.version = shares, version + 1
                return Published()
            case ClaimPartition(tp):
                if fails or not valid or tp in world.owners:
                    return ClaimRefused(tp)
                world.owners[tp] = self.name, self.session
                return Claimed(tp)
            case Release(tp):
                if fails or not valid:
                    return ReleaseFailed(tp)
                if world.owners.get(tp) == (self.name, self.session):
                    del world.owners[tp]
                return Released(tp)
            case Evict(member):
                if not fails and valid:
                    world.end(world.ids.get(member, 0))
        return None

    @property
    def is_idle(self) -> bool:
        seen_all = self.machine.has_left or self.seen == self.world.view()
        return not (self.todo or self.events or self.ceasing) and seen_all and self.machine.next_tick_ms() is None

    def quiet(self, tp: TopicPartition) -> None:
        self.ceasing.discard(tp)
        self.works_on.discard(tp)
        self.events.append(Quiet(tp, None))

    def expire(self) -> None:
        """The session ends; that its lease had lapsed before is what a lease is for. The shell learns of it later."""
        self.lapsed = True
        self.world.end(self.session)
        self.session = 0
        self.events.append(SessionLost())

    def reconnect(self) -> None:
        if self.session == 0 and SessionLost() not in self.events and not self.todo:
            self.session, self.lapsed = next(self.sessions), False
            if not self.machine.has_left or not self.leaving:
                self.events.append(Started())

    leaving = False


class Members(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.sessions = count(1)
        self.now = 0
        self.actors: dict[MemberId, Actor] = {}
        self.corpses: list[Actor] = []

    @rule(name=name)
    def start(self, name: MemberId) -> None:
        if name not in self.actors and name not in self.world.ids:
            self.actors[name] = Actor(name, self.world, self.sessions)

    @rule(data=st.data(), steps=st.integers(1, 8), fails=st.integers(0, 9))
    def run(self, data: st.DataObject, steps: int, fails: int) -> None:
        if not self.actors:
            return
        actor = self.actors[data.draw(st.sampled_from(sorted(self.actors)))]
        for _ in range(steps):
            actor.step(self.now, fails == 0)
            self.nobody_works_on_what_another_does()

    @rule(ms=st.sampled_from((1, 30, 1_100)))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule(name=name)
    def finish_a_batch(self, name: MemberId) -> None:
        actor = self.actors.get(name)
        for tp in sorted(actor.ceasing)[:1] if actor else ():
            actor.quiet(tp)

    @rule(name=name)
    def lose_the_session(self, name: MemberId) -> None:
        actor = self.actors.get(name)
        if actor and actor.session:
            actor.expire()

    @rule(name=name)
    def reconnect(self, name: MemberId) -> None:
        actor = self.actors.get(name)
        if actor:
            actor.reconnect()

    @rule(name=name)
    def leave(self, name: MemberId) -> None:
        actor = self.actors.get(name)
        if actor and not actor.leaving:
            actor.leaving = True
            actor.events.append(Leave())

    @rule(name=name, noticed=st.booleans())
    def kill(self, name: MemberId, noticed: bool) -> None:
        """Its nodes stay until its session ends, or until the elected one hears that its process is gone."""
        actor = self.actors.pop(name, None)
        if actor is None:
            return
        self.corpses.append(actor)
        if noticed:
            for other in self.actors.values():
                other.events.append(Died(name))

    @rule()
    def sessions_of_the_dead_end(self) -> None:
        for actor in self.corpses:
            self.world.end(actor.session)
        self.corpses.clear()

    @rule(more=st.integers(0, 2))
    def grow(self, more: int) -> None:
        self.world.partitions = min(9, self.world.partitions + more)

    @invariant()
    def nobody_works_on_what_another_does(self) -> None:
        at_work = [tp for actor in self.actors.values() if not actor.lapsed for tp in actor.works_on]
        assert len(at_work) == len(set(at_work)), at_work
        for actor in self.actors.values():
            for tp in actor.works_on if not actor.lapsed else ():
                assert self.world.owners[tp] == (actor.name, actor.session)

    def teardown(self) -> None:
        """Nothing happens any more: all that lives comes to rest, and each partition has its owner."""
        self.sessions_of_the_dead_end()
        for _ in range(100):
            self.now += 500
            if all(actor.is_idle for actor in self.actors.values()):
                break
            for actor in self.actors.values():
                actor.reconnect()
                for tp in sorted(actor.ceasing):
                    actor.quiet(tp)
                for _ in range(4):
                    actor.step(self.now)
                self.nobody_works_on_what_another_does()
        living = {name: actor for name, actor in self.actors.items() if not actor.leaving}
        assert all(actor.machine.has_left for actor in self.actors.values() if actor.leaving)
        assert set(self.world.ids) == set(living)
        owned = sorted(tp for actor in living.values() for tp in actor.works_on)
        expected = [TopicPartition(TOPIC, PartitionIndex(n)) for n in range(self.world.partitions)] if living else []
        assert owned == expected
        loads = [len(actor.works_on) for actor in living.values()]
        assert not loads or max(loads) - min(loads) <= 1
        assert all(actor.machine.is_settled for actor in living.values())


TestMembers = Members.TestCase
TestMembers.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
