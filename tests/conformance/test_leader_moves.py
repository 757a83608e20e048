"""Clients that others wrote, while their leader moves: what is acknowledged is read once, in order, and nobody notices.

All run at the same time, each with a topic of its own, all of which broker 0 leads at first. It stops in an orderly
way, leads again by election while the other leader lives on (which tells clients NOT_LEADER_OR_FOLLOWER and who leads),
is killed, and leads again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from kit.machine import scaled
from kit.replicated import ReplicatedCluster
from kit.streams import Stream, go_on
from raylog.client.admin import Admin

from .foreign import CLIENTS, absent

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(300)]

WAIT_S = 60.0
TIMEOUT_S = 20


def create_topics(servers: str, names: list[str]) -> None:
    """With broker 0 as the preferred leader."""
    topics = [NewTopic(name, num_partitions=1, replica_assignment=[[0, 1, 2]]) for name in names]
    admin = AdminClient({"bootstrap.servers": servers})
    for made in admin.create_topics(topics).values():
        made.result(scaled(TIMEOUT_S))


def elect(cluster: ReplicatedCluster, names: list[str]) -> None:
    """Let broker 0 lead all topics again, once it is in sync."""
    for name in names:
        cluster.wait_in_sync(name, 1)
    with Admin(cluster.bootstrap_servers) as admin:
        told = admin.elect_leaders([(name, 0) for name in names])
    assert set(told.values()) == {None}, told
    assert {cluster.leader(name, 0) for name in names} == {0}


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Stream]]:
    """The clients that are there, after all moves, with what they saw."""
    names = [name for name in CLIENTS if not absent(name)]
    with ExitStack() as stack:
        cluster = stack.enter_context(ReplicatedCluster(tmp_path_factory.mktemp("moves")))
        create_topics(cluster.bootstrap_servers, names)
        running = {name: stack.enter_context(CLIENTS[name](cluster.bootstrap_servers, name)) for name in names}
        streams = list(running.values())
        go_on(streams)
        for move in (cluster.stop, cluster.kill):
            move(0)
            go_on(streams)
            cluster.start(0)
            cluster.wait_serving(0)
            elect(cluster, names)
            go_on(streams)
        for stream in streams:
            stream.finish()
        yield running


@pytest.mark.parametrize("name", CLIENTS)
def test_what_is_acknowledged_is_read_once_and_in_order(moved: dict[str, Stream], name: str) -> None:
    """No send was given up, and the consumer met no error and was not told to begin elsewhere."""
    if name not in moved:
        pytest.skip(f"{name} is not installed")
    stream = moved[name]
    assert stream.errors == []
    assert stream.acked == stream.sent
    assert stream.read == stream.expected
