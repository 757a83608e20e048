"""Clusters that several system tests share, because each takes some ten seconds to bring up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kit.cli import RunningCluster
from kit.machine import SLOWNESS
from raylog.broker.launch.local_ray import RECORD
from raylog.coordination.host.own_session import OwnSession

START_TIMEOUT_S = 360
"""Of a test on the shared cluster: whichever comes first brings it up, on whatever machine."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests on the shared cluster come last, in their random order: an idle Ray costs those beside it time. Where
    several tests run at once, ``kit.scheduling`` chooses."""

    def shares(item: pytest.Item) -> bool:
        return "three_brokers" in getattr(item, "fixturenames", ())

    if not hasattr(config, "workerinput"):
        items.sort(key=shares)
    for item in filter(shares, items):
        item.add_marker(pytest.mark.timeout(START_TIMEOUT_S * SLOWNESS), append=False)


@pytest.fixture(scope="session")
def three_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """Three broker actors on a local Ray cluster of their own, from a clean state; Ray has no dashboard."""
    root = tmp_path_factory.mktemp("up")
    cluster = RunningCluster(root / "home", root / "data")
    try:
        cluster.raylog("up", "--no-dashboard", "--brokers", "3")
        yield cluster
    finally:
        cluster.raylog("down", check=False)
        left = OwnSession.load(cluster.data_dir / RECORD)
        if left is not None:  # of an `up` that was cut short
            left.end(grace_s=1.0)
