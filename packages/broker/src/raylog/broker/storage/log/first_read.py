"""Checking what lay on the disk before it is served for the first time.

sendfile looks at no byte, and a start after a clean stop reads none. So a log file that was there at the start is
checked when it is read first: each batch's checksum, and what no checksum covers, its offsets against the next batch's
and its leader epoch against the epochs that the log knows. After that, like all that this process wrote or recovered
itself, it goes to the socket unseen. A byte costs this once in a broker's life.

A batch that is damaged is told once in the log, and from then on a read stops before it, or fails with CorruptMessage
when it begins there. What lies behind it can be read. The scrubber, which reads in the background what nobody asks for
and checks it in the same way, looks into what a reader met.
"""

from __future__ import annotations

from typing import NamedTuple

from raylog.broker.events import EventLog
from raylog.broker.storage.disk.files import FileClosed
from raylog.broker.storage.log.contents import LogContents
from raylog.broker.storage.segments.held import SCAN_BYTES, HeldSegment, Located
from raylog.broker.storage.segments.segment import Segment
from raylog.protocol.errors import CorruptMessage, InvalidRecord, UnsupportedCompressionType
from raylog.protocol.ids import NO_EPOCH, Offset
from raylog.protocol.records import HEADER_SIZE, BatchHeader, read_header, validate_batch

logger = EventLog(__name__)


def first_read(log: LogContents, held: HeldSegment, located: Located, length: int) -> int:
    """:func:`check_first_read`; an OSError takes the log directory offline (StorageError)."""
    with log.health.guard(f"read of {log.tp} at offset {located.base_offset}"):
        return check_first_read(log, held, located, length)


def is_checked(segment: Segment, position: int, length: int) -> bool:
    """Whether nothing of these bytes is yet to be checked."""
    return segment.unchecked.checked_to(position) >= min(position + length, segment.unchecked_end)


def check_first_read(log: LogContents, held: HeldSegment, located: Located, length: int) -> int:
    """Check what is unchecked of ``length`` bytes from the batch at ``located`` on; answers how many may be served.

    Fewer than asked when a batch on the way is damaged. Raises CorruptMessage when the first one is, OSError.
    """
    segment = held.segment
    unchecked = segment.unchecked
    start: int = located.position
    end = min(start + length, segment.unchecked_end)
    position = start
    while (position := unchecked.checked_to(position)) < end:
        if position not in unchecked.damaged:
            good, _, reason = check(log, held, position, end)
            if good > position:
                unchecked.add(position, good)
                continue
            if not reason:
                return length  # what is asked ends inside the batch, and the reader drops such a part
            unchecked.damaged[position], log.is_suspect = reason, True
            logger.error("corrupt batch", partition=log.tp, path=segment.log_path, position=position, reason=reason)
        if position > start:
            return position - start
        raise CorruptMessage(
            f"{log.tp}: the batch at position {position} of {segment.log_path.name} is damaged: "
            f"{unchecked.damaged[position]}; read on behind it, or restore the partition"
        )
    return length


def missing(log: LogContents, segment: Segment, offset: Offset) -> CorruptMessage:
    """The error of a reader that finds a later batch, or none, where ``offset`` should be: a header is damaged."""
    reason = f"no batch says that it holds offset {offset}"
    if segment.unchecked.damaged.setdefault(-1 - offset, reason) is reason:
        log.is_suspect = True
        logger.error("corrupt batch", partition=log.tp, path=segment.log_path, offset=offset, reason=reason)
    return CorruptMessage(f"{log.tp}: {reason} in {segment.log_path.name}; read on behind it, or restore the partition")


class Stretch(NamedTuple):
    """What a check found."""

    end: int
    """Where the batches end that are good and whole."""
    next_offset: Offset | None
    """The offset that follows them; None when there are none and it was not known."""
    reason: str
    """What is wrong with the next batch; empty when nothing is, as far as it was looked at."""


def check(log: LogContents, held: HeldSegment, position: int, end: int, expected: Offset | None = None) -> Stretch:
    """Check batches from ``position`` to at most ``end``, about SCAN_BYTES at once.

    ``expected``: the offset that must begin there, if it is known. Raises OSError, and FileClosed when the segment was
    deleted or cut off meanwhile, so that nothing can be said.
    """
    segment = held.segment
    file_end = segment.unchecked_end
    chunk = held.pread(min(end - position, SCAN_BYTES), position)
    if position == 0:
        expected = segment.base_offset
    at = 0
    try:
        while at < len(chunk):
            if len(chunk) - at < HEADER_SIZE <= file_end - position - at:
                break
            size = read_header(chunk, at).size
            if position + at + size > file_end:
                raise CorruptMessage(f"it has {size} bytes, beyond the file's end")
            if position + at + size > end or (at and at + size > len(chunk)):
                break
            if at + size > len(chunk):
                chunk = held.pread(size, position)
            header = validate_batch(chunk, at, sparse=True)
            _check_place(log, held, position + at, header, expected)
            expected = Offset(header.next_offset)
            at += size
    except (CorruptMessage, InvalidRecord, UnsupportedCompressionType) as error:
        with log.lock:
            log.end_of(segment)  # else it is no damage, but gone
            if segment.unchecked_end < file_end:
                raise FileClosed(f"{segment.log_path} was cut off meanwhile") from None
        return Stretch(position + at, expected, str(error))
    return Stretch(position + at, expected, "")


def _check_place(
    log: LogContents, held: HeldSegment, position: int, header: BatchHeader, expected: Offset | None
) -> None:
    """What no checksum covers: leader epoch and base offset, which is ``expected`` or must fit what follows."""
    segment, following = held.segment, position + header.size
    with log.lock:  # all of one moment, or an append in between would look like a gap
        epoch = log.epochs.epoch_at(Offset(header.base_offset))
        after, size = log.end_of(segment), segment.size
    if epoch not in (NO_EPOCH, header.leader_epoch):
        raise CorruptMessage(f"it says leader epoch {header.leader_epoch}, where {epoch} was in force")
    if expected is not None:
        fits = header.base_offset == expected and header.next_offset <= after
    elif following < size:
        fits = held.pread(8, following) == header.next_offset.to_bytes(8, "big", signed=True)
    else:
        fits = header.next_offset == after
    if not fits or header.base_offset < segment.base_offset:
        raise CorruptMessage(f"it says offsets {header.base_offset} to {header.last_offset}, out of line")
