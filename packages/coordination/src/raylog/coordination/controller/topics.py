"""The controller's jobs about topics: what may be asked for, the partitions that it means, and their nodes."""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Mapping, Sequence
from dataclasses import replace

from raylog.coordination.control import reassignment
from raylog.coordination.control.placement import place
from raylog.coordination.controller.events import (
    CreatedTopic,
    NewPartitions,
    NewTopic,
    Notice,
    PartitionsCreateRequested,
    Result,
    TopicCreateRequested,
    TopicDefaults,
    TopicDeleteRequested,
    Wanted,
)
from raylog.coordination.controller.office import Doubt, Job, Office
from raylog.coordination.controller.writes import MAX_TOPIC_BYTES, topic_bytes
from raylog.coordination.metadata import paths
from raylog.coordination.metadata.configs import check_overrides_size
from raylog.coordination.metadata.model import BrokerInfo, ClusterState, PartitionState, TopicState, name_in_metrics
from raylog.coordination.metadata.topic_ids import odd_ids
from raylog.coordination.metadata.topic_names import check_topic_name
from raylog.coordination.store.port import NodeExists, NoNode, NotEmpty, StoreError
from raylog.protocol.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from raylog.protocol.ids import BrokerId, TopicId, TopicName

TopicRequest = TopicCreateRequested | PartitionsCreateRequested | TopicDeleteRequested
OneResult = Generator[Wanted, StoreError | None, Result]

MAX_PARTITIONS = 10_000
"""Per topic. How large its node may be is bounded, too (``controller.writes``)."""


class Topics:
    """Of one mandate."""

    def __init__(
        self,
        office: Office,
        defaults: Callable[[ClusterState], TopicDefaults],
        check_configs: Callable[[Mapping[str, str]], None],
    ) -> None:
        self._office = office
        self._defaults = defaults
        self._check_configs = check_configs
        self._ids: Mapping[TopicId, TopicName] = {}

    def read_anew(self, ids: Mapping[TopicId, TopicName]) -> None:
        """What stands in the store was read again; ``ids``: the nodes of topics' ids."""
        self._ids = ids

    def mend_ids(self) -> Job:
        """Make the nodes of topics' ids that are missing, and remove those that no topic has."""
        office = self._office
        odd = odd_ids(office.state, self._ids)
        for multi in office.writes.ids(odd.missing):
            error = yield from office.write([multi], expected=(NodeExists,), may_be_refused=True)
            if error is not None:
                fields = {"path": error.path, "reason": error}
                office.effects.append(Notice("nodes of topics' ids are not made: these take no commits", fields))
        if odd.left:
            yield from office.remove(*map(paths.topic_id, odd.left), expected=(NotEmpty, NoNode), may_be_refused=True)

    def do_one(self, request: TopicRequest, index: int) -> OneResult:
        """What the request asks for the topic in this place; raises what is to be answered for it."""
        match request:
            case TopicCreateRequested():
                return (yield from self._create(request, index))
            case PartitionsCreateRequested():
                return (yield from self._grow(request.topics[index], validate_only=request.validate_only))
            case TopicDeleteRequested():
                return (yield from self._mark_and_delete(request.topics[index]))

    def _create(self, request: TopicCreateRequested, index: int) -> OneResult:
        new, topic_id, office = request.topics[index], request.ids[index], self._office
        partitions = plan(new, office.state, defaults=self._defaults(office.state), check_configs=self._check_configs)
        topic = TopicState(new.name, topic_id, partitions, dict(new.configs))
        check_bytes(topic)
        check_overrides_size(topic.configs)
        created = CreatedTopic(new.name, topic_id, len(partitions), len(partitions[0].replicas), topic.configs)
        if request.validate_only:
            return created
        multis = office.writes.creation(topic, office.state)
        error = yield from office.write(multis, expected=(NodeExists,))
        if error is not None and error.path == (left := paths.topic_config(new.name)):  # of a topic of that name
            yield from office.remove(left)
            error = yield from office.write(multis, expected=(NodeExists,))
        if error is not None:
            office.doubt = Doubt.UNKNOWN
            raise TopicAlreadyExists(f"topic {new.name} exists already: another program made it")
        written = replace(topic, partitions=tuple(replace(p, version=0) for p in partitions))
        office.now(office.state.with_topics(written), topic.name)
        return created

    def _grow(self, new: NewPartitions, *, validate_only: bool) -> OneResult:
        office = self._office
        added = plan_growth(new, office.state)
        topic = office.state.topics[new.name]
        grown = replace(topic, partitions=(*topic.partitions, *added))
        check_bytes(grown)
        if validate_only:
            return new.name
        yield from office.write(office.writes.growth(grown, len(topic.partitions), office.state))
        written = (*topic.partitions, *(replace(partition, version=0) for partition in added))
        office.now(office.state.with_topics(replace(office.state.topics[new.name], partitions=written)), new.name)
        return new.name

    def _mark_and_delete(self, wanted: TopicName | TopicId) -> OneResult:
        name = self._name_of(wanted)
        marker = self._office.writes.deletion_marker(name)
        yield from self._office.write([marker], expected=(NodeExists,))
        yield from self.delete(name)
        return name

    def _name_of(self, wanted: TopicName | TopicId) -> TopicName:
        state = self._office.state
        if isinstance(wanted, str):
            if wanted not in state.topics and wanted not in state.unreadable:
                raise UnknownTopicOrPartition(f"there is no topic {wanted}")
            return wanted
        topic = state.topic_by_id(wanted)
        if topic is None:
            raise UnknownTopicId(f"there is no topic with the id {paths.encode_topic_id(wanted)}")
        return topic.name

    def delete(self, name: TopicName) -> Job:
        """Remove a topic whose deletion is recorded, with all that stands below its nodes; each step may have been done
        before. The marker goes last.
        """
        office = self._office
        topic = office.state.topics.get(name)
        known = [each for each, its_name in self._ids.items() if its_name == name] if topic is None else [topic.id]
        ids = map(paths.topic_id, known)  # first: from its node alone the next controller learns the topic's id
        nodes = paths.topic(name), paths.topic_config(name), paths.delete_topic(name)
        error = yield from office.remove(*ids, *nodes, expected=(NotEmpty, NoNode), may_be_refused=True)
        if error is not None:
            fields = {"topic": name, "path": error.path, "reason": error}
            office.effects.append(Notice("topic is not wholly deleted: its nodes cannot be removed", fields))
        state = office.state.without_topics(name)
        office.now(state.changed(unreadable=state.unreadable - {name}), name)


def plan(
    topic: NewTopic,
    state: ClusterState,
    *,
    defaults: TopicDefaults,
    check_configs: Callable[[Mapping[str, str]], None],
) -> tuple[PartitionState, ...]:
    """The new topic's partitions, led by the first unfenced replica. Raises the error that fits when it cannot be."""
    check_topic_name(topic.name)
    _check_is_free(topic.name, state)
    check_configs(topic.configs)
    by_hand = topic.assignments is not None
    replicas = _by_hand(topic, state.brokers) if by_hand else _spread(topic, state, defaults)
    return _new_partitions(topic.name, replicas, state)


def plan_growth(wanted: NewPartitions, state: ClusterState) -> tuple[PartitionState, ...]:
    """The partitions to add, led by the first unfenced replica. Raises the error that fits when it cannot be."""
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
        return _new_partitions(wanted.name, _more_by_hand(topic, wanted, state.brokers), state)
    factor = _replication_factor(topic)
    _check_replication(topic.name, factor, state)
    return _new_partitions(wanted.name, place(wanted.count - there, factor, state), state)


def _replication_factor(topic: TopicState) -> int:
    """As it will be once the reassignments under way are complete."""
    return max((len(reassignment.target(partition)) for partition in topic.partitions), default=1)


def _more_by_hand(
    topic: TopicState, wanted: NewPartitions, brokers: Mapping[BrokerId, BrokerInfo]
) -> Sequence[tuple[BrokerId, ...]]:
    assignments, there = wanted.assignments or (), len(topic.partitions)
    if len(assignments) != wanted.count - there:
        raise InvalidReplicaAssignment(
            f"topic {topic.name}: {wanted.count - there} partitions are to be added, and replicas are given "
            f"for {len(assignments)}"
        )
    factor = _replication_factor(topic)
    for index, replicas in enumerate(assignments, there):
        check_replicas(f"{topic.name}-{index}", replicas, brokers)
        if len(replicas) != factor:
            raise InvalidReplicaAssignment(
                f"{topic.name}-{index}: {len(replicas)} replicas, but the topic's other partitions have {factor}"
            )
    return assignments


def _new_partitions(
    name: TopicName, placed: Sequence[tuple[BrokerId, ...]], state: ClusterState
) -> tuple[PartitionState, ...]:
    """All of whose unfenced replicas are in sync: they are alive, and there is nothing yet to be behind of. Fenced ones
    join the ISR as any other replica does. Raises InvalidReplicaAssignment, as KRaft does, where all are fenced.
    """
    partitions = []
    for replicas in placed:
        isr = tuple(broker for broker in replicas if broker in state.unfenced)
        if not isr:
            raise InvalidReplicaAssignment(
                f"topic {name}: none of the brokers {replicas} answers the controller: name one that does"
            )
        epochs = {broker: state.brokers[broker].epoch for broker in isr}
        partitions.append(
            PartitionState(
                replicas, leader=isr[0], isr=isr, incarnations=epochs, controller_epoch=state.controller_epoch
            )
        )
    return tuple(partitions)


def check_bytes(topic: TopicState) -> None:
    """Raises InvalidPartitions where the metadata store would not take the topic's node."""
    taken = topic_bytes(topic)
    if taken > MAX_TOPIC_BYTES:
        raise InvalidPartitions(
            f"topic {topic.name}: {len(topic.partitions)} partitions with their replicas take {taken} bytes in the "
            f"metadata store, and {MAX_TOPIC_BYTES} are possible: make fewer partitions, or fewer replicas of each"
        )


def _check_is_free(name: TopicName, state: ClusterState) -> None:
    if name in state.topics:
        raise TopicAlreadyExists(f"topic {name} exists already")
    if name in state.unreadable:
        raise TopicAlreadyExists(f"{paths.topic(name)} cannot be read: mend it, or delete topic {name} first")
    other = state.names_in_metrics.get(name_in_metrics(name))
    if other is not None:
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
    return place(count, factor, state)


def _check_replication(name: TopicName, factor: int, state: ClusterState) -> None:
    if factor < 1:
        raise InvalidReplicationFactor(f"topic {name}: a replication factor of {factor} keeps no copy; use 1 or more")
    if factor > len(state.brokers):
        raise InvalidReplicationFactor(
            f"topic {name}: a partition's {factor} replicas need as many brokers, and "
            f"{len(state.brokers) or 'no broker'} {'are' if len(state.brokers) > 1 else 'is'} registered"
        )
    if not state.unfenced:
        raise InvalidReplicationFactor(f"topic {name}: no broker answers the controller")


def check_replicas(partition: str, replicas: tuple[BrokerId, ...], brokers: Container[BrokerId]) -> None:
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
