"""What goes wrong in a run: a plan, made from the seed before anything happens, so that parts of it can be left out.

Each fault begins at a moment and most end at another. A plan is a story of one to a few *episodes*, some of one kind
only: faults that come in a crowd hide each other, and many bugs need one broker to be slow for long while another dies.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import NamedTuple

from raylog.protocol.ids import BrokerId

from .world import REPLICAS, World

START_MS = 1_500
"""The cluster comes up in peace."""
HORIZON_MS = 14_000
"""After this nothing breaks any more."""
FAULTS_MS = (START_MS, HORIZON_MS - 1)
CONTROLLER = 0
"""As a broker's number: the controller of that moment."""
LEADERS = (-1, -2)
"""The leaders of the first and the last partition."""


class Fault(NamedTuple):
    """One thing that goes wrong. ``broker``, ``other``, ``rate`` mean what ``kind`` makes of them.

    Brokers are numbers or roles (CONTROLLER, LEADERS): who has the role when it begins.
    """

    at: int
    kind: str
    broker: int
    length: int
    other: int
    rate: float

    def __str__(self) -> str:
        return f"{self.at:>6} ms  {DESCRIPTIONS[self.kind].format(**self._named())}"

    def _named(self) -> dict[str, object]:
        names = {"broker": NAMES.get(self.broker, self.broker), "other": NAMES.get(self.other, self.other)}
        return self._asdict() | names


NAMES = {CONTROLLER: "<controller>", LEADERS[0]: "<leader of the first>", LEADERS[1]: "<leader of the last>"}

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
    "far": "all messages from and to broker {broker} are late for {length} ms",
    "zkslow": "calls to zookeeper take long for {length} ms",
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
    "far": 4,
    "zkslow": 3,
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
    faults: list[Fault] = []
    for _ in range(random.choice((2, 4, 8, 12, 20, 30))):
        broker, other = random.sample([*range(1, brokers + 1), CONTROLLER, *LEADERS], 2)
        at = faults[-1].at + random.randint(0, 150) if faults and random.random() < 0.3 else random.randint(*FAULTS_MS)
        kind, length = random.choices(kinds, weights)[0], random.choice(LENGTHS)
        faults.append(Fault(min(at, FAULTS_MS[1]), kind, broker, length, other, random.choice((0.02, 0.1, 0.3))))
    return sorted(faults)


def inject(world: World, faults: list[Fault]) -> None:
    """Put the faults on the world's queue; each puts its end there when it begins."""
    for fault in faults:
        world.at(fault.at, partial(_begin, world, fault))


def _begin(world: World, fault: Fault) -> None:
    broker, other = _resolve(world, fault.broker), _resolve(world, fault.other)
    end = _act(world, fault, broker, other)
    if end is not None:
        world.at(min(fault.at + fault.length, HORIZON_MS), end)


def _resolve(world: World, role: int) -> BrokerId:
    """Who that is at this moment."""
    if role == CONTROLLER:
        return world.controller()
    if role in LEADERS:
        return world.leader(world.tps[LEADERS.index(role) % len(world.tps)])
    return BrokerId(role)


Action = Callable[[], None]


def _act(world: World, fault: Fault, broker: BrokerId, other: BrokerId) -> Action | None:
    """Begin it, and answer how it ends."""
    traffic = world.traffic
    match fault.kind:
        case "kill":
            world.kill(broker)
            return partial(world.start_broker, broker)
        case "crash":
            world.crash_machine(broker)
            return partial(world.start_broker, broker)
        case "wipe":
            world.wipe(broker)
            return partial(world.start_broker, broker)
        case "stop":
            world.stop(broker, fault.length)
        case "pause":
            world.pause(broker, min(world.engine.now + fault.length, HORIZON_MS))
        case "cut":
            way = (broker, other)
            traffic.cuts.add(way)
            return lambda: traffic.cuts.discard(way)
        case "isolate":
            others = [each for each in world.ids if each != broker]
            ways = {(broker, each) for each in others} | {(each, broker) for each in others}
            traffic.cuts.update(ways)
            return lambda: traffic.cuts.difference_update(ways)
        case "zk":
            world.cut_zookeeper(broker)
            return partial(world.mend_zookeeper, broker)
        case "expire":
            world.expire(broker)
        case "hint":
            world.wrong_hint(broker)
        case "storm":
            world.storm(fault.rate)
            return partial(world.storm, 0.0)
        case "zkstorm":
            world.zookeeper_storm(fault.rate)
            return partial(world.zookeeper_storm, 0.0)
        case "far":
            traffic.far.add(broker)
            return lambda: traffic.far.discard(broker)
        case "zkslow":
            world.weather.is_slow = True
            return lambda: setattr(world.weather, "is_slow", False)
        case "sync":
            world.sync(broker)
        case "move":
            others = [each for each in world.ids if each != broker]
            world.reassign(tuple(others if len(others) == REPLICAS else [*others, broker]))
        case _:
            raise ValueError(f"there is no fault {fault.kind!r}")
    return None
