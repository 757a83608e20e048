"""Dynamic overrides in the store: /config/topics/T, /config/brokers/B, and the notices that tell of a change.

A notice below /config/changes names the entity. The controller reads it, tells the brokers and removes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from raylog.coordination import paths
from raylog.coordination.store import Create, EventSink, MetadataStore, NoNode, Set
from raylog.protocol.ids import TopicName

DEFAULT_BROKER = "<default>"
"""In place of a broker's id: the overrides that hold for all brokers."""


class ConfigChange(NamedTuple):
    """The overrides now in force of a topic or of a broker (the other one is None)."""

    topic: TopicName | None
    broker: str | None
    configs: Mapping[str, str]


def topic_configs(store: MetadataStore, topic: TopicName) -> Mapping[str, str]:
    """The topic's overrides, as text."""
    return _read(store, paths.topic_config(topic))


def broker_configs(store: MetadataStore, broker: str) -> Mapping[str, str]:
    """The overrides of a broker (its id as text), or of all (DEFAULT_BROKER)."""
    return _read(store, paths.broker_config(broker))


def _read(store: MetadataStore, path: str) -> Mapping[str, str]:
    found = store.get(path)
    return {} if found is None or not found.data else paths.decode_config(path, found.data)


def write_topic_configs(store: MetadataStore, topic: TopicName, configs: Mapping[str, str]) -> None:
    """Replace all overrides and leave a notice, in one multi; NoNode when there is no such topic."""
    _write(store, paths.topic_config(topic), f"topics/{topic}", configs)


def write_broker_configs(store: MetadataStore, broker: str, configs: Mapping[str, str]) -> None:
    """Replace all overrides of a broker, or of all (DEFAULT_BROKER), and leave a notice, in one multi."""
    store.ensure(paths.broker_config(broker))
    _write(store, paths.broker_config(broker), f"brokers/{broker}", configs)


def _write(store: MetadataStore, path: str, entity: str, configs: Mapping[str, str]) -> None:
    store.multi(
        [
            Set(path, paths.encode_config(configs)),
            Create(paths.CONFIG_CHANGE_PREFIX, paths.encode_config_change(entity), sequence=True),
        ]
    )


def take_changes(store: MetadataStore, watch: EventSink | None = None) -> list[ConfigChange]:
    """What changed since the last call; watches for more. For the controller: it removes the notices it read."""
    changes: dict[str, ConfigChange] = {}
    for name in store.children(paths.CONFIG_CHANGES, watch):
        path = f"{paths.CONFIG_CHANGES}/{name}"
        found = store.get(path)
        if found is None:
            continue
        kind, _, entity = paths.decode_config_change(path, found.data).partition("/")
        if kind == "topics":
            topic = TopicName(entity)
            changes[f"{kind}/{entity}"] = ConfigChange(topic, None, topic_configs(store, topic))
        elif kind == "brokers":
            changes[f"{kind}/{entity}"] = ConfigChange(None, entity, broker_configs(store, entity))
        try:
            store.delete(path)
        except NoNode:
            pass  # a controller that is being deposed took it, too
    return list(changes.values())
