"""What a handler may see: the request's context, and narrow ports to everything else.

A handler gets a :class:`RequestContext` (who asks, in which version) and the broker's :class:`Ports`. It
never sees the socket, ZooKeeper, Ray or another handler. The composition root (``broker.py``) fills the
ports; tests fill them with the smallest thing that keeps the contract.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeAlias

from raylog.broker.counters import Counters
from raylog.broker.handlers.awaited import Awaited
from raylog.broker.handlers.fetch_sessions import FetchSessions
from raylog.broker.handlers.group_port import Groups
from raylog.broker.partition.partition import Partition
from raylog.broker.replication.delayed import DelayedFetches
from raylog.broker.replication.delayed_operations import DelayedOperations
from raylog.broker.replication.quota import ReplicationQuota
from raylog.broker.storage.directories.log_dirs import LogDirs
from raylog.broker.storage.disk.slices import FileSlice
from raylog.coordination.controller.events import CreatedTopic, NewPartitions, NewReplicas, NewTopic
from raylog.coordination.metadata.configs import Change
from raylog.coordination.metadata.model import ClusterState
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import (
    BrokerId,
    MonotonicMs,
    ProducerId,
    TimestampMs,
    TopicId,
    TopicName,
    TopicPartition,
)
from raylog.protocol.settings import Settings

ANONYMOUS = "User:ANONYMOUS"
"""The principal of a connection that did not authenticate, spelt as in Kafka's ACLs."""


class Operation(StrEnum):
    """What a request does to a resource, in the words of Kafka's ACLs."""

    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    DELETE = "Delete"
    ALTER = "Alter"
    DESCRIBE = "Describe"
    DESCRIBE_CONFIGS = "DescribeConfigs"
    ALTER_CONFIGS = "AlterConfigs"
    IDEMPOTENT_WRITE = "IdempotentWrite"
    CLUSTER_ACTION = "ClusterAction"
    NONE = "None"


class Resource(StrEnum):
    """What an operation is done to."""

    TOPIC = "Topic"
    GROUP = "Group"
    CLUSTER = "Cluster"
    NONE = "None"


CLUSTER_NAME = "kafka-cluster"
"""The one resource of type CLUSTER, as in Kafka's ACLs."""


@dataclass(slots=True)
class Connection:
    """What stays the same from request to request of one client."""

    listener: str
    """The name of the listener that the client came through; replies name endpoints of the same listener."""
    host: str = ""
    """The address of the client's end."""
    principal: str = ANONYMOUS
    counters: Counters = field(default_factory=Counters)


@dataclass(slots=True)
class RequestContext:
    """One request: who sent it and in which version."""

    connection: Connection
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None = None
    may_wait: bool = True
    """Whether the thread that asks may wait for a disk. If not, the handler raises :class:`MustWait` where it would."""
    throttle_ms: int = 0
    """What the quota asks the client to wait; 0 while quotas are not built."""

    @property
    def principal(self) -> str:
        return self.connection.principal

    @property
    def listener(self) -> str:
        return self.connection.listener


class DelayedReply(Awaited):
    """A reply that waits for others: replicas, records, members of a group, the metadata store. The connection goes on
    with the next produce requests and sends replies in order.

    Its waiter calls :meth:`finish` once :meth:`is_over` said True, or :meth:`abandon`.
    """

    __slots__ = ()

    @abstractmethod
    def finish(self) -> bytes | Sequence[bytes | FileSlice]:
        """The response without its length prefix, whole or in wire order."""


Reply: TypeAlias = "bytes | Sequence[bytes | FileSlice] | DelayedReply | None"
"""A response without its length prefix, whole or in wire order; or one to come; or None: there is none (acks=0)."""


class MustWait(Exception):
    """The request has to wait for a disk, or takes long, and nothing was done yet: ask again where it may."""


class CloseConnection(Exception):
    """The connection must end, and the message says why: there is no response that could tell the client."""


class Partitions(Protocol):
    """The partitions that this broker has.

    A name that was looked up by a topic's id may be another topic's by now: who has an id gives it along.
    """

    def get(self, tp: TopicPartition, topic_id: TopicId | None = None) -> Partition:
        """The partition that this broker leads, of the topic with that id where one is given.

        Raises UnknownTopicOrPartition, UnknownTopicId when the topic of that name has another id,
        NotLeaderOrFollower when another broker leads it (or none), and StorageError when its log directory is offline.
        """

    def replica(self, tp: TopicPartition, topic_id: TopicId | None = None) -> Partition:
        """The partition that this broker leads or follows. Raises as :meth:`get`."""


class ClusterView(Protocol):
    """What this broker knows of the cluster: the newest state that the controller sent."""

    @property
    def broker_id(self) -> BrokerId: ...

    def state(self) -> ClusterState:
        """The state in force: immutable, replaced as a whole."""


class TopicAdmin(Protocol):
    """Creates, grows, moves and deletes topics when this broker is the controller.

    The calls raise NotController on another broker; what is wrong with one topic or partition is its result.
    """

    def create_topics(
        self, topics: Sequence[NewTopic], *, timeout_ms: int, validate_only: bool
    ) -> Sequence[CreatedTopic | RaylogError]:
        """One result per topic, in order, once the topics can be used or ``timeout_ms`` have passed.

        Errors in results: InvalidTopic, TopicAlreadyExists, InvalidPartitions, InvalidReplicationFactor,
        InvalidReplicaAssignment, InvalidConfig, RequestTimedOut.
        """

    def delete_topics(
        self, topics: Sequence[TopicName | TopicId], *, timeout_ms: int
    ) -> Sequence[TopicName | RaylogError]:
        """One result per topic, in order: its name or an error.

        Errors in results: UnknownTopicOrPartition, UnknownTopicId, RequestTimedOut.
        """

    def create_partitions(
        self, topics: Sequence[NewPartitions], *, timeout_ms: int, validate_only: bool
    ) -> Sequence[TopicName | RaylogError]:
        """One result per topic, in order: its name, once the new partitions can be used, or an error.

        Errors in results: UnknownTopicOrPartition, InvalidPartitions, InvalidReplicaAssignment, RequestTimedOut.
        """

    def elect_leaders(
        self, partitions: Sequence[TopicPartition], *, unclean: bool, timeout_ms: int
    ) -> Sequence[TopicPartition | RaylogError]:
        """One result per partition, in order. ``unclean``: where nobody leads, any live replica.

        Errors in results: ElectionNotNeeded, PreferredLeaderNotAvailable, EligibleLeadersNotAvailable,
        UnknownTopicOrPartition, RequestTimedOut.
        """

    def reassign(
        self, partitions: Sequence[NewReplicas], *, timeout_ms: int, allow_factor_change: bool
    ) -> Sequence[TopicPartition | RaylogError]:
        """One result per partition, in order, once its move is begun or cancelled.

        Errors in results: InvalidReplicaAssignment, InvalidReplicationFactor, NoReassignmentInProgress,
        UnknownTopicOrPartition, InvalidRequest, RequestTimedOut.
        """

    def auto_create(self, topics: Sequence[TopicName]) -> None:
        """Ask the controller, wherever it is, to create topics with default settings; does not wait or raise.

        A client that asks for metadata again will see what became of it.
        """


class ProducerIds(Protocol):
    """Gives each producer a number of its own in the whole cluster (KIP-98)."""

    def next_producer_id(self) -> ProducerId:
        """A producer id that was never given out.

        Raises CoordinatorNotAvailable when no block of ids can be had now.
        """


class ConfigView(Protocol):
    """The settings in force."""

    def broker(self) -> Settings:
        """This broker's."""

    def topic(self, topic: TopicName) -> Settings:
        """The topic's overrides over this broker's settings. Raises UnknownTopicOrPartition."""


class ConfigAdmin(Protocol):
    """Changes overrides in the metadata store, from any broker; all brokers will hear of it."""

    def alter_topic(self, topic: TopicName, change: Change, *, validate_only: bool) -> None:
        """Replace the topic's overrides by what ``change`` makes of them.

        Raises UnknownTopicOrPartition, RequestTimedOut when the store does not answer, and what ``change`` raises.
        """

    def alter_broker(self, broker: str, change: Change, *, validate_only: bool) -> None:
        """The same for a broker's overrides, by its id as text, or for those of all brokers (DEFAULT_BROKER).

        Raises InvalidRequest when it is no id, BrokerNotAvailable when no broker ever had it, RequestTimedOut.
        """


class Lease(Protocol):
    """Whether this broker may still act as an owner (D9c): asked before work begins and before it is answered."""

    def check(self) -> None:
        """Raises NotLeaderOrFollower when the lease has lapsed: a newer owner may be at work."""


class Authorizer(Protocol):
    """Decides who may do what. Rules come with ACLs; until then everybody may do everything."""

    def allows(self, ctx: RequestContext, operation: Operation, resource: Resource, name: str) -> bool: ...


class AllowAll:
    """The trivial authorizer."""

    def allows(self, ctx: RequestContext, operation: Operation, resource: Resource, name: str) -> bool:
        return True


@dataclass(slots=True)
class Ports:
    """Everything that handlers may use."""

    partitions: Partitions
    cluster: ClusterView
    topics: TopicAdmin
    producer_ids: ProducerIds
    configs: ConfigView
    config_admin: ConfigAdmin
    lease: Lease
    groups: Groups
    delayed: DelayedFetches
    produces: DelayedOperations
    deletes: DelayedOperations
    leader_quota: ReplicationQuota
    """leader.replication.throttled.rate: what followers that catch up take from here."""
    fetch_sessions: FetchSessions
    log_dirs: LogDirs
    wall_ms: Callable[[], TimestampMs]
    """The clock of record timestamps, which may be set."""
    monotonic_ms: Callable[[], MonotonicMs]
    """The clock by which something lasts or is over."""
    authorizer: Authorizer = field(default_factory=AllowAll)
