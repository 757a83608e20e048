"""Finding what lies at an offset of a log, for sendfile: the method ``Log.read``. Readers take no lock."""

from __future__ import annotations

from collections.abc import Sequence

from raylog.broker.storage.disk.files import FileClosed, WouldWait
from raylog.broker.storage.disk.slices import FileSlice
from raylog.broker.storage.log.contents import LogContents
from raylog.broker.storage.log.first_read import first_read, is_checked, missing
from raylog.broker.storage.segments.held import HeldSegment, Located, hold
from raylog.broker.storage.segments.segment import Segment
from raylog.broker.storage.segments.segments import number_at
from raylog.broker.storage.state.offsets import Mark
from raylog.protocol.errors import CorruptMessage
from raylog.protocol.ids import Offset


def read(
    log: LogContents, offset: Offset, max_bytes: int, bound: Mark, *, min_one_batch: bool, may_wait: bool = True
) -> FileSlice | None:
    """A slice from the batch that holds ``offset`` up to ``bound`` at most, from one segment.

    ``max_bytes`` may cut the last batch, never the first one with ``min_one_batch``; without it a first batch that does
    not fit gives None. The caller releases the slice. Raises OffsetOutOfRange below the start and above the end,
    StorageError, CorruptMessage; without ``may_wait`` WouldWait when it takes the disk to find or to check it.
    """
    while True:
        log.check_range(offset)
        if offset >= bound.offset:
            return None
        segments = log.segments
        try:
            for number in range(number_at(segments, offset), len(segments)):
                with hold(segments[number], may_wait=may_wait) as held:
                    found = _in_segment(log, held, number, segments, offset, bound)
                    if found is not None:
                        located, end = found
                        return _cut(log, held, located, end - located.position, max_bytes, min_one_batch)
            if offset < log.offsets.high_watermark.offset:
                raise _missing(log, segments, segments[-1], offset)
            return None
        except FileClosed as error:
            if not may_wait:
                raise WouldWait(f"{log.tp} is being changed: {error}") from error
            log.await_change()  # it was deleted, or cut off, meanwhile: look again


def _in_segment(
    log: LogContents, held: HeldSegment, number: int, segments: Sequence[Segment], offset: Offset, bound: Mark
) -> tuple[Located, int] | None:
    """The batch that holds ``offset``, and how far a read may go; None when a later segment has it."""
    segment = held.segment
    try:
        located = held.find(offset)
        end = _end_in(held, number, segments, bound)
    except CorruptMessage:
        raise _missing(log, segments, segment, offset) from None
    except OSError as error:
        raise log.health.fail(error, f"read of {log.tp} at offset {offset}") from error
    if located is None or located.position >= end:
        return None
    if located.base_offset > offset:
        raise _missing(log, segments, segment, offset)
    log.warm.needed(segment)
    return located, end


def _cut(
    log: LogContents, held: HeldSegment, located: Located, length: int, max_bytes: int, min_one_batch: bool
) -> FileSlice | None:
    """Of the ``length`` bytes from ``located`` on, as many as are wanted and may be served."""
    if length > max_bytes:
        if located.size > max_bytes and not min_one_batch:
            return None
        length = max(max_bytes, located.size)
    segment = held.segment
    if located.position < segment.unchecked_end:
        if not (held.may_wait or is_checked(segment, located.position, length)):
            raise WouldWait(f"{segment.log_path} is yet to be checked at {located.position}")
        length = first_read(log, held, located, length)
    return held.slice(located.position, length)


def _missing(log: LogContents, segments: Sequence[Segment], segment: Segment, offset: Offset) -> CorruptMessage:
    """The error when no batch has ``offset``. FileClosed when another thread has changed the log meanwhile.

    OffsetOutOfRange when it has been deleted before the segments were looked at.
    """
    with log.lock:
        log.check_range(offset)
        if log.segments is not segments:
            raise FileClosed(f"{log.tp} was changed during a read at offset {offset}")
    return missing(log, segment, offset)


def _end_in(held: HeldSegment, number: int, segments: Sequence[Segment], bound: Mark) -> int:
    """How far a read up to ``bound`` may go in the segment, which has this number."""
    segment = held.segment
    if segment.base_offset == bound.segment_base:
        return bound.position
    if number + 1 < len(segments) and segments[number + 1].base_offset <= bound.offset:
        return segment.size
    located = held.find(bound.offset)
    return located.position if located else segment.size
