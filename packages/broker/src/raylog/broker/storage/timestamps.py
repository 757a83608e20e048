"""Offsets by time (ListOffsets): the indexes find the batch, a scan of that one batch the record.

Of one batch so much is looked at as an honest one has (:func:`raylog.protocol.records.first_record_at`); an answer that
lies beyond is told too early, never too late.
"""

from __future__ import annotations

from typing import NamedTuple

from raylog.broker.storage.first_read import check_first_read
from raylog.broker.storage.log import Log
from raylog.broker.storage.segment import Located, Segment
from raylog.protocol.errors import CorruptMessage
from raylog.protocol.ids import LeaderEpoch, Offset, TimestampMs
from raylog.protocol.records import BatchHeader, TimestampType, first_record_at, max_record_time


class TimestampedOffset(NamedTuple):
    """A record's place and time."""

    offset: Offset
    timestamp: TimestampMs
    leader_epoch: LeaderEpoch


def offset_for_timestamp(log: Log, timestamp: TimestampMs, bound: Offset) -> TimestampedOffset | None:
    """The first record at or after ``timestamp``, from the log's start to before ``bound``; None when there is none.

    Exact also when timestamps run backwards. Example: a batch at offset 0 with timestamps 2, 4, 6, 8: asked for 3
    it is offset 1. Raises StorageError, and CorruptMessage when the batch that would answer is damaged.
    """
    start = log.offsets.start
    for segment in log.segments:
        if segment.base_offset >= bound:
            break
        if segment.max_timestamp < timestamp:
            continue
        with log.health.guard(f"look-up of a timestamp in {log.tp}"):
            found = _in_segment(log, segment, timestamp, start, bound)
        if found is not None:
            return found
    return None


def _in_segment(
    log: Log, segment: Segment, timestamp: TimestampMs, start: Offset, bound: Offset
) -> TimestampedOffset | None:
    try:
        near = segment.time_index.lookup(timestamp)
    except CorruptMessage:
        with segment.lock:
            segment.rebuild_indexes()
        near = segment.time_index.lookup(timestamp)
    located = segment.find(max(near, start))
    if located is None:
        return None
    for position, header in segment.headers(located.position):
        if header.base_offset >= bound:
            return None
        if position < segment.unchecked_end:
            check_first_read(log, segment, Located(position, header.size, Offset(header.base_offset)), header.size)
        if header.max_timestamp < timestamp or header.last_offset < start:
            continue
        found = _in_batch(segment, Located(position, header.size, Offset(header.base_offset)), header, timestamp, start)
        if found is not None:
            return found if found.offset < bound else None
    return None


def _in_batch(
    segment: Segment, located: Located, header: BatchHeader, timestamp: TimestampMs, start: Offset
) -> TimestampedOffset | None:
    epoch = LeaderEpoch(header.leader_epoch)
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return TimestampedOffset(Offset(max(header.base_offset, start)), TimestampMs(header.max_timestamp), epoch)
    found = first_record_at(segment.read_batch(located), timestamp, start)
    return None if found is None else TimestampedOffset(Offset(found[0]), TimestampMs(found[1]), epoch)


def max_timestamp_offset(log: Log, bound: Offset) -> TimestampedOffset | None:
    """The first record with the highest timestamp before ``bound`` (KIP-734); None when there is none."""
    start = log.offsets.start
    with log.health.guard(f"look-up of the highest timestamp in {log.tp}"):
        highest = max(
            (_highest(log, segment, start, bound) for segment in log.segments if segment.base_offset < bound),
            default=-1,
        )
    return offset_for_timestamp(log, TimestampMs(highest), bound) if highest >= 0 else None


def _highest(log: Log, segment: Segment, start: Offset, bound: Offset) -> int:
    """The highest timestamp from ``start`` to ``bound``; batches are looked at only at the log's ends.

    Of a batch of which a part was deleted (DeleteRecords), what is left counts.
    """
    if start <= segment.base_offset and segment.max_timestamp_offset < bound:
        return segment.max_timestamp
    highest = -1
    for position, header in segment.headers():
        if header.max_timestamp <= highest or header.last_offset < start or header.next_offset > bound:
            continue
        if position < segment.unchecked_end:
            check_first_read(log, segment, Located(position, header.size, Offset(header.base_offset)), header.size)
        if header.base_offset >= start or header.timestamp_type is TimestampType.LOG_APPEND_TIME:
            highest = header.max_timestamp
        else:
            data = segment.read_batch(Located(position, header.size, Offset(header.base_offset)))
            highest = max(highest, max_record_time(data, start))
    return highest
