"""Producer snapshots in a partition's directory: one per roll, one where recovery or truncation ended the log (both
written by the flush that follows, or before segments are deleted), and one at a clean stop.

``00000000000000001234.snapshot`` is the producers' state as of offset 1234: loading takes the latest one that can be
read and replays the batch headers after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raylog.broker.events import EventLog
from raylog.broker.storage.disk.files import FileSystem, read_bytes, remove_file, write_atomically
from raylog.broker.storage.segments.held import hold
from raylog.broker.storage.segments.segment import SNAPSHOT, Segment, file_name
from raylog.broker.storage.state.producers import Producers
from raylog.protocol.errors import CorruptMessage
from raylog.protocol.ids import Offset, TimestampMs, TopicPartition

logger = EventLog(__name__)


def save_snapshot(fs: FileSystem, directory: Path, snapshot: bytes, offset: Offset) -> None:
    """Write the producers' state as of ``offset`` (Producers.encode), durably."""
    write_atomically(fs, directory / file_name(offset, SNAPSHOT), snapshot)


def snapshot_offsets(fs: FileSystem, directory: Path) -> list[Offset]:
    """The offsets of all snapshots, in order."""
    return [
        Offset(int(name.removesuffix(SNAPSHOT)))
        for name in fs.list_dir(directory)
        if name.endswith(SNAPSHOT) and name.removesuffix(SNAPSHOT).isdigit()
    ]


def remove_snapshots(
    fs: FileSystem, directory: Path, *, below: Offset | None = None, above: Offset | None = None
) -> None:
    """Delete snapshots of offsets that are no longer in the log, durably.

    One that came back after a crash, when its offset had been written anew, would tell of other producers' batches.
    """
    doomed = [
        offset
        for offset in snapshot_offsets(fs, directory)
        if (below is not None and offset < below) or (above is not None and offset > above)
    ]
    for offset in doomed:
        remove_file(fs, directory / file_name(offset, SNAPSHOT))
    if doomed:
        fs.fsync_dir(directory)


def load_producers(
    fs: FileSystem,
    directory: Path,
    tp: TopicPartition,
    segments: Sequence[Segment],
    end: Offset,
    now_ms: TimestampMs,
) -> Producers:
    """The producers as of ``end``; snapshots beyond it and damaged ones are deleted.

    So are those from before the first segment, which know nothing of the batches in between, where what was deleted was
    lost, too: who goes on after those would seem to leave a gap.
    """
    remove_snapshots(fs, directory, below=segments[0].base_offset, above=end)
    producers, start = Producers(), Offset(0)
    for offset in reversed(snapshot_offsets(fs, directory)):
        path = directory / file_name(offset, SNAPSHOT)
        try:
            producers, start = Producers.decode(read_bytes(fs, path) or b"", now_ms), offset
            break
        except CorruptMessage as error:
            logger.warning("producer snapshot dropped", partition=tp, offset=offset, reason=error)
            remove_file(fs, path)
    for segment, following in zip(segments, [*segments[1:], None], strict=True):
        if following is None or following.base_offset > start:
            try:
                _replay(segment, start, producers, now_ms)
            except CorruptMessage as error:
                logger.error("corrupt batch", partition=tp, path=segment.log_path, reason=error)
    return producers


def _replay(segment: Segment, start: Offset, producers: Producers, now_ms: TimestampMs) -> None:
    with hold(segment) as held:
        located = held.find(start) if start > segment.base_offset else None
        if located is None and start > segment.base_offset:
            return
        for _, header in held.headers(located.position if located else 0):
            if header.producer_id >= 0 and header.base_offset >= start:
                producers.replay(header, now_ms)
