"""What docs/examples shows works as shown: its Python and its commands, against a cluster of broker actors."""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path

import pytest
from pyarrow import dataset

from kit.cli import RunningCluster
from kit.forms import some
from kit.machine import SLOWNESS
from kit.spark import SPARK_MARKS

pytestmark = [pytest.mark.timeout(400), *SPARK_MARKS]
"""A page starts Spark on Ray up to three times, one after the other: about a minute with nothing beside it."""

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs/examples"
BIN = Path(sys.executable).parent
RUN_TIMEOUT_S = 200 * SLOWNESS

GAP = timedelta(minutes=30)
LATE = timedelta(minutes=10)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    cluster = RunningCluster.up(tmp_path_factory.mktemp("examples"), "--brokers", "1")
    try:
        yield cluster
    finally:
        cluster.down()


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """Language and text of the page's code blocks, in order; neighbours of one language are one."""
    found = re.findall(r"^```(\w+)\n(.*?)^```", (EXAMPLES / page).read_text(), re.MULTILINE | re.DOTALL)
    for language, group in groupby(found, key=itemgetter(0)):
        yield language, "\n".join(text for _, text in group)


def run(cluster: RunningCluster, page: str, directory: Path) -> None:
    """Run the page's Python and commands as a reader would; what Python prints must be what the page says."""
    (directory / "docs").symlink_to(ROOT / "docs")
    environment = {**os.environ, "RAYLOG_HOME": str(cluster.home), "PATH": f"{BIN}:{os.environ['PATH']}"}
    printed, compared = "", 0
    for language, text in blocks(page):
        if language == "text":
            assert printed == text
            compared += 1
            continue
        command = {"python": [sys.executable, "-c", text], "bash": ["bash", "-euo", "pipefail", "-c", text]}[language]
        done = subprocess.run(
            command, env=environment, cwd=directory, capture_output=True, text=True, timeout=RUN_TIMEOUT_S
        )
        assert done.returncode == 0, done.stderr[-4_000:]
        printed = done.stdout
    assert compared > 0, "the page tells what is printed"


def true_sessions() -> set[tuple[str, datetime, datetime, int]]:
    """Visitor, start, end and clicks of each session that is over at the end of the log, by plain Python."""
    with gzip.open(EXAMPLES / "data/clicks.csv.gz", "rt") as lines:
        clicks = [
            (click["visitor"], datetime.fromisoformat(click["time"]))
            for click in csv.DictReader(lines)
            if not re.search("bot|crawler|spider", click["agent"], re.IGNORECASE)
        ]
    watermark = max(time for _, time in clicks) - LATE
    times = defaultdict(list)
    for visitor, time in clicks:
        times[visitor].append(time)
    found = set()
    for visitor, visits in times.items():
        visits.sort()
        ends = [i for i, (one, other) in enumerate(pairwise(visits), 1) if other - one >= GAP]
        for start, end in pairwise([0, *ends, len(visits)]):
            if visits[end - 1] + GAP <= watermark:
                found.add((visitor, visits[start], visits[end - 1] + GAP, end - start))
    return found


def check_sessions(cluster: RunningCluster, directory: Path) -> None:
    consumed = cluster.raylog("consume", "sessions", "--from-beginning", "--until-end").stdout
    sessions = [json.loads(line) for line in consumed.splitlines()]
    found = {
        (session["visitor"], *(datetime.fromisoformat(session[end]) for end in ("start", "end")), session["clicks"])
        for session in sessions
    }
    assert found == true_sessions()
    assert len(found) == len(sessions) > 1_000
    exported = dataset.dataset(directory / "lake", partitioning="hive").to_table()["value"].to_pylist()
    assert sorted(exported) == sorted(line.encode() for line in consumed.splitlines())


def check_model(cluster: RunningCluster, directory: Path) -> None:
    told = [text for language, text in blocks("flights.md") if language == "text"][-1]
    model, as_late_as_now = map(float, re.findall(r"([\d.]+) minutes off", told))
    assert model < as_late_as_now


PAGES = {"clicks.md": check_sessions, "flights.md": check_model}


@pytest.mark.parametrize("page", some(sorted(PAGES), 2))
def test_page_works_as_shown(cluster: RunningCluster, tmp_path: Path, page: str) -> None:
    """For a change, one of the pages."""
    run(cluster, page, tmp_path)
    PAGES[page](cluster, tmp_path)
