"""What is put on the queue of the thread that keeps a consumer in its group (``groups.member_thread``)."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import NamedTuple

from raylog.coordination.metadata.group_events import Died
from raylog.coordination.metadata.group_model import CommittedOffset
from raylog.coordination.store.port import NodeEvent, SessionEvent
from raylog.protocol.ids import TopicPartition


class Quieted(NamedTuple):
    """The user is done with what was revoked in this tenure."""

    tp: TopicPartition
    position: CommittedOffset | None
    tenure: int


class Commit(NamedTuple):
    """Commit these, and say through ``done`` how that went."""

    offsets: Mapping[TopicPartition, CommittedOffset]
    tenures: Mapping[TopicPartition, int]
    """In which each of them was read: what is ours again, after another had it, was not read by us."""
    done: Future[None]


class GoodBye(NamedTuple):
    """The user leaves; it has read so far."""

    positions: Mapping[TopicPartition, CommittedOffset]
    tenures: Mapping[TopicPartition, int]


class PolledAgain(NamedTuple):
    """The user, who was taken for stuck, lives."""


class Stop(NamedTuple):
    """End, whatever is left to do."""


Item = NodeEvent | SessionEvent | Died | Quieted | Commit | GoodBye | PolledAgain | Stop
