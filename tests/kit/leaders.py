"""Leaders moved by hand, where there is no controller to do it or its rules forbid it."""

from __future__ import annotations

from dataclasses import replace

from kit.cluster import InProcessCluster
from raylog.coordination.peer_control import Ack, AckStatus, UpdateState
from raylog.protocol.ids import BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition

__all__ = ["move_leader"]


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
    for broker in cluster.brokers.values():
        known = broker.partitions.state()
        message = UpdateState(
            controller_id=other,
            controller_epoch=ControllerEpoch(1_000),
            broker_epoch=known.brokers[broker.broker_id].epoch,
            sequence=1,
            full=True,
            cluster_id=known.cluster_id,
            brokers=tuple(known.brokers.values()),
            topics=(replace(topic, partitions=(moved,)),),
        )
        ack = Ack.decode(broker.control(message.encode()))
        assert ack.status is AckStatus.OK, ack
    assert cluster.leader(*tp) is not before
