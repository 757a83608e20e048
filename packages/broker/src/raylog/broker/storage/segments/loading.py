"""Taking a segment up as its files lie there, and cutting it: where the indexes have to agree with the log file again.

All of it raises OSError, which the log turns into StorageError.
"""

from __future__ import annotations

from raylog.broker.storage.segments.held import HeldSegment, hold
from raylog.broker.storage.segments.segment import Segment
from raylog.protocol.errors import CorruptMessage
from raylog.protocol.ids import FilePosition, Offset, TimestampMs


def load_sealed(segment: Segment) -> None:
    """Trust the log file; take up the indexes unread, or rebuild and save them when they are not as noted."""
    segment.sealed = True
    segment.unchecked_end = segment.size
    noted = segment.sums.get(segment.base_offset, segment.size)
    if noted and segment.index.open_saved(noted[1:3]) and segment.time_index.open_saved(noted[3:5]):
        segment.max_timestamp = TimestampMs(noted.max_timestamp)
        segment.max_timestamp_offset = Offset(noted.max_timestamp_offset)
        return
    with hold(segment) as held:
        held.rebuild_indexes()
    segment.max_timestamp, segment.max_timestamp_offset = segment.time_index.last()
    segment.save_indexes()


def load_active(segment: Segment) -> Offset | None:
    """Trust the log file's batches and load the indexes; answers the next offset.

    None when the file does not end with a whole batch: it must be recovered.
    """
    try:
        load_sealed(segment)
        segment.sealed = False
        with hold(segment) as held:
            next_offset, end = _restore_tail(held)
    except CorruptMessage:
        return None
    return next_offset if end == segment.size else None


def truncate(segment: Segment, position: FilePosition, next_offset: Offset) -> None:
    """Cut the file at ``position``, where ``next_offset`` would begin, and the indexes with it.

    Append nothing after that: who is sending from the file would send other bytes than were there.
    """
    segment.cut_file(position)
    with hold(segment) as held:
        try:
            segment.index.truncate_to(next_offset)
            segment.time_index.truncate_to(next_offset)
        except CorruptMessage:
            held.rebuild_indexes()
        _restore_tail(held)


def _restore_tail(held: HeldSegment) -> tuple[Offset, int]:
    """Take up counting after the last index entry; answers the next offset and the position of the end."""
    segment = held.segment
    max_timestamp, max_timestamp_offset = segment.time_index.last()
    next_offset, start = segment.base_offset, segment.index.last_position()
    end: int = start
    for position, header in held.headers(start):
        if header.max_timestamp > max_timestamp:
            max_timestamp, max_timestamp_offset = TimestampMs(header.max_timestamp), Offset(header.last_offset)
        next_offset = Offset(header.next_offset)
        end = position + header.size
    segment.count_on(max_timestamp, max_timestamp_offset, end - start)
    return next_offset, end
