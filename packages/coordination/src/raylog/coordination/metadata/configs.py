"""Dynamic overrides in the store: /config/topics/T, /config/brokers/B, and the notices that tell of a change.

A notice below /config/changes names the entity. The controller reads it, tells the brokers and removes it, by a write
that checks its epoch as any other of its writes: a replaced controller leaves the notice to the next one.

Overrides that cannot be read count as they were known before. Where they never were (a controller that takes office),
those in UNKNOWN_TOPIC and UNKNOWN_BROKER stand for them: nothing is deleted by a default that they may have excluded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from raylog.coordination.metadata import node_names, paths
from raylog.coordination.metadata.model import ClusterState
from raylog.coordination.metadata.paths import DEFAULT_BROKER as DEFAULT_BROKER
from raylog.coordination.metadata.topic_ids import check_topic, present_topics
from raylog.coordination.store.port import (
    BadVersion,
    Create,
    EventSink,
    MetadataReader,
    MetadataStore,
    NoNode,
    Set,
    StoreUnauthorized,
    Versioned,
)
from raylog.coordination.store.unreadable import readable, skipping, tell
from raylog.protocol.errors import InvalidConfig
from raylog.protocol.ids import NO_TOPIC_ID, TopicName

Change = Callable[[Mapping[str, str]], Mapping[str, str]]
"""From the overrides as they are to those that are wanted. It may be called more than once, and may raise."""


UNKNOWN_TOPIC: Mapping[str, str] = MappingProxyType({"retention.ms": "-1", "retention.bytes": "-1"})
"""In place of a topic's overrides that cannot be read: nothing is deleted."""
UNKNOWN_BROKER: Mapping[str, str] = MappingProxyType({"log.retention.ms": "-1", "log.retention.bytes": "-1"})
"""In place of a broker's, or all brokers', overrides that cannot be read."""


MAX_OVERRIDES_BYTES = 400_000
"""Of a topic, or of a broker: they are one node, written with others, in a store that takes 1 MB at once."""


def check_overrides_size(overrides: Mapping[str, str]) -> None:
    """Raises InvalidConfig when all overrides of a topic, or of a broker, cannot be stored together."""
    size = len(paths.encode_config(overrides))
    if size > MAX_OVERRIDES_BYTES:
        raise InvalidConfig(
            f"the overrides take {size} bytes, and {MAX_OVERRIDES_BYTES} can be stored: shorten the longest"
        )


class ConfigChange(NamedTuple):
    """The overrides now in force of a topic or of a broker (the other one is None)."""

    topic: TopicName | None
    broker: str | None
    configs: Mapping[str, str]


def _decoded(path: str, data: bytes) -> Mapping[str, str]:
    return paths.decode_config(path, data) if data else {}


def readable_overrides(
    path: str, found: Versioned | StoreUnauthorized | None, unknown: Mapping[str, str]
) -> Mapping[str, str]:
    """The overrides that a node holds; ``unknown``, that very object, when they cannot be read."""
    try:
        node = readable(found)
        return {} if node is None else _decoded(path, node.data)
    except paths.CorruptMetadata as error:
        tell(error)
        return unknown


def with_known_overrides(read: ClusterState, before: ClusterState) -> ClusterState:
    """What was ``read``, with the overrides that were known ``before`` in place of those that cannot be read."""
    topics = [
        replace(topic, configs=old.configs)
        for topic in read.topics.values()
        if topic.configs is UNKNOWN_TOPIC and (old := before.topics.get(topic.name)) and old.id == topic.id
    ]
    brokers = {
        name: before.broker_configs.get(name, found) if found is UNKNOWN_BROKER else found
        for name, found in read.broker_configs.items()
    }
    return read.with_topics(*topics).changed(broker_configs=brokers)


def all_broker_configs(store: MetadataReader) -> dict[str, Mapping[str, str]]:
    """The overrides of each broker that has some, and of all (DEFAULT_BROKER)."""
    brokers = []
    for name in store.children(paths.CONFIG_BROKERS):
        with skipping():
            brokers.append(node_names.configured_broker(name))
    nodes = [*map(paths.broker_config, brokers)]
    return {
        broker: readable_overrides(path, found, UNKNOWN_BROKER)
        for broker, path, found in zip(brokers, nodes, store.get_each(nodes), strict=True)
    }


def alter_topic_configs(
    store: MetadataStore, topic: TopicName, change: Change, known: Mapping[str, str] = UNKNOWN_TOPIC
) -> Mapping[str, str]:
    """Change a topic's overrides and leave a notice, in one multi; the overrides now in force. ``known``: those that
    are changed where the node cannot be read.

    NoNode when there is no such topic.
    """
    return _alter(store, paths.topic_config(topic), f"topics/{topic}", change, known, topic)


def alter_broker_configs(
    store: MetadataStore, broker: str, change: Change, known: Mapping[str, str] = UNKNOWN_BROKER
) -> Mapping[str, str]:
    """Change the overrides of a broker, or of all (DEFAULT_BROKER), as :func:`alter_topic_configs`."""
    path = paths.broker_config(broker)
    store.ensure(path)
    return _alter(store, path, f"brokers/{broker}", change, known)


def _alter(
    store: MetadataStore,
    path: str,
    entity: str,
    change: Change,
    known: Mapping[str, str],
    topic: TopicName | None = None,
) -> Mapping[str, str]:
    """Compare and set: when somebody else wrote meanwhile, ``change`` is applied to what they wrote.

    A node that was deleted and made anew has its old version: what was read of one ``topic`` is not for the next.
    """
    while True:
        guards = () if topic is None else check_topic(present_topics(store, [topic]).ids.get(topic, NO_TOPIC_ID))
        found = store.get(path)
        if found is None:
            raise NoNode(f"{path} does not exist", path)
        old = readable_overrides(path, found, known)
        new = change(old)
        if new == old and old is not known:  # what cannot be read is written anew
            return old
        notice = Create(paths.CONFIG_CHANGE_PREFIX, paths.encode_config_change(entity), sequence=True)
        try:
            store.multi([*guards, Set(path, paths.encode_config(new), found.version), notice])
            return new
        except (BadVersion, NoNode) as error:
            if isinstance(error, NoNode) and error.index >= len(guards):
                raise


class Changes(NamedTuple):
    """What notices tell of."""

    changes: tuple[ConfigChange, ...]
    notices: tuple[str, ...]
    """The paths of all notices that were read: to be removed once the changes are taken in."""


def read_changes(store: MetadataReader, watch: EventSink | None = None) -> Changes:
    """What the notices that are there tell of; watches for more. Three round trips, for any number of them."""
    notices = tuple(f"{paths.CONFIG_CHANGES}/{name}" for name in store.children(paths.CONFIG_CHANGES, watch))
    entities: dict[str, _Entity] = {}
    for path, notice in zip(notices, store.get_each(notices), strict=True):
        with skipping():
            if (told := readable(notice)) is not None:
                node, entity = _entity(path, told.data)
                entities[node] = entity
    changes = []
    for (node, entity), found in zip(entities.items(), store.get_each([*entities]), strict=True):
        with skipping():
            value = readable(found)
            changes.append(ConfigChange(*entity, {} if value is None else _decoded(node, value.data)))
    return Changes(tuple(changes), notices)


_Entity = tuple[TopicName | None, str | None]
"""A topic, or a broker."""


def _entity(path: str, notice: bytes) -> tuple[str, _Entity]:
    """What a notice is about, after the node of its overrides."""
    kind, _, entity = paths.decode_config_change(path, notice).partition("/")
    if kind == "topics":
        topic = node_names.topic_named(entity, path)
        return paths.topic_config(topic), (topic, None)
    if kind == "brokers":
        broker = node_names.configured_broker(entity, path)
        return paths.broker_config(broker), (None, broker)
    raise paths.CorruptMetadata(path, f"is about {kind!r:.80}, which nothing depends on")
