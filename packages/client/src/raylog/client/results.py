"""◆ What the client hands to its user: records, offsets and descriptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from raylog.protocol.batches.rows import Headers, NewRow
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import (
    BrokerId,
    GroupId,
    InstanceId,
    LeaderEpoch,
    MemberId,
    Offset,
    PartitionIndex,
    TimestampMs,
    TopicId,
    TopicName,
    TopicPartition,
)


class RecordMetadata(NamedTuple):
    """Where a record landed. ``offset`` is -1 when the broker didn't say (acks=0, or an old duplicate)."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds: the broker's time for a topic that stamps on append, else the record's own."""


class ConsumerRecord(NamedTuple):
    """One record as it was read. ``headers`` keep their order and may repeat a key."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    """0: the producer's time. 1: the broker's, on append."""
    key: Any
    value: Any
    headers: Sequence[tuple[str, bytes | None]]


def new_record(tp: TopicPartition, timestamp_type: int) -> NewRow[ConsumerRecord]:
    """What makes the records of a batch of ``tp``, keys and values as bytes."""
    topic, partition = tp
    new, kind = tuple.__new__, ConsumerRecord

    def make(value: bytes | None, key: bytes | None, headers: Headers, timestamp: int, offset: int) -> ConsumerRecord:
        return new(kind, (topic, partition, offset, timestamp, timestamp_type, key, value, headers))

    return make


class OffsetAndTimestamp(NamedTuple):
    """An answer to an offset query; offset -1 when no record fits the timestamp."""

    offset: Offset
    timestamp: TimestampMs
    leader_epoch: LeaderEpoch


class PartitionDescription(NamedTuple):
    """One partition as the cluster's metadata tells it. ``leader`` is -1 while nobody leads."""

    partition: PartitionIndex
    leader: BrokerId
    leader_epoch: LeaderEpoch
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]


class TopicDescription(NamedTuple):
    """One topic as the cluster's metadata tells it; partitions by index, from 0."""

    name: TopicName
    topic_id: TopicId
    partitions: tuple[PartitionDescription, ...]
    is_internal: bool = False


class BrokerDescription(NamedTuple):
    """One live broker and where its clients connect."""

    broker_id: BrokerId
    host: str
    port: int
    rack: str | None


class ClusterDescription(NamedTuple):
    cluster_id: str
    controller: BrokerId
    brokers: tuple[BrokerDescription, ...]


class PartitionReassignment(NamedTuple):
    """A partition that is being moved to other replicas (KIP-455)."""

    replicas: tuple[BrokerId, ...]
    """All that it has now: the wanted ones, the preferred leader first, and then those that are to go."""
    adding_replicas: tuple[BrokerId, ...]
    removing_replicas: tuple[BrokerId, ...]

    @property
    def target(self) -> tuple[BrokerId, ...]:
        """The replicas that it is to have at the end."""
        return tuple(broker for broker in self.replicas if broker not in self.removing_replicas)

    @property
    def origin(self) -> tuple[BrokerId, ...]:
        """The replicas that it had at the beginning, and has again if the move is cancelled."""
        return tuple(broker for broker in self.replicas if broker not in self.adding_replicas)


class ConfigEntry(NamedTuple):
    """One setting of a topic or broker; ``value`` is None when it is sensitive, or unset."""

    name: str
    value: str | None
    is_default: bool
    is_read_only: bool
    source: str
    synonyms: Mapping[str, str | None]
    is_sensitive: bool = False
    type: str = "unknown"
    """Kafka's name of the value's type: boolean, string, int, long, list, …"""
    documentation: str | None = None


class ReplicaSize(NamedTuple):
    """What one replica takes in a log directory."""

    size_bytes: int
    offset_lag: int
    """How many offsets its log is behind the high watermark, or a replica that will replace another behind that one."""
    is_future: bool


class LogDirDescription(NamedTuple):
    """One log directory of a broker. ``error`` tells why it is offline; its replicas are then unknown."""

    path: str
    error: RaylogError | None
    total_bytes: int
    """Of the disk that it lies on; -1 when the broker can't tell."""
    usable_bytes: int
    replicas: Mapping[TopicPartition, ReplicaSize]


class ProducerDescription(NamedTuple):
    """What a partition remembers of one idempotent or transactional producer; -1 is nothing."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    """When it last appended, in ms."""
    coordinator_epoch: int
    transaction_start: int
    """The first offset of its open transaction."""


class GroupListing(NamedTuple):
    """A consumer group in the list of all."""

    group_id: GroupId
    state: str
    """Kafka's words: Empty, PreparingRebalance, CompletingRebalance, Stable."""
    protocol_type: str
    """``consumer``; another word for groups of other kinds of members, and nothing where nobody ever joined."""


class MemberDescription(NamedTuple):
    """A consumer group's member. What members of another protocol type than ``consumer`` read, only they know."""

    member_id: MemberId
    group_instance_id: InstanceId | None
    """Of a static member (KIP-345)."""
    client_id: str
    host: str
    topics: tuple[TopicName, ...]
    """What it wants to read; none while that is not known."""
    assignment: tuple[TopicPartition, ...]
    """What it reads."""


class GroupDescription(NamedTuple):
    """A consumer group; members by id."""

    group_id: GroupId
    state: str
    protocol_type: str
    protocol: str
    """The way of assigning partitions, such as ``range``; nothing while there are no members."""
    coordinator: BrokerId
    members: tuple[MemberDescription, ...]
