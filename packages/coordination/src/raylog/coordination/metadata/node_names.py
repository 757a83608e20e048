"""What the names of nodes say; each function raises CorruptMetadata for one that says nothing."""

from __future__ import annotations

from raylog.coordination.metadata.paths import BROKER_IDS, BROKER_TOPICS, CONFIG_BROKERS, DEFAULT_BROKER, TOPIC_IDS
from raylog.coordination.metadata.topic_names import is_topic_name
from raylog.coordination.store.node_json import INT32, CorruptMetadata, Reading, decimal, decode_topic_id
from raylog.protocol.ids import BrokerId, TopicId, TopicName


def broker_named(name: str, below: str = BROKER_IDS) -> BrokerId:
    """The broker whose node this is."""
    with Reading(f"{below}/{name}"):
        return BrokerId(decimal(name, 0, INT32))


def topic_named(name: str, below: str = BROKER_TOPICS) -> TopicName:
    """The topic whose node this is."""
    if not is_topic_name(name):
        raise CorruptMetadata(f"{below}/{name}", "is named as no topic can be")
    return TopicName(name)


def topic_id_named(name: str) -> TopicId:
    """The topic id whose node this is."""
    with Reading(f"{TOPIC_IDS}/{name}"):
        return TopicId(decode_topic_id(name))


def configured_broker(name: str, below: str = CONFIG_BROKERS) -> str:
    """The broker whose overrides these are, as text, or DEFAULT_BROKER."""
    return name if name == DEFAULT_BROKER else str(broker_named(name, below))
