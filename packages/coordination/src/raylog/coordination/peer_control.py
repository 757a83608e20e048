"""PeerControl: how the controller's decisions reach brokers (D8).
 The controller sends :class:`UpdateState` to one broker at a time; the broker answers :class:`Ack`. Both
are versioned msgpack, so that brokers of two releases understand each other: a reader ignores fields that
it does not know and gives those that are missing their defaults.
 The rules, all in :class:`Receiver`: a lower controller epoch is a deposed controller's; another broker
epoch means another incarnation; a sequence number not above the last one is a repetition and is
acknowledged without effect; a delta that does not follow the last message (one was lost, or the controller
is new) is answered NEEDS_FULL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, Protocol

from raylog.coordination.model import BrokerInfo, ClusterState, PartitionState, TopicState
from raylog.protocol.ids import BrokerEpoch, BrokerId, ControllerEpoch, TopicId, TopicName, TopicPartition


class PeerControl(Protocol):
    """Carries control messages to brokers, one at a time per broker, in order."""

    def send(self, broker_id: BrokerId, payload: bytes) -> bytes:
        """Deliver and wait for the answer; BrokerNotAvailable when there is none (it may have been
        delivered).
        """


@dataclass(frozen=True, slots=True)
class UpdateState:
    """The cluster as its controller sees it: everything (``full``), or the topics that changed since the
    last one.
    """

    controller_id: BrokerId
    controller_epoch: ControllerEpoch
    broker_epoch: BrokerEpoch
    """The incarnation of the receiver that this is meant for."""
    sequence: int
    """Counts up from 1 per controller epoch, receiver and incarnation."""
    full: bool
    cluster_id: str
    brokers: tuple[BrokerInfo, ...]
    """All live brokers, in a delta, too."""
    topics: tuple[TopicState, ...] = ()
    deleted: tuple[TopicName, ...] = ()
    """Topics that are gone (deltas only)."""
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """All dynamic broker configs, in a delta, too."""

    def encode(self) -> bytes:
        raise NotImplementedError

    @classmethod
    def decode(cls, payload: bytes) -> UpdateState:
        """Raises InvalidRequest when it is no such message."""
        raise NotImplementedError


class AckStatus(IntEnum):
    OK = 0
    STALE_CONTROLLER_EPOCH = 1
    STALE_BROKER_EPOCH = 2
    NEEDS_FULL = 3


@dataclass(frozen=True, slots=True)
class Ack:
    """A broker's answer to one UpdateState."""

    status: AckStatus
    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    controller_epoch: ControllerEpoch
    """The highest that the broker has seen."""
    sequence: int
    """That of the message answered."""

    def encode(self) -> bytes:
        raise NotImplementedError

    @classmethod
    def decode(cls, payload: bytes) -> Ack:
        raise NotImplementedError


class Received(NamedTuple):
    """What a message led to: the answer to send, and the state before and after (the same object: no
    change).
    """

    ack: Ack
    before: ClusterState
    after: ClusterState


class Receiver:
    """A broker's end of PeerControl: fences, puts in order, and keeps the newest ClusterState.

    One thread calls :meth:`receive`; any may read :attr:`state`. Apply the change (:func:`local_changes`)
    *before* sending the ack: an acknowledged CreateTopics means that the leaders serve.
    """

    def __init__(self, broker_id: BrokerId) -> None:
        self.state = ClusterState()

    def registered(self, epoch: BrokerEpoch) -> None:
        """The broker has (re-)registered: from now on only messages for this incarnation count, a full one
        first.
        """
        raise NotImplementedError

    def receive(self, payload: bytes) -> Received:
        """Judge one message and take it in; InvalidRequest when it is none."""
        raise NotImplementedError


class Lead(NamedTuple):
    """This broker leads the partition, from this epoch on (create its log when there is none)."""

    tp: TopicPartition
    topic_id: TopicId
    partition: PartitionState


class LocalChanges(NamedTuple):
    """What one broker must do about a new ClusterState, in this order."""

    deleted: tuple[tuple[TopicPartition, TopicId], ...]
    """Had a replica here, and the topic (that id) is gone: delete it."""
    resigned: tuple[TopicPartition, ...]
    """Led here before, no longer."""
    lead: tuple[Lead, ...]
    """Lead here, new or with a new leader epoch."""
    configs: tuple[TopicState, ...]
    """Topics with a replica here whose configs changed (new ones included)."""


def local_changes(broker_id: BrokerId, before: ClusterState, after: ClusterState) -> LocalChanges:
    """The difference between two states, as seen by one broker."""
    raise NotImplementedError
