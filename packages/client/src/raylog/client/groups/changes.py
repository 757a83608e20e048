"""◆ What a consumer hears of its membership in a group of actors."""

from __future__ import annotations

from dataclasses import dataclass

from raylog.coordination.metadata.group_model import CommittedOffset
from raylog.protocol.ids import NO_TOPIC_ID, TopicId, TopicPartition


@dataclass(frozen=True, slots=True)
class Assigned:
    """The partition is ours: read from where the group stopped, or from anywhere where nothing was committed."""

    tp: TopicPartition
    committed: CommittedOffset | None
    topic_id: TopicId = NO_TOPIC_ID
    """The topic that it was claimed of; NO_TOPIC_ID when it has none."""


@dataclass(frozen=True, slots=True)
class Revoked:
    """Another is to have it: hand no more out, then say so with :meth:`Membership.quiet`."""

    tp: TopicPartition


@dataclass(frozen=True, slots=True)
class Lost:
    """It is not ours any more, without our doing: others may read it already, nothing of it can be committed."""

    tp: TopicPartition


Change = Assigned | Revoked | Lost
