"""What the controller's core takes in and gives out: events and effects, all of them values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from raylog.coordination.control.peer_control import Ack, UpdateState
from raylog.coordination.control.proposals import Proposal, ProposalAnswer
from raylog.coordination.metadata.model import NO_CONTROLLER_EPOCH, BrokerInfo, ClusterState
from raylog.coordination.store.port import Op, StoreError
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import (
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    MonotonicMs,
    TopicId,
    TopicName,
    TopicPartition,
)


@dataclass(frozen=True, slots=True)
class NewTopic:
    """One topic of a CreateTopics request."""

    name: TopicName
    partitions: int = -1
    """-1: as the broker's num.partitions says."""
    replication_factor: int = -1
    """-1: as the broker's default.replication.factor says."""
    assignments: Mapping[int, tuple[BrokerId, ...]] | None = None
    """Replicas by partition, chosen by hand; then the two numbers above are -1."""
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """One topic of a CreatePartitions request."""

    name: TopicName
    count: int
    """How many partitions the topic is to have in all."""
    assignments: tuple[tuple[BrokerId, ...], ...] | None = None
    """Replicas of the new partitions, chosen by hand."""


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    """What a topic gets that is made without these numbers."""

    partitions: int = 1
    replication_factor: int = 1


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """What a CreateTopics answers for a topic that was (or, validated only, would be) made."""

    name: TopicName
    id: TopicId
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NewReplicas:
    """One partition of an AlterPartitionReassignments request."""

    tp: TopicPartition
    replicas: tuple[BrokerId, ...] | None
    """Those that it is to have at the end, the preferred leader first; None: cancel what is under way."""


@dataclass(frozen=True, slots=True)
class Rebalance:
    """When partitions are led by their preferred replicas again: auto.leader.rebalance.enable and
    leader.imbalance.{per.broker.percentage, check.interval.seconds}.
    """

    is_enabled: bool = True
    percentage: int = 10
    """Of what a broker is preferred for: when others lead more of it than this, it leads again."""
    interval_ms: int = 300_000


# --- events


@dataclass(frozen=True, slots=True)
class Elected:
    """This broker won the election; ``state`` is all that the store holds (``snapshot.load``)."""

    controller_id: BrokerId
    epoch: ControllerEpoch
    epoch_version: int
    """The version of /controller_epoch, which every write checks."""
    state: ClusterState
    deleting: frozenset[TopicName] = frozenset()
    """Topics with a node below /admin/delete_topics."""
    notices: tuple[str, ...] = ()
    """Config notices that were there before ``state`` was read, which holds what they tell of."""
    ids: Mapping[TopicId, TopicName] = field(default_factory=dict)
    """The nodes of topics' ids that are there, with the names of the topics that they were made for."""
    told: ClusterState = field(default_factory=ClusterState)
    """What this broker heard last from the controllers before: more than stands there where a node was deleted."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The store was read again: as a Reload asked, or because another program changed topics."""

    state: ClusterState
    deleting: frozenset[TopicName] = frozenset()
    ids: Mapping[TopicId, TopicName] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Deposed:
    """Another controller was elected, or the session was lost."""


@dataclass(frozen=True, slots=True)
class BrokersChanged:
    """The registered brokers, all of them."""

    brokers: Mapping[BrokerId, BrokerInfo]


@dataclass(frozen=True, slots=True)
class TopicCreateRequested:
    """``token`` comes back in the Reply. ``ids`` gives a fresh topic id for each topic."""

    token: object
    topics: tuple[NewTopic, ...]
    ids: tuple[TopicId, ...]
    deadline_ms: MonotonicMs
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class TopicDeleteRequested:
    token: object
    topics: tuple[TopicName | TopicId, ...]
    deadline_ms: MonotonicMs


@dataclass(frozen=True, slots=True)
class PartitionsCreateRequested:
    token: object
    topics: tuple[NewPartitions, ...]
    deadline_ms: MonotonicMs
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class ElectionRequested:
    """ElectLeaders (KIP-460): the preferred replica leads, or with ``unclean``, where nobody leads, any live one."""

    token: object
    partitions: tuple[TopicPartition, ...]
    deadline_ms: MonotonicMs
    unclean: bool = False


@dataclass(frozen=True, slots=True)
class ReassignmentRequested:
    """AlterPartitionReassignments (KIP-455). Answered once begun or cancelled, not once complete."""

    token: object
    partitions: tuple[NewReplicas, ...]
    deadline_ms: MonotonicMs
    allow_factor_change: bool = True
    """False: refuse another number of replicas than there is (KIP-860)."""


@dataclass(frozen=True, slots=True)
class Proposed:
    """A broker asks for a change. ``token`` comes back in the Answer; also when this is no controller."""

    token: object
    proposal: Proposal


@dataclass(frozen=True, slots=True)
class Fence:
    """This incarnation of a broker is dead by all signs (D9): end it. A wrong sign costs it a new registration."""

    broker_id: BrokerId
    epoch: BrokerEpoch


@dataclass(frozen=True, slots=True)
class ConfigChanged:
    """Somebody changed the overrides of a topic (``topic``) or of a broker (``broker``, or "<default>")."""

    configs: Mapping[str, str]
    topic: TopicName | None = None
    broker: str | None = None


@dataclass(frozen=True, slots=True)
class NoticesRead:
    """These config notices were read, and what they tell of was told (ConfigChanged): they can be removed."""

    notices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """The Write or Remove with this token was carried out."""

    token: int


@dataclass(frozen=True, slots=True)
class WriteFailed:
    token: int
    error: StoreError


@dataclass(frozen=True, slots=True)
class Acked:
    ack: Ack


@dataclass(frozen=True, slots=True)
class SendFailed:
    """The message to the broker was not answered: it may have arrived or not."""

    broker_id: BrokerId
    sequence: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passes: resend, and answer requests whose deadline is over. Several times a second."""

    now_ms: MonotonicMs


Event = (
    Elected
    | Loaded
    | Deposed
    | BrokersChanged
    | TopicCreateRequested
    | TopicDeleteRequested
    | PartitionsCreateRequested
    | ElectionRequested
    | ReassignmentRequested
    | Proposed
    | Fence
    | ConfigChanged
    | NoticesRead
    | Written
    | WriteFailed
    | Acked
    | SendFailed
    | Tick
)

# --- effects

Result = CreatedTopic | TopicName | TopicPartition | RaylogError
"""What became of one topic or partition of a request."""


@dataclass(frozen=True, slots=True)
class Write:
    """Carry out these multis in order, stop at the first that fails; answer Written or WriteFailed."""

    token: int
    multis: tuple[tuple[Op, ...], ...]


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove these nodes in order, each with all that is below it, in multis that begin with ``checks``
    (``trees.delete_tree``); answer Written or WriteFailed.
    """

    token: int
    nodes: tuple[str, ...]
    checks: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class Send:
    """Send to the broker; answer Acked or SendFailed."""

    broker_id: BrokerId
    message: UpdateState


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a request: per topic or partition, in the order asked."""

    token: object
    results: tuple[Result, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to what a broker proposed."""

    token: object
    answer: ProposalAnswer


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that people must hear of: log it as a warning."""

    text: str
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Reload:
    """Read everything from the store again and answer Loaded; try until it succeeds, or until Deposed."""


@dataclass(frozen=True, slots=True)
class StepDown:
    """A write was fenced: this controller is deposed. Wait for the next election."""

    heard: ControllerEpoch = NO_CONTROLLER_EPOCH
    """The epoch of another controller that a broker has heard of."""


@dataclass(frozen=True, slots=True)
class Resign:
    """Give the office up, and let another controller be elected for a while."""

    reason: str


Wanted = Write | Remove
"""What a job asks of the store."""
Effect = Write | Remove | Send | Reply | Answer | Notice | Reload | StepDown | Resign
