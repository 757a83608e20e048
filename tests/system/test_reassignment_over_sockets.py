"""Partitions that move to other brokers while records come in, and leaders that are chosen by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from kit.cluster import InProcessCluster
from kit.machine import scaled, scaled_ms
from kit.reading import consumed
from kit.waiting import wait_until
from kit.wire import WireClient
from raylog.broker.handlers import TABLE
from raylog.client import Producer
from raylog.coordination.controller.events import NewTopic
from raylog.coordination.metadata.model import PartitionState
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import BrokerId, PartitionIndex, TopicName, TopicPartition

KEYS = {row.name: row.key for row in TABLE}
WAIT_S = 20.0
TP = TopicPartition(TopicName("t"), PartitionIndex(0))
CONFIG = {"replica.fetch.backoff.ms": "50", "min.insync.replicas": "2"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    """Four brokers, and a topic on 0 and 1."""
    with InProcessCluster(tmp_path, brokers=4, config=CONFIG) as running:
        topic = NewTopic(TP.topic, assignments={0: (BrokerId(0), BrokerId(1))})
        [made] = running.controller.topics.create_topics([topic], timeout_ms=scaled_ms(10_000), validate_only=False)
        assert not isinstance(made, RaylogError), made
        yield running


def ask(cluster: InProcessCluster, api: str, version: int, **values: Any) -> Any:
    """Of the controller, over its socket."""
    host, port = next(iter(cluster.controller.endpoints.values()))
    with WireClient((host, port)) as client:
        return client.ask(KEYS[api], version, **values)


def move(cluster: InProcessCluster, replicas: Sequence[int] | None) -> ErrorCode:
    topics = [{"name": TP.topic, "partitions": [{"partition_index": 0, "replicas": replicas}]}]
    [topic] = ask(cluster, "AlterPartitionReassignments", 1, topics=topics).responses
    [result] = topic.partitions
    code: ErrorCode = result.error_code
    return code


def elect(cluster: InProcessCluster) -> ErrorCode:
    asked = [{"topic": TP.topic, "partitions": [0]}]
    [topic] = ask(cluster, "ElectLeaders", 2, election_type=0, topic_partitions=asked).replica_election_results
    [result] = topic.partition_result
    code: ErrorCode = result.error_code
    return code


def moving(cluster: InProcessCluster) -> int:
    return len(ask(cluster, "ListPartitionReassignments", 0, topics=None).topics)


def state(cluster: InProcessCluster) -> PartitionState:
    found = cluster.controller.partitions.state().partition(TP)
    assert found is not None
    return found


def wait_in_sync(cluster: InProcessCluster, *brokers: int) -> None:
    """Until these are in sync, and nobody else: the controller's own broker hears of it a moment after its write."""
    wait_until(
        lambda: set(state(cluster).isr) == set(brokers),
        WAIT_S,
        f"in sync are {brokers}",
        instead=lambda: state(cluster),
    )


def wait_led_by(cluster: InProcessCluster, broker: int) -> None:
    """Until it is the only one that leads: who led before may hear of it last."""

    def leading() -> list[int]:
        return [n for n, each in cluster.brokers.items() if TP in each.partitions.led()]

    wait_until(lambda: leading() == [broker], WAIT_S, f"broker {broker} leads", instead=leading)


def directories(cluster: InProcessCluster) -> set[int]:
    """The brokers on whose disk the partition is."""
    return {n for n in cluster.brokers if list(cluster.root.glob(f"broker-{n}/**/{TP}"))}


def test_a_partition_moves_to_other_brokers_while_records_come_in(cluster: InProcessCluster) -> None:
    sent = [b"%d" % number for number in range(2_000)]
    with Producer(
        cluster.bootstrap_servers, acks="all", linger_ms=0, batch_size=1_000, retry_backoff_ms=20
    ) as producer:
        futures = [producer.send("t", value) for value in sent[:1_000]]
        for future in futures:
            future.result(scaled(WAIT_S))
        assert move(cluster, [2, 3]) is ErrorCode.none
        futures = [producer.send("t", value) for value in sent[1_000:]]
        wait_until(lambda: moving(cluster) == 0, WAIT_S, "the move is complete")
        for future in futures:
            future.result(scaled(WAIT_S))
    wait_until(
        lambda: (state(cluster).replicas, set(state(cluster).isr)) == ((2, 3), {2, 3}),
        WAIT_S,
        "the new replicas are in sync",
        instead=lambda: state(cluster),
    )
    wait_led_by(cluster, 2)
    wait_until(lambda: directories(cluster) == {2, 3}, WAIT_S, "the old replicas are deleted")
    assert consumed(cluster, len(sent)) == sent


def test_a_move_to_a_broker_that_is_down_waits_and_is_cancelled(cluster: InProcessCluster) -> None:
    spare = next(n for n in (3, 2) if n != cluster.controller.broker_id)
    assert move(cluster, [0, 1, spare]) is ErrorCode.none
    wait_until(lambda: moving(cluster) == 0, WAIT_S, "the third replica is in sync")
    wait_in_sync(cluster, 0, 1, spare)
    cluster.stop(spare)
    wait_until(lambda: spare not in state(cluster).isr, WAIT_S, "it is missed")
    other = next(n for n in (3, 2) if n != spare)
    assert move(cluster, [spare, other]) is ErrorCode.none, "who is there may be down"
    wait_until(lambda: other in state(cluster).isr, WAIT_S, "the other is in sync")
    assert moving(cluster) == 1
    assert move(cluster, None) is ErrorCode.none
    wait_until(lambda: moving(cluster) == 0, WAIT_S, "the move is cancelled")
    assert state(cluster).replicas == (spare, 0, 1)
    assert move(cluster, None) is ErrorCode.no_reassignment_in_progress


def test_the_preferred_replica_leads_again_when_it_is_asked_for(cluster: InProcessCluster) -> None:
    assert elect(cluster) is ErrorCode.election_not_needed
    cluster.stop(0)
    wait_until(lambda: state(cluster).leader == 1, WAIT_S, "the other leads")
    assert elect(cluster) is ErrorCode.preferred_leader_not_available
    cluster.start(0)
    wait_in_sync(cluster, 0, 1)
    assert state(cluster).leader == 1
    assert elect(cluster) is ErrorCode.none
    wait_led_by(cluster, 0)


def test_a_broker_that_stops_lets_others_lead_first(cluster: InProcessCluster) -> None:
    """So clients wait for no election: who led knows who leads next."""
    with Producer(cluster.bootstrap_servers, acks="1", linger_ms=0) as producer:
        producer.send("t", b"before").result(scaled(WAIT_S))
        wait_in_sync(cluster, 0, 1)
        assert cluster.brokers[0].drain(WAIT_S) == ()
        assert cluster.leader(*TP).broker_id == 1
        wait_until(lambda: TP in cluster.brokers[0].partitions.followed(), WAIT_S, "it follows")
        wait_in_sync(cluster, 1)
        producer.send("t", b"drained").result(scaled(WAIT_S))
    cluster.brokers[0].cancel_drain(WAIT_S)
    wait_in_sync(cluster, 0, 1)
    epoch = state(cluster).leader_epoch
    cluster.stop(1)
    wait_until(lambda: state(cluster).leader == 0, WAIT_S, "the other leads again")
    assert state(cluster).leader_epoch == epoch + 1


def test_what_nobody_else_can_lead_is_told_by_a_drain(cluster: InProcessCluster) -> None:
    topic = NewTopic(TopicName("alone"), assignments={0: (BrokerId(0),)})
    cluster.controller.topics.create_topics([topic], timeout_ms=scaled_ms(10_000), validate_only=False)
    assert cluster.brokers[0].drain(WAIT_S) == (TopicPartition(TopicName("alone"), PartitionIndex(0)),)
