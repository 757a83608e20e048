"""What goes wrong around consumer groups, beside what goes wrong with brokers: a plan of its own, added to theirs.

Members are killed, stopped and cut off like brokers, and also come and go as they like. Half of it waits for a moment:
somebody claims a partition, publishes an assignment, a generation is settled, a group is taken over. Then it strikes
whoever did so, another member, or the coordinator.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from .fault import COORDINATOR, SUBJECT, Fault
from .group_clients import SimClient
from .group_invariants import ACTORS, CLIENTS
from .group_members import SimMember

if TYPE_CHECKING:
    from .groups import SimGroups

DESCRIPTIONS = {
    "m-kill": "actor {broker} is killed, and another starts after {length} ms",
    "m-pause": "actor {broker} stands still for {length} ms, a static one is replaced meanwhile",
    "m-zk": "actor {broker} does not reach zookeeper for {length} ms",
    "m-expire": "zookeeper ends the session of actor {broker}",
    "m-stuck": "the user of actor {broker} does not poll for {length} ms",
    "m-thread": "the thread of actor {broker} fails at its next steps or calls to zookeeper ({length}/1000 and one)",
    "m-hint": "a wrong hint says that actor {broker} is dead",
    "m-leave": "actor {broker} leaves, and another starts after {length} ms",
    "m-join": "one more actor joins",
    "m-grow": "the topic that groups read gets one more partition",
    "c-kill": "client {broker} is killed, and another starts after {length} ms",
    "c-pause": "client {broker} stands still for {length} ms",
    "c-cut": "nothing passes from client {broker} to the coordinator for {length} ms",
    "c-leave": "client {broker} leaves, and another starts after {length} ms",
    "c-join": "one more client joins",
    "g-abandon": "the clients of group left are killed with their coordinator, which starts again after {length} ms",
    "g-delete": "a group's members leave, and after {length} ms others join while it is deleted",
    "g-recreate": "the topic that groups read is deleted, and made anew after {length} ms",
    "g-steps": "threads of groups fail at their next steps at the coordinator ({length}/1000 and one)",
}
WEIGHTS = {
    "m-kill": 4,
    "m-pause": 4,
    "m-zk": 4,
    "m-expire": 2,
    "m-stuck": 2,
    "m-thread": 1,
    "m-hint": 2,
    "m-leave": 2,
    "m-join": 1,
    "m-grow": 1,
    "c-kill": 4,
    "c-pause": 3,
    "c-cut": 2,
    "c-leave": 4,
    "c-join": 2,
    "g-abandon": 3,
    "g-delete": 2,
    "g-recreate": 3,
    "g-steps": 2,
}
COORDINATOR_FAULTS = {"hint": 3, "pause": 3, "zk": 3, "kill": 2, "expire": 2, "isolate": 1, "stop": 1}
"""What strikes the broker that coordinates the clients."""
MOMENTS = {
    "claims": ("m-kill", "m-pause", "m-zk", "m-expire", "m-hint", "zkslow"),
    "publishes": ("m-kill", "m-pause", "m-zk", "m-join", "m-hint", "zkslow"),
    "rebalances": ("zk", "zk", "zkslow", "hint", "hint", "pause", "kill", "expire", "c-pause", "c-kill"),
    "settles": ("zkslow", "hint", "pause", "kill", "c-pause", "c-kill", "c-join"),
    "coordinates": ("zkslow", "hint", "pause", "kill", "zk", "expire", "c-join"),
}
"""Moments, and what strikes then."""
LENGTHS = (50, 200, 600, 1_500, 2_500, 4_000, 6_000)
AFTER_MS = (0, 0, 1, 2, 5, 20, 100)
PLACES = (1, 2, 3, 4)


def draw(random: Random, begin: int, end: int) -> list[Fault]:
    """The plan of one run."""
    faults: list[Fault] = []
    share = random.choice((0.0, 0.5, 1.0))
    """Of what waits for a moment."""
    for _ in range(random.choice((4, 8, 12, 20, 30))):
        at, length = random.randint(begin, end), random.choice(LENGTHS)
        if random.random() < share:
            moment = random.choice([*MOMENTS])
            kind = random.choice(MOMENTS[moment])
            whom = random.choice(PLACES) if kind.startswith("c-") else SUBJECT
            whom = random.choice((whom, whom, random.choice(PLACES))) if kind.startswith("m-") else whom
            faults.append(Fault(at, kind, whom, length, moment=moment, after=random.choice(AFTER_MS)))
        elif random.random() < 0.25:
            kind = random.choices([*COORDINATOR_FAULTS], [*COORDINATOR_FAULTS.values()])[0]
            faults.append(Fault(at, kind, COORDINATOR, length))
        else:
            kind = random.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
            faults.append(Fault(at, kind, random.choice(PLACES), length))
    return faults


def act(groups: SimGroups, kind: str, whom: int, length: int, end: int) -> Callable[[], None] | None:
    """Begin it, and answer how it ends. ``whom``: a place among those that live, or the node of an actor; ``end``: when
    nothing is broken any more.
    """
    now = groups.engine.now
    until = min(now + length, end)
    if kind == "m-join":
        groups.start_member()
        return None
    if kind == "m-grow":
        groups.grow()
        return None
    if kind == "c-join":
        groups.start_client()
        return None
    if kind.startswith("g-"):
        return _act_on_group(groups, kind, whom, length)
    if kind.startswith("m-"):
        member = groups.member(whom)
        return _act_on_member(groups, kind, member, length, until) if member is not None else None
    client = groups.client(whom)
    return _act_on_client(groups, kind, client, length, until) if client is not None else None


def _act_on_group(groups: SimGroups, kind: str, whom: int, length: int) -> Callable[[], None] | None:
    match kind:
        case "g-abandon":
            broker = groups.abandon()
            return partial(groups.world.start_broker, broker) if broker is not None else None
        case "g-delete":
            groups.delete((ACTORS, CLIENTS, ACTORS)[whom % 3], length)
        case "g-recreate":
            groups.recreate(min(length, 1_500))
        case "g-steps":
            groups.fail_steps(1 + length // 1_000)
        case _:
            raise ValueError(f"there is no fault {kind!r}")
    return None


def _act_on_member(
    groups: SimGroups, kind: str, member: SimMember, length: int, until: int
) -> Callable[[], None] | None:
    match kind:
        case "m-kill":
            groups.kill_member(member)
            groups.replace(member, length)
        case "m-pause":
            groups.pause(member, until)
            if member.instance is not None:  # whoever runs it takes it for dead
                groups.replace(member, length // 2)
        case "m-zk":
            groups.engine.note(f"{member.process.name}: cut from zookeeper")
            member.store.cut()
            return partial(_mend, member)
        case "m-expire":
            groups.expire(member)
        case "m-stuck":
            groups.engine.note(f"{member.process.name}: its user does nothing until {until} ms")
            member.stuck_until = until
        case "m-thread":
            member.fail_thread(1 + length // 1_000)
        case "m-hint":
            groups.hint(member)
        case "m-leave":
            groups.engine.note(f"{member.process.name}: leaves")
            member.leave()
            groups.replace(member, length)
        case _:
            raise ValueError(f"there is no fault {kind!r}")
    return None


def _mend(member: SimMember) -> None:
    if member.process.alive:
        member.store.mend()


def _act_on_client(
    groups: SimGroups, kind: str, client: SimClient, length: int, until: int
) -> Callable[[], None] | None:
    match kind:
        case "c-kill":
            groups.engine.note(f"{client.process.name}: kill -9")
            client.crash()
            groups.replace(client, length)
        case "c-pause":
            groups.pause(client, until)
        case "c-cut":
            cuts, way = groups.world.traffic.cuts, (client.node, int(groups.coordinator()))
            cuts.add(way)
            return lambda: cuts.discard(way)
        case "c-leave":
            groups.engine.note(f"{client.process.name}: leaves")
            client.leave()
            groups.replace(client, length)
        case _:
            raise ValueError(f"there is no fault {kind!r}")
    return None
