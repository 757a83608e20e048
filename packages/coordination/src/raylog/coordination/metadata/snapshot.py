"""Reads the whole cluster from the store, as the controller does when elected; watches what it acts on.

A partition's state may have been deleted by another program. The partition's own node, above it, has the newest leader
epoch; the next one is that of the state that is to be written (``leader_epoch`` of one without a version).

What cannot be understood is left out and told (``unreadable``): a broker is taken for not registered, a topic is in
``ClusterState.unreadable``, and a partition has no leader and nobody in sync until its state can be read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from raylog.coordination.metadata import configs, node_names, paths
from raylog.coordination.metadata.model import FIRST_LEADER_EPOCH, BrokerInfo, ClusterState, PartitionState, TopicState
from raylog.coordination.store.port import EventSink, MetadataReader, StoreUnauthorized, Versioned
from raylog.coordination.store.unreadable import for_good, readable, skipping, tell
from raylog.protocol.ids import (
    NO_TOPIC_ID,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    PartitionIndex,
    TopicId,
    TopicName,
    TopicPartition,
)


class Snapshot(NamedTuple):
    """The store's content at about one moment."""

    state: ClusterState
    """Without a controller. A partition that has no state node yet has version -1 and no leader."""
    deleting: frozenset[TopicName]
    """Topics whose deletion was asked for and is not complete."""
    ids: Mapping[TopicId, TopicName]
    """The nodes of topics' ids (``topic_ids``), with the names of the topics that they were made for."""


_State = tuple[TopicPartition, Versioned | StoreUnauthorized | None]
"""A partition, and what was read of its state's node."""


class _Topics(NamedTuple):
    readable: dict[TopicName, TopicState]
    unreadable: frozenset[TopicName]


def load(store: MetadataReader, watch: EventSink | None = None) -> Snapshot:
    """Everything; watches /brokers/ids, /brokers/topics and /admin/delete_topics.

    Read the config notices (``configs.read_changes``, which watches) before, so that no change falls in between.
    """
    deleting = frozenset(_topics_below(store, paths.DELETE_TOPICS, watch))
    brokers = load_brokers(store, watch)
    topics = _load_topics(store, _topics_below(store, paths.BROKER_TOPICS, watch), deleting)
    state = ClusterState(
        cluster_id=_cluster_id(store),
        brokers=brokers,
        topics=topics.readable,
        unreadable=topics.unreadable,
        broker_configs=configs.all_broker_configs(store),
    )
    return Snapshot(state, deleting, _topic_ids(store, state))


def _topic_ids(store: MetadataReader, state: ClusterState) -> Mapping[TopicId, TopicName]:
    """One listing, and the nodes of those ids that no topic of ``state`` has."""
    named, odd = {topic.id: topic.name for topic in state.topics.values()}, []
    found = {}
    for name in store.children(paths.TOPIC_IDS):
        with skipping():
            topic_id = node_names.topic_id_named(name)
            if topic_id in named:
                found[topic_id] = named[topic_id]
            else:
                odd.append(topic_id)
    for topic_id, read in zip(odd, store.get_each([paths.topic_id(each) for each in odd]), strict=True):
        with skipping():
            if (node := readable(read)) is not None:
                found[topic_id] = TopicName(node.data.decode(errors="replace"))
    return found


def _cluster_id(store: MetadataReader) -> str:
    """ "" where it cannot be read: brokers know it since they started."""
    [found] = store.get_each([paths.CLUSTER_ID])
    with skipping():
        if (node := readable(found)) is not None:
            return paths.decode_cluster_id(node.data)
    return ""


class StrangeTopics(NamedTuple):
    """What another program did to topics; nothing strange is False."""

    made: tuple[TopicName, ...]
    removed: tuple[TopicName, ...]
    to_delete: tuple[TopicName, ...]

    def __bool__(self) -> bool:
        return any(tuple(self))

    def told(self) -> Iterator[tuple[str, tuple[TopicName, ...]]]:
        """What that means and what to do, with the topics that it is about."""
        texts = (
            "another program made topics, which are led as they stand there: make them with `raylog topics create`, "
            "which checks names and replicas",
            "another program removed topics' nodes, so their logs are deleted: find it, and delete topics with "
            "`raylog topics delete`",
            "another program asked for topics to be deleted, and they are",
        )
        yield from ((text, names) for text, names in zip(texts, self, strict=True) if names)


def strange_topics(store: MetadataReader, state: ClusterState, watch: EventSink) -> StrangeTopics:
    """How the store's topics differ from those of ``state``, and which wait to be deleted; watches on.

    For the events of the watches that :func:`load` left: most are about the controller's own writes, which need no
    new reading.
    """
    there, known = {*_topics_below(store, paths.BROKER_TOPICS, watch)}, {*state.topics, *state.unreadable}
    deleting = _topics_below(store, paths.DELETE_TOPICS, watch)
    return StrangeTopics(tuple(sorted(there - known)), tuple(sorted(known - there)), tuple(deleting))


def _topics_below(store: MetadataReader, path: str, watch: EventSink | None) -> list[TopicName]:
    """Those that have a node there."""
    names = []
    for name in store.children(path, watch):
        with skipping():
            names.append(node_names.topic_named(name, path))
    return names


def load_brokers(store: MetadataReader, watch: EventSink | None = None) -> Mapping[BrokerId, BrokerInfo]:
    """The registered brokers with their incarnations; watches /brokers/ids. Three round trips, for any number of them.

    A broker that registers anew leaves and comes back, so the watch reports that, too.
    """
    ids = []
    for name in store.children(paths.BROKER_IDS, watch):
        with skipping():
            ids.append(node_names.broker_named(name))
    registrations = [*map(paths.broker, ids)]
    stats = store.exists_many([*map(paths.broker_epoch, ids), *registrations])
    found = store.get_each([*registrations, *map(paths.raylog_broker, ids)])
    brokers, there = {}, len(ids)
    for broker_id, epoch, node, *read in zip(
        ids, stats[:there], stats[there:], found[:there], found[there:], strict=True
    ):
        with skipping():
            data, extra = map(readable, read)
            if epoch is not None and node is not None and data is not None:  # else it is gone meanwhile
                if not node.ephemeral_owner:
                    raise paths.CorruptMetadata(paths.broker(broker_id), "is no registration: no session keeps it")
                incarnation = BrokerEpoch(epoch.version)
                brokers[broker_id] = paths.decode_broker(broker_id, data.data, extra and extra.data, incarnation)
    return brokers


def _load_topics(store: MetadataReader, names: list[TopicName], deleting: Container[TopicName]) -> _Topics:
    """The topics of these names, those that exist. Two rounds of pipelined reads, however many topics there are."""
    found = store.get_each([path for name in names for path in (paths.topic(name), paths.topic_config(name))])
    assignments, unreadable = {}, {name for name, node in zip(names, found[::2], strict=True) if node is not None}
    for name, assigned in zip(names, found[::2], strict=True):
        with skipping():
            if (node := readable(assigned)) is not None:
                assignments[name] = paths.decode_topic(name, node.data)
                unreadable.discard(name)
    for name in _copies(store, assignments):
        del assignments[name]
        unreadable.add(name)
    overrides = {
        name: configs.readable_overrides(paths.topic_config(name), config, configs.UNKNOWN_TOPIC)
        for name, config in zip(names, found[1::2], strict=True)
    }
    tps = [
        TopicPartition(name, PartitionIndex(index))
        for name, assignment in assignments.items()
        for index in range(len(assignment.replicas))
    ]
    states = store.get_each([paths.partition_state(tp) for tp in tps])
    closed = _closed(store, zip(tps, states, strict=True))
    stateless = (tp for tp, found in zip(tps, states, strict=True) if found is None)
    epochs = _next_epochs(store, [tp for tp in stateless if tp.topic not in deleting])
    nodes = zip(tps, states, strict=True)
    decoded: dict[bytes, PartitionState] = {}
    topics = {}
    for name, assignment in assignments.items():
        partitions = _partitions(assignment, nodes, closed, epochs, decoded)
        topics[name] = TopicState(name, assignment.topic_id, partitions, overrides.get(name, {}))
    return _Topics(topics, frozenset(unreadable))


def _closed(store: MetadataReader, states: Iterable[_State]) -> Mapping[TopicPartition, int]:
    """The versions of the states that may not be read, which are told."""
    closed = [(tp, found) for tp, found in states if isinstance(found, StoreUnauthorized)]
    for _, error in closed:
        tell(for_good(error))
    stats = store.exists_many([paths.partition_state(tp) for tp, _ in closed]) if closed else []
    return {tp: -1 if stat is None else stat.version for (tp, _), stat in zip(closed, stats, strict=True)}


def _next_epochs(store: MetadataReader, stateless: Sequence[TopicPartition]) -> Mapping[TopicPartition, LeaderEpoch]:
    """The next leader epochs of those that had states, which is told."""
    epochs = {}
    nodes = store.get_each([paths.partition(tp) for tp in stateless]) if stateless else ()
    for tp, found in zip(stateless, nodes, strict=True):
        with skipping():
            latest = None if (node := readable(found)) is None else paths.decode_latest_leader_epoch(tp, node.data)
            if latest is not None:
                epochs[tp] = LeaderEpoch(latest + 1)
                what = f"is missing, and had leader epoch {latest}: another program deleted it"
                tell(paths.CorruptMetadata(paths.partition_state(tp), what))
    return epochs


def _copies(store: MetadataReader, assignments: Mapping[TopicName, paths.TopicAssignment]) -> Iterator[TopicName]:
    """Topics that have the id of another one, which that id's node names: somebody copied its node."""
    by_id = defaultdict[TopicId, list[TopicName]](list)
    for name, assignment in assignments.items():
        by_id[assignment.topic_id].append(name)
    shared = [(id_, names) for id_, names in by_id.items() if len(names) > 1 and id_ != NO_TOPIC_ID]
    for (_, names), node in zip(shared, store.get_each([paths.topic_id(id_) for id_, _ in shared]), strict=True):
        original = node.data if isinstance(node, Versioned) else b""
        first = next((name for name in names if name.encode() == original), names[0])
        for name in names:
            if name != first:
                tell(paths.CorruptMetadata(paths.topic(name), f"has the id of topic {first}: it is a copy of its node"))
                yield name


def _partitions(
    assignment: paths.TopicAssignment,
    states: Iterator[_State],
    closed: Mapping[TopicPartition, int],
    epochs: Mapping[TopicPartition, LeaderEpoch],
    decoded: dict[bytes, PartitionState],
) -> tuple[PartitionState, ...]:
    """``states``: taken from in order. ``decoded``: what values mean, apart from what does not stand in them: many
    partitions have the same.
    """
    partitions = []
    for index, (replicas, (tp, found)) in enumerate(zip(assignment.replicas, states)):  # noqa: B905 (states go on)
        if found is None or isinstance(found, StoreUnauthorized):
            epoch = epochs.get(tp, FIRST_LEADER_EPOCH)
            partition = PartitionState(replicas, leader_epoch=epoch, version=closed.get(tp, -1))
        else:
            partition = _decoded(tp, found, replicas, decoded)
        if index in assignment.adding or index in assignment.removing:
            adding, removing = assignment.adding.get(index, ()), assignment.removing.get(index, ())
            partition = replace(partition, adding=adding, removing=removing)
        partitions.append(partition)
    return tuple(partitions)


def _decoded(
    tp: TopicPartition, found: Versioned, replicas: tuple[BrokerId, ...], decoded: dict[bytes, PartitionState]
) -> PartitionState:
    alike = decoded.get(found.data)
    if alike is None:
        alike = PartitionState(replicas, version=found.version)
        with skipping():
            alike = decoded[found.data] = paths.decode_partition_state(tp, found.data, found.version, replicas)
        return alike
    return PartitionState(  # not by dataclasses.replace, which costs three times as much
        replicas,
        leader=alike.leader,
        leader_epoch=alike.leader_epoch,
        isr=alike.isr,
        controller_epoch=alike.controller_epoch,
        version=found.version,
        elr=alike.elr,
        incarnations=alike.incarnations,
    )
