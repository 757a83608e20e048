"""What goes wrong in a run: a plan, made from the seed before anything happens, so that parts of it can be left out.

Each fault begins at a time and most end at another. Some plans are of a few kinds only: faults that come in a crowd
hide each other, and many bugs need one broker to be slow for long while another dies.

Most windows in which a protocol can go wrong are a few milliseconds long, and begin with a step that is rare: an ISR
changed, somebody was elected, a registration is half done. So a fault may wait for such a *moment*, and strike then:
whoever it is about, the leader that it concerns, or the controller. Which moments there are has nothing to do with any
mistake in particular: they are all the steps of the protocol (``world.MOMENTS``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import NamedTuple

from raylog.protocol.ids import BrokerId

from . import apart, foreign, group_faults, joining
from .fault import CONTROLLER, COORDINATOR, FOLLOWERS, ITS_LEADER, LEADERS, NAMES, SUBJECT, Fault
from .world import MOMENTS, REPLICAS, Moment, World

START_MS = 1_500
"""The cluster comes up in peace."""
HORIZON_MS = 14_000
"""After this nothing breaks any more."""
FAULTS_MS = (START_MS, HORIZON_MS - 1)

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
    "disk": "the log directory of broker {broker} goes offline, and the broker starts anew after {length} ms",
    "full": "broker {broker} has no room to keep a session for {length} ms, and zookeeper ends the one that it has",
    "threads": "threads of broker {broker} fail at their next steps and calls to zookeeper ({length}/1000 and one)",
    "blackout": "all machines crash without their unsynced data, and are back after {length} ms",
    "drain": "broker {broker} is drained for {length} ms",
    "steps": "broker {broker} fails at the next steps that the controller's messages ask for ({length}/1000 and one)",
    "quiet": "nobody produces for {length} ms",
    "delete": "records of a partition are deleted (share {rate:.2f})",
    "elect": "preferred leaders are asked for",
    "recreate": "the topic is deleted, and made anew",
    "grow": "one more partition is asked for",
    "cancel": "reassignments are cancelled",
    "move": "the partitions are reassigned: broker {broker} is to be the last replica, or none",
    "config": "an override of the topic is set",
    "zkfar": "calls of broker {broker} alone to zookeeper take long for {length} ms",
    **apart.DESCRIPTIONS,
    **foreign.DESCRIPTIONS,
    **joining.DESCRIPTIONS,
    **group_faults.DESCRIPTIONS,
}


def describe(fault: Fault) -> str:
    """When it strikes, and what it does, in words."""
    broker, other = NAMES.get(fault.broker, fault.broker), NAMES.get(fault.other, fault.other)
    names = fault._asdict() | {"broker": broker, "other": other, "which": fault.other}
    when = f"{fault.after} ms after {MOMENTS[fault.moment]} next: " if fault.moment else ""
    return f"{fault.at:>6} ms  {when}{DESCRIPTIONS[fault.kind].format(**names)}"


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
    "disk": 3,
    "full": 2,
    "threads": 2,
    "blackout": 1,
    "drain": 2,
    "steps": 3,
    "delete": 3,
    "elect": 1,
    "grow": 1,
    "recreate": 2,
    "quiet": 2,
    "cancel": 1,
    "move": 2,
}

LENGTHS = (50, 200, 600, 1_500, 2_500, 4_000, 6_000)
LONG = (1_500, 2_500, 4_000, 6_000)
SHORT = (50, 200, 600)
SHARE_OF_CONFIGS = 0.04
"""Of the runs set overrides."""
AFTER_MS = (0, 0, 0, 1, 2, 5, 20, 100)


class Scene(NamedTuple):
    """How a moment is brought about, and whom it may strike."""

    causes: tuple[str, ...]
    of: tuple[int, ...]
    lengths: tuple[int, ...]
    whom: tuple[int, ...]


BEHIND = Scene(("pause", "isolate", "far", "kill", "crash"), FOLLOWERS, LONG, (ITS_LEADER, ITS_LEADER, SUBJECT))
REPLACED = Scene(("kill", "pause", "zk", "crash", "isolate"), LEADERS, LONG, (SUBJECT, *FOLLOWERS))
RETURNS = Scene(("kill", "crash", "wipe", "expire", "hint"), (*LEADERS, *FOLLOWERS), SHORT, (SUBJECT, ITS_LEADER))
DEPOSED = Scene(("pause", "zk", "hint", "expire"), (CONTROLLER,), LONG, (SUBJECT, *LEADERS))
EMPTIED = Scene(("delete",), LEADERS, LONG, (ITS_LEADER,))
SCENES = {
    "shrinks": BEHIND,
    "grows": BEHIND,
    "truncates": BEHIND,
    "follows": REPLACED,
    "leads": REPLACED,
    "elected": REPLACED,
    "registers": RETURNS,
    "office": DEPOSED,
    "deleted": EMPTIED,
}
STRIKES = {
    "kill": 4,
    "crash": 3,
    "wipe": 1,
    "pause": 3,
    "isolate": 2,
    "zk": 1,
    "expire": 1,
    "hint": 1,
    "zkslow": 2,
    "disk": 1,
    "steps": 2,
    "full": 1,
    "threads": 1,
}
"""What strikes brokers at a moment."""
COUPS = {"hint": 4, "pause": 3, "zk": 2, "expire": 2, "kill": 2, "isolate": 1}
"""What strikes the controller: mostly what leaves it alive while another takes office."""


def plan(random: Random, brokers: int) -> list[Fault]:
    """The faults of one run."""
    kinds = list(WEIGHTS)
    if random.random() < 0.5:  # a story of a few kinds
        kinds = random.sample(kinds, random.randint(1, 4))
    weights = [WEIGHTS[kind] for kind in kinds]
    share = random.choice((0.0, 0.5, 1.0, 1.0))
    """Of what waits for a moment."""
    faults: list[Fault] = []
    for _ in range(random.choice((2, 4, 8, 12, 20, 30))):
        at = faults[-1].at + random.randint(0, 150) if faults and random.random() < 0.3 else random.randint(*FAULTS_MS)
        at = min(at, FAULTS_MS[1])
        if random.random() < share:
            faults += _episode(random, at, brokers)
        else:
            faults.append(_fault(random, at, random.choices(kinds, weights)[0], brokers))
    return sorted(faults)


def plan_groups(random: Random) -> list[Fault]:
    """What is added to it where there are consumer groups."""
    return group_faults.draw(random, *FAULTS_MS)


def plan_more(random: Random, brokers: int, *, has_groups: bool) -> list[Fault]:
    """What is added to it in some runs: somebody is away, other programs write to ZooKeeper, overrides are set."""
    whom = (*range(1, brokers + 1), *LEADERS, *FOLLOWERS, *(COORDINATOR for _ in range(4 * has_groups)))
    strikes = (*whom, CONTROLLER, CONTROLLER, SUBJECT, SUBJECT)
    return [
        *apart.draw(random, *FAULTS_MS, whom, strikes),
        *foreign.draw(random, *FAULTS_MS, whom),
        *_configs(random),
    ]


def plan_joins(random: Random) -> list[Fault]:
    """What is added to it in some runs: records are deleted while a replica joins the ISR."""
    return joining.draw(random, *FAULTS_MS)


def _configs(random: Random) -> list[Fault]:
    """Often none. Another controller takes office, or none does, and an override is set then."""
    if random.random() > SHARE_OF_CONFIGS:
        return []
    faults = []
    for _ in range(random.choice((1, 2, 4))):
        at = random.randint(*FAULTS_MS)
        if random.random() < 0.5:
            faults += _replaced_while_it_reads(random, at)
            continue
        faults.append(Fault(at, random.choice(("hint", "hint", "pause", "zk")), CONTROLLER, random.choice(LONG)))
        for moment in ("", "office", "office"):
            faults.append(Fault(at, "config", CONTROLLER, 0, moment=moment, after=random.choice(AFTER_MS)))
    return faults


def _replaced_while_it_reads(random: Random, at: int) -> list[Fault]:
    """A call of the controller takes long, with which it begins to read of an override. Meanwhile another one takes
    office, and stands still once it has read all: then the former is the first that reads of the next override.
    """
    reads, stands_still = random.randint(50, 400), random.choice((600, 1_500))
    return [
        Fault(at, "zkfar", CONTROLLER, reads),
        Fault(at, "config", CONTROLLER, 0),
        Fault(at, "pause", SUBJECT, stands_still, moment="office", after=random.choice((20, 50))),
        Fault(at + reads, "hint", CONTROLLER, 0),
        Fault(at + reads + 100, "config", CONTROLLER, 0),
    ]


def _fault(random: Random, at: int, kind: str, brokers: int) -> Fault:
    broker, other = random.sample([*range(1, brokers + 1), CONTROLLER, *LEADERS, *FOLLOWERS], 2)
    return Fault(at, kind, broker, random.choice(LENGTHS), other, random.choice((0.02, 0.1, 0.3)))


def _episode(random: Random, at: int, brokers: int) -> list[Fault]:
    """Somebody is hindered, so that a moment comes; then one or two faults strike."""
    moment = random.choice([*SCENES])
    scene = SCENES[moment]
    cause = _fault(random, at, random.choice(scene.causes), brokers)
    faults = [cause._replace(broker=random.choice(scene.of), length=random.choice(scene.lengths))]
    if scene is EMPTIED:  # all there is, and who begins to follow thereafter is struck, too
        faults[0] = faults[0]._replace(rate=0.3)
        faults.append(faults[0]._replace(at=max(at - 50, START_MS), kind="quiet"))
        after = random.choice(AFTER_MS)
        faults.append(faults[0]._replace(kind="kill", broker=SUBJECT, length=50, moment="follows", after=after))
    if random.random() < 0.2:
        faults.append(_fault(random, at, random.choice(("zkslow", "storm", "far")), brokers))
    for _ in range(random.choice((1, 1, 2))):
        whom = CONTROLLER if random.random() < 0.25 else random.choice(scene.whom)
        strikes = COUPS if whom == CONTROLLER else STRIKES
        strike = _fault(random, at, random.choices([*strikes], [*strikes.values()])[0], brokers)
        faults.append(strike._replace(broker=whom, moment=moment, after=random.choice(AFTER_MS)))
    return faults


def inject(world: World, faults: list[Fault]) -> None:
    """Put the faults on the world's queue; each puts its end there when it begins."""
    for fault in faults:
        begin = partial(_await, world, fault) if fault.moment else partial(_begin, world, fault, None)
        world.at(fault.at, begin)


def _await(world: World, fault: Fault) -> None:
    def strike(moment: Moment) -> None:
        world.at(world.engine.now + fault.after, partial(_begin, world, fault, moment))

    world.await_moment(fault.moment, strike)


def _begin(world: World, fault: Fault, moment: Moment | None) -> None:
    if world.is_healed:
        return
    broker, other = _resolve(world, fault.broker, moment), _resolve(world, fault.other, moment)
    world.counts[f"fault: {fault.kind}"] += 1
    end = _act(world, fault, broker, other)
    if end is not None:
        world.at(min(world.engine.now + fault.length, HORIZON_MS), end)


def _resolve(world: World, role: int, moment: Moment | None) -> BrokerId:
    """Who that is now."""
    if role in LEADERS:
        return world.leader(world.tps[LEADERS.index(role) % len(world.tps)])
    if role in FOLLOWERS:
        return world.follower(world.tps[FOLLOWERS.index(role) % len(world.tps)])
    if role == ITS_LEADER:
        return world.leader(moment.tp if moment is not None and moment.tp is not None else world.tps[0])
    if role == SUBJECT and moment is not None:
        return moment.broker
    if role == COORDINATOR and world.groups is not None:
        return world.groups.coordinator()
    if role in (CONTROLLER, SUBJECT):
        return world.controller()
    return BrokerId(role)


Action = Callable[[], None]


def _start_all(world: World) -> None:
    for broker in world.ids:
        world.start_broker(broker)


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
            world.weather.slow += 1
            return partial(world.zookeeper_recovers)
        case "zkfar":
            world.weather.far.add(broker)
            return lambda: world.weather.far.discard(broker)
        case "sync":
            world.sync(broker)
        case "disk":
            world.fail_disk(broker)
            if fault.at + fault.length < HORIZON_MS:  # else it stays so: others must do without it
                return partial(world.replace_disk, broker)
        case "full":
            world.fill_disk(broker)
            return partial(world.free_disk, broker)
        case "threads":
            world.fail_threads(broker, 1 + fault.length // 1_000)
        case "blackout":
            for each in world.ids:
                world.crash_machine(each)
            return partial(_start_all, world)
        case "drain":
            world.drain(broker)
            return partial(world.undrain, broker)
        case "quiet":
            world.quiet(min(world.engine.now + fault.length, HORIZON_MS))
        case "steps":
            world.fail_steps(broker, 1 + fault.length // 1_000)
        case "delete":
            world.delete_records(world.tps[fault.length % len(world.tps)], fault.rate)
        case "trim":
            until = min(world.engine.now + fault.length, HORIZON_MS)
            joining.trim(world, world.tps[fault.other % len(world.tps)], fault.rate, until)
        case "elect":
            world.elect()
        case "recreate":
            world.delete_topic()
        case "grow":
            world.grow()
        case "apart":
            return world.cut_off(broker, fault.length, is_mute=fault.rate > 0)
        case "gone":
            world.lose(broker)
            return partial(world.start_broker, broker)
        case "foreign":
            foreign.leave(world, fault.other)
        case "orphan":
            foreign.orphan(world, world.tps[fault.other % len(world.tps)])
            world.delete_topic()
        case "damage":
            return foreign.damage(world, broker, world.tps[0], fault.other)
        case "config":
            world.set_config()
        case "cancel":
            world.reassign(None)
        case "move":
            others = [each for each in world.ids if each != broker]
            world.reassign(tuple(others if len(others) == REPLICAS else [*others, broker]))
        case _:
            if world.groups is None:
                raise ValueError(f"there is no fault {fault.kind!r} where there are no groups")
            return group_faults.act(world.groups, fault.kind, broker, fault.length, HORIZON_MS)
    return None
