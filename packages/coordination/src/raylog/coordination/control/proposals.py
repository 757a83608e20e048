"""What brokers ask of the controller over ``PeerControl.propose``, and what it answers.

A partition's leader proposes who is in sync (KIP-497, AlterPartition in Kafka); any broker says which of its replicas
lost their disk or are damaged, and asks to be drained before it stops. Each message may come late, twice, or to a
controller that is none any more: it names the incarnation, leader epoch and version that it is about, and an answer
brings the partition's state as it is now. The bytes are ``control.codec``'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, Self

from raylog.coordination.control.codec import (
    kind_of,
    number,
    of,
    pack,
    pack_partition,
    read,
    text,
    unpack,
    unpack_partition,
    uuid,
)
from raylog.coordination.metadata.model import PartitionState
from raylog.protocol.errors import InvalidRequest
from raylog.protocol.ids import (
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    PartitionIndex,
    TopicId,
    TopicName,
    TopicPartition,
)


class IsrChange(NamedTuple):
    """The ISR that a partition's leader wants."""

    tp: TopicPartition
    topic_id: TopicId
    leader_epoch: LeaderEpoch
    version: int
    """Of the state that the leader decided on (``PartitionState.version``)."""
    isr: tuple[tuple[BrokerId, BrokerEpoch], ...]
    """All members, the leader among them, each in the incarnation that is in sync (KIP-903)."""


class OfflineReplica(NamedTuple):
    """A replica that its broker can neither lead nor follow with, for its disk failed."""

    tp: TopicPartition
    topic_id: TopicId


class DamagedReplica(NamedTuple):
    """A replica that must be fetched anew from somewhere on, for a part of its log cannot be read."""

    tp: TopicPartition
    topic_id: TopicId
    leader_epoch: LeaderEpoch
    """The one in which it leads or follows."""


class Verdict(IntEnum):
    """What became of one change."""

    OK = 0
    """It was made; ``state`` is the new state."""
    STALE = 1
    """It was decided on what is no longer so; ``state`` is the state now: decide again on that."""
    REFUSED = 2
    """It must not be, as ``reason`` says; ``state`` is the state now, if there is such a partition."""
    UNAVAILABLE = 3
    """The store did not confirm it, so it may have been made: ask again soon."""
    NOT_CONTROLLER = 4
    """Nobody decided: ask the controller."""


class Outcome(NamedTuple):
    """The answer for one partition."""

    tp: TopicPartition
    verdict: Verdict
    state: PartitionState | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ProposeIsr:
    """The leader's wish for some partitions. Answered by :class:`IsrAnswer`, an outcome for each in this order."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    controller_epoch: ControllerEpoch
    """The highest that the broker has seen."""
    changes: tuple[IsrChange, ...]

    def encode(self) -> bytes:
        return pack(
            "isr",
            {
                **_pack_sender(self.broker_id, self.broker_epoch, self.controller_epoch),
                "changes": [
                    [*c.tp, c.topic_id.bytes, c.leader_epoch, c.version, [list(member) for member in c.isr]]
                    for c in self.changes
                ],
            },
        )

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Raises InvalidRequest when it is no such message."""
        fields = unpack("isr", payload)
        return read(lambda: cls(*_sender(fields), tuple(_unpack_change(*each) for each in fields["changes"])))


@dataclass(frozen=True, slots=True)
class ReplicasOffline:
    """These replicas of the broker are lost to it until it starts anew: let others lead, and take it out of their ISR.

    Answered by :class:`IsrAnswer`, an outcome for each in this order. Ask again while the state does not show it:
    a new controller does not know.
    """

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    controller_epoch: ControllerEpoch
    replicas: tuple[OfflineReplica, ...]
    reason: str = ""
    """For people: which directory, what failed."""

    def encode(self) -> bytes:
        return pack(
            "offline",
            {
                **_pack_sender(self.broker_id, self.broker_epoch, self.controller_epoch),
                "replicas": [[*replica.tp, replica.topic_id.bytes] for replica in self.replicas],
                "reason": self.reason,
            },
        )

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Raises InvalidRequest when it is no such message."""
        fields = unpack("offline", payload)
        return read(
            lambda: cls(
                *_sender(fields),
                tuple(_unpack_offline(*each) for each in fields["replicas"]),
                text(fields.get("reason", "")),
            )
        )


@dataclass(frozen=True, slots=True)
class ReplicasDamaged:
    """These replicas of the broker lack a part of what they should hold (see ``ElectionRules.without``).

    A leader gives its leadership up first; a follower leaves ISR and ELR with a new leader epoch, and truncates when it
    begins to follow in it. Answered by :class:`IsrAnswer`, an outcome for each in this order: REFUSED where no other
    member could lead, STALE when the leader epoch is over. Nothing of it is remembered: ask again.
    """

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    controller_epoch: ControllerEpoch
    replicas: tuple[DamagedReplica, ...]

    def encode(self) -> bytes:
        sender = _pack_sender(self.broker_id, self.broker_epoch, self.controller_epoch)
        replicas = [[*replica.tp, replica.topic_id.bytes, replica.leader_epoch] for replica in self.replicas]
        return pack("damaged", {**sender, "replicas": replicas})

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Raises InvalidRequest when it is no such message."""
        fields = unpack("damaged", payload)
        return read(lambda: cls(*_sender(fields), tuple(_unpack_damaged(*each) for each in fields["replicas"])))


@dataclass(frozen=True, slots=True)
class Drain:
    """The broker is about to stop (controlled shutdown): let others lead what it leads, and do without it in ISRs.

    Answered by :class:`DrainAnswer`. Ask again while something remains: a new controller does not know.
    ``cancel``: it stays after all.
    """

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    controller_epoch: ControllerEpoch
    cancel: bool = False

    def encode(self) -> bytes:
        sender = _pack_sender(self.broker_id, self.broker_epoch, self.controller_epoch)
        return pack("drain", {**sender, "cancel": self.cancel})

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Raises InvalidRequest when it is no such message."""
        fields = unpack("drain", payload)
        return read(lambda: cls(*_sender(fields), of(bool, fields.get("cancel", False))))


Proposal = ProposeIsr | ReplicasOffline | ReplicasDamaged | Drain


def decode_proposal(payload: bytes) -> Proposal:
    """Whichever it is. Raises InvalidRequest when it is none."""
    match kind_of(payload):
        case "isr":
            return ProposeIsr.decode(payload)
        case "offline":
            return ReplicasOffline.decode(payload)
        case "damaged":
            return ReplicasDamaged.decode(payload)
        case "drain":
            return Drain.decode(payload)
        case other:
            raise InvalidRequest(f"a control message of the kind {other!r} is nothing to propose: upgrade this broker?")


@dataclass(frozen=True, slots=True)
class IsrAnswer:
    """What became of a ProposeIsr, ReplicasOffline or ReplicasDamaged."""

    controller_epoch: ControllerEpoch
    """Of who answers; -1 when it is no controller."""
    outcomes: tuple[Outcome, ...]

    def encode(self) -> bytes:
        return pack(
            "isr-answer",
            {
                "controller_epoch": self.controller_epoch,
                "outcomes": [
                    [*o.tp, o.verdict, None if o.state is None else pack_partition(o.state), o.reason]
                    for o in self.outcomes
                ],
            },
        )

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Raises InvalidRequest when it is no such message."""
        fields = unpack("isr-answer", payload)
        return read(
            lambda: cls(
                ControllerEpoch(number(fields["controller_epoch"])),
                tuple(_unpack_outcome(*each) for each in of(list, fields["outcomes"])),
            )
        )


@dataclass(frozen=True, slots=True)
class DrainAnswer:
    """What the broker still leads, for nobody else can: empty when it may stop."""

    verdict: Verdict
    controller_epoch: ControllerEpoch
    remaining: tuple[TopicPartition, ...] = ()
    reason: str = ""

    def encode(self) -> bytes:
        return pack(
            "drain-answer",
            {
                "verdict": self.verdict,
                "controller_epoch": self.controller_epoch,
                "remaining": [list(tp) for tp in self.remaining],
                "reason": self.reason,
            },
        )

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Raises InvalidRequest when it is no such message."""
        fields = unpack("drain-answer", payload)
        return read(
            lambda: cls(
                Verdict(number(fields["verdict"])),
                ControllerEpoch(number(fields["controller_epoch"])),
                tuple(_tp(*each) for each in of(list, fields["remaining"])),
                text(fields.get("reason", "")),
            )
        )


ProposalAnswer = IsrAnswer | DrainAnswer

# --- the bytes


def _pack_sender(broker_id: BrokerId, epoch: BrokerEpoch, controller_epoch: ControllerEpoch) -> dict[str, Any]:
    return {"broker": broker_id, "broker_epoch": epoch, "controller_epoch": controller_epoch}


def _sender(fields: dict[str, Any]) -> tuple[BrokerId, BrokerEpoch, ControllerEpoch]:
    return (
        BrokerId(number(fields["broker"])),
        BrokerEpoch(number(fields["broker_epoch"])),
        ControllerEpoch(number(fields["controller_epoch"])),
    )


def _tp(topic: Any, partition: Any) -> TopicPartition:
    return TopicPartition(TopicName(text(topic)), PartitionIndex(number(partition)))


def _topic_id(value: Any) -> TopicId:
    return TopicId(uuid(value))


def _unpack_change(
    topic: Any, partition: Any, topic_id: Any, leader_epoch: Any, version: Any, isr: Any, *_: Any
) -> IsrChange:
    members = tuple((BrokerId(number(broker)), BrokerEpoch(number(epoch))) for broker, epoch, *_more in of(list, isr))
    return IsrChange(
        _tp(topic, partition), _topic_id(topic_id), LeaderEpoch(number(leader_epoch)), number(version), members
    )


def _unpack_offline(topic: Any, partition: Any, topic_id: Any, *_: Any) -> OfflineReplica:
    return OfflineReplica(_tp(topic, partition), _topic_id(topic_id))


def _unpack_damaged(topic: Any, partition: Any, topic_id: Any, leader_epoch: Any, *_: Any) -> DamagedReplica:
    return DamagedReplica(_tp(topic, partition), _topic_id(topic_id), LeaderEpoch(number(leader_epoch)))


def _unpack_outcome(topic: Any, partition: Any, verdict: Any, state: Any, reason: Any, *_: Any) -> Outcome:
    return Outcome(
        _tp(topic, partition),
        Verdict(number(verdict)),
        None if state is None else unpack_partition(*of(list, state)),
        text(reason),
    )
