"""A partition's follower: what an answer of its leader means for its log.

A follower's log may end with records that the leader of a later epoch does not have. They are found by leader epochs
and never by the high watermark, which a follower knows late (KIP-101, KIP-279): each fetch names the epoch of the last
record, the leader answers with its own largest epoch up to that one and where that ends, and the follower truncates to
where both logs agree. When they share no such epoch yet, the next answer tells more.

Example: the follower has epochs 1 from 0 and 4 from 10, and ends at 15; the leader has 1 from 0, 3 from 12, 5 from 14.
Asked for what follows 15 of epoch 4, it answers: epoch 3 ends at 14. The follower knows no 3; its largest below is
1, which ends at 10: it truncates to 10 and fetches from there.

Sans-io: what to do comes out as :data:`Step`, the partition does it. The methods are small, so that a test can break
one.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from raylog.protocol.errors import OffsetOutOfRange, RaylogError
from raylog.protocol.ids import LeaderEpoch, Offset
from raylog.protocol.records import HEADER_SIZE, read_header

__all__ = ["Answer", "Append", "Follower", "ReplicaLog", "StartAnew", "Step", "Truncate"]


class EpochEnd(Protocol):
    """A leader epoch, -1 for none, and where it ends."""

    @property
    def epoch(self) -> int: ...
    @property
    def end_offset(self) -> int: ...


class Answer(Protocol):
    """What of a leader's answer to a fetch a follower goes by (protocol.fetch.FetchedPartition)."""

    @property
    def records(self) -> memoryview | None: ...
    @property
    def log_start_offset(self) -> int:
        """Where the leader's log begins; -1 when it does not say."""

    @property
    def diverging_epoch(self) -> EpochEnd:
        """Its largest epoch up to that of our last record, and where that ends there; epoch -1 when logs agree."""


class ReplicaLog(Protocol):
    """What a follower must know of its own log."""

    @property
    def log_start_offset(self) -> Offset: ...
    @property
    def log_end_offset(self) -> Offset: ...
    @property
    def high_watermark(self) -> Offset: ...

    def end_offset(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        """The largest own epoch up to ``epoch`` and where it ends; (-1, -1) when all are smaller or there is none."""


class Truncate(NamedTuple):
    """Remove all from ``offset`` on, and fetch again from the new end."""

    offset: Offset


class StartAnew(NamedTuple):
    """Remove everything; the log begins, empty, at ``offset``."""

    offset: Offset


class Append(NamedTuple):
    """Append these whole batches as they are. They begin at or after the log's end."""

    batches: memoryview


Step = Truncate | StartAnew | Append


class Follower:
    """See the module. It keeps no state: the log is all there is."""

    def first_offset(self, log: ReplicaLog) -> Offset:
        """Where following a new leader begins: nothing is truncated before the leader has said where logs differ."""
        return log.log_end_offset

    def steps(self, found: Answer, log: ReplicaLog) -> list[Step]:
        """What a successful answer asks for, in order."""
        diverging = found.diverging_epoch
        if diverging.epoch >= 0:
            return [Truncate(self.truncation_offset(LeaderEpoch(diverging.epoch), Offset(diverging.end_offset), log))]
        batches = missing_batches(found.records, log.log_end_offset)
        if batches is None:
            return []
        base = Offset(read_header(batches).base_offset)
        if base < log.log_end_offset == log.log_start_offset:
            # the leader's log begins inside a batch (DeleteRecords), and so did this one, which has nothing yet
            return [StartAnew(base), Append(batches)]
        return [Append(batches)]

    def truncation_offset(self, leader_epoch: LeaderEpoch, leader_end: Offset, log: ReplicaLog) -> Offset:
        """Where both logs agree for all that is known: the leader's ``leader_epoch`` ends at ``leader_end`` there.

        The answer to OffsetForLeaderEpoch and the diverging epoch of a fetch mean the same.
        """
        epoch, end = log.end_offset(leader_epoch)
        if epoch < 0 or epoch == leader_epoch:
            end = leader_end if epoch < 0 else min(end, leader_end)
        return min(end, log.log_end_offset)

    def after_failure(self, error: RaylogError, found: Answer, log: ReplicaLog) -> StartAnew:
        """What to do about an error of this partition alone; raises it when that is to wait and ask again.

        Out of range below the leader's start: what lies between was deleted there, so everything here is older.
        Out of range above its end with no epoch to compare: this log is empty and begins where the leader's, after
        losses, has not come to yet.
        """
        start = Offset(found.log_start_offset)
        is_empty = log.log_end_offset == log.log_start_offset
        if not isinstance(error, OffsetOutOfRange) or start < 0:
            raise error
        if log.log_end_offset < start or (is_empty and log.log_start_offset > start):
            return StartAnew(start)
        raise error

    def high_watermark(self, leader_high_watermark: Offset, log: ReplicaLog) -> Offset:
        """How far what is here is committed: it never goes back by what a leader says."""
        return max(log.high_watermark, min(leader_high_watermark, log.log_end_offset))


def missing_batches(records: memoryview | None, end: Offset) -> memoryview | None:
    """The whole batches in ``records`` that do not lie below ``end``; None when there are none.

    A fetch may cut the last one. An answer that came twice has nothing new.
    """
    if not records:
        return None
    first: int | None = None
    at, size = 0, len(records)
    while size - at >= HEADER_SIZE:
        header = read_header(records, at)
        if at + header.size > size:
            break
        if first is None and header.next_offset > end:
            first = at
        at += header.size
    return None if first is None or first == at else records[first:at]
