"""The two nodes of each committed offset, Kafka's and ours: what they hold, and which of them fit into one multi."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from raylog.coordination.metadata import group_paths, paths
from raylog.coordination.metadata.group_model import CommittedOffset
from raylog.coordination.store.node_json import CorruptMetadata
from raylog.coordination.store.port import Create, MetadataStore, Op, Set, StoreUnauthorized, Versioned, packed, size_of
from raylog.coordination.store.unreadable import readable, skipping, tell
from raylog.protocol.ids import NO_TOPIC_ID, GroupId, TopicId, TopicName, TopicPartition

MULTI_BYTES = 512 << 10
"""How much one multi may hold: half of what ZooKeeper takes (jute.maxbuffer), for there are the guards, too."""
MULTI_ITEMS = 1_000
"""So many offsets, of two operations each: more keep ZooKeeper from serving others for tens of milliseconds."""
_CLAIMED_BYTES = 980_000
_CLAIMED_AT_ONCE = 500
"""So many partitions an owner commits all or none; with metadata of 1 KB each they stay below the bytes."""

Nodes = Mapping[str, Versioned | StoreUnauthorized | None]
_CHECK_BYTES = 300
"""What the check of a topic takes, with its id beside an offset."""


class Stored(NamedTuple):
    """What stands written of one partition."""

    committed: CommittedOffset
    topic_id: TopicId
    """Of the topic that it was committed for; NO_TOPIC_ID: only its name is known."""


def pair(group: GroupId, tp: TopicPartition) -> tuple[str, str]:
    """Where one offset stands: Kafka's node and ours."""
    return group_paths.offset(group, tp), group_paths.detail(group, tp)


def pair_above(group: GroupId, topic: TopicName) -> tuple[str, str]:
    """The two nodes above those of a topic's offsets."""
    return group_paths.offsets_of_topic(group, topic), group_paths.details_of_topic(group, topic)


def missing_nodes(store: MetadataStore, group: GroupId, nodes: Iterable[str]) -> list[Op]:
    """What makes those of these nodes that are missing, with what is missing above.

    Never the group's own node, which would have no kind: where that is missing, the group was deleted.
    """
    wanted = set[str]()
    for node in nodes:
        while node not in (group_paths.CONSUMERS, group_paths.group(group)):
            wanted.add(node)
            node = node.rpartition("/")[0]
    ordered = sorted(wanted)
    return [Create(node) for node, found in zip(ordered, store.exists_many(ordered), strict=True) if found is None]


def read_nodes(store: MetadataStore, partitions: Iterable[tuple[GroupId, TopicPartition]]) -> Nodes:
    """The two nodes of each, in order."""
    nodes = [node for group, tp in partitions for node in pair(group, tp)]
    return dict(zip(nodes, store.get_each(nodes), strict=True)) if nodes else {}


def decode(group: GroupId, tp: TopicPartition, nodes: Nodes) -> Stored | None:
    """None: nothing was committed. Raises CorruptMetadata."""
    path, detail_path = pair(group, tp)
    number, detail = readable(nodes[path]), readable(nodes[detail_path])
    if number is None:
        return None
    found = group_paths.decode_committed(path, number.data, b"" if detail is None else detail.data)
    return None if found is None else Stored(*found)


def decode_all(
    group: GroupId, partitions: Iterable[TopicPartition], nodes: Nodes
) -> tuple[dict[TopicPartition, Stored], dict[TopicPartition, CorruptMetadata]]:
    """What stands written, where something does, and what of it cannot be read: that is told."""
    stored, unreadable = dict[TopicPartition, Stored](), dict[TopicPartition, CorruptMetadata]()
    for tp in partitions:
        try:
            if (found := decode(group, tp, nodes)) is not None:
                stored[tp] = found
        except CorruptMetadata as error:
            tell(error)
            unreadable[tp] = error
    return stored, unreadable


def read_stored(
    store: MetadataStore, group: GroupId, partitions: Sequence[TopicPartition]
) -> tuple[dict[TopicPartition, Stored], dict[TopicPartition, CorruptMetadata]]:
    """As :func:`decode_all`."""
    stored, unreadable = decode_all(group, partitions, read_nodes(store, ((group, tp) for tp in partitions)))
    torn = [tp for tp, found in stored.items() if found.topic_id == NO_TOPIC_ID]
    if torn:  # perhaps a commit came between the reads of the two nodes
        again, still_unreadable = decode_all(group, torn, read_nodes(store, ((group, tp) for tp in torn)))
        stored |= again
        unreadable |= still_unreadable
    return stored, unreadable


def counting(
    store: MetadataStore,
    group: GroupId,
    stored: Mapping[TopicPartition, Stored],
    topics: Mapping[TopicName, TopicId],
) -> list[TopicPartition]:
    """Those that are of the topics that there are now. ``topics``: what these are (see ``offsets``)."""
    of_there = {tp: each for tp, each in stored.items() if tp.topic in topics}
    named = [tp for tp, each in of_there.items() if each.topic_id == NO_TOPIC_ID]
    names = sorted({tp.topic for tp in named})
    numbers = dict(zip(named, store.exists_many([group_paths.offset(group, tp) for tp in named]), strict=True))
    made = dict(zip(names, store.exists_many([paths.topic(name) for name in names]), strict=True))

    def counts(tp: TopicPartition, found: Stored) -> bool:
        if found.topic_id != NO_TOPIC_ID:
            return found.topic_id == topics[tp.topic]
        number, topic = numbers[tp], made[tp.topic]
        return number is not None and topic is not None and number.changed > topic.created

    return [tp for tp, found in of_there.items() if counts(tp, found)]


def values(
    group: GroupId, offsets: Mapping[TopicPartition, CommittedOffset], topics: Mapping[TopicName, TopicId]
) -> dict[str, bytes]:
    """What each node is to hold, two for each offset, in order."""
    data: dict[str, bytes] = {}
    for tp, committed in offsets.items():
        node, detail_node = pair(group, tp)
        data[node] = group_paths.encode_offset(committed.offset)
        data[detail_node] = group_paths.encode_detail(committed, topics.get(tp.topic, NO_TOPIC_ID))
    return data


def partitions_below(store: MetadataStore, path: str) -> list[TopicPartition]:
    """Those that have a node there, each below that of its topic, in order."""
    partitions = []
    topics = store.children(path)
    indexes = store.children_many([f"{path}/{topic}" for topic in topics]) if topics else ()
    for topic, found in zip(topics, indexes, strict=True):
        for index in found:
            with skipping():
                partitions.append(group_paths.partition_named(topic, index, path))
    return sorted(partitions)


def parts_of_claimed(
    group: GroupId, offsets: Mapping[TopicPartition, CommittedOffset]
) -> Iterator[dict[TopicPartition, CommittedOffset]]:
    """What an owner commits, in order, each part for one multi."""

    def size(item: tuple[TopicPartition, CommittedOffset]) -> int:
        """With the check of a topic for each, which has no data."""
        written = values(group, dict([item]), {})
        return sum(size_of(Set(node, data)) for node, data in written.items()) + _CHECK_BYTES

    return map(dict, packed(offsets.items(), size, _CLAIMED_BYTES, _CLAIMED_AT_ONCE))
