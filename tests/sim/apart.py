"""A broker that is away while all others are well: registered but cut off from the controller alone, or dead. Others
have to take over while it is, and nobody must be chosen who does not answer the controller.

Whoever is cut off reaches ZooKeeper, clients and other brokers. Its registration lives, so that nothing but silence
tells the controller. What people and faults do meanwhile, a few seconds after it began, brings choices about.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, NamedTuple

from raylog.protocol.ids import NO_LEADER, BrokerId, TopicPartition

from .engine import Violation
from .fault import Fault
from .invariants import State

if TYPE_CHECKING:
    from .world import World

CHOSEN = "nobody is chosen who does not answer the controller"
TAKEN_OVER = "others take over while one is away"
TAKEOVER_MS = 10_000
"""After the last fault that is not about the one that is away: in this time others must do without it."""
MADE_PROGRESS = 2
"""So many batches each producer must get acknowledged meanwhile."""
STAYS_MS = 60_000
"""The length of what lasts until others have taken over."""
SHARE_APART, SHARE_GONE = 0.06, 0.01
"""Of the runs have somebody who is cut off, or is dead at the end."""

DESCRIPTIONS = {
    "apart": "broker {broker} and the controller do not hear each other for {length} ms, all else does",
    "gone": "broker {broker} is killed, and stays away until others have taken over",
}
CHOICES = {
    "recreate": 3,
    "grow": 3,
    "elect": 1,
    "move": 1,
    "kill": 3,
    "pause": 1,
    "expire": 2,
    "hint": 2,
    "stop": 1,
}
"""What happens while one is cut off, and makes somebody choose."""
LENGTHS = (2_500, 4_000, 6_000, STAYS_MS, STAYS_MS, STAYS_MS)
AFTER_MS = (0, 0, 1, 5, 20, 100, 400)


def draw(random: Random, begin: int, end: int, whom: tuple[int, ...], others: tuple[int, ...]) -> list[Fault]:
    """The plan of one run, often an empty one. ``whom``: who may be away; ``others``: whom faults strike meanwhile."""
    share = random.random()
    if share < SHARE_GONE:
        return [Fault(random.randint(end - 3_000, end), "gone", random.choice(whom), STAYS_MS)]
    if share > SHARE_GONE + SHARE_APART:
        return []
    at, who = random.randint(begin, end), random.choice(whom)
    faults = [Fault(at, "apart", who, random.choice(LENGTHS), rate=random.choice((0.0, 0.1)))]
    for _ in range(random.choice((0, 1, 1, 2, 4))):
        kind = random.choices([*CHOICES], [*CHOICES.values()])[0]
        moment, after = random.choice((("", 0), ("silent", random.choice(AFTER_MS))))
        strikes = at if moment else min(at + random.randint(0, 6_000), end)
        length = random.choice((200, 600, 1_500))
        faults.append(Fault(strikes, kind, random.choice(others), length, 0, 0.02, moment, after))
    return faults


class Away(NamedTuple):
    """Who is, until others have taken over."""

    broker: BrokerId
    is_dead: bool
    """Else it is cut off from the controller alone."""


class Takeover:
    """Looks whether others do without the one that is away, once all else is healed."""

    def __init__(self, world: World, away: Away) -> None:
        self._world = world
        self._away = away
        self._acked = {producer.number: producer.acked for producer in world.producers}

    def missing(self) -> str:
        """What nobody has taken over; empty when nothing."""
        world, away = self._world, self._away.broker
        controller = world.controller()
        if controller == away and not self._away.is_dead:
            return ""  # it hears itself
        able = [b for b in world.ids if b != away and not world.disks[b].health.failure]
        for tp in world.tps:
            state = world.checker.partitions[tp].state
            sound = [broker for broker in world.checker.sound(tp) if broker in able]
            if sound and state.leader not in able:
                return f"{tp} can be led by {sound}: {state}"
            replicas = world.brokers[controller].controlling.replicas(tp)
            if sound and len([broker for broker in replicas if broker in able]) >= world.min_isr:
                for producer in world.producers:
                    before = self._acked.get(producer.number, 0)
                    if producer.tp == tp and producer.acked < before + MADE_PROGRESS:
                        return f"producer {producer.number} of {tp} waits for an answer: {state}"
        return world.groups.unserved() if world.groups is not None else ""


def check_choice(world: World, tp: TopicPartition, old: State, new: State) -> None:
    """A partition's state was written: of those who could be chosen, who does not answer must not be.

    The controller reaches itself, as ``controller.silence`` has it. Raises Violation.
    """
    brokers = world.brokers.values()
    at, writer = next(
        ((b.id, b.controlling) for b in brokers if b.controlling.epoch == new.controller_epoch), (None, None)
    )
    silent = writer.silence.silent() - {at} if writer is not None else frozenset[BrokerId]()
    if writer is None or not silent:
        return
    joined = [broker for broker in new.isr if broker in silent and broker not in (*old.isr, new.leader)]
    if joined:
        raise Violation(CHOSEN, f"{tp}: broker {joined[0]} joins the ISR: {new}")
    if new.leader in (old.leader, NO_LEADER) or new.leader not in silent:
        return
    members = world.checker.undamaged(old if old.isr else new)
    known = writer.state.brokers
    able = [b for b in members if b not in silent and b in known and not world.disks[BrokerId(b)].health.failure]
    if able:
        raise Violation(CHOSEN, f"{tp}: broker {new.leader} is to lead, and {able} could: {new}")
