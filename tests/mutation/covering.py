"""Which tests execute a line, and how long each test takes: a pytest plugin that measures it, and what it has written.

The plugin appends one JSON object per test file, so that only those have to run again that were changed. Times are
processor time: the machine may be busy.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import coverage
import pytest

from mutation.server import stop

RAN = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)

IMPORT = ""
"""The context of what is executed while modules are imported."""


@dataclass
class Covering:
    """What the tests execute."""

    seconds: dict[str, float] = field(default_factory=dict)
    """By test: its processor time where it passes."""
    tests: dict[str, dict[int, set[str]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))
    """By source file and line."""
    digests: dict[str, str] = field(default_factory=dict)
    """By test file, as it was when it was run."""

    @classmethod
    def read(cls, path: Path) -> Covering:
        covering = cls()
        if path.exists():
            for line in path.read_text().splitlines():
                covering._add(json.loads(line))
        return covering

    def _add(self, row: dict[str, Any]) -> None:
        """A later row of a test file replaces an earlier one."""
        name = row["file"]
        if name in self.digests:
            gone = {test for test in self.seconds if test.partition("::")[0] == name}
            self.seconds = {test: seconds for test, seconds in self.seconds.items() if test not in gone}
            for lines in self.tests.values():
                for tests in lines.values():
                    tests -= gone
        self.digests[name] = row["digest"]
        self.seconds |= row["seconds"]
        names = row["tests"]
        for path, lines in row["lines"].items():
            for number, tests in lines.items():
                self.tests[path][int(number)] |= {names[test] for test in tests}

    def at_import(self, path: str, lines: range) -> bool:
        return any(IMPORT in self.tests[path][line] for line in lines)

    def of_lines(self, path: str, lines: range) -> list[str]:
        """Tests that execute one of the lines, the shortest first."""
        return self._sorted({test for line in lines for test in self.tests[path][line]})

    def of_file(self, path: str, importers: frozenset[str] = frozenset()) -> list[str]:
        """Tests that execute any line of it, and all of the test files that import it: they may look at constants."""
        executing = {test for tests in self.tests[path].values() for test in tests}
        return self._sorted(executing | {test for test in self.seconds if test.partition("::")[0] in importers})

    def _sorted(self, tests: set[str]) -> list[str]:
        return sorted((test for test in tests if test in self.seconds), key=lambda test: (self.seconds[test], test))


def importers(root: Path, files: Iterable[str], path: str) -> frozenset[str]:
    """Those of the test files that name the module at ``path`` (…/src/raylog/…) in an import."""
    parts = Path(path).with_suffix("").parts
    module = list(parts[parts.index("src") + 1 :])
    name = ".".join(module[:-1] if module[-1] == "__init__" else module)
    package, _, last = name.rpartition(".")
    named = re.compile(
        rf"^(from {name} import|import {name}(?![.\w])|from {package} import .*\b{last}\b)", re.MULTILINE
    )
    return frozenset(file for file in files if named.search((root / file).read_text()))


class Measuring:
    """The plugin. One coverage context per test."""

    def __init__(
        self, out: Path, digests: dict[str, str], sources: list[str], longest_s: float, skipped: list[str]
    ) -> None:
        self._out = out
        self._skipped = skipped
        self._digests = digests
        self._measured = coverage.Coverage(data_file=None, config_file=False, include=sources)
        self._measured.set_option("run:disable_warnings", ["no-data-collected"])  # by tests of something else
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()
        self._longest_s = longest_s
        signal.signal(signal.SIGPROF, stop)
        self._measured.start()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if not any(re.search(part, item.nodeid) for part in self._skipped)]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._measured.switch_context(item.nodeid)
        signal.setitimer(signal.ITIMER_PROF, self._longest_s, 1.0)
        began = time.process_time()
        result = yield
        signal.setitimer(signal.ITIMER_PROF, 0)
        self._measured.switch_context(IMPORT)
        if item.nodeid not in self._failed:
            self._seconds[item.nodeid] = round(time.process_time() - began, 4)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        self._measured.stop()
        if exitstatus not in RAN:
            return  # nothing is known of tests that did not run: next time they do
        data = self._measured.get_data()
        root = session.config.rootpath
        for name, digest in self._digests.items():
            seconds = {test: took for test, took in self._seconds.items() if test.partition("::")[0] == name}
            tests = [IMPORT, *sorted(seconds)]
            numbers = {test: number for number, test in enumerate(tests)}
            lines: dict[str, dict[int, list[int]]] = {}
            for path in sorted(data.measured_files()):
                by_line = {
                    line: ours
                    for line, contexts in sorted(data.contexts_by_lineno(path).items())
                    if (ours := sorted(numbers[context] for context in contexts if context in numbers))
                }
                lines[str(Path(path).relative_to(root))] = by_line
            row = {"file": name, "digest": digest, "seconds": seconds, "tests": tests, "lines": lines}
            with self._out.open("a") as out:
                out.write(json.dumps(row, separators=(",", ":")) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    asked = json.loads(os.environ["MUTATION_COVERING"])
    config.pluginmanager.register(Measuring(**{**asked, "out": Path(asked["out"])}), "measuring")
