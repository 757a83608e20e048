"""One run from its seed to its end, and how a failing one is made small and told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from .engine import Violation
from .faults import HORIZON_MS, Fault, inject, plan
from .invariants import PROGRESS
from .world import Design, World

HEAL_MS = 12_000
"""After the last fault: in this time everybody must be well again."""
CHECK_MS = 200


@dataclass
class Outcome:
    """What a run came to."""

    seed: int
    steps: int
    acked: int
    elections: int
    faults: Sequence[Fault]
    violation: Violation | None
    lines: list[str]


def run(
    seed: int, design: Design | None = None, faults: Sequence[Fault] | None = None, *, trace: bool = False
) -> Outcome:
    """One run. ``faults``: only these of its plan."""
    random = Random(f"plan {seed}")
    brokers, partitions = random.choice((3, 3, 4)), random.choice((1, 1, 2))
    planned = plan(random, brokers)
    chosen = planned if faults is None else list(faults)
    world = World(seed, design or Design(), brokers=brokers, partitions=partitions, trace=trace)
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
        sum(producer.acked for producer in world.producers),
        world.checker.elections,
        chosen,
        violation,
        world.engine.lines or [],
    )


def heal(world: World) -> None:
    """Everything works again: then everybody makes progress, and in the end all replicas are equal."""
    world.heal()
    engine = world.engine
    engine.note("everything is healed")
    until = engine.now + HEAL_MS
    while (missing := world.unhealed()) and engine.now < until:
        engine.run_until(engine.now + CHECK_MS)
    if missing:
        raise Violation(PROGRESS, missing)
    world.stop_producing()
    until = engine.now + HEAL_MS
    while (missing := world.unfinished()) and engine.now < until:
        engine.run_until(engine.now + CHECK_MS)
    if missing:
        raise Violation(PROGRESS, missing)
    world.compare()


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
        say(f"  {fault}")
    say(f"the last {min(lines, len(outcome.lines))} of {len(outcome.lines)} lines of the trace:")
    for line in outcome.lines[-lines:]:
        say(f"  {line}")
    say(f"replay with: make sim SEED={outcome.seed}" + ("" if design.name == "raylog" else f" BUG={design.name}"))
