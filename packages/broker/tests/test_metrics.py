"""Metrics: counters and state as samples, under the names that dashboards know."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from kit.node import Node
from kit.wire import produce_request
from raylog.broker.counters import Counters, RequestTimes
from raylog.broker.handlers.context import Connection
from raylog.broker.metrics import Facts, Kind, Sample, samples
from raylog.coordination.metadata.model import ClusterState, PartitionState, TopicState
from raylog.protocol.ids import (
    NO_LEADER,
    BrokerId,
    GroupId,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    TopicId,
    TopicName,
    TopicPartition,
)
from raylog.protocol.records import Record, encode_batch

KAFKA = "kafka_server_brokertopicmetrics"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path) as node:
        node.create_topic("t", partitions=2)
        yield node


def facts(node: Node, counters: Counters | None = None) -> Facts:
    return Facts(
        counters=counters or Counters(),
        connections={"PLAINTEXT": 3},
        state=node.table.state(),
        led=node.table.led(),
        followed=node.table.followed(),
        group_lags={(GroupId("g"), TopicPartition(TopicName("t"), PartitionIndex(1))): 12},
        coordinated_groups=3,
        leader_ends={},
        replication_bytes_in={"t": 70},
        isr_shrinks=8,
        isr_expands=9,
        isr_failures=10,
        logs=2,
        offline_log_dirs=0,
        unread_bytes=1234,
        damaged=1,
        failed_partitions=7,
        waiting_fetches=4,
        waiting_produces=6,
        fetch_sessions=5,
        fetch_session_partitions=60,
        is_controller=True,
        thread_failures={"maintenance": 7},
        unreadable_nodes=2,
        failing_threads=1,
    )


def told(facts: Facts) -> dict[str, float]:
    """Values by ``name{label="value"}`` as Prometheus writes them."""
    values = {}
    for metric, labels, value in samples(facts):
        named = ",".join(f'{name}="{text}"' for name, text in zip(metric.labels, labels, strict=True))
        values[f"{metric.name}{{{named}}}" if named else metric.name] = value
    return values


def test_traffic_is_counted_by_topic(node: Node) -> None:
    connection = Connection("PLAINTEXT")
    batch = encode_batch([Record(b"x")] * 5)
    for _ in range(2):
        node.answer(produce_request("t", batch)[4:], connection)
    values = told(facts(node, connection.counters))
    assert values[f'{KAFKA}_messagesin_total{{topic="t"}}'] == 10
    assert values[f'{KAFKA}_bytesin_total{{topic="t"}}'] == 2 * len(batch)
    assert values['kafka_topic_partition_current_offset{topic="t",partition="0"}'] == 10
    assert values['kafka_topic_partition_oldest_offset{topic="t",partition="0"}'] == 0
    assert values['kafka_topic_partition_current_offset{topic="t",partition="1"}'] == 0


def test_what_the_broker_has_and_leads(node: Node) -> None:
    values = told(facts(node))
    assert values["kafka_server_replicamanager_partitioncount"] == 2
    assert values["kafka_server_replicamanager_leadercount"] == 2
    assert values["kafka_server_replicamanager_underreplicatedpartitions"] == 0
    assert values['kafka_topic_partition_in_sync_replica{topic="t",partition="1"}'] == 1
    assert values["kafka_coordinator_group_groupmetadatamanager_numgroups"] == 3
    assert values['kafka_consumergroup_lag{consumergroup="g",topic="t",partition="1"}'] == 12
    assert values['kafka_server_socket_server_metrics_connection_count{listener="PLAINTEXT"}'] == 3
    assert values['kafka_server_delayedoperationpurgatory_purgatorysize{delayedOperation="Fetch"}'] == 4
    assert values['kafka_server_delayedoperationpurgatory_purgatorysize{delayedOperation="Produce"}'] == 6
    assert values["kafka_server_fetchsessioncache_numincrementalfetchsessions"] == 5
    assert values["kafka_server_fetchsessioncache_numincrementalfetchpartitionscached"] == 60
    assert values['raylog_thread_failures_total{thread="maintenance"}'] == 7
    assert values["raylog_failing_threads"] == 1
    assert values["raylog_metadata_unreadable_total"] == 2
    node.create_topic("t", partitions=2, leader=2, leader_epoch=1)
    values = told(facts(node))
    assert values["kafka_server_replicamanager_leadercount"] == 0
    assert not [name for name in values if name.startswith("kafka_topic_partition")]


def test_a_replica_out_of_the_isr_is_told(node: Node) -> None:
    lagging = PartitionState((BrokerId(1), BrokerId(2)), BrokerId(1), LeaderEpoch(0), (BrokerId(1),))
    values = told(replace(facts(node), state=with_partitions(node.table.state(), lagging, lagging)))
    assert values["kafka_server_replicamanager_underreplicatedpartitions"] == 2
    assert values['kafka_topic_partition_under_replicated_partition{topic="t",partition="0"}'] == 1
    assert values['kafka_topic_partition_in_sync_replica{topic="t",partition="0"}'] == 1


def test_what_replication_does_is_told(node: Node) -> None:
    values = told(facts(node, Counters(replication_bytes_out={"t": 50})))
    assert values[f'{KAFKA}_replicationbytesin_total{{topic="t"}}'] == 70
    assert values[f'{KAFKA}_replicationbytesout_total{{topic="t"}}'] == 50
    manager = "kafka_server_replicamanager"
    assert [values[f"{manager}_{name}_total"] for name in ("isrshrinks", "isrexpands", "failedisrupdates")] == [
        8,
        9,
        10,
    ]


@pytest.mark.parametrize(
    ("minimum", "isr", "under", "at"), [(1, 1, 0, 1), (2, 1, 1, 0), (2, 2, 0, 1), (2, 3, 0, 0), (5, 3, 0, 1)]
)
def test_partitions_under_and_at_the_minimum(node: Node, minimum: int, isr: int, under: int, at: int) -> None:
    """More than all replicas cannot be asked for: then all of them are the minimum."""
    node.create_topic("u", replicas=(1, 2, 3), isr=(1, 2, 3)[:isr], config={"min.insync.replicas": str(minimum)})
    known = facts(node)
    values = told(replace(known, led={tp: each for tp, each in known.led.items() if tp.topic == "u"}))
    assert values["kafka_server_replicamanager_underminisrpartitioncount"] == under
    assert values["kafka_server_replicamanager_atminisrpartitioncount"] == at


def test_the_largest_lag_of_a_follower_is_told(node: Node) -> None:
    assert told(facts(node))["kafka_server_replicafetchermanager_maxlag"] == 0
    node.create_topic("t", partitions=2, leader=2, leader_epoch=1)
    first, second = sorted(node.table.followed())
    ends = {first: Offset(7), second: Offset(4)}
    assert told(replace(facts(node), leader_ends=ends))["kafka_server_replicafetchermanager_maxlag"] == 7


def test_only_the_controller_counts_offline_partitions(node: Node) -> None:
    online = PartitionState((BrokerId(1),), BrokerId(1), LeaderEpoch(0), (BrokerId(1),))
    offline = replace(online, leader=NO_LEADER)
    known = replace(facts(node), state=with_partitions(node.table.state(), online, offline))
    name = "kafka_controller_kafkacontroller"
    assert (told(known)[f"{name}_activecontrollercount"], told(known)[f"{name}_offlinepartitionscount"]) == (1, 1)
    other = told(replace(known, is_controller=False))
    assert (other[f"{name}_activecontrollercount"], other[f"{name}_offlinepartitionscount"]) == (0, 0)


def test_request_times_are_a_histogram(node: Node) -> None:
    counters = Counters()
    for spent_us in (1, 127, 128, 1_000, 5_000, 60_000_000):
        counters.request(1, spent_us * 1000)
    values = told(facts(node, counters))
    name = "kafka_network_requestmetrics_totaltimems"
    below = {
        match[1]: value
        for key, value in values.items()
        if (match := re.fullmatch(rf'{name}_bucket{{request="Fetch",le="(.*)"}}', key))
    }
    assert list(below) == ["0.128", "0.256", "0.512", "1.024", "2.048", "4.096", "8.192", "16.384", "32.768",
                           "131.072", "524.288", "2097.152", "8388.608", "+Inf"]  # fmt: skip
    assert [below[le] for le in ("0.128", "0.256", "1.024", "4.096", "8.192", "8388.608", "+Inf")] == [
        2,
        3,
        4,
        4,
        5,
        5,
        6,
    ]
    assert values[f'{name}_count{{request="Fetch"}}'] == 6
    assert values[f'{name}_sum{{request="Fetch"}}'] == pytest.approx(60_006.256)


def test_defects_are_told_by_api(node: Node) -> None:
    values = told(facts(node, Counters(defects={0: 2})))
    assert values['kafka_network_requestmetrics_errors_total{request="Produce",error="UNKNOWN_SERVER_ERROR"}'] == 2


def test_names_are_such_that_prometheus_takes_them(node: Node) -> None:
    counters = Counters({"t": 1}, {"t": 1}, {"t": 1}, {0: RequestTimes()}, {0: 1})
    for metric, _, _ in samples(facts(node, counters)):
        assert re.fullmatch(r"(kafka|raylog)_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
        assert metric.doc.endswith(".")


def test_every_sample_is_there_once(node: Node) -> None:
    counters = Counters({"t": 1, "u": 2}, {"t": 1}, {"t": 1}, {0: RequestTimes(), 1: RequestTimes()}, {0: 1})
    keys = [(sample.metric.name, sample.labels) for sample in samples(facts(node, counters))]
    assert len(keys) == len(set(keys))


def test_sums_over_connections() -> None:
    sums, one, two = Counters(), Counters(), Counters()
    one.request(0, 1_000)
    two.request(0, 3_000)
    two.request(3, 1_000)
    two.messages_in["t"] = 4
    for each in (one, two, two):
        sums.add(each)
    assert {key: (times.count, times.total_ns) for key, times in sums.requests.items()} == {
        0: (3, 7_000),
        3: (2, 2_000),
    }
    assert sums.messages_in == {"t": 8}
    assert (one.requests[0].count, two.requests[0].count) == (1, 1)


@pytest.mark.parametrize("spent_ns", [0, 999, 2**40, 2**63 - 1])
def test_any_time_has_a_bucket(spent_ns: int) -> None:
    times = RequestTimes()
    times.record(spent_ns)
    assert times.count == 1


def with_partitions(state: ClusterState, *partitions: PartitionState) -> ClusterState:
    name = TopicName("t")
    known = state.topic(name)
    assert known is not None
    topics: Mapping[TopicName, TopicState] = {name: TopicState(name, TopicId(known.id), partitions)}
    return replace(state, topics=topics)


def test_a_sample_fits_its_metric(node: Node) -> None:
    for sample in samples(facts(node)):
        assert isinstance(sample, Sample)
        assert len(sample.labels) == len(sample.metric.labels)
