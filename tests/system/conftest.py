"""Clusters that several system tests share, because each takes some ten seconds to bring up."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kit.cli import RunningCluster
from kit.machine import SLOWNESS
from raylog.broker.launch.local_ray import RECORD
from raylog.coordination.host.own_session import OwnSession

START_TIMEOUT_S = 360
"""Of a test on the shared cluster: whichever comes first brings it up, on whatever machine."""
LIFE = pytest.StashKey[ExitStack]()
"""The shared cluster's, once it is up."""


def shares(item: pytest.Item) -> bool:
    """Whether a test is on the shared cluster."""
    return "three_brokers" in getattr(item, "fixturenames", ())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on the shared cluster come last, in their random order: an idle Ray costs those beside it time. Where
    several tests run at once, they come last among those of their process: see ``kit.scheduling``."""
    items.sort(key=shares)
    for item in filter(shares, items):
        item.add_marker(pytest.mark.timeout(START_TIMEOUT_S * SLOWNESS), append=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """The shared cluster ends with the last test on it: other tests may follow in this process."""
    yield
    if shares(item) and item is next(filter(shares, reversed(item.session.items))) and LIFE in item.config.stash:
        item.config.stash[LIFE].close()


@pytest.fixture(scope="session")
def three_brokers(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[RunningCluster]:
    """Three broker actors on a local Ray cluster of their own, from a clean state; Ray has no dashboard."""
    with ExitStack() as life:
        pytestconfig.stash[LIFE] = life
        yield life.enter_context(up(tmp_path_factory.mktemp("up")))


@contextmanager
def up(root: Path) -> Iterator[RunningCluster]:
    cluster = RunningCluster(root / "home", root / "data")
    try:
        cluster.raylog("up", "--no-dashboard", "--brokers", "3")
        yield cluster
    finally:
        cluster.raylog("down", check=False)
        left = OwnSession.load(cluster.data_dir / RECORD)
        if left is not None:  # of an `up` that was cut short
            left.end(grace_s=1.0)
