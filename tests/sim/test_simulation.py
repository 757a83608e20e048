"""Whole clusters under a fixed set of seeds; and the proof that the simulator would find what it looks for.

A failing test prints a short trace, and the command that replays it. A run takes half a second: for a change a part of
them is made, chosen by the seed of the tests' order, and all at night.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kit.forms import some
from sim.cli import PROOF_SEEDS, proof_seeds
from sim.fault import Fault
from sim.faults import DESCRIPTIONS
from sim.found_at import FOUND_AT
from sim.planted import PLANTED
from sim.run import Outcome, planned, report, run, shrink
from sim.world import MOMENTS, Design

pytestmark = pytest.mark.timeout(900)
"""They only compute, up to two and a half minutes each, and with the lowest priority beside other tests."""

SEEDS = range(1_000, 1_100)
GROUP = 10
TOGETHER = 3
"""So many planted bugs are one test, and for a change one of them is tried."""
FLUSHING = 1_001
"""A seed of three brokers and one partition, with flush.messages=1."""

REPEATED = (5, 112, 143, 167, 126)
"""Each second one: some with groups and one without."""

FOUND_BEFORE = {
    "a broker's next life was told that it leads in the leader epoch of its last one": (
        Fault(8_252, "wipe", 2, 6_000, 1, 0.0),
        Fault(10_498, "kill", 1, 1_500, 2, 0.0),
        Fault(13_600, "crash", 3, 50, 1, 0.0),
    ),
    "a broker that was fenced by a wrong hint after a short cut from ZooKeeper never registered again": (
        Fault(3_829, "zk", 3, 200, 1, 0.0),
        Fault(4_604, "hint", 3, 50, 1, 0.0),
    ),
    "two wrong hints in a row left a broker without its registration": (
        Fault(10_846, "hint", 2, 50, 1, 0.0),
        Fault(10_848, "hint", 2, 50, 1, 0.0),
    ),
    "a controller that did not hear itself was blamed for choosing itself": (
        Fault(3_000, "storm", 0, 6_000, 0, 0.45),
        Fault(7_500, "grow", 0, 0),
        Fault(8_000, "grow", 0, 0),
    ),
}
"""Faults that once found a bug, of the product or of how it was put together here, and what it was."""


def assert_clean(outcome: Outcome) -> None:
    if outcome.violation is not None:
        lines: list[str] = []
        report(shrink(outcome, Design()), Design(), lines.append)
        pytest.fail("\n".join(lines))


@pytest.mark.parametrize("first", SEEDS[::GROUP])
def test_no_invariant_is_violated(first: int) -> None:
    for seed in some(range(first, first + GROUP), 4):
        outcome = run(seed)
        assert_clean(outcome)
        assert outcome.acked > 0, "a run in which nothing is acknowledged shows nothing"


@pytest.mark.parametrize("bug", FOUND_BEFORE)
def test_what_was_found_before_stays_away(bug: str) -> None:
    for seed in some(range(5), 4):
        assert_clean(run(seed, faults=FOUND_BEFORE[bug]))


def test_crashed_member_need_not_lead_though_it_lost_nothing() -> None:
    """The controller does not know that each append is flushed, and waits for the disk of the last in-sync replica."""
    faults = (Fault(3_000, "crash", 3, 11_000), Fault(8_000, "crash", 2, 5_900), Fault(13_000, "disk", 1, 6_000))
    assert_clean(run(FLUSHING, faults=faults))


@pytest.mark.parametrize("first", range(0, len(PLANTED), TOGETHER))
def test_planted_bugs_are_found(first: int) -> None:
    for name in some([*PLANTED][first : first + TOGETHER], TOGETHER):
        assert_found(name)


def assert_found(name: str) -> None:
    planted = PLANTED[name]
    outcomes = (run(seed, planted.design) for seed in proof_seeds(planted))
    found = next((outcome for outcome in outcomes if outcome.violation is not None), None)
    assert found is not None, f"{name} is not found in {PROOF_SEEDS} seeds"
    assert found.violation is not None
    assert found.violation.invariant in planted.invariants, f"{name} is found by accident: {found.violation}"
    assert_clean(run(found.seed))


def test_proof_begins_where_bug_was_found() -> None:
    assert FOUND_AT.keys() == PLANTED.keys()
    for name, planted in PLANTED.items():
        first, then = proof_seeds(planted, 2)
        assert first == FOUND_AT[name]
        assert then == next(seed for seed in proof_seeds(planted, 2, fresh=True) if seed != first)


def test_the_fixed_seeds_plan_every_fault_and_wait_for_every_moment() -> None:
    faults = [fault for seed in SEEDS for fault in planned(seed)]
    assert {fault.kind for fault in faults} == {*DESCRIPTIONS}
    assert {fault.moment for fault in faults} == {"", *MOMENTS}


def test_a_run_tells_what_it_has_tried() -> None:
    counts = run(0, faults=[Fault(5_000, "kill", 1, 600, 2, 0.0), Fault(8_000, "pause", -1, 4_000, 2, 0.0)]).counts
    assert counts["fault: kill"] == counts["fault: pause"] == 1
    assert counts["an ISR shrinks"] >= 1
    assert counts["a broker registers"] >= 4


def test_a_failing_run_is_made_small() -> None:
    design = PLANTED["truncate-to-hw"].design
    outcome = next(outcome for outcome in (run(seed, design) for seed in range(PROOF_SEEDS)) if outcome.violation)
    small = shrink(outcome, design)
    assert small.violation is not None
    assert small.violation.invariant == outcome.violation.invariant  # type: ignore[union-attr]
    assert 1 <= len(small.faults) <= 3
    said: list[str] = []
    report(small, design, said.append)
    assert said[-1] == f"replay with: make sim SEED={outcome.seed} BUG=truncate-to-hw"


def test_a_seed_is_the_whole_run() -> None:
    """In any process, with any order of sets, and beside others that take its time."""
    seeds = some(REPEATED, 2)
    digests = "for seed in map(int, sys.argv[1:]): print(seed, digest(run(seed, trace=True)))"
    code = f"import logging, sys\nlogging.disable()\nfrom sim.cli import digest\nfrom sim.run import run\n{digests}"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, *map(str, seeds)],
            cwd=Path(__file__).parent.parent,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("1", "2")
    ]
    told = [process.communicate(timeout=500)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert told[0].count("\n") == len(seeds)
    assert told[0] == told[1]
