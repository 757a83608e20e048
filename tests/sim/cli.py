"""Runs seeds from the command line.

python -m sim.cli --seed 7          replays a run, with its trace when it fails (make sim SEED=7)
python -m sim.cli --long            runs seeds until it is told to stop (make sim-long)
python -m sim.cli --proof           plants bugs, and counts how many are found (make sim-proof)
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import logging
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator

from .found_at import FOUND_AT
from .groups import GroupDesign
from .planted import PLANTED, Planted
from .run import Outcome, has_groups, planned, report, run, shrink
from .world import Design

PROOF_SEEDS = 200
"""Seeds per planted bug: the budget in which each must be found."""
REPORT_EVERY_S = 10.0


def say(line: str) -> None:
    print(line, flush=True)


def replay(seed: int, design: Design, *, whole: bool) -> int:
    """One run; its trace, with as few faults as show the violation, or all of it (``whole``)."""
    outcome = run(seed, design, trace=whole)
    say(
        f"seed {seed}: {outcome.steps} steps, {len(outcome.faults)} faults, {outcome.elections} elections, "
        f"{outcome.acked} batches acknowledged"
    )
    say(coverage(outcome.counts))
    if whole:
        say(f"trace {digest(outcome)}")
        for line in [*map(str, outcome.faults), *outcome.lines]:
            say(f"  {line}")
    if outcome.violation is None:
        say("no invariant was violated")
        return 0
    report(shrink(outcome, design), design, say)
    return 1


def digest(outcome: Outcome) -> str:
    """Tells two runs apart: equal for equal traces."""
    return hashlib.sha256("\n".join(outcome.lines).encode()).hexdigest()[:16]


def search(seeds: Iterable[int], design: Design) -> int:
    """Runs seed after seed until one fails, or until interrupted (SIGINT)."""
    begun = told = time.monotonic()
    count = steps = acked = 0
    counts: Counter[str] = Counter()
    last = -1
    try:
        for seed in seeds:
            outcome = run(seed, design)
            count, steps, acked, last = count + 1, steps + outcome.steps, acked + outcome.acked, seed
            counts += outcome.counts
            if outcome.violation is not None:
                report(shrink(outcome, design), design, say)
                return 1
            if time.monotonic() - told > REPORT_EVERY_S:
                told = time.monotonic()
                say(_figures(count, steps, acked, told - begun, last))
    except KeyboardInterrupt:
        pass
    say(_figures(count, steps, acked, time.monotonic() - begun, last))
    say(coverage(counts))
    return 0


def coverage(counts: Counter[str]) -> str:
    """How often what happened."""
    return "what happened: " + ", ".join(f"{what} {times}" for what, times in sorted(counts.items()))


def _figures(count: int, steps: int, acked: int, seconds: float, last: int) -> str:
    return (
        f"{count} seeds without a violation (the last is {last}), {steps} steps, {acked} batches acknowledged, "
        f"{count / seconds:.1f} seeds/s, {steps / seconds:.0f} steps/s"
    )


def proof_seeds(planted: Planted, count: int = PROOF_SEEDS, *, fresh: bool = False) -> Iterator[int]:
    """The runs in which it must be found: the one that found it before, unless ``fresh``, and then a mistake of groups
    in those that have some, another in those without; where it needs faults that few runs have, in these.
    """
    is_of_groups = planted.design.groups != GroupDesign()
    seeds = (seed for seed in itertools.count() if has_groups(seed) is is_of_groups)
    fit = (s for s in seeds if not planted.among or any(fault.kind in planted.among for fault in planned(s)))
    first = [] if fresh else [FOUND_AT[planted.design.name]]
    return itertools.islice(itertools.chain(first, (seed for seed in fit if seed not in first)), count)


def prove(seeds: int = PROOF_SEEDS, *, fresh: bool = False) -> int:
    """Each planted bug must be found by an invariant that fits it, and the product's design pass the same seeds."""
    caught, tried = 0, set[int]()
    for name, planted in PLANTED.items():
        begun = time.process_time()
        for count, seed in enumerate(proof_seeds(planted, seeds, fresh=fresh), 1):
            tried.add(seed)
            outcome = run(seed, planted.design)
            if outcome.violation is not None:
                fits = outcome.violation.invariant in planted.invariants
                took = f"{count} seeds and {time.process_time() - begun:.0f} s"
                say(f"{name}: after {took}{'' if fits else ', BY ACCIDENT'}: seed {seed}, {outcome.violation}")
                caught += fits
                break
        else:
            say(f"{name}: not found in {seeds} seeds")
    for seed in sorted(tried):
        outcome = run(seed)
        if outcome.violation is not None:
            report(shrink(outcome, Design()), Design(), say)
            return 1
    say(f"the product's design passes the same {len(tried)} seeds")
    say(f"planted bugs caught: {caught} of {len(PLANTED)}")
    return 0 if caught == len(PLANTED) else 1


def main() -> int:
    logging.disable(logging.CRITICAL)  # of disks that fail: the trace tells
    parser = argparse.ArgumentParser(description="Simulates whole clusters, each run under one seed.")
    parser.add_argument("--seed", type=int, help="replay this run")
    parser.add_argument("--trace", action="store_true", help="with --seed: print all that happens, failure or not")
    parser.add_argument("--bug", default="", help="with a planted bug: " + ", ".join(PLANTED))
    parser.add_argument("--long", action="store_true", help="run seeds until interrupted")
    parser.add_argument("--first", type=int, help="with --long: the first seed (default: drawn)")
    parser.add_argument("--count", type=int, help="with --long: run so many")
    parser.add_argument("--proof", action="store_true", help="find the planted bugs")
    parser.add_argument("--fresh", action="store_true", help="with --proof: not first where they were found before")
    options = parser.parse_args()
    design = PLANTED[options.bug].design if options.bug else Design()
    if options.proof:
        return prove(fresh=options.fresh)
    if options.seed is not None:
        return replay(options.seed, design, whole=options.trace)
    if not options.long:
        parser.error("say --seed N, --long or --proof")
    first = secrets.randbelow(2**40) if options.first is None else options.first
    return search(itertools.islice(itertools.count(first), options.count), design)


if __name__ == "__main__":
    sys.exit(main())
