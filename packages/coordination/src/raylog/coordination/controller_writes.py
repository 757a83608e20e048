"""The controller's writes: multis that check the controller's epoch and the incarnations they are about
(D8).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from raylog.coordination import paths
from raylog.coordination.leadership import Change
from raylog.coordination.model import ClusterState, PartitionState, TopicState
from raylog.coordination.store import Check, Create, Delete, Op, Set
from raylog.protocol.ids import NO_LEADER, TopicName, TopicPartition

T = TypeVar("T")
Multi = tuple[Op, ...]

CHUNK = 250
"""Partitions per multi: about 100 kB, a tenth of what ZooKeeper takes in one request."""


def _chunks(items: Iterable[T]) -> Iterator[list[T]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk


def _epoch_check(epoch_version: int) -> Check:
    return Check(paths.CONTROLLER_EPOCH, epoch_version)


def _incarnation_checks(partitions: Iterable[PartitionState], state: ClusterState) -> list[Op]:
    leaders = sorted({partition.leader for partition in partitions if partition.leader != NO_LEADER})
    return [Check(paths.broker_epoch(leader), state.brokers[leader].epoch) for leader in leaders]


def _create_partition(tp: TopicPartition, partition: PartitionState) -> tuple[Op, Op]:
    return (
        Create(paths.partition(tp)),
        Create(paths.partition_state(tp), paths.encode_partition_state(partition)),
    )


def creation(topic: TopicState, state: ClusterState, epoch_version: int) -> list[Multi]:
    """A new topic: its nodes and the first partitions in one multi, the others in further ones."""
    assignment = paths.TopicAssignment(topic.id, tuple(partition.replicas for partition in topic.partitions))
    head: list[Op] = [
        Create(paths.topic(topic.name), paths.encode_topic(assignment)),
        Create(paths.topic_partitions(topic.name)),
        Create(paths.topic_config(topic.name), paths.encode_config(topic.configs)),
    ]
    multis: list[Multi] = []
    for chunk in _chunks(topic.topic_partitions()):
        checks = [_epoch_check(epoch_version), *_incarnation_checks((p for _, p in chunk), state)]
        nodes = [op for tp, partition in chunk for op in _create_partition(tp, partition)]
        multis.append((*checks, *head, *nodes))
        head = []
    return multis


def growth(grown: TopicState, partitions_before: int, state: ClusterState, epoch_version: int) -> list[Multi]:
    """Partitions added to a topic: its node and the first of them in one multi, the others in further ones.

    A controller that dies in between leaves partitions without a state, which the next one gives them.
    """
    assignment = paths.TopicAssignment(grown.id, tuple(partition.replicas for partition in grown.partitions))
    head: list[Op] = [Set(paths.topic(grown.name), paths.encode_topic(assignment))]
    multis: list[Multi] = []
    for chunk in _chunks(islice(grown.topic_partitions(), partitions_before, None)):
        checks = [_epoch_check(epoch_version), *_incarnation_checks((p for _, p in chunk), state)]
        multis.append((*checks, *head, *(op for tp, partition in chunk for op in _create_partition(tp, partition))))
        head = []
    return multis


def parent_of_partitions(topic: TopicName, epoch_version: int) -> Multi:
    """The node below which a topic's partitions stand; it may be there already."""
    return (_epoch_check(epoch_version), Create(paths.topic_partitions(topic)))


def initialisation(changes: Sequence[Change], state: ClusterState, epoch_version: int) -> list[Multi]:
    """First states of partitions that had none."""
    return [
        (
            _epoch_check(epoch_version),
            *_incarnation_checks((change.new for change in chunk), state),
            *(op for change in chunk for op in _create_partition(change.tp, change.new)),
        )
        for chunk in _chunks(changes)
    ]


def updates(changes: Sequence[Change], state: ClusterState, epoch_version: int) -> list[Multi]:
    """New states of partitions, each over the very version that was decided on."""
    return [
        (
            _epoch_check(epoch_version),
            *_incarnation_checks((change.new for change in chunk), state),
            *(
                Set(paths.partition_state(change.tp), paths.encode_partition_state(change.new), change.old.version)
                for change in chunk
            ),
        )
        for chunk in _chunks(changes)
    ]


def deletion_marker(topic: TopicName, epoch_version: int) -> Multi:
    """Records that the topic is to go: from here on every controller completes its deletion."""
    return (_epoch_check(epoch_version), Create(paths.delete_topic(topic)))


def deletion_of_partitions(topic: TopicState, epoch_version: int) -> list[Multi]:
    """Removes the partitions that have nodes."""
    there = [tp for tp, partition in topic.topic_partitions() if partition.version != -1]
    return [
        (
            _epoch_check(epoch_version),
            *(op for tp in chunk for op in (Delete(paths.partition_state(tp)), Delete(paths.partition(tp)))),
        )
        for chunk in _chunks(there)
    ]


def deletion_of_nodes(topic: TopicName, epoch_version: int) -> list[Multi]:
    """Removes what is left of a topic, the marker last; any of these may be gone already."""
    nodes = (
        paths.topic_partitions(topic),
        paths.topic_config(topic),
        paths.topic(topic),
        paths.delete_topic(topic),
    )
    return [(_epoch_check(epoch_version), Delete(node)) for node in nodes]
