"""Which topic has a name now, and how a write is refused once that topic is deleted.

Every topic that a controller makes has a node for its id (``paths.topic_id``), made in the same multi as the topic and
deleted before it. The controller makes one that is missing and removes one that no topic has, whenever it reads
everything. An id does not come again, so a write that checks this node cannot reach another topic of the name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from raylog.coordination.metadata import paths
from raylog.coordination.metadata.model import ClusterState, TopicState
from raylog.coordination.metadata.topic_names import is_topic_name
from raylog.coordination.store.node_json import CorruptMetadata
from raylog.coordination.store.port import Check, MetadataStore, StoreError
from raylog.coordination.store.unreadable import readable, tell
from raylog.protocol.ids import NO_TOPIC_ID, TopicId, TopicName

__all__ = [
    "OddIds",
    "PresentTopics",
    "TopicGone",
    "check_topic",
    "odd_ids",
    "present_topics",
]


class TopicGone(StoreError):
    """The topic that a write was for is deleted; another may have its name. Nothing was written."""


class PresentTopics(NamedTuple):
    """Topics that exist, as they were read."""

    ids: Mapping[TopicName, TopicId]
    """NO_TOPIC_ID of one that an old tool made."""
    unreadable: Mapping[TopicName, CorruptMetadata]
    """Nobody knows which topics these are."""


def present_topics(store: MetadataStore, names: Iterable[TopicName]) -> PresentTopics:
    """Those of these names that exist; what cannot be read is told."""
    asked = [name for name in sorted(set(names)) if is_topic_name(name)]
    found = store.get_each([paths.topic(name) for name in asked]) if asked else []
    ids, unreadable = dict[TopicName, TopicId](), dict[TopicName, CorruptMetadata]()
    for name, node in zip(asked, found, strict=True):
        try:
            if (there := readable(node)) is not None:
                ids[name] = paths.decode_topic(name, there.data).topic_id
        except CorruptMetadata as error:
            tell(error)
            unreadable[name] = error
    return PresentTopics(ids, unreadable)


def check_topic(topic_id: TopicId) -> tuple[Check, ...]:
    """The operation that fails with NoNode in a multi once the topic is deleted; none for a topic without an id."""
    return () if topic_id == NO_TOPIC_ID else (Check(paths.topic_id(topic_id), 0),)


class OddIds(NamedTuple):
    """Where topics and the nodes of their ids do not agree."""

    missing: tuple[TopicState, ...]
    """Have an id and no node for it: nobody can commit offsets of them."""
    left: tuple[TopicId, ...]
    """Have a node, and no topic has them."""


def odd_ids(state: ClusterState, stored: Mapping[TopicId, TopicName]) -> OddIds:
    """``stored``: the nodes that are there, with the topics' names. A topic that cannot be read keeps its id."""
    named = {topic.id: topic for topic in state.topics.values() if topic.id != NO_TOPIC_ID}
    left = stored.keys() - named.keys()
    return OddIds(
        tuple(topic for topic_id, topic in named.items() if topic_id not in stored),
        tuple(sorted(each for each in left if stored[each] not in state.unreadable)),
    )
