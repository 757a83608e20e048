"""What consumers say to each other through their group's coordinator: subscriptions and assignments.

For the coordinator these are bytes; in groups of the protocol type ``consumer`` they are a version and a message, which
begins in the same way in all versions (KIP-429, KIP-792 and KIP-881 only added at the end). So every version is read
here, as far as that goes, and what is written is version 0, which every client reads. Malformed bytes raise
InvalidRequest: they come from whoever joined the group.
"""

from __future__ import annotations

from collections.abc import Iterable

from raylog.protocol.batches.compression import Buffer
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition
from raylog.protocol.wire.primitives import INT16, INT32, Reader, Writer

__all__ = [
    "PROTOCOL_TYPE",
    "assigned_partitions",
    "encode_assignment",
    "encode_subscription",
    "subscribed_topics",
]

PROTOCOL_TYPE = "consumer"
"""The protocol type of groups whose members speak so; others, such as Kafka Connect's, have messages of their own."""


def encode_subscription(topics: Iterable[str]) -> bytes:
    """What a member says it wants to read when it joins."""
    writer = Writer(flexible=False)
    writer.pack(INT16, 0)
    writer.array(sorted(topics), writer.string)
    writer.pack(INT32, -1)  # no user data
    return b"".join(writer.parts())


def subscribed_topics(subscription: Buffer) -> frozenset[TopicName]:
    """The topics that a member wants to read."""
    reader = _begin(subscription)
    return frozenset(reader.array(lambda: TopicName(reader.string())))


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """What a member is told to read."""
    topics: dict[TopicName, list[PartitionIndex]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    writer = Writer(flexible=False)
    writer.pack(INT16, 0)

    def write_topic(topic: TopicName) -> None:
        writer.string(topic)
        writer.array(topics[topic], lambda partition: writer.pack_item(INT32, partition))

    writer.array(list(topics), write_topic)
    writer.pack(INT32, -1)  # no user data
    return b"".join(writer.parts())


def assigned_partitions(assignment: Buffer) -> frozenset[TopicPartition]:
    """The partitions that a member reads; none while it waits for its first assignment, which is no bytes at all."""
    if not len(assignment):
        return frozenset()
    reader = _begin(assignment)

    def read_topic() -> list[TopicPartition]:
        topic = TopicName(reader.string())
        return reader.array(lambda: TopicPartition(topic, PartitionIndex(reader.int32())))

    return frozenset(tp for topic in reader.array(read_topic) for tp in topic)


def _begin(data: Buffer) -> Reader:
    reader = Reader(data, flexible=False)
    (version,) = reader.unpack(INT16)
    if version < 0:
        raise reader.error(f"a consumer's message has version {version}; versions begin at 0")
    return reader
