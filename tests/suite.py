"""All tests, several lanes at once; what fails in company is run once more alone.

    python tests/suite.py [LANE…]

A lane is a row of pytest runs, one after another; lanes run side by side. Each line that a run prints begins with the
run's name. All runs have one seed, which is printed first. When all lanes have ended, each test that failed is run
again with that seed and nothing beside it:

- it fails again: the tests have failed;
- it passes: it is a *flake*. The last lines name it, and so does ``tests/flakes.txt``, which has to be emptied before
  the next change lands (``make check`` looks): its cause is found, in the test or in the product. :data:`MOST_FLAKES`
  of them in one run fail it.

Tests for which one fixture could not be set up are repeated together and count as one, the first of them.

The last lines also tell what each of them said, beside the others and alone. The exit code is 0 when no test has
failed twice and there are fewer flakes than that.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from xml.etree import ElementTree

from kit.machine import SLOWNESS, VARIABLE
from kit.scheduling import COMPUTING, SECONDS

ROOT = Path(__file__).parents[1]
FLAKES = Path("tests/flakes.txt")
MOST_FLAKES = 3
MOST_REPEATED = 10
"""Where more fails, something is broken, and to run them alone tells nothing."""
TESTS_FAILED = 1
"""pytest's exit code for that; all others but 0 mean that it could not run."""
NICE_STEP = 1.25
"""By what each step of nice divides a process's share of a busy processor."""
ERROR_LINES = 8
"""How much of an error the last lines tell."""
PLACES = 3
"""How many of the calls that led to it."""

OWN_RUNS = ("tests/conformance", "tests/pipelines")


@dataclass(frozen=True)
class Run:
    """One pytest process, and those that it starts."""

    name: str
    arguments: Sequence[str]
    processes: int = 1
    """In how many of them its tests run at once."""
    nice: int = 0

    @property
    def slowness(self) -> float:
        """How many times longer its tests take beside runs that are not nice."""
        return NICE_STEP**self.nice


LANES: dict[str, Sequence[Run]] = {
    "computing": (
        Run("core", COMPUTING, nice=5),
        Run("conformance", ["tests/conformance"]),
    ),
    "pipelines": (Run("pipelines", ["tests/pipelines"]),),
    "system": (Run("system", ["tests", *(f"--ignore={path}" for path in (*COMPUTING, *OWN_RUNS))], processes=2),),
}


@dataclass
class Outcome:
    """What became of the runs; each is added once."""

    seed: int = 0
    """Of the random order, and of what tests choose at random."""
    failed: list[str] = field(default_factory=list)
    """Tests, by pytest's names."""
    said: dict[str, list[str]] = field(default_factory=dict)
    """The last lines of their errors."""
    not_set_up: set[str] = field(default_factory=set)
    """Those that did not begin, or were not cleaned up after, for the failure of a fixture."""
    broken: list[str] = field(default_factory=list)
    """What kept pytest from running."""
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each run took."""
    computed: dict[str, float] = field(default_factory=dict)
    """How many seconds its processes computed, but for those that left it."""
    files: Counter[str] = field(default_factory=Counter)
    """For how many seconds the tests of each file ran."""


@dataclass(frozen=True)
class Ended:
    """What became of a process."""

    code: int
    computed: float
    """Seconds of it and of the processes for whose end it waited."""
    last: list[str]
    """Its last lines."""


def run_lanes(lanes: Mapping[str, Sequence[Run]], root: Path, seed: int) -> Outcome:
    """Run them side by side. A lane that ends by an exception is broken, and the others go on."""
    outcome = Outcome(seed)
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
        command = [*pytest_command(outcome.seed, report), "-o", f"cache_dir={cache}", *run.arguments]
        if run.processes > 1:
            command += ["-n", str(run.processes), "--dist", "loadfile"]
        slowness = float(os.environ[VARIABLE]) * run.slowness
        begun = time.monotonic()
        ended = run_named(run.name, ["nice", "-n", str(run.nice), *command], root, {VARIABLE: f"{slowness:.1f}"})
        outcome.seconds[run.name] = time.monotonic() - begun
        outcome.computed[run.name] = ended.computed
        outcome.failed += failed_tests(cache)
        outcome.said |= errors(report)
        outcome.not_set_up |= errors(report, "error").keys()
        if report.exists():
            outcome.files += seconds_by_file(report)
        if ended.code not in (0, TESTS_FAILED):
            outcome.broken.append(indented(f"{run.name}: pytest ended with {ended.code}", ended.last))


def pytest_command(seed: int, report: Path) -> list[str]:
    """pytest with that seed; it writes what its tests say into ``report``."""
    options = [f"--randomly-seed={seed}", "-o", "junit_family=xunit1", f"--junitxml={report}"]
    return [sys.executable, "-m", "pytest", "-q", *options]


def run_named(name: str, command: Sequence[str], root: Path, environment: Mapping[str, str] | None = None) -> Ended:
    """Run it, with these variables changed, and put its name before each line that it prints."""
    last: deque[str] = deque(maxlen=ERROR_LINES)
    with subprocess.Popen(
        command,
        cwd=root,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(f"{name}| {line}", end="", flush=True)
            last.append(line.rstrip())
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return Ended(process.returncode, usage.ru_utime + usage.ru_stime, list(last))


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


def errors(report: Path, *kinds: str) -> dict[str, list[str]]:
    """The last lines of what each failed test said, by pytest's name, as far as a JUnit report tells it. ``kinds``:
    "failure" of tests, "error" of fixtures; both by default.
    """
    if not report.exists():
        return {}
    found: dict[str, list[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        for error in (error for kind in kinds or ("failure", "error") for error in case.iter(kind)):
            found.setdefault(_pytest_name(case), []).extend(last_lines((error.text or "").splitlines()))
    return found


def _pytest_name(case: ElementTree.Element) -> str:
    """``file::class::name``; the file alone where it could not be read."""
    file, names = case.get("file", ""), case.get("classname", "").split(".")
    if not case.get("classname"):
        return file or case.get("name", "").replace(".", "/") + ".py"
    classes = names[len(Path(file).parts) :]
    return "::".join([file, *classes, case.get("name", "")])


def last_lines(error: Sequence[str]) -> list[str]:
    """Of an error as pytest tells it: its message, and by which calls it came."""
    places = [line.rstrip() for line in error if re.match(r"\S+:\d+: ?", line)]
    message = [line for line in error if re.match(r"E( |$)", line)]
    return [*message[-ERROR_LINES:], *places[-PLACES:]] if message else [line for line in error if line][-ERROR_LINES:]


def indented(first: str, lines: Iterable[str]) -> str:
    return "\n    ".join([first, *lines])


def write_seconds(files: Counter[str], path: Path) -> None:
    lines = [f"{seconds} {file}\n" for file, seconds in sorted(files.items(), key=lambda item: (-item[1], item[0]))]
    title = "# Seconds that the tests of a file take, as `python tests/suite.py --keep-seconds` measured them.\n"
    path.write_text("".join([title, *lines]))


def failures(outcome: Outcome) -> list[list[str]]:
    """The tests that failed, each by itself, but those of a file for which the same fixture failed together."""
    found: dict[tuple[str, str], list[str]] = {}
    for test in outcome.failed:
        fixture = "\n".join(outcome.said[test]) if test in outcome.not_set_up else test
        found.setdefault((test.partition("::")[0], fixture), []).append(test)
    return list(found.values())


def repeat_alone(outcome: Outcome, root: Path) -> tuple[dict[str, list[str]], list[str]]:
    """Those that fail again, with what they say then, and the flakes."""
    again: dict[str, list[str]] = {}
    flakes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="raylog-tests-") as reports:
        for number, tests in enumerate(failures(outcome)):
            report = Path(reports) / f"{number}.xml"
            command = [*pytest_command(outcome.seed, report), "-p", "no:cacheprovider", *tests]
            ended = run_named("alone", command, root)
            if ended.code:
                said = errors(report)
                again |= {test: said.get(test) or ended.last for test in tests if test in said or not said}
            else:
                flakes.append(tests[0])
    return again, flakes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lanes", nargs="*", metavar="LANE", help=f"of {', '.join(LANES)}; all by default")
    parser.add_argument("--keep-seconds", action="store_true", help=f"write {SECONDS}, by which files are ordered")
    parser.add_argument("--seed", type=int, default=random.getrandbits(32), help="of the random order and choices")
    asked = parser.parse_args()
    names = asked.lanes or list(LANES)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background inherit both as ignored
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    lanes = {name: LANES[name] for name in names}
    at_once = sum(max(run.processes for run in lane) for lane in lanes.values()) / (os.cpu_count() or 1)
    slowness = SLOWNESS * max(1.0, at_once)
    os.environ[VARIABLE] = f"{slowness:.1f}"
    compile_once(ROOT)
    print(
        f"deadlines are multiplied by {slowness:.1f}: as fast as this machine is now, for what runs at once; "
        f"the seed is {asked.seed}",
        flush=True,
    )
    outcome = run_lanes(lanes, ROOT, asked.seed)
    if asked.keep_seconds:
        write_seconds(outcome.files, ROOT / SECONDS)
    return report(outcome, ROOT)


def compile_once(root: Path) -> None:
    """Keep the modules' bytecode. Hundreds of processes import them, and where ``PYTHONDONTWRITEBYTECODE`` is set each
    of these would compile them all, which takes as long as everything else that it does.
    """
    for directory in (root / "packages", root / "tests"):
        compileall.compile_dir(directory, quiet=1, workers=0)


def report(outcome: Outcome, root: Path) -> int:
    """Run once more alone what failed, and tell; the exit code."""
    again: dict[str, list[str]] = {test: [] for test in outcome.failed}
    flakes: list[str] = []
    if len(failures(outcome)) <= MOST_REPEATED:
        again, flakes = repeat_alone(outcome, root)
    took = ", ".join(
        f"{name} {seconds / 60:.1f} ({outcome.computed[name]:.0f} s of processor time)"
        for name, seconds in outcome.seconds.items()
    )
    print(f"minutes: {took}")
    for test in flakes:
        print(indented(f"flake: {test} failed beside others and passed alone", outcome.said.get(test, ())))
    if flakes:
        with (root / FLAKES).open("a") as file:
            file.writelines(f"{time.strftime('%Y-%m-%d')} {test}\n" for test in flakes)
        print(f"{len(flakes)} in {FLAKES}: find the cause of each, and delete its line")
    for test, said in again.items():
        print(indented(f"failed: {test}", outcome.said.get(test, ())))
        if said and said != outcome.said.get(test):
            print(indented("  and alone:", said))
        print(f"  repeat it: .venv/bin/pytest --randomly-seed={outcome.seed} '{test}'")
    for text in outcome.broken:
        print(text)
    return 1 if again or outcome.broken or len(flakes) >= MOST_FLAKES else 0


if __name__ == "__main__":
    sys.exit(main())
