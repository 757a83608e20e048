"""An administrator whose brokers stop between two calls, which he last heard of as alive."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.cluster import InProcessCluster
from kit.machine import scaled, scaled_ms
from raylog.client.admin import Admin
from raylog.protocol.errors import BrokerNotAvailable

pytestmark = [pytest.mark.system]

SOON_S = scaled(15.0)
"""Against default.api.timeout.ms, which is four times as long."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    with InProcessCluster(tmp_path, brokers=3) as running:
        yield running


def test_the_next_controller_is_found(cluster: InProcessCluster) -> None:
    with Admin(cluster.bootstrap_servers, default_api_timeout_ms=scaled_ms(60_000)) as admin:
        assert len(admin.describe_cluster().brokers) == 3
        cluster.stop(cluster.controller.broker_id)
        begun = time.monotonic()
        admin.create_topic("t", 1)
        assert time.monotonic() - begun < SOON_S
        assert [topic.name for topic in admin.list_topics()] == ["t"]


def test_a_broker_that_has_stopped_is_not_waited_for(cluster: InProcessCluster) -> None:
    with Admin(cluster.bootstrap_servers, default_api_timeout_ms=scaled_ms(60_000)) as admin:
        victim = next(id_ for id_ in cluster.brokers if id_ != cluster.controller.broker_id)
        assert len(admin.describe_cluster().brokers) == 3
        cluster.stop(victim)
        begun = time.monotonic()
        with pytest.raises(BrokerNotAvailable, match=f"broker {victim} is not up"):
            admin.describe_broker_configs(victim)
        assert time.monotonic() - begun < SOON_S
