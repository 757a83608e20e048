"""Consumers that others wrote, told their rack, read from the replica there; without it, from the leader (KIP-392)."""

from __future__ import annotations

from contextlib import ExitStack
from typing import NamedTuple

import pytest

from kit.cluster import InProcessCluster
from kit.machine import scaled_ms
from kit.streams import Stream, go_on
from kit.waiting import wait_until
from raylog.coordination.controller.events import NewTopic
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import BrokerId, PartitionIndex, TopicName, TopicPartition

from .foreign import CLIENTS, absent

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(180)]

WAIT_S = 60.0
LEADER, NEAREST = 0, 2
BYTES_OUT = "kafka_server_brokertopicmetrics_bytesout_total"
CONFIG = {
    "default.replication.factor": "3",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "replica.lag.time.max.ms": "30000",
}


def create_topic(cluster: InProcessCluster, name: str) -> None:
    """Its leader in rack a, and its last replica in c."""
    topic = NewTopic(TopicName(name), assignments={0: (BrokerId(LEADER), BrokerId(1), BrokerId(NEAREST))})
    [made] = cluster.controller.topics.create_topics([topic], timeout_ms=scaled_ms(10_000), validate_only=False)
    assert not isinstance(made, RaylogError), made
    wait_until(lambda: is_in_sync(cluster, name), WAIT_S, f"all replicas of {name} are in sync")


def is_in_sync(cluster: InProcessCluster, name: str) -> bool:
    state = cluster.brokers[LEADER].partitions.state().partition(TopicPartition(TopicName(name), PartitionIndex(0)))
    return state is not None and len(state.isr) == 3


def bytes_out(cluster: InProcessCluster, topic: str) -> dict[int, float]:
    """What each broker that runs handed to consumers."""
    return {
        broker_id: sum(
            sample.value for sample in broker.metrics() if sample.metric.name == BYTES_OUT and sample.labels == (topic,)
        )
        for broker_id, broker in cluster.brokers.items()
    }


class Seen(NamedTuple):
    """Of one client."""

    stream: Stream
    servers: list[int]
    """Whom it read from while all three brokers ran."""
    servers_left: list[int]
    """Whom it read from once the nearest had stopped."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    """The clients that are there, all in rack c at the same time, whose broker stops in the middle and comes back."""
    names = [name for name in CLIENTS if not absent(name)]
    root = tmp_path_factory.mktemp("racks")
    with InProcessCluster(root, brokers=3, config=CONFIG, racks=("a", "b", "c")) as cluster, ExitStack() as stack:
        for name in names:
            create_topic(cluster, name)
        servers = cluster.bootstrap_servers
        running = {name: stack.enter_context(CLIENTS[name](servers, name, rack="c")) for name in names}
        streams = list(running.values())
        before = {name: bytes_out(cluster, name) for name in names}
        go_on(streams)
        near = {name: bytes_out(cluster, name) for name in names}
        cluster.stop(NEAREST)
        before_far = {name: bytes_out(cluster, name) for name in names}
        go_on([stream for stream in streams if stream.leaves_lost_replicas])
        far = {name: bytes_out(cluster, name) for name in names}
        cluster.start(NEAREST)
        go_on(streams)
        for stream in streams:
            stream.finish()
    return {
        name: Seen(stream, grown(before[name], near[name]), grown(before_far[name], far[name]))
        for name, stream in running.items()
    }


def grown(before: dict[int, float], after: dict[int, float]) -> list[int]:
    return [broker_id for broker_id in after if after[broker_id] > before[broker_id]]


@pytest.mark.parametrize("name", CLIENTS)
def test_records_come_from_the_replica_in_the_consumers_rack(seen: dict[str, Seen], name: str) -> None:
    """While it is there, and from the leader when it has gone; each once."""
    if name not in seen:
        pytest.skip(f"{name} is not installed")
    stream, servers, servers_left = seen[name]
    assert (stream.read, stream.errors) == (stream.expected, [])
    assert servers == [NEAREST if stream.knows_racks else LEADER]
    assert servers_left == ([LEADER] if stream.leaves_lost_replicas else [])
