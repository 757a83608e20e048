"""Leaders moved by hand, where there is no controller to do it or its rules forbid it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace

from kit.cluster import InProcessCluster
from raylog.coordination.control.peer_control import Ack, AckStatus, UpdateState
from raylog.coordination.metadata import paths
from raylog.coordination.metadata.model import PartitionState, TopicState
from raylog.protocol.ids import BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition

__all__ = ["begin_epoch", "move_leader"]

_sequences = itertools.count(1)


def move_leader(cluster: InProcessCluster, tp: TopicPartition) -> None:
    """Tell all brokers that the other one leads, in the name of a controller that fences the real one."""
    before = cluster.leader(*tp)
    state = before.partitions.state()
    topic = state.topic(tp.topic)
    assert topic is not None
    [partition] = topic.partitions
    other = BrokerId(1 - partition.leader)
    moved = replace(
        partition, replicas=(other,), isr=(other,), leader=other, leader_epoch=LeaderEpoch(partition.leader_epoch + 1)
    )
    _tell(cluster, tp, topic, moved, cluster.brokers)
    assert cluster.leader(*tp) is not before


def begin_epoch(cluster: InProcessCluster, tp: TopicPartition, *told: int) -> None:
    """Tell the brokers ``told``, and no others, that who leads does so in a leader epoch after the one it knows."""
    topic = cluster.leader(*tp).partitions.state().topic(tp.topic)
    assert topic is not None
    [partition] = topic.partitions
    _tell(cluster, tp, topic, replace(partition, leader_epoch=LeaderEpoch(partition.leader_epoch + 1)), told)


def _tell(
    cluster: InProcessCluster, tp: TopicPartition, topic: TopicState, partition: PartitionState, brokers: Iterable[int]
) -> None:
    for store in list(cluster.stores.values())[:1]:  # where the real controller looks, once it is elected again
        store.set(paths.partition_state(tp), paths.encode_partition_state(partition))
    for broker in (cluster.brokers[broker_id] for broker_id in brokers):
        known = broker.partitions.state()
        message = UpdateState(
            controller_id=partition.leader,
            controller_epoch=ControllerEpoch(1_000),
            broker_epoch=known.brokers[broker.broker_id].epoch,
            sequence=next(_sequences),
            full=True,
            cluster_id=known.cluster_id,
            brokers=tuple(known.brokers.values()),
            topics=(replace(topic, partitions=(partition,)),),
        )
        ack = Ack.decode(broker.control(message.encode()))
        assert ack.status is AckStatus.OK, ack
