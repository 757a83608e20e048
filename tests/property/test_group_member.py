"""Members of a group of actors under any order of events: no partition is ever worked on by two, and once nothing
happens any more all are shared out."""

from __future__ import annotations

import random
from collections import deque
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.coordination.groups.assignors import Assignor
from raylog.coordination.groups.group import Member
from raylog.coordination.metadata.group_events import (
    Assign,
    Claimed,
    ClaimInDoubt,
    ClaimPartition,
    ClaimRefused,
    Deregister,
    Deregistered,
    DeregisterFailed,
    Died,
    Effect,
    Event,
    Evict,
    Leave,
    Look,
    Looked,
    LookFailed,
    Lose,
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
    Revoke,
    SessionLost,
    Started,
    Tick,
    View,
)
from raylog.coordination.metadata.group_model import Shares
from raylog.protocol.ids import MemberId, MonotonicMs, PartitionIndex, TopicName, TopicPartition

TOPIC = TopicName("t")
NAMES = tuple(MemberId(f"m{n}") for n in range(4))


class World:
    """The registries, which forget what a session that ended has made."""

    def __init__(self) -> None:
        self.partitions = 5
        self.shares: Shares | None = None
        self.version = -1
        self.ids: dict[MemberId, int] = {}
        self.owners: dict[TopicPartition, tuple[MemberId, int]] = {}

    def view(self, name: MemberId, dead: set[MemberId]) -> View:
        """As the member sees them: all, or its own share and the member before it (``groups.view``)."""
        members = dict.fromkeys(self.ids, frozenset({TOPIC}))
        before = max((member for member in self.ids if member < name), default=None)
        if before is None or name not in self.ids or dead & self.ids.keys():
            return View(self.shares, self.version, members, {TOPIC: self.partitions})
        share = self.shares and Shares(self.shares.generation, {name: self.shares.members.get(name, ())})
        return View(share, -1, {member: members[member] for member in (before, name)}, {}, is_whole=False)

    def end(self, session: int) -> None:
        self.ids = {member: s for member, s in self.ids.items() if s != session}
        self.owners = {tp: owner for tp, owner in self.owners.items() if owner[1] != session}


class Actor:
    """One member's shell: it carries one effect out at a time, so that others come in between.

    What fails may have been done all the same, when only the answer was lost.
    """

    def __init__(self, name: MemberId, world: World, sessions: count[int]) -> None:
        self.world = world
        self.sessions = sessions
        self.session = next(sessions)
        self.chance = random.Random(name).random
        self.machine = Member(name, Assignor.STICKY, self.chance)
        self.todo: deque[Effect] = deque()
        self.events: deque[Event] = deque([Started()])
        self.works_on: set[TopicPartition] = set()
        self.revoked: set[TopicPartition] = set()
        self.lapsed = False
        self.leaving = False
        self.seen: View | None = None
        self.dead: set[MemberId] = set()
        """Those registered whose processes seem gone."""

    @property
    def name(self) -> MemberId:
        return self.machine.id

    def step(self, now: int, fails: bool = False) -> None:
        """Carry one effect out and take its event in, or take one event in."""
        if self.todo:
            event = self.carry_out(self.todo.popleft(), fails)
            self.todo.extendleft(reversed(self.machine.on(event, MonotonicMs(now)) if event is not None else []))
        elif self.events:
            event = self.events.popleft()
            if isinstance(event, Died):
                self.dead.add(event.member)
            self.todo.extend(self.machine.on(event, MonotonicMs(now)))
        elif self.seen is not None and self.seen != self.view():
            self.seen = None  # the watches tell once
            self.events.append(Noticed())
        elif (due := self.machine.next_tick_ms()) is not None and due <= now:
            self.todo.extend(self.machine.on(Tick(), MonotonicMs(now)))

    def view(self) -> View:
        return self.world.view(self.name, self.dead)

    def carry_out(self, effect: Effect, fails: bool) -> Event | None:
        world, valid = self.world, self.session > 0
        match effect:
            case Assign(tp):
                self.works_on.add(tp)
            case Revoke(tp):
                self.revoked.add(tp)
            case Lose(tp):
                self.works_on.discard(tp)
                self.revoked.discard(tp)
            case Register():
                if valid and not (fails and self.chance() < 0.5):
                    world.ids[self.name] = self.session
                return RegistrationFailed() if fails or not valid else Registered()
            case Deregister():
                if valid and not (fails and self.chance() < 0.5):
                    assert (self.name, self.session) not in world.owners.values(), "it leaves nothing behind"
                    world.ids.pop(self.name, None)
                return DeregisterFailed() if fails or not valid else Deregistered()
            case Look():
                if fails or not valid:
                    return LookFailed()
                self.seen = self.view()
                self.dead &= world.ids.keys()
                return Looked(self.seen)
            case Publish(shares, version):
                if fails or not valid:
                    return LookFailed()
                if version == world.version:
                    assert world.shares is None or shares.generation > world.shares.generation
                    world.shares, world.version = shares, version + 1
                return Published()
            case ClaimPartition(tp):
                us = self.name, self.session
                if valid and world.owners.get(tp, us) != us:
                    return ClaimRefused(tp)
                if valid and not (fails and self.chance() < 0.5):
                    world.owners[tp] = us
                return ClaimInDoubt(tp) if fails or not valid else Claimed(tp)
            case Release(tp):
                if valid and not (fails and self.chance() < 0.5) and world.owners.get(tp) == (self.name, self.session):
                    del world.owners[tp]
                return ReleaseFailed(tp) if fails or not valid else Released(tp)
            case Evict(member):
                if not fails and valid:
                    world.end(world.ids.get(member, 0))
        return None

    @property
    def is_idle(self) -> bool:
        if not self.session:
            return False
        seen_all = self.machine.has_left or self.seen == self.view()
        return not (self.todo or self.events or self.revoked) and seen_all and self.machine.next_tick_ms() is None

    def quiet(self, tp: TopicPartition) -> None:
        self.revoked.discard(tp)
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
            if not self.leaving:
                self.events.append(Started())


class Cluster:
    """Members that come, go and are cut off, in an order that a seed decides."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World()
        self.sessions = count(1)
        self.names = count()
        self.now = 0
        self.actors: dict[MemberId, Actor] = {}
        self.corpses: list[Actor] = []

    def run(self, actions: int) -> None:
        kinds = (self.step, self.finish_a_batch, self.time_passes, self.start, self.reconnect, self.trouble)
        for kind in self.random.choices(kinds, (60, 12, 12, 6, 8, 2), k=actions):
            kind()
            self.check()

    def someone(self) -> Actor | None:
        return self.random.choice(list(self.actors.values())) if self.actors else None

    def step(self) -> None:
        actor = self.someone()
        for _ in range(self.random.randint(1, 6) if actor else 0):
            assert actor is not None
            actor.step(self.now, fails=self.random.random() < 0.03)
            self.check()

    def finish_a_batch(self) -> None:
        revoked = [(actor, tp) for actor in self.actors.values() for tp in sorted(actor.revoked)]
        if revoked:
            actor, tp = self.random.choice(revoked)
            actor.quiet(tp)

    def time_passes(self) -> None:
        self.now += self.random.choice((1, 30, 1_100))

    def start(self) -> None:
        if len(self.actors) < 4:
            name = MemberId(f"{self.random.randrange(1000):03}-{next(self.names)}")  # an id is never used again
            self.actors[name] = Actor(name, self.world, self.sessions)

    def reconnect(self) -> None:
        for actor in self.actors.values():
            actor.reconnect()

    def trouble(self) -> None:
        kinds = (self.lose_a_session, self.leave, self.kill, self.sessions_of_the_dead_end, self.grow)
        self.random.choice(kinds)()

    def lose_a_session(self) -> None:
        actor = self.someone()
        if actor and actor.session:
            actor.expire()

    def leave(self) -> None:
        actor = self.someone()
        if actor and not actor.leaving:
            actor.leaving = True
            actor.events.append(Leave())

    def kill(self) -> None:
        """Its nodes stay until its session ends, or until the elected one hears that its process is gone."""
        actor = self.someone()
        if actor is None:
            return
        self.corpses.append(self.actors.pop(actor.name))
        if self.random.random() < 0.7:
            for other in self.actors.values():
                other.events.append(Died(actor.name))

    def sessions_of_the_dead_end(self) -> None:
        for actor in self.corpses:
            self.world.end(actor.session)
        self.corpses.clear()

    def grow(self) -> None:
        self.world.partitions = min(9, self.world.partitions + 1)

    def check(self) -> None:
        """Nobody works on what another does, or on what he does not own."""
        at_work = [tp for actor in self.actors.values() if not actor.lapsed for tp in actor.works_on]
        assert len(at_work) == len(set(at_work)), at_work
        for actor in self.actors.values():
            for tp in actor.works_on if not actor.lapsed else ():
                assert self.world.owners.get(tp) == (actor.name, actor.session), (actor.name, tp)

    def heal(self) -> None:
        """Nothing happens any more: all that lives comes to rest."""
        self.sessions_of_the_dead_end()
        for _ in range(200):
            self.now += 500
            for actor in self.actors.values():
                actor.reconnect()
                for tp in sorted(actor.revoked):
                    actor.quiet(tp)
                for _ in range(8):
                    actor.step(self.now)
                    self.check()
            if all(actor.is_idle for actor in self.actors.values()):
                return
        raise AssertionError("it does not come to rest")


@settings(max_examples=100)
@given(st.integers(0, 2**32))
def test_partitions_have_one_owner_each_and_in_the_end_all_have_one(seed: int) -> None:
    cluster = Cluster(seed)
    cluster.run(400)
    cluster.heal()
    living = {name: actor for name, actor in cluster.actors.items() if not actor.leaving}
    assert all(actor.machine.has_left for actor in cluster.actors.values() if actor.leaving)
    assert set(cluster.world.ids) == set(living)
    owned = sorted(tp for actor in living.values() for tp in actor.works_on)
    indexes = range(cluster.world.partitions) if living else ()
    assert owned == [TopicPartition(TOPIC, PartitionIndex(index)) for index in indexes]
    loads = [len(actor.works_on) for actor in living.values()]
    assert not loads or max(loads) - min(loads) <= 1
    assert all(actor.machine.is_settled for actor in living.values())


def test_a_dead_member_whose_session_lives_on_is_evicted_by_the_elected_one() -> None:
    """Also when those who would be elected before it died with it."""
    cluster = Cluster(1)
    cluster.actors = {name: Actor(name, cluster.world, cluster.sessions) for name in NAMES}
    cluster.heal()
    for name in NAMES[:2]:
        cluster.corpses.append(cluster.actors.pop(name))
        for other in cluster.actors.values():
            other.events.append(Died(name))
    corpses, cluster.corpses = cluster.corpses, []  # their sessions do not end
    cluster.heal()
    assert set(cluster.world.ids) == set(NAMES[2:])
    assert not {owner for owner, _ in cluster.world.owners.values()} & {corpse.name for corpse in corpses}
    assert sum(len(actor.works_on) for actor in cluster.actors.values()) == cluster.world.partitions
