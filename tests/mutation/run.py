"""`make mutation`: tries a sample of mutants in a private copy of the tree and says which ones the tests let live.

Results go to a file of JSON lines; a run goes on where one before it was stopped. `--survivors FILE` runs those again
that survived in FILE, after tests were added; `--report FILE` only prints.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))

from mutation.covering import Covering, importers
from mutation.mutants import Config, Mutant, mutants_of, sample
from mutation.server import KILLED, SURVIVED, TIMEOUT, UNFIT

ROOT = Path(__file__).parent.parent.parent
PLAIN = ["-q", "-p", "no:randomly", "-p", "no:cacheprovider", "--capture=no", "--no-header"]
UNCOVERED = "uncovered"
"""No test executes the line: it survives without a run."""


class Tree:
    """A private copy of what git knows of the tree and of what is compiled; only there a file is ever changed."""

    def __init__(self, root: Path, place: Path) -> None:
        self.place = place
        listed = subprocess.run(
            [
                "git",
                "ls-files",
                "-co",
                "--exclude-standard",
                "packages",
                "tests",
                "conftest.py",
                "pyproject.toml",
                "docs",
            ],
            cwd=root,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.splitlines()
        compiled = [str(path.relative_to(root)) for path in root.glob("packages/*/src/**/*.so")]
        for name in [*listed, *compiled]:
            if (root / name).is_file():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, place / name)

    def command(self, plugin: str, tests: list[str]) -> list[str]:
        temp = self.place / "temp"
        temp.mkdir(exist_ok=True)
        return [sys.executable, "-m", "pytest", *PLAIN, "-p", plugin, f"--basetemp={temp}/pytest", *tests]

    def environment(self, **more: str) -> dict[str, str]:
        paths = [*sorted(self.place.glob("packages/*/src")), self.place / "tests", Path(__file__).parent.parent]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "RAYLOG_HYPOTHESIS_PROFILE": "mutation",
            "TMPDIR": str(self.place / "temp"),
            "OPENBLAS_NUM_THREADS": "1",
            **more,
        }

    @contextmanager
    def changed(self, path: str, text: str) -> Iterator[None]:
        file = self.place / path
        before = file.read_text()
        for cached in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            cached.unlink()
        file.write_text(text)
        try:
            yield
        finally:
            file.write_text(before)


def digest(*paths: Path) -> str:
    joined = hashlib.sha256()
    for path in paths:
        joined.update(path.read_bytes())
    return joined.hexdigest()[:16]


def files_of_tests(config: Config, root: Path) -> list[str]:
    found: list[str] = []
    for name in config.tests:
        path = root / name
        files = [path] if path.is_file() else sorted(path.glob("test_*.py"))
        found += [str(file.relative_to(root)) for file in files]
    return [name for name in found if not config.skips(name)]


def cover(config: Config, tree: Tree, place: Path) -> Covering:
    """Run the test files of which nothing is known yet, and read what is known of all."""
    sources = sorted(tree.place.glob("packages/*/src/raylog/**/*.py"))
    out = place / f"covering-{digest(*sources)}.jsonl"
    digests = {name: digest(tree.place / name) for name in files_of_tests(config, tree.place)}
    known = Covering.read(out).digests
    missing = [name for name, now in digests.items() if known.get(name) != now]
    for group in config.tests:
        names = [name for name in missing if name == group or name.startswith(f"{group}/")]
        if not names:
            continue
        print(f"coverage of {len(names)} files of {group} ...", flush=True)
        ours = sorted({str(tree.place / path) for paths in config.sources(tree.place).values() for path in paths})
        asked = {
            "out": str(out),
            "digests": {name: digests[name] for name in names},
            "sources": ours,
            "longest_s": config.longest_test_s,
            "skipped": config.skipped,
        }
        command = tree.command("mutation.covering", names)
        environment = tree.environment(MUTATION_COVERING=json.dumps(asked))
        with (place / "covering.log").open("w") as log:
            subprocess.run(command, cwd=tree.place, env=environment, stdout=log, stderr=subprocess.STDOUT)
    covering = Covering.read(out)
    if gone := [name for name in digests if name not in covering.digests]:
        said = (place / "covering.log").read_text()[-2000:]
        raise SystemExit(f"no coverage of {', '.join(gone)}; pytest said: {said}")
    for test in list(covering.seconds):
        if config.skips(test) or test.partition("::")[0] not in digests:
            del covering.seconds[test]
    return covering


class Plan:
    """What is asked of a worker for one mutant."""

    def __init__(self, mutant: Mutant, covering: Covering, config: Config, root: Path) -> None:
        self.mutant = mutant
        inside = bool(mutant.function) and not covering.at_import(mutant.path, mutant.lines)
        if mutant.function:
            tests = covering.of_lines(mutant.path, mutant.lines)
        else:
            tests = covering.of_file(mutant.path, importers(root, covering.digests, mutant.path))
        self.fast = inside
        self.tests: list[str] = []
        self._seconds = 0.0
        for test in tests:
            self._seconds += covering.seconds[test]
            if self.tests and self._seconds > config.budget_s:
                break
            self.tests.append(test)
        self.left_out = len(tests) - len(self.tests)
        self._limits = {
            test: max(config.timeout_least_s, config.timeout_factor * covering.seconds[test]) for test in self.tests
        }

    @property
    def asked(self) -> dict[str, Any]:
        return {
            "key": self.mutant.key,
            "path": self.mutant.path,
            "function": self.mutant.function,
            "tests": self.tests,
            "limits": self._limits,
            "hard_limit_s": 120 + 10 * self._seconds,
        }

    def control(self, test: str) -> dict[str, Any]:
        """One of its tests, with nothing changed."""
        return {**self.asked, "tests": [test], "code": ""}

    def leave_out(self, test: str) -> None:
        self.tests.remove(test)
        self.left_out += 1

    def row(self, answer: dict[str, Any]) -> dict[str, Any]:
        mutant = self.mutant
        return {
            "key": mutant.key,
            "room": mutant.room,
            "file": mutant.path,
            "line": mutant.line,
            "function": mutant.function,
            "kind": mutant.kind,
            "diff": mutant.diff(),
            "tests": len(self.tests),
            "left_out": self.left_out,
            **{name: answer[name] for name in ("outcome", "test", "seconds")},
        }


class Worker(threading.Thread):
    """One process that collected all tests, and new ones where an import has to be repeated."""

    @classmethod
    def run_all(cls, trees: list[Tree], plans: Iterable[Plan], results: Results, tests: list[str]) -> None:
        waiting: queue.SimpleQueue[Plan] = queue.SimpleQueue()
        for plan in plans:
            waiting.put(plan)
        workers = [cls(tree, waiting, results, tests) for tree in trees]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    def __init__(self, tree: Tree, plans: queue.SimpleQueue[Plan], results: Results, tests: list[str]) -> None:
        super().__init__()
        self._tree = tree
        self._plans = plans
        self._results = results
        self._tests = tests

    def run(self) -> None:
        read, write = os.pipe()
        said = self._tree.place / "server.log"
        with said.open("w") as log:
            server = subprocess.Popen(
                self._tree.command("mutation.server", self._tests),
                cwd=self._tree.place,
                env=self._tree.environment(MUTATION_ANSWERS=str(write)),
                pass_fds=[write],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )
        os.close(write)
        assert server.stdin is not None
        with os.fdopen(read) as answers, server.stdin as asking:
            ready = answers.readline()
            if not ready:
                print(f"the tests do not run without a mutant:\n{said.read_text()[-3000:]}", flush=True)

            def ask(asked: dict[str, Any]) -> dict[str, Any]:
                asking.write(json.dumps(asked) + "\n")
                asking.flush()
                answer: dict[str, Any] = json.loads(answers.readline())
                return answer

            while ready:
                try:
                    plan = self._plans.get_nowait()
                except queue.Empty:
                    break
                self._results.add(plan.row(self._tried(plan, ask)))
        server.wait()

    def _tried(self, plan: Plan, ask: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        """Only a test that passes without the mutant, right after it failed with it, kills; another is left out."""
        while plan.tests:
            answer = ask({**plan.asked, "code": plan.mutant.code()}) if plan.fast else {"outcome": UNFIT}
            if answer["outcome"] == UNFIT:
                answer = self._anew(plan)
            test = answer["test"]
            if test not in plan.tests or ask(plan.control(test))["outcome"] == SURVIVED:
                return answer
            print(f"{test} fails without a mutant, too: left out", flush=True)
            plan.leave_out(test)
        return {"outcome": UNCOVERED, "test": "", "seconds": 0.0}

    def _anew(self, plan: Plan) -> dict[str, Any]:
        began = time.monotonic()
        asked = self._tree.place / "asked.json"
        asked.write_text(json.dumps(plan.asked))
        files = sorted({test.partition("::")[0] for test in plan.tests})
        read, write = os.pipe()
        with self._tree.changed(plan.mutant.path, plan.mutant.code()), os.fdopen(read) as answers:
            process = subprocess.Popen(
                self._tree.command("mutation.server", files),
                cwd=self._tree.place,
                env=self._tree.environment(
                    MUTATION_ANSWERS=str(write), MUTATION_ASKED=str(asked), PYTHONDONTWRITEBYTECODE="1"
                ),
                pass_fds=[write],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            os.close(write)
            timer = threading.Timer(plan.asked["hard_limit_s"], process.kill)
            timer.start()
            said = answers.read()
            process.wait()
            timer.cancel()
        seconds = round(time.monotonic() - began, 2)
        late = seconds >= plan.asked["hard_limit_s"]
        answer = json.loads(said) if said else {"outcome": TIMEOUT if late else KILLED, "test": "(the process ended)"}
        return {**answer, "seconds": seconds}


class Results:
    """The file of JSON lines: one row per mutant, the last one counts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._added = 0

    def read(self) -> dict[str, dict[str, Any]]:
        rows = map(json.loads, self.path.read_text().splitlines()) if self.path.exists() else ()
        return {row["key"]: row for row in rows}

    def add(self, row: dict[str, Any]) -> None:
        with self._lock:
            self._added += 1
            with self.path.open("a") as out:
                out.write(json.dumps(row) + "\n")
            print(
                f"{self._added}: {row['outcome']} {row['file']}:{row['line']} {row['seconds']} s {row['test']}",
                flush=True,
            )


def alive(row: dict[str, Any]) -> bool:
    return row["outcome"] in (SURVIVED, UNCOVERED)


def equivalents() -> dict[str, str]:
    """By key: why a mutant that was read changes nothing that could be asserted."""
    listed = tomllib.loads((Path(__file__).parent / "equivalent.toml").read_text())
    return {key: why for why, keys in listed.items() for key in keys}


def report(rows: list[dict[str, Any]]) -> None:
    """Each survivor, then the counts by room. The score leaves out mutants that are known to be equivalent."""
    known = equivalents()
    for row in sorted(filter(alive, rows), key=lambda row: (row["file"], row["line"])):
        more = f", {row['left_out']} more not run" if row["left_out"] else ""
        print(f"\n{row['file']}:{row['line']} {row['function']} {row['key']}")
        print(f"({row['outcome']}, {row['tests']} tests{more}) {known.get(row['key'], '')}")
        print(row["diff"])
    print(
        f"\n{'room':<14}{'mutants':>8}{KILLED:>8}{TIMEOUT:>8}{SURVIVED:>9}{UNCOVERED:>10}{'equivalent':>11}{'score':>8}"
    )
    for room in [*sorted({row["room"] for row in rows}), "all"]:
        ours = [row for row in rows if room in (row["room"], "all")]
        same = sum(alive(row) and row["key"] in known for row in ours)
        outcomes = Counter(row["outcome"] for row in ours if not (alive(row) and row["key"] in known))
        counts = [outcomes[outcome] for outcome in (KILLED, TIMEOUT, SURVIVED, UNCOVERED)]
        score = (counts[0] + counts[1]) / max(sum(counts), 1)
        columns = zip((len(ours), *counts, same), (8, 8, 8, 9, 10, 11), strict=True)
        print(f"{room:<14}{''.join(f'{count:>{width}}' for count, width in columns)}{score:>8.1%}")


def main() -> None:
    config = Config.read()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mutants", type=int, default=config.mutants, help="size of the sample (%(default)s)")
    parser.add_argument("--seed", type=int, default=config.seed, help="what draws the sample (%(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time (%(default)s)")
    parser.add_argument("--only", default="", help="files whose path contains this")
    parser.add_argument("--results", type=Path, help="where results go; a file that is there is continued")
    parser.add_argument("--survivors", type=Path, help="run only what survived in this file of results")
    parser.add_argument("--report", type=Path, help="print this file of results, run nothing")
    given = parser.parse_args()
    if given.report:
        report(list(Results(given.report).read().values()))
        return
    place = ROOT / ".raylog/mutation"
    place.mkdir(parents=True, exist_ok=True)
    results = Results(given.results or place / f"results-{given.mutants}-{given.seed}.jsonl")
    with tempfile.TemporaryDirectory(prefix="mutation-") as temporary:
        trees = [Tree(ROOT, Path(temporary).resolve() / str(number)) for number in range(given.jobs)]
        covering = cover(config, trees[0], place)
        drawn = sample(mutants_of(trees[0].place, config), given.mutants, config.least, given.seed)
        if given.survivors:
            wanted = {key for key, row in Results(given.survivors).read().items() if alive(row)}
            drawn = [mutant for mutant in drawn if mutant.key in wanted]
        drawn = [mutant for mutant in drawn if given.only in mutant.path]
        done = results.read()
        plans = [Plan(mutant, covering, config, trees[0].place) for mutant in drawn if mutant.key not in done]
        print(f"{len(drawn)} mutants, {len(plans)} to run; results in {results.path}", flush=True)
        Worker.run_all(trees, plans, results, files_of_tests(config, trees[0].place))
    keys = {mutant.key for mutant in drawn}
    rows = results.read()
    report([row for key, row in rows.items() if key in keys])
    if left := len(keys - rows.keys()):
        raise SystemExit(f"{left} mutants were not run: the same command goes on with them")


if __name__ == "__main__":
    main()
