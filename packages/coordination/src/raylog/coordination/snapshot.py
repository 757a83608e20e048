"""Reads the whole cluster from the store, as the controller does when elected; watches what it acts on.

What cannot be understood is left out and told (``unreadable``): a broker is taken for not registered, a topic is in
``ClusterState.unreadable``, and a partition has no leader and nobody in sync until its state can be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from raylog.coordination import configs, node_names, paths
from raylog.coordination.model import BrokerInfo, ClusterState, PartitionState, TopicState
from raylog.coordination.store import EventSink, MetadataReader, Versioned
from raylog.coordination.unreadable import skipping
from raylog.protocol.ids import BrokerEpoch, BrokerId, PartitionIndex, TopicId, TopicName, TopicPartition


class Snapshot(NamedTuple):
    """The store's content at about one moment."""

    state: ClusterState
    """Without a controller. A partition that has no state node yet has version -1 and no leader."""
    deleting: frozenset[TopicName]
    """Topics whose deletion was asked for and is not complete."""
    ids: Mapping[TopicId, TopicName]
    """The nodes of topics' ids (``topic_ids``), with the names of the topics that they were made for."""


class _Topics(NamedTuple):
    readable: dict[TopicName, TopicState]
    unreadable: frozenset[TopicName]


def load(store: MetadataReader, watch: EventSink | None = None) -> Snapshot:
    """Everything; watches /brokers/ids, /brokers/topics and /admin/delete_topics.

    Read the config notices (``configs.read_changes``, which watches) before, so that no change falls in between.
    """
    deleting = frozenset(_topics_below(store, paths.DELETE_TOPICS, watch))
    brokers = load_brokers(store, watch)
    topics = _load_topics(store, _topics_below(store, paths.BROKER_TOPICS, watch))
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
    for topic_id, node in zip(odd, store.get_many([paths.topic_id(each) for each in odd]), strict=True):
        if node is not None:
            found[topic_id] = TopicName(node.data.decode(errors="replace"))
    return found


def _cluster_id(store: MetadataReader) -> str:
    """ "" where it cannot be read: brokers know it since they started."""
    found = store.get(paths.CLUSTER_ID)
    if found is not None:
        with skipping():
            return paths.decode_cluster_id(found.data)
    return ""


def shows_strange_topics(store: MetadataReader, state: ClusterState, watch: EventSink) -> bool:
    """True when the store's topics are not those of ``state``, or some wait to be deleted; watches on.

    For the events of the watches that :func:`load` left: most are about the controller's own writes, which need no
    new reading.
    """
    names = _topics_below(store, paths.BROKER_TOPICS, watch)
    deleting = _topics_below(store, paths.DELETE_TOPICS, watch)
    return bool(deleting) or {*names} != {*state.topics, *state.unreadable}


def _topics_below(store: MetadataReader, path: str, watch: EventSink | None) -> list[TopicName]:
    """Those that have a node there."""
    names = []
    for name in store.children(path, watch):
        with skipping():
            names.append(node_names.topic_named(name, path))
    return names


def load_brokers(store: MetadataReader, watch: EventSink | None = None) -> Mapping[BrokerId, BrokerInfo]:
    """The registered brokers with their incarnations; watches /brokers/ids.

    A broker that registers anew leaves and comes back, so the watch reports that, too.
    """
    brokers = {}
    for name in store.children(paths.BROKER_IDS, watch):
        with skipping():
            info = _load_broker(store, node_names.broker_named(name))
            if info is not None:
                brokers[info.id] = info
    return brokers


def _load_broker(store: MetadataReader, broker_id: BrokerId) -> BrokerInfo | None:
    """None when it is gone meanwhile. Raises CorruptMetadata."""
    path = paths.broker(broker_id)
    epoch, node = store.exists(paths.broker_epoch(broker_id)), store.exists(path)
    found, extra = store.get_many([path, paths.raylog_broker(broker_id)])
    if found is None or node is None or epoch is None:
        return None
    if not node.ephemeral_owner:
        raise paths.CorruptMetadata(path, "is no registration: no session keeps it")
    return paths.decode_broker(broker_id, found.data, extra.data if extra else None, BrokerEpoch(epoch.version))


def _load_topics(store: MetadataReader, names: list[TopicName]) -> _Topics:
    """The topics of these names, those that exist. Two rounds of pipelined reads, however many topics there are."""
    found = store.get_many([path for name in names for path in (paths.topic(name), paths.topic_config(name))])
    assignments, unreadable = {}, {name for name, node in zip(names, found[::2], strict=True) if node is not None}
    for name, assigned in zip(names, found[::2], strict=True):
        with skipping():
            if assigned is not None:
                assignments[name] = paths.decode_topic(name, assigned.data)
                unreadable.discard(name)
    overrides = {
        name: configs.readable_overrides(paths.topic_config(name), config.data, configs.UNKNOWN_TOPIC)
        for name, config in zip(names, found[1::2], strict=True)
        if config is not None
    }
    tps = [
        TopicPartition(name, PartitionIndex(index))
        for name, assignment in assignments.items()
        for index in range(len(assignment.replicas))
    ]
    states = iter(store.get_many([paths.partition_state(tp) for tp in tps]))
    readable = {
        name: TopicState(name, assignment.topic_id, _partitions(name, assignment, states), overrides.get(name, {}))
        for name, assignment in assignments.items()
    }
    return _Topics(readable, frozenset(unreadable))


def _partitions(
    name: TopicName, assignment: paths.TopicAssignment, states: Iterator[Versioned | None]
) -> tuple[PartitionState, ...]:
    """``states``: the values of the partitions' nodes, taken from in order."""
    partitions = []
    for index, replicas in enumerate(assignment.replicas):
        tp, found = TopicPartition(name, PartitionIndex(index)), next(states)
        partition = PartitionState(replicas, version=-1 if found is None else found.version)
        if found is not None:
            with skipping():
                partition = paths.decode_partition_state(tp, found.data, found.version, replicas)
        if index in assignment.adding or index in assignment.removing:
            adding, removing = assignment.adding.get(index, ()), assignment.removing.get(index, ())
            partition = replace(partition, adding=adding, removing=removing)
        partitions.append(partition)
    return tuple(partitions)
