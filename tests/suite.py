"""All tests, several lanes at once; what fails in company is run once more alone.

    python tests/suite.py [LANE…]

A lane is a row of pytest runs, one after another; lanes run side by side. Each line that a run prints begins with the
run's name. When all lanes have ended, each test that failed is run again with nothing beside it:

- it fails again: the tests have failed;
- it passes: it is a *flake*. The last lines name it, and so does ``tests/flakes.txt``, which has to be emptied before
  the next change lands (``make check`` looks): its cause is found, in the test or in the product. :data:`MOST_FLAKES`
  of them in one run fail it.

The exit code is 0 when no test has failed twice and there are fewer flakes than that.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from xml.etree import ElementTree

from kit.machine import SLOWNESS, VARIABLE
from kit.scheduling import SECONDS

ROOT = Path(__file__).parents[1]
FLAKES = Path("tests/flakes.txt")
MOST_FLAKES = 3
MOST_REPEATED = 10
"""Where more tests fail, something is broken, and to run them alone tells nothing."""
TESTS_FAILED = 1
"""pytest's exit code for that; all others but 0 mean that it could not run."""

COMPUTING = (
    "packages",
    "tests/property",
    "tests/sim",
    "tests/fuzz",
    "tests/mutation",
    "tests/test_rules.py",
    "tests/test_infra.py",
)
OWN_RUNS = ("tests/conformance", "tests/pipelines")


@dataclass(frozen=True)
class Run:
    """One pytest process, and those that it starts."""

    name: str
    arguments: Sequence[str]
    processes: int = 1
    """In how many of them its tests run at once."""
    nice: int = 0


LANES: dict[str, Sequence[Run]] = {
    "computing": (
        Run("core", COMPUTING, nice=19),
        Run("conformance", ["tests/conformance"]),
    ),
    "pipelines": (Run("pipelines", ["tests/pipelines"]),),
    "system": (Run("system", ["tests", *(f"--ignore={path}" for path in (*COMPUTING, *OWN_RUNS))], processes=2),),
}


@dataclass
class Outcome:
    """What became of the runs; each is added once."""

    failed: list[str] = field(default_factory=list)
    """Tests, by pytest's names."""
    broken: list[str] = field(default_factory=list)
    """What kept pytest from running."""
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each run took."""
    files: Counter[str] = field(default_factory=Counter)
    """For how many seconds the tests of each file ran."""


def run_lanes(lanes: Mapping[str, Sequence[Run]], root: Path) -> Outcome:
    """Run them side by side. A lane that ends by an exception is broken, and the others go on."""
    outcome = Outcome()
    with tempfile.TemporaryDirectory(prefix="raylog-tests-") as caches, ThreadPoolExecutor(len(lanes)) as pool:
        ends = {name: pool.submit(run_lane, runs, outcome, Path(caches), root) for name, runs in lanes.items()}
        for name, end in ends.items():
            if (error := end.exception()) is not None:
                outcome.broken.append(f"lane {name} ended by {error!r}")
    return outcome


def run_lane(runs: Sequence[Run], outcome: Outcome, caches: Path, root: Path) -> None:
    """Run them one after another, with their caches below ``caches``, in the tree ``root``."""
    for run in runs:
        cache = caches / run.name
        report = cache.with_suffix(".xml")
        command = [sys.executable, "-m", "pytest", "-q", "-o", f"cache_dir={cache}", *run.arguments]
        command += ["-o", "junit_family=xunit1", f"--junitxml={report}"]
        if run.processes > 1:
            command += ["-n", str(run.processes), "--dist", "loadfile"]
        begun = time.monotonic()
        code = run_named(run.name, ["nice", "-n", str(run.nice), *command], root)
        outcome.seconds[run.name] = time.monotonic() - begun
        outcome.failed += failed_tests(cache)
        if report.exists():
            outcome.files += seconds_by_file(report)
        if code not in (0, TESTS_FAILED):
            outcome.broken.append(f"{run.name}: pytest ended with {code}")


def run_named(name: str, command: Sequence[str], root: Path) -> int:
    """Run it, and put its name before each line that it prints; its exit code."""
    with subprocess.Popen(
        command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(f"{name}| {line}", end="", flush=True)
    return process.returncode


def failed_tests(cache: Path) -> list[str]:
    """The tests that failed in a run with this cache."""
    found = cache / "v/cache/lastfailed"
    return list(json.loads(found.read_text())) if found.exists() else []


def seconds_by_file(report: Path) -> Counter[str]:
    """What a JUnit report tells of the tests of each file."""
    found: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        found[case.get("file", "")] += ceil(float(case.get("time", "0")) * 1_000)
    return Counter({file: ceil(milliseconds / 1_000) for file, milliseconds in found.items()})


def write_seconds(files: Counter[str], path: Path) -> None:
    lines = [f"{seconds} {file}\n" for file, seconds in sorted(files.items(), key=lambda item: (-item[1], item[0]))]
    title = "# Seconds that the tests of a file take, as `python tests/suite.py --keep-seconds` measured them.\n"
    path.write_text("".join([title, *lines]))


def repeat_alone(failed: Sequence[str], root: Path) -> tuple[list[str], list[str]]:
    """Those that fail again, and the flakes."""
    again: list[str] = []
    flakes: list[str] = []
    for test in failed:
        code = run_named("alone", [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test], root)
        (again if code else flakes).append(test)
    return again, flakes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lanes", nargs="*", metavar="LANE", help=f"of {', '.join(LANES)}; all by default")
    parser.add_argument("--keep-seconds", action="store_true", help=f"write {SECONDS}, by which files are ordered")
    asked = parser.parse_args()
    names = asked.lanes or list(LANES)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background inherit both as ignored
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    lanes = {name: LANES[name] for name in names}
    at_once = sum(max(run.processes for run in lane) for lane in lanes.values()) / (os.cpu_count() or 1)
    slowness = SLOWNESS * max(1.0, at_once)
    os.environ[VARIABLE] = f"{slowness:.1f}"
    print(
        f"deadlines are multiplied by {slowness:.1f}: as fast as this machine is now, for what runs at once", flush=True
    )
    outcome = run_lanes(lanes, ROOT)
    if asked.keep_seconds:
        write_seconds(outcome.files, ROOT / SECONDS)
    return report(outcome, ROOT)


def report(outcome: Outcome, root: Path) -> int:
    """Run once more alone what failed, and tell; the exit code."""
    again, flakes = outcome.failed, []
    if outcome.failed and len(outcome.failed) <= MOST_REPEATED:
        again, flakes = repeat_alone(outcome.failed, root)
    took = ", ".join(f"{name} {seconds / 60:.1f}" for name, seconds in outcome.seconds.items())
    print(f"minutes: {took}; {os.times().children_user + os.times().children_system:.0f} s of processor time")
    for test in flakes:
        print(f"flake: {test} failed beside others and passed alone")
    if flakes:
        with (root / FLAKES).open("a") as file:
            file.writelines(f"{time.strftime('%Y-%m-%d')} {test}\n" for test in flakes)
        print(f"{len(flakes)} in {FLAKES}: find the cause of each, and delete its line")
    for test in again:
        print(f"failed: {test}\n  repeat it: .venv/bin/pytest '{test}'")
    for text in outcome.broken:
        print(text)
    return 1 if again or outcome.broken or len(flakes) >= MOST_FLAKES else 0


if __name__ == "__main__":
    sys.exit(main())
