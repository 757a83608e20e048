"""The integration tests of kafka-python or aiokafka, from a checkout, against a raylog broker.

    python tests/conformance/upstream.py kafka-python PATH
    python tests/conformance/upstream.py aiokafka PATH --only test_producer

A checkout is a copy of the client's source repository; its suite may leave files of its own there. The tests run in a
virtual environment of their own (below ``--work``, made on first use) with the client's code from the checkout,
against a broker that this script starts. ``upstream.toml`` says which tests do not apply and which
are known to fail, each with its reason; the script prints the counts that docs/compatibility.md keeps.

Exit code 0: each failure has a reason there, and each reason still fits a test.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
import venv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from kit.cluster import InProcessCluster  # noqa: E402 (the line above makes the kit importable)
from raylog.coordination.host.free_ports import free_port  # noqa: E402

KAFKA_VERSION = "4.2.0"
"""The release whose API versions raylog offers: what the suites are told."""


@dataclass(frozen=True)
class Suite:
    """How one project's tests are run."""

    tests: tuple[str, ...]
    """What pytest is given: directories or files in the checkout."""
    partitions: int
    """Of a topic that is created without a number, as the suite's own brokers have it."""
    requirements: tuple[str, ...]
    """Packages that it needs beside the client's own code."""
    options: tuple[str, ...] = ()
    """What pytest is told beside."""


PLUGINS = ("pytest", "pytest-timeout", "pytest-mock")
CODECS = ("lz4", "cramjam", "python-snappy", "zstandard", "crc32c")
AIOKAFKA_FILES = (
    *("admin", "client", "conn", "consumer", "coordinator", "pep492", "producer", "sasl", "sender"),
    *("transactional_consumer", "transactional_producer"),
)
"""Those of its test files that talk to a broker."""
SUITES = {
    "kafka-python": Suite(("test/integration",), 4, (*PLUGINS, *CODECS, "py")),
    "aiokafka": Suite(
        tuple(f"tests/test_{name}.py" for name in AIOKAFKA_FILES),
        2,
        (*PLUGINS, *CODECS, "pytest-asyncio", "async-timeout", "typing_extensions", "packaging"),
        (
            f"--docker-image=raylog:2.13_{KAFKA_VERSION}",
            "--no-pull",
            "-o",
            "asyncio_default_fixture_loop_scope=function",
        ),
    ),
}

TEST_TIMEOUT_S = 120
SUITE_TIMEOUT_S = 1_800
Outcomes = dict[str, tuple[str, str]]
"""Test id → passed, failed or skipped, and why."""
Rules = list[tuple[str, str]]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("checkout", type=Path, help="a copy of the project's repository")
    parser.add_argument("--only", default="", help="a pytest -k expression; unexplained failures count as ever")
    parser.add_argument("--work", type=Path, default=Path(gettempdir()) / "raylog-upstream", help="for environments")
    chosen = parser.parse_args(arguments)
    rules = tomllib.loads((HERE / "upstream.toml").read_text())[chosen.suite]
    not_applicable: Rules = list(rules["not_applicable"].items())
    known: Rules = list(rules["known_failures"].items())
    outcomes = run(chosen.suite, chosen.checkout.resolve(), chosen.work, not_applicable, chosen.only)
    return report(outcomes, not_applicable, known, partly=bool(chosen.only))


def run(name: str, checkout: Path, work: Path, not_applicable: Rules, only: str) -> Outcomes:
    """Start a broker, run the suite, and give each test's outcome."""
    suite = SUITES[name]
    python = environment_of(name, work)
    with TemporaryDirectory(prefix="raylog-upstream-") as scratch:
        port = free_port("127.0.0.1")
        listener = f"PLAINTEXT://127.0.0.1:{port}"
        config = {
            "listeners": listener,
            "advertised.listeners": listener,
            "num.partitions": str(suite.partitions),
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "1000",
        }
        outcomes = Path(scratch) / "outcomes.json"
        # The first three are for kafka-python's suite, the others for aiokafka's.
        environment = {
            "KAFKA_URI": f"kafka://127.0.0.1:{port}",
            "KAFKA_VERSION": KAFKA_VERSION,
            "KAFKA_ROOT": scratch,
            "AIOKAFKA_NO_EXTENSIONS": "1",
            "PATH": f"{HERE / 'stand_ins'}:{os.environ['PATH']}",
        }
        order = {"port": port, "not_applicable": not_applicable, "outcomes": str(outcomes)}
        with InProcessCluster(Path(scratch) / "broker", config=config):
            subprocess.run(
                [
                    python, "-m", "pytest", "-v", "-p", "raylog_upstream", "-p", "no:cacheprovider", "--tb=short",
                    f"--timeout={TEST_TIMEOUT_S}", "--timeout-method=signal", "-o", "log_level=WARNING",
                    *suite.options, *suite.tests, *(("-k", only) if only else ()),
                ],
                cwd=checkout,
                env={
                    **os.environ,
                    **environment,
                    "PYTHONPATH": str(HERE / "stand_ins"),
                    "RAYLOG_UPSTREAM": json.dumps(order),
                },
                timeout=SUITE_TIMEOUT_S,
                check=False,
            )  # fmt: skip
        if not outcomes.exists():
            sys.exit(f"pytest ended before it ran the tests of {name}: what it printed above says why")
        return {test: (outcome, why) for test, (outcome, why) in json.loads(outcomes.read_text()).items()}


def environment_of(name: str, work: Path) -> str:
    """The interpreter of the suite's virtual environment, which is made when it is not there yet."""
    home = work / name
    python = str(home / "bin" / "python")
    if not (home / "ready").exists():
        venv.create(home, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *SUITES[name].requirements], check=True)
        (home / "ready").touch()
    return python


def report(outcomes: Outcomes, not_applicable: Rules, known: Rules, *, partly: bool) -> int:
    """Print counts and reasons; the exit code."""
    unexplained, explained, left_out = [], Counter[str](), Counter[str]()
    for test, (outcome, why) in sorted(outcomes.items()):
        reason = next((reason for pattern, reason in known if re.search(pattern, test)), None)
        if outcome == "skipped":
            left_out[why.removeprefix("not applicable: ")] += 1
        elif outcome == "failed" and reason is None:
            unexplained.append(f"{test}: {why}")
        elif outcome == "failed":
            explained[reason] += 1
    passed = sum(outcome == "passed" for outcome, _ in outcomes.values())
    print(f"\n{passed} passed, {len(unexplained) + explained.total()} failed, {left_out.total()} not applicable")
    for title, counts in [("not applicable", left_out), ("failed", explained)]:
        for reason, count in counts.most_common():
            print(f"  {count:3} {title}: {reason}")
    for line in unexplained:
        print(f"  FAILED without a known reason: {line}")
    stale = [] if partly else stale_rules(outcomes, not_applicable, known)
    for line in stale:
        print(f"  upstream.toml: {line}")
    return 1 if unexplained or stale or not passed else 0


def stale_rules(outcomes: Outcomes, not_applicable: Rules, known: Rules) -> list[str]:
    """Rules that fit no test any more, and failures that have become passes."""
    stale = [
        f"{pattern!r} fits no test"
        for pattern, _ in [*not_applicable, *known]
        if not any(re.search(pattern, test) for test in outcomes)
    ]
    for pattern, _ in known:
        fitting = [outcome for test, (outcome, _) in outcomes.items() if re.search(pattern, test)]
        if fitting and "failed" not in fitting:
            stale.append(f"{pattern!r} is known to fail, and passes")
    return stale


if __name__ == "__main__":
    sys.exit(main())
