"""The controller's writes: multis that check the incarnations they are about (D8).

``Office`` puts the check of the controller's epoch before each. What one multi holds is bounded by bytes:
ZooKeeper ends the connection of a client that sends more than it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from raylog.coordination.control.leadership import Change
from raylog.coordination.metadata import paths
from raylog.coordination.metadata.model import ClusterState, PartitionState, TopicState
from raylog.coordination.store.port import Check, Create, Delete, Op, Set, packed, size_of
from raylog.protocol.ids import BrokerEpoch, BrokerId, TopicName, TopicPartition

T = TypeVar("T")
Multi = tuple[Op, ...]

CHUNK = 250
"""Partitions per multi, at the most."""
MAX_MULTI_BYTES = 950_000
"""Of a multi, at the most; of what a store takes (MAX_WRITE_BYTES), the rest is for the check of the epoch."""
MAX_TOPIC_BYTES = 400_000
"""Of a topic's node when it is made or grows: 10,000 partitions of three replicas each, at six-digit broker ids."""
MAX_MOVING_TOPIC_BYTES = 800_000
"""Of a topic's node while partitions are reassigned, of which each takes up to four times as much then."""
CHECK_BYTES = 250
"""Of the check of one broker's incarnation."""


_TOPIC_BYTES = 1_000
"""Of a topic's node beside its partitions, with its path."""


class Writes:
    """What a controller of one mandate writes. ``epoch_version``: of /controller_epoch."""

    def __init__(self, epoch_version: int) -> None:
        self._epoch_version = epoch_version

    def checks(self, partitions: Iterable[PartitionState], state: ClusterState) -> list[Op]:
        """What must still be so, lest the multi fail: the incarnations that the states name of those that are in sync
        (the leader is one) and alive.
        """
        concerned = {
            broker
            for partition in partitions
            for broker in partition.isr
            if broker in state.brokers and partition.incarnations.get(broker) == state.brokers[broker].epoch
        }
        return [Check(paths.broker_epoch(broker), state.brokers[broker].epoch) for broker in sorted(concerned)]

    def mandate(self) -> Multi:
        """What every multi begins with: no later controller was elected."""
        return (Check(paths.CONTROLLER_EPOCH, self._epoch_version),)

    # --- topics

    def creation(self, topic: TopicState, state: ClusterState) -> list[Multi]:
        """A new topic: its nodes and the first partitions in one multi, the others in further ones."""
        head: list[Op] = [
            Create(paths.topic_id(topic.id), topic.name.encode()),
            Create(paths.topic(topic.name), paths.encode_topic(paths.TopicAssignment.of(topic))),
            Create(paths.topic_partitions(topic.name)),
            Create(paths.topic_config(topic.name), paths.encode_config(topic.configs)),
        ]
        return self._with_partitions(head, topic.topic_partitions(), state)

    def growth(self, grown: TopicState, partitions_before: int, state: ClusterState) -> list[Multi]:
        """Partitions added to a topic: its node and the first of them in one multi, the others in further ones.

        A controller that dies in between leaves partitions without a state, which the next one gives them.
        """
        added = islice(grown.topic_partitions(), partitions_before, None)
        return self._with_partitions([_set_topic(grown)], added, state)

    def _with_partitions(
        self, head: list[Op], partitions: Iterable[tuple[TopicPartition, PartitionState]], state: ClusterState
    ) -> list[Multi]:
        multis: list[Multi] = []
        room = MAX_MULTI_BYTES - sum(map(size_of, head))
        for chunk in _chunks(partitions, lambda each: _bytes_of(each[1], *_create_partition(*each)), room):
            nodes = [op for each in chunk for op in _create_partition(*each)]
            multis.append((*self.checks((p for _, p in chunk), state), *head, *nodes))
            head = []
        return multis

    def parent_of_partitions(self, topic: TopicName) -> Multi:
        """The node below which a topic's partitions stand; it may be there already."""
        return (Create(paths.topic_partitions(topic)),)

    def ids(self, topics: Iterable[TopicState]) -> list[Multi]:
        """The nodes of topics' ids."""
        nodes = (Create(paths.topic_id(topic.id), topic.name.encode()) for topic in topics)
        return [tuple(chunk) for chunk in _chunks(nodes, size_of)]

    def deletion_marker(self, topic: TopicName) -> Multi:
        """Records that the topic is to go: from here on every controller completes its deletion."""
        return (Create(paths.delete_topic(topic)),)

    # --- partitions

    def initialisation(self, changes: Sequence[Change], state: ClusterState) -> list[Multi]:
        """First states of partitions that had none."""
        return self._with_partitions([], [(change.tp, change.new) for change in changes], state)

    def partition_node(self, tp: TopicPartition) -> Multi:
        """The node of a partition, below which its state stands; it may be there already. It has the newest leader
        epoch, should the state be deleted by a foreign hand: epochs only grow.
        """
        return (Create(paths.partition(tp)),)

    def first_states(self, changes: Sequence[Change], state: ClusterState) -> list[Multi]:
        """First states of partitions whose nodes are there."""
        return [
            (
                *self.checks((change.new for change in chunk), state),
                *(op for c in chunk for op in (_set_epoch(c), _create_state(c.tp, c.new))),
            )
            for chunk in _chunks(changes, _bytes_of_change)
        ]

    def chunks_of(self, changes: Iterable[Change]) -> Iterator[list[Change]]:
        """As many at a time as one multi takes."""
        return _chunks(changes, _bytes_of_change)

    def updates(self, changes: Sequence[Change], state: ClusterState) -> list[Multi]:
        """New states of partitions, each over the very version that was decided on."""
        return [
            (*self.checks((change.new for change in chunk), state), *_set_partitions(chunk))
            for chunk in _chunks(changes, _bytes_of_change)
        ]

    def reassignment(self, topic: TopicState, changes: Sequence[Change], state: ClusterState) -> list[Multi]:
        """New replicas of partitions of one topic: in its node and, at once, in their states.

        Each multi leaves the two in agreement: the topic's node goes only as far as the states do.
        """
        multis: list[Multi] = []
        partitions = list(topic.partitions)
        room = MAX_MULTI_BYTES - topic_bytes(topic) - sum(max(growth_of(change), 0) for change in changes)
        for chunk in _chunks(changes, _bytes_of_change, room):
            for change in chunk:
                partitions[change.tp.partition] = change.new
            node = _set_topic(TopicState(topic.name, topic.id, tuple(partitions)))
            sets = _set_partitions(change for change in chunk if change.old.version != -1)
            multis.append((*self.checks((change.new for change in chunk), state), node, *sets))
        return multis

    def removal(self, nodes: Iterable[str]) -> list[Multi]:
        """Removes nodes that have nothing below them."""
        return [tuple(map(Delete, chunk)) for chunk in _chunks(nodes, lambda node: size_of(Delete(node)))]

    # --- brokers

    def fence(self, broker_id: BrokerId, epoch: BrokerEpoch) -> Multi:
        """Ends an incarnation that is taken for dead: whatever it decides from now on does not count (D9)."""
        return (
            Set(paths.broker_epoch(broker_id), b"", epoch),
            Delete(paths.broker(broker_id)),
        )


def _chunks(items: Iterable[T], size: Callable[[T], int], room: int = MAX_MULTI_BYTES) -> Iterator[list[T]]:
    """In order, each as much as one multi takes. ``room``: what is left for it in each, in bytes."""
    return packed(items, size, room, CHUNK)


def topic_bytes(topic: TopicState) -> int:
    """What the topic's node takes, at the most."""
    return _TOPIC_BYTES + sum(assignment_bytes(index, p) for index, p in enumerate(topic.partitions))


def assignment_bytes(index: int, partition: PartitionState) -> int:
    """What one partition takes of its topic's node, at the most."""
    lists = 1 + bool(partition.adding) + bool(partition.removing)
    ids = (*partition.replicas, *partition.adding, *partition.removing)
    return lists * (len(str(index)) + len('"":[],')) + sum(len(str(broker)) + 1 for broker in ids)


def growth_of(change: Change) -> int:
    """How much more the partition takes of its topic's node then."""
    index = change.tp.partition
    return assignment_bytes(index, change.new) - assignment_bytes(index, change.old)


def _bytes_of(partition: PartitionState, *ops: Op) -> int:
    """What these take, with the checks of the incarnations that are in sync."""
    return sum(map(size_of, ops)) + CHECK_BYTES * len(partition.isr)


def _bytes_of_change(change: Change) -> int:
    return _bytes_of(change.new, _set_epoch(change), _set_partition(change))


def _set_topic(topic: TopicState) -> Set:
    return Set(paths.topic(topic.name), paths.encode_topic(paths.TopicAssignment.of(topic)))


def _create_partition(tp: TopicPartition, partition: PartitionState) -> tuple[Op, Op]:
    return Create(paths.partition(tp), paths.encode_number(partition.leader_epoch)), _create_state(tp, partition)


def _create_state(tp: TopicPartition, partition: PartitionState) -> Create:
    return Create(paths.partition_state(tp), paths.encode_partition_state(partition))


def _set_partitions(changes: Iterable[Change]) -> Iterator[Op]:
    for change in changes:
        if change.new.leader_epoch != change.old.leader_epoch:
            yield _set_epoch(change)
        yield _set_partition(change)


def _set_epoch(change: Change) -> Set:
    return Set(paths.partition(change.tp), paths.encode_number(change.new.leader_epoch))


def _set_partition(change: Change) -> Set:
    return Set(paths.partition_state(change.tp), paths.encode_partition_state(change.new), change.old.version)
