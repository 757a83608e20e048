"""What goes wrong in a run: a plan, made from the seed before anything happens, so that parts of it can be left out.

Each fault begins at a moment and most end at another. A plan is a story of one to a few *episodes*, some of one kind
only: faults that come in a crowd hide each other, and many bugs need one broker to be slow for long while another dies.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from raylog.coordination.controller_events import NewReplicas
from raylog.protocol.ids import BrokerId

from .world import REPLICAS, World

START_MS = 1_500
"""The cluster comes up in peace."""
HORIZON_MS = 14_000
"""After this nothing breaks any more."""


class Fault(NamedTuple):
    """One thing that goes wrong. ``broker``, ``other``, ``rate`` mean what ``kind`` makes of them."""

    at: int
    kind: str
    broker: int
    length: int
    other: int
    rate: float

    def __str__(self) -> str:
        return f"{self.at:>6} ms  {DESCRIPTIONS[self.kind].format(**self._asdict())}"


DESCRIPTIONS = {
    "kill": "broker {broker} is killed, and starts again after {length} ms",
    "crash": "the machine of broker {broker} crashes without its unsynced data, and is back after {length} ms",
    "wipe": "the disk of broker {broker} is lost, and it starts with an empty one after {length} ms",
    "stop": "broker {broker} stops in an orderly way, and starts again after {length} ms",
    "pause": "broker {broker} stands still for {length} ms",
    "cut": "nothing passes from {broker} to {other} for {length} ms",
    "isolate": "nothing passes between {broker} and the other brokers for {length} ms",
    "zk": "broker {broker} does not reach zookeeper for {length} ms",
    "expire": "zookeeper ends the session of broker {broker}",
    "hint": "a wrong hint says that broker {broker} is dead",
    "storm": "messages get lost, doubled and late at a rate of {rate:.2f} for {length} ms",
    "zkstorm": "calls to zookeeper, or their answers, get lost at a rate of {rate:.2f} for {length} ms",
    "sync": "broker {broker} writes its page cache back",
    "move": "the partitions are reassigned: broker {broker} is to be the last replica, or none",
}

WEIGHTS = {
    "kill": 5,
    "crash": 5,
    "wipe": 3,
    "stop": 2,
    "pause": 6,
    "cut": 4,
    "isolate": 4,
    "zk": 4,
    "expire": 2,
    "hint": 2,
    "storm": 4,
    "zkstorm": 4,
    "sync": 3,
    "move": 1,
}

LENGTHS = (50, 200, 600, 1_500, 2_500, 4_000, 6_000)


def plan(random: Random, brokers: int) -> list[Fault]:
    """The faults of one run."""
    kinds = list(WEIGHTS)
    if random.random() < 0.5:  # a story of a few kinds
        kinds = random.sample(kinds, random.randint(1, 4))
    weights = [WEIGHTS[kind] for kind in kinds]
    faults = []
    for _ in range(random.choice((2, 4, 8, 12, 20, 30))):
        broker = random.randint(1, brokers)
        faults.append(
            Fault(
                random.randint(START_MS, HORIZON_MS - 1),
                random.choices(kinds, weights)[0],
                broker,
                random.choice(LENGTHS),
                random.choice([other for other in range(1, brokers + 1) if other != broker]),
                random.choice((0.02, 0.1, 0.3)),
            )
        )
    return sorted(faults)


def inject(world: World, faults: list[Fault]) -> None:
    """Put the faults and their ends on the world's queue."""
    for fault in faults:
        begin, end = _actions(world, fault)
        world.at(fault.at, begin)
        if end is not None:
            world.at(min(fault.at + fault.length, HORIZON_MS), end)


Action = Callable[[], None]


def _actions(world: World, fault: Fault) -> tuple[Action, Action | None]:
    broker, traffic = BrokerId(fault.broker), world.traffic

    def restart() -> None:
        world.start_broker(broker)

    match fault.kind:
        case "kill":
            return lambda: world.kill(broker), restart
        case "crash":
            return lambda: world.crash_machine(broker), restart
        case "wipe":
            return lambda: world.wipe(broker), restart
        case "stop":
            return lambda: world.stop(broker), restart
        case "pause":
            return lambda: world.pause(broker, min(world.engine.now + fault.length, HORIZON_MS)), None
        case "cut":
            way = (fault.broker, fault.other)
            return lambda: traffic.cuts.add(way), lambda: traffic.cuts.discard(way)
        case "isolate":
            others = [other for other in world.ids if other != broker]
            ways = {(broker, other) for other in others} | {(other, broker) for other in others}
            return lambda: traffic.cuts.update(ways), lambda: traffic.cuts.difference_update(ways)
        case "zk":
            return lambda: world.cut_zookeeper(broker), lambda: world.mend_zookeeper(broker)
        case "expire":
            return lambda: world.expire(broker), None
        case "hint":
            return lambda: world.wrong_hint(broker), None
        case "storm":
            return lambda: world.storm(fault.rate), lambda: world.storm(0.0)
        case "zkstorm":
            return lambda: world.zookeeper_storm(fault.rate), lambda: world.zookeeper_storm(0.0)
        case "sync":
            return lambda: world.sync(broker), None
        case "move":
            others = [other for other in world.ids if other != broker]
            replicas = tuple(others if len(others) == REPLICAS else [*others, broker])
            changes = [NewReplicas(tp, replicas) for tp in world.tps]
            return lambda: world.reassign(changes), None
    raise ValueError(f"there is no fault {fault.kind!r}")
