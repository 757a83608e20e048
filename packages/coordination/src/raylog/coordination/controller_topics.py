"""What a CreateTopics request may ask for, and the partitions that it then means."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from raylog.coordination.controller_events import NewTopic
from raylog.coordination.model import BrokerInfo, ClusterState, PartitionState
from raylog.coordination.placement import replica_counts, spread
from raylog.coordination.topic_names import check_topic_name
from raylog.protocol.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    TopicAlreadyExists,
)
from raylog.protocol.ids import BrokerId, TopicName

MAX_PARTITIONS = 10_000
"""Per topic: what its node can hold within ZooKeeper's one megabyte."""


def plan(
    topic: NewTopic,
    state: ClusterState,
    *,
    default_partitions: int,
    check_configs: Callable[[Mapping[str, str]], None],
) -> tuple[PartitionState, ...]:
    """The new topic's partitions, led by the first live replica. Raises the error that fits when it cannot be."""
    check_topic_name(topic.name)
    _check_is_free(topic.name, state)
    check_configs(topic.configs)
    if topic.assignments is not None:
        replicas = _by_hand(topic, state.brokers)
    else:
        replicas = _spread(topic, state, default_partitions)
    return tuple(PartitionState(of_it, leader=of_it[0], isr=of_it) for of_it in replicas)


def _check_is_free(name: TopicName, state: ClusterState) -> None:
    if name in state.topics:
        raise TopicAlreadyExists(f"topic {name} exists already")
    for other in state.topics:
        if other.replace(".", "_") == name.replace(".", "_"):
            raise InvalidTopic(
                f"topic {name} differs from {other} only in '.' and '_', which metrics cannot tell apart: "
                f"choose another name"
            )


def _spread(topic: NewTopic, state: ClusterState, default_partitions: int) -> list[tuple[BrokerId, ...]]:
    count = default_partitions if topic.partitions == -1 else topic.partitions
    if not 1 <= count <= MAX_PARTITIONS:
        raise InvalidPartitions(f"topic {topic.name}: {count} partitions; 1 to {MAX_PARTITIONS} are possible")
    if topic.replication_factor != -1:
        _check_replication(topic.name, topic.replication_factor)
    if not state.brokers:
        raise InvalidReplicationFactor(f"topic {topic.name}: no broker is registered, so none can keep it")
    return [(broker,) for broker in spread(count, state.brokers.values(), replica_counts(state))]


def _check_replication(name: TopicName, factor: int) -> None:
    if factor < 1:
        raise InvalidReplicationFactor(f"topic {name}: a replication factor of {factor} keeps no copy; use 1")
    if factor > 1:
        raise InvalidReplicationFactor(
            f"topic {name}: a replication factor of {factor} is not possible, for replication is not built yet; use 1"
        )


def _by_hand(topic: NewTopic, brokers: Mapping[BrokerId, BrokerInfo]) -> list[tuple[BrokerId, ...]]:
    if topic.partitions != -1 or topic.replication_factor != -1:
        raise InvalidRequest(
            f"topic {topic.name}: give either replicas by partition or the numbers of partitions and replicas"
        )
    assignments = topic.assignments or {}
    if not assignments or sorted(assignments) != list(range(len(assignments))):
        raise InvalidReplicaAssignment(f"topic {topic.name}: partitions must be numbered from 0 without gaps")
    if len(assignments) > MAX_PARTITIONS:
        raise InvalidPartitions(f"topic {topic.name}: {MAX_PARTITIONS} partitions are possible")
    for index, replicas in assignments.items():
        if not replicas or len(set(replicas)) != len(replicas):
            raise InvalidReplicaAssignment(f"{topic.name}-{index}: replicas {replicas} are empty or repeat one")
        if unknown := [broker for broker in replicas if broker not in brokers]:
            raise InvalidReplicaAssignment(f"{topic.name}-{index}: no broker {unknown[0]} is registered")
        _check_replication(topic.name, len(replicas))
    return [tuple(assignments[index]) for index in range(len(assignments))]
