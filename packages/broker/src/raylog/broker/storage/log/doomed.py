"""Taking segments off a log's front in two steps: at once for readers and writers, then on the disk.

The first step takes the log's lock for a moment and touches no file. The second deletes the files, which takes as long
as the disk takes, under the flush lock alone: appends and reads go on. What is between the two steps is in
:attr:`LogContents.doomed`, so that it is closed whatever happens: deletion of the log, truncation, an error, the stop.

Crash safety: segments go one by one, oldest first, so that the log is without holes at every moment, and each name's
removal is durable before the next. What a crash leaves begins below the log's start, and goes with the next retention.
"""

from __future__ import annotations

from raylog.broker.events import EventLog
from raylog.broker.storage.log.contents import Doomed, LogContents
from raylog.broker.storage.log.snapshots import remove_snapshots
from raylog.protocol.ids import Offset

logger = EventLog(__name__)


def move_start(log: LogContents, start: Offset, reason: str) -> None:
    """Let the log begin at ``start`` (at most the high watermark), or where it does if that is later.

    The caller holds the lock, has found the log open, and calls :func:`remove_doomed` once it has released it.
    """
    start = max(start, log.offsets.start)
    segments = log.segments
    count = 0
    while count + 1 < len(segments) and segments[count + 1].base_offset <= start:
        count += 1
    log.publish(start=start)
    log.doomed.extend(Doomed(segment, reason) for segment in segments[:count])
    log.set_segments(segments[count:])
    log.epochs.truncate_from_start(start)


def remove_doomed(log: LogContents) -> int:
    """Delete the files of segments that were taken off; answers how many. The caller does not hold the log's lock.

    When it returns without an error, all that were taken off before are gone for good, whoever deleted them.
    """
    if not log.doomed:
        return 0
    with log.flush_lock:
        return 0 if log.closed else remove_doomed_now(log)


def remove_doomed_now(log: LogContents) -> int:
    """The same for a caller that holds the flush lock and has found the log open."""
    if not log.doomed:
        return 0
    count = 0
    with log.health.guard(f"deletion of old segments of {log.tp}"):
        log.save_snapshots()  # the producers of what goes are in no batch any more
        while log.doomed:
            segment, reason = log.doomed[0]
            size, base = segment.size, segment.base_offset
            logger.info("segment deleted", partition=log.tp, offset=base, bytes=size, reason=reason)
            segment.close()
            segment.unlink()
            log.fs.fsync_dir(log.directory)
            log.doomed.popleft()
            count += 1
        remove_snapshots(log.fs, log.directory, below=log.segments[0].base_offset)
    return count


def settle_start(log: LogContents) -> None:
    """Make the log's start durable, as it is now, with what was taken off for it. Without the log's lock.

    Where it is the beginning of a segment, the deletion of those before it is all that is needed. StorageError.
    """
    start = log.offsets.start
    if start == log.durable_start:
        return
    remove_doomed(log)
    if not any(segment.base_offset == start for segment in log.segments[:1]):
        log.save_start()
    log.durable_start = start
