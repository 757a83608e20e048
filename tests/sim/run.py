"""One run from its seed to its end, and how a failing one is made small and told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from .apart import TAKEN_OVER, TAKEOVER_MS, Takeover
from .engine import Violation
from .fault import Fault
from .faults import HORIZON_MS, describe, inject, plan, plan_groups, plan_joins, plan_more
from .group_invariants import ABANDONED
from .invariants import PROGRESS, TOLD
from .world import Design, World

HEAL_MS = 12_000
"""After the last fault: in this time everybody must be well again."""
CHECK_MS = 200
SHARE_OF_GROUPS = 0.3
"""Of the runs have consumer groups, too."""


@dataclass
class Outcome:
    """What a run came to."""

    seed: int
    steps: int
    acked: int
    elections: int
    counts: Counter[str]
    """How often each fault struck, and each moment and state of interest came."""
    faults: Sequence[Fault]
    violation: Violation | None
    lines: list[str]


class Cluster(NamedTuple):
    """What a run's cluster is like (see World)."""

    brokers: int
    partitions: int
    flushes: bool
    groups: bool


def has_groups(seed: int) -> bool:
    """Whether there are consumer groups in that run."""
    return Random(f"groups {seed}").random() < SHARE_OF_GROUPS


def _drawn(seed: int) -> tuple[Cluster, list[Fault]]:
    random = Random(f"plan {seed}")
    brokers, partitions, flushes = random.choice((3, 3, 4)), random.choice((1, 1, 2)), random.random() < 0.2
    faults = plan(random, brokers)
    if has_groups(seed):
        faults = sorted(faults[: random.choice((0, 2, 4, 30))] + plan_groups(random))
    more = plan_more(Random(f"more {seed}"), brokers, has_groups=has_groups(seed)) + plan_joins(Random(f"joins {seed}"))
    if more and not has_groups(seed):
        faults = faults[: random.choice((0, 4, 30))]
    return Cluster(brokers, partitions, flushes, has_groups(seed)), sorted(faults + more)


def planned(seed: int) -> list[Fault]:
    """The faults of a run."""
    return _drawn(seed)[1]


def run(
    seed: int, design: Design | None = None, faults: Sequence[Fault] | None = None, *, trace: bool = False
) -> Outcome:
    """One run. ``faults``: only these of its plan."""
    cluster, plan_of_it = _drawn(seed)
    chosen = plan_of_it if faults is None else list(faults)
    world = World(seed, design or Design(), **cluster._asdict(), trace=trace)
    inject(world, chosen)
    violation = None
    try:
        world.engine.run_until(HORIZON_MS)
        heal(world)
    except Violation as found:
        violation = found
    except AssertionError as error:  # a core's own
        violation = Violation("a core's own assertion", str(error))
    return Outcome(
        seed,
        world.engine.steps,
        world.acked,
        world.checker.elections,
        world.counts,
        chosen,
        violation,
        world.engine.lines or [],
    )


def heal(world: World) -> None:
    """Everything works again: then everybody makes progress, and in the end all replicas are equal.

    Failed disks come last: before, others must do without them.
    """
    world.heal()
    if world.away is not None:
        world.engine.note(f"everything is healed but disks, and broker {world.away.broker} is away")
        _await(world, Takeover(world, world.away).missing, TAKEN_OVER, TAKEOVER_MS)
        world.return_away()
    world.engine.note("everything is healed but disks")
    _await(world, world.unmoved)
    world.engine.note("everything is healed")
    for broker in world.ids:
        world.replace_disk(broker)
    _await(world, world.unhealed)
    _await(world, world.untold, TOLD)
    world.stop_producing()
    _await(world, world.unfinished)
    if world.groups is not None:
        _await(world, world.groups.abandoned, ABANDONED)
        _await(world, world.groups.unsettled)
    world.compare()


def _await(world: World, missing: Callable[[], str], invariant: str = PROGRESS, within_ms: int = HEAL_MS) -> None:
    """Let the cluster run until nothing is missing."""
    engine = world.engine
    until = engine.now + within_ms
    while (what := missing()) and engine.now < until:
        engine.run_until(engine.now + CHECK_MS)
    if what:
        raise Violation(invariant, what)


def shrink(outcome: Outcome, design: Design, budget: int = 120) -> Outcome:
    """The same violation with as few faults as can be found in ``budget`` runs: halves first, then one by one."""
    assert outcome.violation is not None
    best, invariant = outcome, outcome.violation.invariant
    size = max(1, len(best.faults) // 2)
    while budget > 0:
        smaller = None
        for first in range(0, len(best.faults), size):
            kept = [*best.faults[:first], *best.faults[first + size :]]
            budget -= 1
            again = run(outcome.seed, design, kept)
            if again.violation is not None and again.violation.invariant == invariant:
                smaller = again
                break
        if smaller is not None:
            best = smaller
            size = min(size, max(1, len(best.faults) // 2))
        elif size == 1:
            break
        else:
            size //= 2
    return run(outcome.seed, design, best.faults, trace=True)


def report(outcome: Outcome, design: Design, say: Callable[[str], None] = print, lines: int = 80) -> None:
    """Tell of a violation, after :func:`shrink`."""
    assert outcome.violation is not None
    say(f"seed {outcome.seed}, design {design.name}: {outcome.violation}")
    say(f"faults that are enough ({len(outcome.faults)}):")
    for fault in outcome.faults:
        say(f"  {describe(fault)}")
    say(f"the last {min(lines, len(outcome.lines))} of {len(outcome.lines)} lines of the trace:")
    for line in outcome.lines[-lines:]:
        say(f"  {line}")
    say(f"replay with: make sim SEED={outcome.seed}" + ("" if design.name == "raylog" else f" BUG={design.name}"))
