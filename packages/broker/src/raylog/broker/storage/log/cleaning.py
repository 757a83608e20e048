"""What takes records away from the front again: retention and DeleteRecords (doomed.py: how)."""

from __future__ import annotations

from collections.abc import Sequence

from raylog.broker.storage.log.doomed import move_start, remove_doomed
from raylog.broker.storage.log.log import Log
from raylog.broker.storage.segments.segment import Segment
from raylog.protocol.errors import OffsetOutOfRange
from raylog.protocol.ids import Offset, TimestampMs


def enforce_retention(log: Log, now_ms: TimestampMs, uptime_ms: int) -> int:
    """Delete the oldest segments as retention.ms and retention.bytes say; answers how many.

    ``now_ms`` should be a RetentionClock's, ``uptime_ms`` is monotonic.

    Only what lies wholly below the high watermark. When even the active segment is too old, a new one is begun.
    """
    with log.lock:
        if not log.retention_known or log.closed:
            return 0
        segments = log.segments
        counts = _too_old(log, segments, now_ms, uptime_ms), _too_much(log, segments), _below_start(log, segments)
        if count := max(counts):
            if count == len(segments):
                log.roll(now_ms)
            # In the same hold: a truncation in between might let the log end before that.
            move_start(log, log.segments[count].base_offset, "retention")
    return remove_doomed(log)


def _too_old(log: Log, segments: Sequence[Segment], now_ms: TimestampMs, uptime_ms: int) -> int:
    """How many are older than retention.ms.

    Where the broker's clock gave the times (LogAppendTime, or no time at all), it may have been behind then. So what
    this broker has seen growing stays for as long by the monotonic clock, too.
    """
    for segment in segments:
        if segment.size != segment.seen_size:
            segment.seen_size, segment.grown_ms = segment.size, uptime_ms
    limit = log.config.retention_ms
    if limit < 0:
        return 0
    count = 0
    for segment in segments:
        newest = segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms
        ours = log.config.log_append_time or segment.max_timestamp < 0
        if ours and segment.grown_ms is not None and uptime_ms - segment.grown_ms <= limit:
            break
        if now_ms - newest <= limit or segment.size == 0 or not _below_high_watermark(log, segments, count):
            break
        count += 1
    return count


def _too_much(log: Log, segments: Sequence[Segment]) -> int:
    limit = log.config.retention_bytes
    if limit < 0:
        return 0
    count, surplus = 0, sum(segment.size for segment in segments) - limit
    for segment in segments[:-1]:
        surplus -= segment.size
        if surplus < 0 or not _below_high_watermark(log, segments, count):
            break
        count += 1
    return count


def _below_high_watermark(log: Log, segments: Sequence[Segment], number: int) -> bool:
    offsets = log.offsets
    end = segments[number + 1].base_offset if number + 1 < len(segments) else offsets.end.offset
    return end <= offsets.high_watermark.offset


def _below_start(log: Log, segments: Sequence[Segment]) -> int:
    """How many hold nothing but deleted records: a crash left them."""
    start = log.offsets.start
    return sum(1 for segment in segments[1:] if segment.base_offset <= start)


def delete_records(log: Log, offset: Offset) -> Offset:
    """Make ``offset`` the log's start, unless it begins later already; answers the start.

    Appends go on while files are deleted. Durable only after :attr:`Log.save_start`, which serves all logs of a
    directory at once. Raises OffsetOutOfRange beyond the high watermark, StorageError.
    """
    with log.lock:
        log.check_open()
        high_watermark = log.offsets.high_watermark.offset
        if not 0 <= offset <= high_watermark:
            raise OffsetOutOfRange(
                f"{log.tp}: records before {offset} cannot be deleted, the high watermark is {high_watermark}"
            )
        if offset > log.offsets.start:
            move_start(log, offset, "asked for")
        start = log.offsets.start
    remove_doomed(log)
    return start
