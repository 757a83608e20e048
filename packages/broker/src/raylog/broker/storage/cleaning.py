"""What takes records away again: retention from the front, truncation from the end.

Crash safety: segments go one by one, in an order that leaves a log without holes at every moment (oldest first from
the front, newest first from the end), and each name's removal is durable before the next.
"""

from __future__ import annotations

from collections.abc import Sequence

from raylog.broker.events import EventLog
from raylog.broker.storage.log import Log, number_at
from raylog.broker.storage.offsets import Mark
from raylog.broker.storage.segment import Segment
from raylog.broker.storage.snapshots import load_producers, remove_snapshots
from raylog.protocol.ids import FilePosition, Offset, TimestampMs

logger = EventLog(__name__)


def enforce_retention(log: Log, now_ms: TimestampMs) -> int:
    """Delete the oldest segments as retention.ms and retention.bytes say; answers how many.

    Only what lies wholly below the high watermark. When even the active segment is too old, a new one is begun.
    """
    with log.lock:
        if not log.retention_known or log.closed:
            return 0
        segments = log.segments
        count = max(_too_old(log, segments, now_ms), _too_much(log, segments))
        if count == 0:
            return 0
        if count == len(segments):
            log.roll(now_ms)
        start = log.segments[count].base_offset
    return delete_segments_below(log, start, "retention")


def _too_old(log: Log, segments: Sequence[Segment], now_ms: TimestampMs) -> int:
    limit = log.config.retention_ms
    if limit < 0:
        return 0
    count = 0
    for segment in segments:
        newest = segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms
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
    with log.flush_lock, log.health.guard(f"deletion of old segments of {log.tp}"):
        if log.closed:
            return 0
        for segment in segments[:count]:
            logger.info(
                "segment deleted", partition=log.tp, offset=segment.base_offset, bytes=segment.size, reason=reason
            )
            segment.close()
            segment.unlink()
            log.fs.fsync_dir(log.directory)
        if count:
            remove_snapshots(log.fs, log.directory, below=segments[count].base_offset)
    return count


def truncate_to(log: Log, offset: Offset, now_ms: TimestampMs) -> Offset:
    """Drop every batch that reaches to or beyond ``offset``; answers the new end, which may be lower.

    Durable when it returns: what was cut off cannot come back after a crash. Nothing happens at or above the end.
    """
    with log.lock, log.flush_lock:
        log.check_open()
        offsets = log.offsets
        if offset >= offsets.end.offset:
            return offsets.end.offset
        number = number_at(log.segments, max(offset, offsets.start))
        kept, dropped = log.segments[: number + 1], log.segments[number + 1 :]
        last = kept[-1]
        with log.health.guard(f"truncation of {log.tp} to offset {offset}"):
            located = last.find(max(offset, offsets.start))
            end = located.base_offset if located else offset
            log.lower_recovery_point(end, last.base_offset)
            log.before_reuse()
            mark = Mark(end, last.base_offset, located.position if located else FilePosition(last.size))
            log.publish(
                end=mark,
                high_watermark=min(offsets.high_watermark, mark, key=lambda m: m.offset),
                start=min(offsets.start, end),
            )
            log.set_segments(kept)
            for segment in reversed(dropped):
                segment.close()
                segment.unlink()
                log.fs.fsync_dir(log.directory)
            last.truncate(mark.position, end)
            if log.epochs.truncate_from_end(end):
                log.save_epochs()
            log.producers = load_producers(log.fs, log.directory, log.tp, kept, end, now_ms)
        logger.info("log truncated", partition=log.tp, offset=end, reason="asked for")
        return end
