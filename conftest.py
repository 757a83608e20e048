"""What holds for every test: unit tests reach neither a network nor Ray, property tests have two profiles."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Generator
from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from kit import process_logs
from kit.forms import NIGHTLY, SEED
from kit.machine import SLOWNESS
from kit.scheduling import MEMORY, SECONDS, FilesTogether, lie_in_memory, longest_first, seconds_of_files

PACKAGES = Path(__file__).parent / "packages"

EXAMPLES = 500 if NIGHTLY else 50
settings.register_profile("fast", deadline=None, max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("exhaustive", parent=settings.get_profile("fast"), max_examples=5_000)
settings.register_profile("mutation", parent=settings.get_profile("fast"), max_examples=25, derandomize=True)
settings.load_profile(os.environ.get("RAYLOG_HYPOTHESIS_PROFILE", "fast"))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Time limits scale with the machine's speed."""
    limit = item.get_closest_marker("timeout")
    seconds = float(limit.args[0] if limit and limit.args else item.config.getini("timeout") or 0)
    item.add_marker(pytest.mark.timeout(seconds * SLOWNESS), append=False)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesTogether:
    """See kit.scheduling."""
    config.option.loadscopereorder = False
    return FilesTogether(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    """For `make test-fast`."""
    text = f"leave out the files whose tests take longer together ({SECONDS})"
    parser.addoption("--most-seconds", type=float, default=inf, metavar="N", help=text)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    most, known = config.getoption("--most-seconds"), seconds_of_files()
    left_out = [item for item in items if known.get(item.nodeid.partition("::")[0], 0.0) > most]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]
    if hasattr(config, "workerinput"):
        longest_first(items)


def pytest_runtest_setup() -> None:
    process_logs.begin_test()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails tells what brokers did meanwhile, and how to repeat it."""
    report = yield
    if report.failed:
        said = [(title, process_logs.last(text.splitlines())) for title, text in report.sections if " log " in title]
        kept = [section for section in report.sections if " log " not in section[0]]
        said += [(f"log of {path}", lines) for path, lines in process_logs.written()]
        said.append(("repeat it", [process_logs.command(item.nodeid, item.config.getoption("randomly_seed", None))]))
        report.sections = [*kept, *((title, "\n".join(lines)) for title, lines in said)]
    return report


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if lie_in_memory(config.args):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    logging.getLogger("raylog").setLevel(logging.INFO)
    os.environ[SEED] = str(config.getoption("randomly_seed", "0"))


def pytest_report_header() -> str:
    """How fast the machine is."""
    return f"deadlines are multiplied by {SLOWNESS:g}: as fast as this machine is now"


@pytest.fixture(autouse=True)
def _unit_tests_stay_inside(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test beside its package that opens a socket, and so anything that Ray or ZooKeeper does, fails."""
    if not request.path.is_relative_to(PACKAGES):
        return

    def refuse(*_: Any) -> None:
        raise AssertionError("a unit test opened a socket; tests that need one stand below tests/")

    for name in ("connect", "connect_ex", "bind"):
        monkeypatch.setattr(socket.socket, name, refuse)
