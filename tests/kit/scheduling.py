"""Which tests run in one process where several run at once (``pytest -n``): those of a file, and those of all files
that bring up Ray, which takes some fifteen seconds of processor time each. What takes longest begins first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from shutil import disk_usage

import pytest
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[2]
RAY = re.compile(r"\b(RunningCluster|three_brokers|ray_with_java|ray_nodes|local_ray|ray\.init)\b")
"""What files name that bring up Ray."""
SECONDS = Path("tests/seconds.txt")
COMPUTING = (
    "packages",
    "tests/property",
    "tests/sim",
    "tests/fuzz",
    "tests/mutation",
    "tests/test_rules.py",
    "tests/test_infra.py",
)
"""Tests that only compute: nothing of theirs needs a clock, a socket or a disk that lasts."""
MEMORY = Path("/dev/shm")
ENOUGH_BYTES = 1 << 30


class FilesTogether(LoadScopeScheduling):
    """Hands out groups of tests, in their order."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def group_of(nodeid: str) -> str:
    """The tests with which one runs in the same process."""
    return _group_of_file(nodeid.partition("::")[0])


@cache
def _group_of_file(file: str) -> str:
    path = ROOT / file
    return "ray" if path.is_file() and RAY.search(path.read_text()) else file


def longest_first(items: list[pytest.Item]) -> None:
    """Put the groups that take longest first; the order within them stays."""
    known = seconds_of_files()
    took: dict[str, float] = {}
    for file, seconds in known.items():
        group = group_of(file)
        took[group] = took.get(group, 0.0) + seconds
    items.sort(key=lambda item: -took.get(group_of(item.nodeid), 0.0))


def seconds_of_files() -> Mapping[str, float]:
    """How long the tests of a file took when that was written down last."""
    lines = [line.split() for line in (ROOT / SECONDS).read_text().splitlines() if not line.startswith("#")]
    return {file: float(seconds) for seconds, file in lines}


def lie_in_memory(tests: Sequence[str]) -> bool:
    """Whether the files of these tests may: to flush a disk that none of them needs costs them half of their time."""
    computing = all(any(Path(test).is_relative_to(path) for path in COMPUTING) for test in tests)
    return computing and MEMORY.is_dir() and disk_usage(MEMORY).free > ENOUGH_BYTES
