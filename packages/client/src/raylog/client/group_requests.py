"""What other threads ask of the one that keeps a consumer in its group (``group_thread``)."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import NamedTuple

from raylog.coordination.group_model import CommittedOffset
from raylog.protocol.ids import TopicPartition


class Quieted(NamedTuple):
    """The user is done with what ceased under this number."""

    tp: TopicPartition
    position: CommittedOffset | None
    number: int


class Commit(NamedTuple):
    """Commit these, and say through ``done`` how that went."""

    offsets: Mapping[TopicPartition, CommittedOffset]
    done: Future[None]


class GoodBye(NamedTuple):
    """The user leaves; it has read so far."""

    positions: Mapping[TopicPartition, CommittedOffset]


class PolledAgain(NamedTuple):
    """The user, who was taken for stuck, lives."""


class Stop(NamedTuple):
    """End, whatever is left to do."""
