"""Truncation: what takes records away from a log's end again, and what replaces a log by an empty one.

Crash safety: segments go one by one, newest first, so that the log is without holes at every moment, and each name's
removal is durable before the next.
"""

from __future__ import annotations

from collections import deque

from raylog.broker.events import EventLog
from raylog.broker.storage.log.contents import LogContents
from raylog.broker.storage.log.doomed import remove_doomed_now
from raylog.broker.storage.log.snapshots import load_producers, remove_snapshots
from raylog.broker.storage.segments.held import hold
from raylog.broker.storage.segments.loading import truncate
from raylog.broker.storage.segments.segment import Segment
from raylog.broker.storage.segments.segments import number_at
from raylog.broker.storage.state.epochs import LeaderEpochs
from raylog.broker.storage.state.offsets import Mark
from raylog.broker.storage.state.producers import Producers
from raylog.protocol.ids import FilePosition, Offset, TimestampMs

logger = EventLog(__name__)

NEVER = Offset(2**63 - 1)


def truncate_to(log: LogContents, offset: Offset, now_ms: TimestampMs) -> Offset:
    """Drop every batch that reaches to or beyond ``offset``; answers the new end, which may be lower.

    Durable when it returns: what was cut off cannot come back after a crash. Producers are known as of the new end,
    from a snapshot and the batches after it. The high watermark comes down with the end. At or above the end only
    leader epochs go that have no records: another leader may have begun others there (as Kafka does).
    Appends go on in a new file, for the bytes of the old one may be on their way to a socket.
    """
    with log.lock:
        log.check_open()
        offsets = log.offsets
        if offset >= offsets.end.offset:
            if log.epochs.truncate_from_end(offsets.end.offset):
                with log.health.guard(f"write the leader epochs of {log.tp}"):
                    log.save_epochs()
            return offsets.end.offset
        number = number_at(log.segments, max(offset, offsets.start))
        last = log.segments[number]
        with log.flush_lock, log.health.guard(f"truncation of {log.tp} to offset {offset}"):
            with hold(last) as held:
                located = held.find(max(offset, offsets.start))
            end, position = (located.base_offset, located.position) if located else (offset, FilePosition(last.size))
            end = _cut(log, number, position, end, now_ms)
        say = logger.warning if end < offsets.high_watermark.offset else logger.info
        say(
            "log truncated",
            partition=log.tp,
            offset=end,
            high_watermark=offsets.high_watermark.offset,
            reason="asked for",
        )
        return end


def mend(log: LogContents, now_ms: TimestampMs) -> None:
    """Drop all from the damage on, if there is any, as :func:`truncate_to` does.

    Only once nobody counts on this replica's having them.
    """
    with log.lock, log.flush_lock:
        log.check_open()
        damage, log.damage = log.damage, None
        if damage is None or not damage.is_in(log):
            return
        end = log.offsets.end.offset
        number = log.segments.index(damage.segment)
        with log.health.guard(f"truncation of {log.tp} to offset {damage.offset}"):
            begin = _cut(log, number, damage.position, damage.offset, now_ms)
        logger.warning("damaged log truncated", partition=log.tp, offset=begin, end=end, reason=damage.reason)


def _cut(log: LogContents, number: int, position: FilePosition, end: Offset, now_ms: TimestampMs) -> Offset:
    """Let the log end at ``position`` of segment ``number``, where ``end`` begins; answers the end.

    Nothing is left when only deleted records would be. The caller holds both locks.
    """
    remove_doomed_now(log)
    log.save_snapshots()
    offsets = log.offsets
    if end <= offsets.start:
        end, number, position = offsets.start, 0, FilePosition(0)
    last = log.segments[number]
    whole = log.segments[:number]
    cut = last if position > 0 else None
    mark = Mark(end, end, FilePosition(0))
    log.publish(end=mark, high_watermark=min(offsets.high_watermark, mark, key=lambda m: m.offset))
    log.recovery_point = min(log.recovery_point, end)
    open_base = last.base_offset if whole else Offset(0)
    log.unsaved = deque(segment for segment in log.unsaved if segment.base_offset < open_base)
    log.save_checkpoints()
    for segment in reversed(log.segments[len(whole) + (cut is not None) :]):
        _drop(log, segment, end)
    if cut is not None:
        log.sums.forget(cut.base_offset)
        log.sums.save({segment.base_offset for segment in whole})
        truncate(cut, position, end)
        cut.seal()
        cut.unlink_indexes()  # they tell of what was cut off; the next flush writes them anew
        log.unsaved.append(cut)
    active = Segment.create(log.fs, log.directory, end, now_ms, log.sums)
    log.fs.fsync_dir(log.directory)
    log.set_segments((*whole, *((cut,) if cut else ()), active))
    if log.epochs.truncate_from_end(end):
        log.save_epochs()
    log.producers = load_producers(log.fs, log.directory, log.tp, log.segments, end, now_ms)
    log.note_producers()
    return end


def start_anew(log: LogContents, offset: Offset, now_ms: TimestampMs) -> None:
    """Drop every batch, epoch and producer: the log begins, empty, at ``offset``, where nothing is of what it had.

    After a crash it either does so, too, or still has its old records from its old start on.
    """
    with log.lock, log.flush_lock:
        log.check_open()
        before = log.offsets
        mark = Mark(offset, offset, FilePosition(0))
        with log.health.guard(f"new start of {log.tp} at offset {offset}"):
            remove_doomed_now(log)  # what comes may have their names
            log.unsaved_snapshots.clear()
            log.epochs = LeaderEpochs()
            log.save_epochs()
            remove_snapshots(log.fs, log.directory, below=NEVER)  # else a start after a crash would take them up
            log.recovery_point = min(log.recovery_point, before.start)
            log.unsaved.clear()
            log.publish(start=offset, high_watermark=mark, end=mark)
            log.save_checkpoints()
            for segment in reversed(log.segments):
                _drop(log, segment, offset)
            active = Segment.create(log.fs, log.directory, offset, now_ms, log.sums)
            log.fs.fsync_dir(log.directory)
            log.set_segments((active,))
            log.producers = Producers()
            log.recovery_point = log.durable_start = offset
        logger.warning("log started anew", partition=log.tp, offset=offset, start=before.start, end=before.end.offset)


def _drop(log: LogContents, segment: Segment, end: Offset) -> None:
    """Delete a segment, but for the log file where another segment will begin: that one will replace it.

    A log must not be without segments for a moment, or it would begin at 0 after a crash.
    """
    segment.close()
    if segment.base_offset == end:
        segment.unlink_indexes()
    else:
        segment.unlink()
    log.fs.fsync_dir(log.directory)
