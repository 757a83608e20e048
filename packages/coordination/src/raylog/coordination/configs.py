"""Dynamic overrides in the store: /config/topics/T, /config/brokers/B, and the notices that tell of a
change.
"""

from __future__ import annotations

from collections.abc import Mapping

from raylog.coordination.store import MetadataStore
from raylog.protocol.ids import TopicName

DEFAULT_BROKER = "<default>"


def topic_configs(store: MetadataStore, topic: TopicName) -> Mapping[str, str]:
    raise NotImplementedError


def broker_configs(store: MetadataStore, broker: str) -> Mapping[str, str]:
    """``broker`` is an id as text, or DEFAULT_BROKER for those that hold for all."""
    raise NotImplementedError


def write_topic_configs(store: MetadataStore, topic: TopicName, configs: Mapping[str, str]) -> None:
    """Replace all overrides and leave a notice below /config/changes, in one multi."""
    raise NotImplementedError


def write_broker_configs(store: MetadataStore, broker: str, configs: Mapping[str, str]) -> None:
    raise NotImplementedError
