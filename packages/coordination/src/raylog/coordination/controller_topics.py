"""What CreateTopics and CreatePartitions may ask for, and the partitions that it then means."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from raylog.coordination.controller_events import NewPartitions, NewTopic, TopicDefaults
from raylog.coordination.model import BrokerInfo, ClusterState, PartitionState, TopicState
from raylog.coordination.placement import replica_counts, spread
from raylog.coordination.topic_names import check_topic_name
from raylog.protocol.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from raylog.protocol.ids import BrokerId, TopicName

MAX_PARTITIONS = 10_000
"""Per topic: what its node can hold within ZooKeeper's one megabyte."""


def plan(
    topic: NewTopic,
    state: ClusterState,
    *,
    defaults: TopicDefaults,
    check_configs: Callable[[Mapping[str, str]], None],
) -> tuple[PartitionState, ...]:
    """The new topic's partitions, led by the first live replica. Raises the error that fits when it cannot be."""
    check_topic_name(topic.name)
    _check_is_free(topic.name, state)
    check_configs(topic.configs)
    by_hand = topic.assignments is not None
    return _new_partitions(_by_hand(topic, state.brokers) if by_hand else _spread(topic, state, defaults), state)


def plan_growth(wanted: NewPartitions, state: ClusterState) -> tuple[PartitionState, ...]:
    """The partitions to add, led by the first live replica. Raises the error that fits when it cannot be."""
    topic = state.topic(wanted.name)
    if topic is None:
        raise UnknownTopicOrPartition(f"there is no topic {wanted.name}")
    there = len(topic.partitions)
    if wanted.count <= there:
        raise InvalidPartitions(
            f"topic {topic.name} has {there} partitions, and {wanted.count} are asked for: they can only get more"
        )
    if wanted.count > MAX_PARTITIONS:
        raise InvalidPartitions(f"topic {topic.name}: {wanted.count} partitions; {MAX_PARTITIONS} are possible")
    if wanted.assignments is not None:
        return _new_partitions(_more_by_hand(topic, wanted, state.brokers), state)
    factor = max((len(partition.replicas) for partition in topic.partitions), default=1)
    _check_replication(topic.name, factor, state)
    replicas = spread(wanted.count - there, factor, state.brokers.values(), replica_counts(state))
    return _new_partitions(replicas, state)


def _more_by_hand(
    topic: TopicState, wanted: NewPartitions, brokers: Mapping[BrokerId, BrokerInfo]
) -> Sequence[tuple[BrokerId, ...]]:
    assignments, there = wanted.assignments or (), len(topic.partitions)
    if len(assignments) != wanted.count - there:
        raise InvalidReplicaAssignment(
            f"topic {topic.name}: {wanted.count - there} partitions are to be added, and replicas are given "
            f"for {len(assignments)}"
        )
    factor = max((len(partition.replicas) for partition in topic.partitions), default=1)
    for index, replicas in enumerate(assignments, there):
        check_replicas(f"{topic.name}-{index}", replicas, brokers)
        if len(replicas) != factor:
            raise InvalidReplicaAssignment(
                f"{topic.name}-{index}: {len(replicas)} replicas, but the topic's other partitions have {factor}"
            )
    return assignments


def _new_partitions(replicas: Sequence[tuple[BrokerId, ...]], state: ClusterState) -> tuple[PartitionState, ...]:
    """All of whose replicas are in sync: they are alive, and there is nothing yet to be behind of."""
    epochs = {broker.id: broker.epoch for broker in state.brokers.values()}
    return tuple(
        PartitionState(
            of_it,
            leader=of_it[0],
            isr=of_it,
            incarnations={broker: epochs[broker] for broker in of_it},
            controller_epoch=state.controller_epoch,
        )
        for of_it in replicas
    )


def _check_is_free(name: TopicName, state: ClusterState) -> None:
    if name in state.topics:
        raise TopicAlreadyExists(f"topic {name} exists already")
    for other in state.topics:
        if other.replace(".", "_") == name.replace(".", "_"):
            raise InvalidTopic(
                f"topic {name} differs from {other} only in '.' and '_', which metrics cannot tell apart: "
                f"choose another name"
            )


def _spread(topic: NewTopic, state: ClusterState, defaults: TopicDefaults) -> list[tuple[BrokerId, ...]]:
    count = defaults.partitions if topic.partitions == -1 else topic.partitions
    if not 1 <= count <= MAX_PARTITIONS:
        raise InvalidPartitions(f"topic {topic.name}: {count} partitions; 1 to {MAX_PARTITIONS} are possible")
    asked = topic.replication_factor
    factor = defaults.replication_factor if asked == -1 else asked
    _check_replication(topic.name, factor, state)
    return spread(count, factor, state.brokers.values(), replica_counts(state))


def _check_replication(name: TopicName, factor: int, state: ClusterState) -> None:
    if factor < 1:
        raise InvalidReplicationFactor(f"topic {name}: a replication factor of {factor} keeps no copy; use 1 or more")
    if factor > len(state.brokers):
        raise InvalidReplicationFactor(
            f"topic {name}: a partition's {factor} replicas need as many brokers, and "
            f"{len(state.brokers) or 'no broker'} {'are' if len(state.brokers) > 1 else 'is'} registered"
        )


def check_replicas(partition: str, replicas: tuple[BrokerId, ...], brokers: Mapping[BrokerId, BrokerInfo]) -> None:
    """Raises InvalidReplicaAssignment unless these are different brokers, at least one, and all alive."""
    if not replicas or len(set(replicas)) != len(replicas):
        raise InvalidReplicaAssignment(f"{partition}: replicas {replicas} are empty or repeat one")
    if unknown := [broker for broker in replicas if broker not in brokers]:
        raise InvalidReplicaAssignment(f"{partition}: no broker {unknown[0]} is registered")


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
        check_replicas(f"{topic.name}-{index}", replicas, brokers)
        if len(replicas) != len(assignments[0]):
            raise InvalidReplicaAssignment(
                f"{topic.name}-{index}: {len(replicas)} replicas, but partition 0 has {len(assignments[0])}"
            )
    return [tuple(assignments[index]) for index in range(len(assignments))]
