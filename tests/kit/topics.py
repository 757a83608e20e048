"""Topics as a controller makes them in the metadata store, for tests without one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from uuid import uuid4

from raylog.coordination.groups.offsets import RegistryOffsetStore
from raylog.coordination.metadata import paths
from raylog.coordination.store.port import MetadataStore, Op
from raylog.protocol.ids import BrokerId, GroupId, TopicId, TopicName, TopicPartition


def put_topic(store: MetadataStore, name: str, partitions: int = 1, new_id: TopicId | None = None) -> TopicId:
    """A topic of that name with so many partitions, which exists already or is new; its id."""
    topic, node = TopicName(name), paths.topic(TopicName(name))
    found = store.get(node)
    topic_id = new_id or TopicId(uuid4())
    if found is not None:
        topic_id = paths.decode_topic(topic, found.data).topic_id
    data = paths.encode_topic(paths.TopicAssignment(topic_id, ((BrokerId(1),),) * partitions))
    if found is None:
        store.create(paths.topic_id(topic_id), parents=True)
        store.create(node, data, parents=True)
    else:
        store.set(node, data)
    return topic_id


def drop_topic(store: MetadataStore, name: str) -> None:
    """As the last steps of its deletion do."""
    node = paths.topic(TopicName(name))
    found = store.get(node)
    assert found is not None
    store.delete(paths.topic_id(paths.decode_topic(TopicName(name), found.data).topic_id))
    store.delete(node)


def replace_topic(store: MetadataStore, name: str, partitions: int = 1) -> TopicId:
    """Deleted and made anew under its name; the new id."""
    drop_topic(store, name)
    return put_topic(store, name, partitions)


def forget_offsets(
    offsets: RegistryOffsetStore, group: GroupId, partitions: Iterable[TopicPartition], guards: Sequence[Op]
) -> None:
    """Whatever was committed for them."""
    seen = offsets.look(group, list(partitions))
    offsets.forget(group, seen, seen.partitions, guards)


def stored_configs(store: MetadataStore, path: str) -> Mapping[str, str]:
    """The overrides of a topic or a broker, as they are in the node at ``path``."""
    found = store.get(path)
    return paths.decode_config(path, found.data) if found is not None and found.data else {}
