"""Reads the whole cluster from the store, as the controller does when elected; watches what it acts on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from raylog.coordination import configs, paths
from raylog.coordination.model import BrokerInfo, ClusterState, PartitionState, TopicState
from raylog.coordination.store import EventSink, MetadataReader, Versioned
from raylog.protocol.ids import BrokerEpoch, BrokerId, PartitionIndex, TopicName, TopicPartition


class Snapshot(NamedTuple):
    """The store's content at about one moment."""

    state: ClusterState
    """Without a controller. A partition that has no state node yet has version -1 and no leader."""
    deleting: frozenset[TopicName]
    """Topics whose deletion was asked for and is not complete."""


def load(store: MetadataReader, watch: EventSink | None = None) -> Snapshot:
    """Everything; watches /brokers/ids, /brokers/topics and /admin/delete_topics.

    Read the config notices (``configs.read_changes``, which watches) before, so that no change falls in between.
    """
    deleting = frozenset(TopicName(name) for name in store.children(paths.DELETE_TOPICS, watch))
    brokers = load_brokers(store, watch)
    topics = load_topics(store, map(TopicName, store.children(paths.BROKER_TOPICS, watch)))
    found = store.get(paths.CLUSTER_ID)
    state = ClusterState(
        cluster_id="" if found is None else paths.decode_cluster_id(found.data),
        brokers=brokers,
        topics=topics,
        broker_configs={name: configs.broker_configs(store, name) for name in store.children(paths.CONFIG_BROKERS)},
    )
    return Snapshot(state, deleting)


def shows_strange_topics(store: MetadataReader, state: ClusterState, watch: EventSink) -> bool:
    """True when the store's topics are not those of ``state``, or some wait to be deleted; watches on.

    For the events of the watches that :func:`load` left: most are about the controller's own writes, which need no
    new reading.
    """
    names = store.children(paths.BROKER_TOPICS, watch)
    return bool(store.children(paths.DELETE_TOPICS, watch)) or set(names) != set(state.topics)


def load_brokers(store: MetadataReader, watch: EventSink | None = None) -> Mapping[BrokerId, BrokerInfo]:
    """The registered brokers with their incarnations; watches /brokers/ids.

    A broker that registers anew leaves and comes back, so the watch reports that, too.
    """
    brokers = {}
    for name in store.children(paths.BROKER_IDS, watch):
        broker_id = BrokerId(int(name))
        epoch = store.exists(paths.broker_epoch(broker_id))
        found, extra = store.get_many([paths.broker(broker_id), paths.raylog_broker(broker_id)])
        if found is not None and epoch is not None:
            brokers[broker_id] = paths.decode_broker(
                broker_id, found.data, extra.data if extra else None, BrokerEpoch(epoch.version)
            )
    return brokers


def load_topics(store: MetadataReader, names: Iterable[TopicName]) -> dict[TopicName, TopicState]:
    """The topics of these names, those that exist. Two rounds of pipelined reads, however many topics there are."""
    names = list(names)
    found = store.get_many([path for name in names for path in (paths.topic(name), paths.topic_config(name))])
    assignments = {
        name: paths.decode_topic(name, assigned.data)
        for name, assigned in zip(names, found[::2], strict=True)
        if assigned is not None
    }
    overrides = {
        name: configs.readable_overrides(paths.topic_config(name), config.data)
        for name, config in zip(names, found[1::2], strict=True)
        if config is not None
    }
    tps = [
        TopicPartition(name, PartitionIndex(index))
        for name, assignment in assignments.items()
        for index in range(len(assignment.replicas))
    ]
    states = iter(store.get_many([paths.partition_state(tp) for tp in tps]))
    return {
        name: TopicState(name, assignment.topic_id, _partitions(name, assignment, states), overrides.get(name, {}))
        for name, assignment in assignments.items()
    }


def _partitions(
    name: TopicName, assignment: paths.TopicAssignment, states: Iterator[Versioned | None]
) -> tuple[PartitionState, ...]:
    """``states``: the values of the partitions' nodes, taken from in order."""
    partitions = []
    for index, replicas in enumerate(assignment.replicas):
        tp, found = TopicPartition(name, PartitionIndex(index)), next(states)
        partition = PartitionState(replicas)
        if found is not None:
            partition = paths.decode_partition_state(tp, found.data, found.version, replicas)
        if index in assignment.adding or index in assignment.removing:
            adding, removing = assignment.adding.get(index, ()), assignment.removing.get(index, ())
            partition = replace(partition, adding=adding, removing=removing)
        partitions.append(partition)
    return tuple(partitions)
