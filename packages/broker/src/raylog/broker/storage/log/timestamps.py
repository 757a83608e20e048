"""Offsets by time (ListOffsets): the indexes find the batch, a scan of that one batch the record.

What is read depends on index.interval.bytes and not on the segment's size, wherever the bound lies. Only where
DeleteRecords took the newest times of a segment are its batches looked through, for the highest one once. Segments may
be deleted or cut off meanwhile: the look-up begins anew then.

Of one batch so much is looked at as an honest one has (:func:`raylog.protocol.records.first_record_at`); an answer that
lies beyond is told too early, never too late.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from raylog.broker.storage.disk.files import FileClosed
from raylog.broker.storage.log.first_read import check_first_read
from raylog.broker.storage.log.log import Log
from raylog.broker.storage.segments.held import LOOKUP_BYTES, HeldSegment, Located, hold
from raylog.broker.storage.segments.index import OffsetIndex, TimeIndex
from raylog.broker.storage.segments.segment import KeptPeak, Segment
from raylog.protocol.errors import CorruptMessage
from raylog.protocol.ids import LeaderEpoch, Offset, TimestampMs
from raylog.protocol.records import BatchHeader, TimestampType, first_record_at, max_record_time

T = TypeVar("T")

_BEHIND_ALL = Offset(2**63 - 1)


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
    return _looked_up(log, "a timestamp", lambda: _first_at(log, log.segments, timestamp, log.offsets.start, bound))


def _looked_up(log: Log, what: str, look_up: Callable[[], T]) -> T:
    """The answer of ``look_up`` from segments that were all there while it looked."""
    while True:
        log.check_open()
        try:
            with log.health.guard(f"look-up of {what} in {log.tp}"):
                return look_up()
        except FileClosed:
            log.await_change()


def _first_at(
    log: Log, segments: Sequence[Segment], timestamp: TimestampMs, start: Offset, bound: Offset
) -> TimestampedOffset | None:
    for segment in segments:
        if segment.base_offset >= bound:
            break
        if segment.max_timestamp < timestamp:
            continue
        with hold(segment) as held:
            found = _in_segment(log, held, timestamp, start, bound)
        if found is not None:
            return found
    return None


def _in_segment(
    log: Log, held: HeldSegment, timestamp: TimestampMs, start: Offset, bound: Offset
) -> TimestampedOffset | None:
    segment = held.segment
    located = held.find(
        max(_by_indexes(held, lambda index, times: _no_later_than_first(index, times, timestamp)), start)
    )
    if located is None:
        return None
    for position, header in held.headers(located.position, chunk_bytes=LOOKUP_BYTES):
        if header.base_offset >= bound:
            return None
        located = Located(position, header.size, Offset(header.base_offset))
        if position < segment.unchecked_end:
            check_first_read(log, held, located, header.size)
        if header.max_timestamp < timestamp or header.last_offset < start:
            continue
        found = _in_batch(held, located, header, timestamp, start)
        if found is not None:
            return found if found.offset < bound else None
    return None


def _by_indexes(held: HeldSegment, look_up: Callable[[OffsetIndex, TimeIndex], T]) -> T:
    """The answer from both indexes; they are made anew when a saved one cannot be read."""
    segment = held.segment
    try:
        return look_up(*segment.indexes)
    except CorruptMessage:
        held.rebuild_indexes()
        return look_up(*segment.indexes)


def _no_later_than_first(index: OffsetIndex, times: TimeIndex, timestamp: TimestampMs) -> Offset:
    """An offset at or before the first record at or after ``timestamp``, in the same stretch between index entries."""
    count = len(index)  # before the other index is asked: see Segment.note
    reached = times.reached(timestamp)
    return Offset(index.last_before(_BEHIND_ALL if reached is None else reached, count) + 1)


def _in_batch(
    held: HeldSegment, located: Located, header: BatchHeader, timestamp: TimestampMs, start: Offset
) -> TimestampedOffset | None:
    epoch = LeaderEpoch(header.leader_epoch)
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return TimestampedOffset(Offset(max(header.base_offset, start)), TimestampMs(header.max_timestamp), epoch)
    found = first_record_at(held.read_batch(located), timestamp, start)
    return None if found is None else TimestampedOffset(Offset(found[0]), TimestampMs(found[1]), epoch)


def max_timestamp_offset(log: Log, bound: Offset) -> TimestampedOffset | None:
    """The first record with the highest timestamp before ``bound`` (KIP-734); None when there is none."""
    return _looked_up(log, "the highest timestamp", lambda: _newest(log, bound))


def _newest(log: Log, bound: Offset) -> TimestampedOffset | None:
    start = log.offsets.start  # for both steps: a record that is deleted in between was there when it was asked for
    segments = [segment for segment in log.segments if segment.base_offset < bound]
    highest = max((_highest(log, segment, start, bound) for segment in segments), default=-1)
    return _first_at(log, segments, TimestampMs(highest), start, bound) if highest >= 0 else None


def _highest(log: Log, segment: Segment, start: Offset, bound: Offset) -> int:
    """The highest timestamp from ``start`` to ``bound``; -1 when there is none. Whole batches count up to the bound."""
    highest = segment.max_timestamp  # before its offset is read: see Segment.max_timestamp_offset
    if start <= segment.base_offset and segment.max_timestamp_offset < bound:
        return highest
    with hold(segment) as held:
        counted, peak, peak_offset = _by_indexes(held, lambda index, times: _peak_before(index, times, bound))
        if start <= segment.base_offset or (peak_offset >= start and _begins_at_or_after(held, peak_offset, start)):
            return _scan(log, held, Offset(counted + 1), start, bound, peak).timestamp
        kept = segment.kept_peak
        if kept is None or kept.start != start or kept.next_offset > bound:
            kept = KeptPeak(start, start, -1)
        kept = segment.kept_peak = _scan(log, held, kept.next_offset, start, bound, kept.timestamp)
        return kept.timestamp


def _peak_before(index: OffsetIndex, times: TimeIndex, bound: Offset) -> tuple[Offset, TimestampMs, Offset]:
    """Up to which offset the indexes tell of all batches before ``bound``; their highest timestamp, and the last offset
    of the batch that brought it.
    """
    counted = index.last_before(bound, len(index))
    return counted, *times.peak_until(counted)


def _begins_at_or_after(held: HeldSegment, last_offset: Offset, start: Offset) -> bool:
    """Whether nothing of the batch that ends at ``last_offset`` was deleted."""
    located = held.find(last_offset)
    return located is not None and located.base_offset >= start


def _scan(log: Log, held: HeldSegment, begin: Offset, start: Offset, bound: Offset, highest: int) -> KeptPeak:
    """Count the batches from ``begin`` to ``bound``, too. Of one of which a part was deleted, what is left counts."""
    segment = held.segment
    located = held.find(max(begin, start))
    for position, header in held.headers(located.position, chunk_bytes=LOOKUP_BYTES) if located else ():
        if header.next_offset > bound:
            break
        begin = Offset(header.next_offset)
        if header.max_timestamp <= highest or header.last_offset < start:
            continue
        located = Located(position, header.size, Offset(header.base_offset))
        if position < segment.unchecked_end:
            check_first_read(log, held, located, header.size)
        if header.base_offset >= start or header.timestamp_type is TimestampType.LOG_APPEND_TIME:
            highest = header.max_timestamp
        else:
            highest = max(highest, max_record_time(held.read_batch(located), start))
    return KeptPeak(start, begin, highest)
