"""A pytest plugin inside the suites of other projects: leaves out what does not apply and writes down the outcomes.

RAYLOG_UPSTREAM holds JSON: ``port`` of the broker, ``not_applicable`` ([pattern, reason] each, matched against the
whole test id) and ``outcomes``, the file to write. It is for :mod:`tests/conformance/upstream.py` only.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ORDER = json.loads(os.environ["RAYLOG_UPSTREAM"])
RULES = [(re.compile(pattern), reason) for pattern, reason in ORDER["not_applicable"]]
_outcomes: dict[str, list[str]] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for pattern, reason in RULES:
            if pattern.search(item.nodeid):
                item.add_marker(pytest.mark.skip(reason=f"not applicable: {reason}"))
                break


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: Any) -> Any:
    """aiokafka asks four times for a free port: the first is the broker's, as its conftest orders them."""
    if fixturedef.argname != "unused_port":
        return None
    ports: Iterator[int] = iter([ORDER["port"]])
    fixturedef.cached_result = (lambda: next(ports, 1), fixturedef.cache_key, None)
    return fixturedef.cached_result[0]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """One outcome a test: a failure in any phase fails it."""
    if report.failed:
        _outcomes[report.nodeid] = ["failed", _last_line(report)]
    elif report.skipped and isinstance(report.longrepr, tuple):
        _outcomes.setdefault(report.nodeid, ["skipped", str(report.longrepr[2]).removeprefix("Skipped: ")])
    elif report.when == "call":
        _outcomes.setdefault(report.nodeid, ["passed", ""])


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _outcomes[report.nodeid] = ["failed", "not collected: " + _last_line(report)]


def pytest_sessionfinish() -> None:
    Path(ORDER["outcomes"]).write_text(json.dumps(_outcomes))


def _last_line(report: pytest.TestReport | pytest.CollectReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (crash.message if crash else str(report.longrepr)).strip().splitlines()
    return lines[0] if crash else lines[-1]
