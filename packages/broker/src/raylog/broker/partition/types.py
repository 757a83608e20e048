"""What goes into a partition's calls, and what comes out of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from raylog.broker.storage.disk.slices import FileSlice
from raylog.protocol.errors import DuplicateSequence
from raylog.protocol.ids import LeaderEpoch, Offset, TimestampMs, TopicPartition

ACKS_ALL = -1
"""acks: an append is acknowledged once all in-sync replicas have it."""
ACKS_LEADER = 1
"""acks: once the leader has it."""
ACKS = (ACKS_ALL, 0, ACKS_LEADER)
"""All that a producer may ask for; 0: no acknowledgement."""


class Isolation(Enum):
    """How far a reader sees."""

    LOG_END = "log_end"  # replicas, and nobody else
    HIGH_WATERMARK = "high_watermark"  # read_uncommitted consumers
    COMMITTED = "committed"  # read_committed consumers: up to the last stable offset


class Origin(Enum):
    """Who appends at a leader; it decides what is checked."""

    CLIENT = "client"  # everything
    COORDINATOR = "coordinator"  # as client, and control batches are allowed


class AppendInfo(NamedTuple):
    """Where an append landed."""

    base_offset: Offset
    """-1 for a duplicate whose offsets are no longer known."""
    last_offset: Offset
    """Where its last record lies; at the most, when that is no longer known."""
    log_append_time: TimestampMs
    """The time stamped into the batches (LogAppendTime), or -1."""
    log_start_offset: Offset
    duplicate: bool
    """True when an idempotent producer's batch was there already: the offsets are those of the first time."""
    leader_epoch: LeaderEpoch
    """The epoch in which it was appended, or found: it is committed only while that lasts."""

    def failure(self, tp: TopicPartition) -> DuplicateSequence | None:
        """The error to answer, once it is committed, when nobody knows its offsets: clients take it for success."""
        if self.base_offset >= 0:
            return None
        return DuplicateSequence(f"{tp}: this batch was appended before, its offsets are no longer known")


class ReadInfo(NamedTuple):
    """What a read found; the reader releases ``data``."""

    data: FileSlice | None
    """Batches, perhaps with a part of another at the end; the first may begin below the asked offset."""
    high_watermark: Offset
    last_stable_offset: Offset
    log_start_offset: Offset
    bound: Offset
    """How far the reader may read now."""
    aborted: tuple[tuple[int, int], ...] = ()
    """Aborted transactions in the range, (producer id, first offset): none before transactions are built."""
    diverging: tuple[LeaderEpoch, Offset] | None = None
    """A replica's log differs from ours: our largest epoch up to its last one, and where that ends here (KIP-595)."""


@dataclass(frozen=True, slots=True)
class Subscriptions:
    """What is called when something happens to a partition; None: nothing. Outside the log's lock, unless said."""

    on_start: Callable[[TopicPartition], None] | None = None
    """The log's start moved. Called under the log's lock: it must only take note."""
    on_append: Callable[[TopicPartition, int], None] | None = None
    """Followers may read so many appended bytes; without any follower, ``on_advance`` says it all."""
    on_advance: Callable[[TopicPartition, int, Offset], None] | None = None
    """The high watermark advanced: the bytes that consumers can read now, and where it is. Under the log's lock where
    Role.become_leader takes a newer state of the epoch that is led.
    """
    on_caught_up: Callable[[TopicPartition], None] | None = None
    """A follower may join the ISR: a proposal is due (Role.proposal)."""
    on_low_watermark: Callable[[TopicPartition, Offset], None] | None = None
    """The low watermark, as a follower's log begins elsewhere than before."""


NOBODY = Subscriptions()
"""Nothing is called."""
