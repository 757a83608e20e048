"""◆ What a consumer hears of its membership in a group of actors, and what it asks of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from raylog.coordination.group_model import CommittedOffset
from raylog.protocol.ids import Generation, MemberId, TopicPartition


@dataclass(frozen=True, slots=True)
class Began:
    """The partition is ours: read from where the group stopped, or from anywhere where nothing was committed."""

    tp: TopicPartition
    committed: CommittedOffset | None


@dataclass(frozen=True, slots=True)
class Ceased:
    """Another is to have it: hand no more out, then say so with :meth:`Membership.quiet`."""

    tp: TopicPartition


@dataclass(frozen=True, slots=True)
class Dropped:
    """It is not ours any more, without our doing: others may read it already, nothing of it can be committed."""

    tp: TopicPartition


Change = Began | Ceased | Dropped


class Membership(Protocol):
    """What :class:`~raylog.client.group_member.GroupMember` is to a consumer. It works in a thread of its own."""

    @property
    def member_id(self) -> MemberId: ...

    @property
    def generation(self) -> Generation:
        """Of the assignment that it acts on."""

    def changes(self) -> Sequence[Change]:
        """What happened since the last call, in order, each once."""

    def quiet(self, tp: TopicPartition, position: CommittedOffset | None) -> None:
        """After Ceased: nothing of it is handed out any more; commit ``position`` as it is given up."""

    def may_deliver(self, tp: TopicPartition) -> bool:
        """True while it is owned, in the session that claimed it, and the lease holds."""

    def commit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """All of them or none. Raises UnknownMemberId or IllegalGeneration for what is not owned (any more), and
        RequestTimedOut when ZooKeeper does not answer: then it may have been committed."""

    def commit_async(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> Future[None]:
        """As :meth:`commit`, in the order of the calls, without waiting."""

    def polled(self) -> None:
        """The user is alive: ``max.poll.interval.ms`` is counted from here. Joins anew where it was over; raises what
        has ended the membership for good."""

    def leave(self, timeout_s: float, positions: Mapping[TopicPartition, CommittedOffset]) -> bool:
        """Give everything up, committing ``positions``, and sign off. False when that takes longer: then the group
        learns it from the end of the session."""
