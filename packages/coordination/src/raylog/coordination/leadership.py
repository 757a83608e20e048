"""Who leads: the states that partitions should have, given the brokers that live."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import NamedTuple

from raylog.coordination.model import BrokerInfo, ClusterState, PartitionState
from raylog.protocol.ids import NO_LEADER, BrokerId, LeaderEpoch, TopicPartition


class Change(NamedTuple):
    """A partition's state as it is and as it is to be written."""

    tp: TopicPartition
    old: PartitionState
    new: PartitionState


def restarted(before: Mapping[BrokerId, BrokerInfo], after: Mapping[BrokerId, BrokerInfo]) -> frozenset[BrokerId]:
    """Brokers that are there in another incarnation than before."""
    return frozenset(b for b, info in after.items() if b in before and before[b].epoch != info.epoch)


def decide(state: ClusterState, new_incarnations: AbstractSet[BrokerId]) -> list[Change]:
    """The partitions whose state must change.

    What the brokers of ``new_incarnations`` led, they lead anew, with a new leader epoch.
    """
    changes = []
    for tp, partition in state.partitions():
        wanted = _wanted(partition, state, new_incarnations)
        if wanted is not None:
            changes.append(Change(tp, partition, replace(wanted, controller_epoch=state.controller_epoch)))
    return changes


def _wanted(
    partition: PartitionState, state: ClusterState, new_incarnations: AbstractSet[BrokerId]
) -> PartitionState | None:
    """The state that differs from the present one; None when it may stay.

    Leader is the first replica in the ISR that lives. Without one the partition is offline; its ISR stays,
    for only those may lead it again, and its leader epoch, which rises with the next leader.
    """
    if partition.version == -1:
        live = tuple(broker for broker in partition.replicas if broker in state.brokers)
        return replace(partition, leader=live[0], isr=live) if live else None
    leader = next((b for b in partition.replicas if b in partition.isr and b in state.brokers), NO_LEADER)
    if partition.leader in state.brokers and partition.leader not in new_incarnations:
        return None
    if leader == NO_LEADER:
        return None if partition.leader == NO_LEADER else replace(partition, leader=NO_LEADER)
    return replace(partition, leader=leader, leader_epoch=LeaderEpoch(partition.leader_epoch + 1))
