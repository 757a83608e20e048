"""What takes records away from the front again: retention and DeleteRecords.

Crash safety: segments go one by one, oldest first, so that the log is without holes at every moment, and each name's
removal is durable before the next.
"""

from __future__ import annotations

from collections.abc import Sequence

from raylog.broker.events import EventLog
from raylog.broker.storage.log import Log
from raylog.broker.storage.segment import Segment
from raylog.broker.storage.snapshots import remove_snapshots
from raylog.protocol.errors import OffsetOutOfRange
from raylog.protocol.ids import Offset, TimestampMs

logger = EventLog(__name__)


def enforce_retention(log: Log, now_ms: TimestampMs, uptime_ms: int) -> int:
    """Delete the oldest segments as retention.ms and retention.bytes say; answers how many.

    ``now_ms`` should be a RetentionClock's, ``uptime_ms`` is monotonic.

    Only what lies wholly below the high watermark. When even the active segment is too old, a new one is begun.
    """
    with log.lock:
        if not log.retention_known or log.closed:
            return 0
        segments = log.segments
        count = max(_too_old(log, segments, now_ms, uptime_ms), _too_much(log, segments))
        if count == 0:
            return 0
        if count == len(segments):
            log.roll(now_ms)
        # In the same hold: a truncation in between might let the log end before that.
        given_up, start = _give_up_below(log, log.segments[count].base_offset)
    return _delete(log, given_up, start, "retention")


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


def delete_segments_below(log: Log, start: Offset, reason: str) -> int:
    """Make ``start`` (at most the high watermark) the log's first offset and delete the segments before it."""
    with log.lock:
        given_up, first = _give_up_below(log, start)
    return _delete(log, given_up, first, reason)


def _give_up_below(log: Log, start: Offset) -> tuple[Sequence[Segment], Offset]:
    """Make ``start`` the log's first offset; answers the segments that it has no more, and where the others begin.

    The caller holds the lock.
    """
    start = max(start, log.offsets.start)
    segments = log.segments
    count = 0
    while count + 1 < len(segments) and segments[count + 1].base_offset <= start:
        count += 1
    log.publish(start=start)
    log.set_segments(segments[count:])
    if log.epochs.truncate_from_start(start):
        with log.health.guard(f"write the leader epochs of {log.tp}"):
            log.save_epochs()
    return segments[:count], segments[count].base_offset


def _delete(log: Log, segments: Sequence[Segment], first: Offset, reason: str) -> int:
    """Delete the files of segments that the log has no more, all before ``first``; answers how many they were."""
    with log.flush_lock, log.health.guard(f"deletion of old segments of {log.tp}"):
        if log.closed:
            return 0
        for segment in segments:
            logger.info(
                "segment deleted", partition=log.tp, offset=segment.base_offset, bytes=segment.size, reason=reason
            )
            segment.close()
            segment.unlink()
            log.fs.fsync_dir(log.directory)
        if segments:
            remove_snapshots(log.fs, log.directory, below=first)
    return len(segments)


def delete_records(log: Log, offset: Offset) -> Offset:
    """Make ``offset`` the log's start, unless it begins later already; answers the start.

    Durable only after :attr:`Log.save_checkpoints`, which serves all logs of a directory at once. Raises
    OffsetOutOfRange beyond the high watermark.
    """
    with log.lock:
        log.check_open()
        high_watermark = log.offsets.high_watermark.offset
        if not 0 <= offset <= high_watermark:
            raise OffsetOutOfRange(
                f"{log.tp}: records before {offset} cannot be deleted, the high watermark is {high_watermark}"
            )
        if offset > log.offsets.start:
            delete_segments_below(log, offset, "asked for")
        return log.offsets.start
