"""Committed offsets over a broker's life: told as lag, kept over a restart, and gone with their topic."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.cluster import InProcessCluster
from kit.machine import scaled_ms
from kit.waiting import wait_until
from kit.wire import WireClient
from raylog.protocol.records import Record, encode_batch

pytestmark = pytest.mark.system

TOPIC, GROUP = "flights", "readers"
COMMIT, FETCH = 8, 9


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    with InProcessCluster(tmp_path) as cluster:
        cluster.create_topic(TOPIC)
        yield cluster


def ask(cluster: InProcessCluster, key: int, **values: Any) -> Any:
    with WireClient(cluster.brokers[0].endpoints["PLAINTEXT"]) as client:
        return client.ask(key, 7, **values)


def commit(cluster: InProcessCluster, offset: int) -> None:
    topics = [{"name": TOPIC, "partitions": [{"committed_offset": offset}]}]
    answer = ask(cluster, COMMIT, group_id=GROUP, generation_id_or_member_epoch=-1, topics=topics)
    assert answer.topics[0].partitions[0].error_code == 0


def committed(cluster: InProcessCluster) -> int | None:
    """None while no coordinator answers."""
    topics = [{"name": TOPIC, "partition_indexes": [0]}]
    answer = ask(cluster, FETCH, group_id=GROUP, topics=topics)
    return None if answer.error_code else answer.topics[0].partitions[0].committed_offset


def lag(cluster: InProcessCluster) -> float | None:
    samples = cluster.brokers[0].metrics()
    return next((sample.value for sample in samples if sample.metric.name == "kafka_consumergroup_lag"), None)


def test_offsets_are_told_as_lag_and_go_with_their_topic(cluster: InProcessCluster) -> None:
    with WireClient(cluster.brokers[0].endpoints["PLAINTEXT"]) as client:
        client.produce(TOPIC, encode_batch([Record(b"x")] * 10))
    commit(cluster, 3)
    wait_until(lambda: lag(cluster) == 7, 20, "the lag")
    cluster.controller.topics.delete_topics([TOPIC], timeout_ms=scaled_ms(10_000))  # type: ignore[list-item]
    cluster.create_topic(TOPIC)
    wait_until(lambda: committed(cluster) == -1, 20, "the new topic of that name to have no offsets")
    commit(cluster, 1)
    assert committed(cluster) == 1


def test_a_restarted_broker_goes_on_with_what_was_committed(cluster: InProcessCluster) -> None:
    commit(cluster, 3)
    cluster.restart(0)
    wait_until(lambda: committed(cluster) == 3, 20, "the offset that was committed before")
