"""Three brokers in one process that replicate over their sockets: what is acknowledged by all of them outlives each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import segments
from kit.cluster import InProcessCluster
from kit.reading import consumed
from kit.waiting import wait_until
from raylog.broker.broker import Broker
from raylog.broker.partition.partition import Partition
from raylog.client import Producer
from raylog.protocol.errors import NotEnoughReplicas, NotEnoughReplicasAfterAppend, NotLeaderOrFollower
from raylog.protocol.ids import BrokerId, Offset, PartitionIndex, TopicName, TopicPartition
from raylog.protocol.records import Record, encode_batch

WAIT_S = 20.0
TP = TopicPartition(TopicName("t"), PartitionIndex(0))
CONFIG = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "replica.fetch.backoff.ms": "50",
    "auto.create.topics.enable": "false",
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    with InProcessCluster(tmp_path, brokers=3, config=CONFIG) as running:
        yield running


def isr_of(broker: Broker, tp: TopicPartition = TP) -> set[BrokerId]:
    state = broker.partitions.state().partition(tp)
    return set() if state is None else set(state.isr)


def replicas(cluster: InProcessCluster, tp: TopicPartition = TP) -> dict[int, Partition]:
    """The partition at each broker that runs."""
    found = {}
    for broker_id, broker in cluster.brokers.items():
        local = {**broker.partitions.led(), **broker.partitions.followed()}
        if tp in local:
            found[broker_id] = local[tp]
    return found


def same_everywhere(cluster: InProcessCluster, tp: TopicPartition = TP) -> bool:
    copies = replicas(cluster, tp).values()
    return len({(copy.log_end_offset, copy.high_watermark) for copy in copies}) == 1


def log_bytes(cluster: InProcessCluster, tp: TopicPartition = TP) -> list[bytes]:
    """The log's content at each broker."""
    return [segments.log_bytes(copy.log.directory) for copy in replicas(cluster, tp).values()]


def send(cluster: InProcessCluster, *values: bytes) -> None:
    with Producer(cluster.bootstrap_servers, acks="all", linger_ms=0, batch_size=1_000) as producer:
        for future in [producer.send("t", value) for value in values]:
            future.result(WAIT_S)


def test_what_all_acknowledged_is_in_every_log_byte_for_byte(cluster: InProcessCluster) -> None:
    cluster.create_topic("t")
    sent = [b"%d" % number for number in range(500)]
    send(cluster, *sent)
    assert consumed(cluster, 500) == sent
    wait_until(lambda: same_everywhere(cluster), WAIT_S, "followers know the high watermark")
    first, *others = log_bytes(cluster)
    assert first
    assert others == [first, first]
    wait_until(
        lambda: all(isr_of(broker) == {0, 1, 2} for broker in cluster.brokers.values()),
        WAIT_S,
        "all are in sync, as each broker knows",
        instead=lambda: list(map(isr_of, cluster.brokers.values())),
    )


def test_nothing_is_lost_when_leaders_stop_one_after_another(cluster: InProcessCluster) -> None:
    cluster.create_topic("t")
    sent: list[bytes] = []
    for round_number in range(3):
        values = [b"%d.%d" % (round_number, number) for number in range(50)]
        send(cluster, *values)
        sent += values
        leader = cluster.leader(*TP).broker_id
        cluster.stop(leader)
        assert cluster.leader(*TP).broker_id != leader
        send(cluster, b"without %d" % leader)
        sent.append(b"without %d" % leader)
        cluster.start(leader)
        wait_until(lambda: isr_of(cluster.leader(*TP)) == {0, 1, 2}, WAIT_S, "everybody is in sync again")
    assert consumed(cluster, len(sent)) == sent
    wait_until(lambda: same_everywhere(cluster), WAIT_S, "followers know the high watermark")
    first, *others = log_bytes(cluster)
    assert others == [first, first]


def test_nothing_is_lost_when_leaders_lose_their_sessions(cluster: InProcessCluster) -> None:
    """The leader goes on running, and comes back in a new incarnation: what it took in meanwhile counts for nothing."""
    cluster.create_topic("t")
    acked: list[bytes] = []
    with Producer(cluster.bootstrap_servers, acks="all", linger_ms=0, retry_backoff_ms=20) as producer:
        for round_number in range(4):
            waiting = []
            leader = cluster.leader(*TP).broker_id
            for number in range(60):
                value = b"%d.%d" % (round_number, number)
                waiting.append((value, producer.send("t", value)))
                if number == 30:
                    cluster.tree.expire(cluster.stores[leader].session.id)
            for value, future in waiting:
                future.result(WAIT_S)
                acked.append(value)
            wait_until(lambda: isr_of(cluster.controller) == {0, 1, 2}, WAIT_S, "everybody is in sync again")
    assert consumed(cluster, len(acked)) == acked, "each once, and in order"
    wait_until(lambda: same_everywhere(cluster), WAIT_S, "followers know the high watermark")
    first, *others = log_bytes(cluster)
    assert others == [first, first]


def test_a_follower_that_was_away_long_catches_up_from_where_the_log_begins(cluster: InProcessCluster) -> None:
    """What it has was deleted meanwhile, and so was what follows: it starts anew."""
    cluster.create_topic("t", config={"segment.bytes": "2000"})
    send(cluster, b"old")
    leader = cluster.leader(*TP)
    away = next(broker_id for broker_id in cluster.brokers if broker_id != leader.broker_id)
    cluster.stop(away)
    send(cluster, *(bytes(100) for _ in range(100)))
    partition = leader.partitions.get(TP)
    wait_until(lambda: away not in isr_of(leader), WAIT_S, "it is out of sync")
    partition.delete_records(Offset(60))
    cluster.start(away)
    wait_until(lambda: isr_of(leader) == {0, 1, 2}, WAIT_S, "it is in sync again")
    copy = replicas(cluster)[away]
    assert (copy.log_start_offset, copy.log_end_offset) == (60, 101)


def test_a_leader_that_starts_again_gets_new_sessions(cluster: InProcessCluster) -> None:
    """Its followers' sessions ended with it; they begin new ones and miss nothing."""
    cluster.create_topic("t", partitions=6)
    for _ in range(2):
        for broker_id in list(cluster.brokers):
            cluster.restart(broker_id)
    for index in range(6):
        tp = TopicPartition(TP.topic, PartitionIndex(index))
        wait_until(lambda tp=tp: isr_of(cluster.controller, tp) == {0, 1, 2}, WAIT_S, f"{tp} is in sync")
    with Producer(cluster.bootstrap_servers, acks="all", linger_ms=0, retry_backoff_ms=20) as producer:
        for index in range(6):
            producer.send("t", b"x", partition=index).result(WAIT_S)
    for index in range(6):
        tp = TopicPartition(TP.topic, PartitionIndex(index))
        wait_until(lambda tp=tp: same_everywhere(cluster, tp), WAIT_S, f"{tp} is everywhere")


def test_the_handle_path_waits_for_all_replicas_too(cluster: InProcessCluster) -> None:
    cluster.create_topic("t")
    leader = cluster.leader(*TP)
    batch = encode_batch([Record(b"a"), Record(b"b")])
    assert leader.produce("t", 0, batch) == (0, 1)
    assert leader.partitions.get(TP).high_watermark == 2
    for broker_id in [broker_id for broker_id in cluster.brokers if broker_id != leader.broker_id]:
        cluster.stop(broker_id)
    with pytest.raises((NotEnoughReplicas, NotEnoughReplicasAfterAppend, NotLeaderOrFollower)):
        leader.produce("t", 0, batch)
    assert leader.partitions.state().partition(TP) is not None


def test_what_only_a_fallen_leader_had_is_cut_off_when_it_follows(cluster: InProcessCluster) -> None:
    """It went on alone, below min.insync.replicas: those who left hold all that was acknowledged by all, and lead."""
    cluster.create_topic("t")
    sent = [b"%d" % number for number in range(10)]
    send(cluster, *sent)
    alone = cluster.leader(*TP).broker_id
    others = [broker_id for broker_id in cluster.brokers if broker_id != alone]
    for broker_id in others:
        cluster.stop(broker_id)
    with Producer(cluster.bootstrap_servers, acks=1, linger_ms=0, enable_idempotence=False) as producer:
        for number in range(5):
            producer.send("t", b"only here %d" % number).result(WAIT_S)
    partition = cluster.brokers[alone].partitions.get(TP)
    assert (partition.log_end_offset, partition.high_watermark) == (15, 10)
    cluster.stop(alone)
    for broker_id in others:
        cluster.start(broker_id)
    assert cluster.leader(*TP).broker_id in others
    wait_until(lambda: isr_of(cluster.controller) == set(others), WAIT_S, "both are in sync")
    send(cluster, b"after")
    cluster.start(alone)
    wait_until(lambda: isr_of(cluster.controller) == {0, 1, 2}, WAIT_S, "everybody is in sync again")
    assert consumed(cluster, 11) == [*sent, b"after"]
    wait_until(lambda: same_everywhere(cluster), WAIT_S, "followers know the high watermark")
    first, *rest = log_bytes(cluster)
    assert b"only here" not in first
    assert rest == [first, first]
