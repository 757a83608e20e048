"""Loading a partition's log, and finding out after a crash how much of it is good.

After a clean stop everything is trusted. Otherwise the segments from the one that holds the recovery point are read
through: each batch's checksum and offsets are checked and the indexes are made anew. The log ends before the first bad
batch: it and all that follows is cut off, and a log event says so. A hole between two segments (a lost name, a lost
tail) ends the log, too. Closed segments below the recovery point were flushed and are not read, so that a start takes
time by the unflushed part.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from raylog.broker.events import EventLog
from raylog.broker.storage.disk import checkpoint
from raylog.broker.storage.disk.files import FileSystem, remove_file
from raylog.broker.storage.disk.health import Health
from raylog.broker.storage.disk.index_sums import IndexSums
from raylog.broker.storage.log.log import Log
from raylog.broker.storage.log.snapshots import load_producers, snapshot_offsets
from raylog.broker.storage.segments.held import SCAN_BYTES, HeldSegment, hold
from raylog.broker.storage.segments.loading import load_active, load_sealed
from raylog.broker.storage.segments.segment import (
    INDEX,
    LOG,
    MAX_RELATIVE_OFFSET,
    SNAPSHOT,
    TIME_INDEX,
    Segment,
    placed,
)
from raylog.broker.storage.segments.segments import number_at
from raylog.broker.storage.state.epochs import LeaderEpochs
from raylog.broker.storage.state.log_config import LogConfig
from raylog.broker.storage.state.offsets import LogOffsets, Mark
from raylog.protocol.errors import CorruptMessage, InvalidRecord, UnsupportedCompressionType
from raylog.protocol.ids import NO_EPOCH, FilePosition, LeaderEpoch, Offset, TimestampMs, TopicPartition
from raylog.protocol.records import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, validate_batch

logger = EventLog(__name__)


class LastStop(NamedTuple):
    """What the log directory remembers of a partition."""

    clean: bool
    recovery_point: Offset = Offset(0)
    log_start: Offset = Offset(0)
    high_watermark: Offset = Offset(0)


_LENGTH = struct.Struct(">i")

Epochs = list[tuple[LeaderEpoch, Offset]]
"""Leader epochs with their start offsets, in order."""


class Loaded(NamedTuple):
    """Segments that are good, and where they end."""

    segments: list[Segment]
    end: Offset
    checked: list[BatchHeader]
    """Headers of the batches that recovery read."""
    is_short: bool = False
    """Whether it cut off more than a write that a crash had broken off."""


def load_log(
    tp: TopicPartition,
    directory: Path,
    fs: FileSystem,
    health: Health,
    config: LogConfig,
    last: LastStop,
    now_ms: TimestampMs,
) -> Log:
    """The log in ``directory``, recovered unless the last stop was clean; a new one when there are no segments.

    Raises OSError; nothing that a crash or a flipped bit leaves behind raises.
    """
    saved, sums = _saved_epochs(fs, directory), IndexSums(fs, directory)
    bases = _sweep(fs, directory)
    start = max([last.log_start, *bases[:1]])
    if bases:
        loaded = _load_segments(tp, directory, fs, config, bases, last, now_ms, sums, saved)
        if loaded.end < start:
            # what is left of the log was deleted (DeleteRecords); its offsets must not be given out again
            _say_truncated(tp, start, f"the log ends at {loaded.end}, before its start", last)
            for segment in reversed(loaded.segments):
                segment.close()
                segment.unlink()
                fs.fsync_dir(directory)
            loaded = _begin(fs, directory, start, now_ms, sums)
    else:
        if last.recovery_point > start:
            _say_truncated(tp, start, "all segments are missing", last)
        loaded = _begin(fs, directory, start, now_ms, sums)
    try:
        return _assemble(tp, directory, fs, health, config, loaded, saved, start, last.high_watermark, now_ms)
    except BaseException:
        for segment in loaded.segments:
            segment.close()
        raise


def _begin(fs: FileSystem, directory: Path, start: Offset, now_ms: TimestampMs, sums: IndexSums) -> Loaded:
    """An empty log."""
    segment = Segment.create(fs, directory, start, now_ms, sums)
    fs.fsync_dir(directory)
    return Loaded([segment], start, [])


def _sweep(fs: FileSystem, directory: Path) -> list[Offset]:
    """Delete what an interrupted operation left; answers the segments' base offsets in order."""
    names = fs.list_dir(directory)
    bases = sorted(int(name[: -len(LOG)]) for name in names if name.endswith(LOG) and name[: -len(LOG)].isdigit())
    stems = {f"{base:020d}" for base in bases}
    for name in names:
        stem, dot, suffix = name.partition(".")
        orphan = dot + suffix in (INDEX, TIME_INDEX) and stem not in stems
        if orphan or name.endswith((".tmp", ".deleted")):
            remove_file(fs, directory / name)
    return [Offset(base) for base in bases]


def _load_segments(
    tp: TopicPartition,
    directory: Path,
    fs: FileSystem,
    config: LogConfig,
    bases: Sequence[Offset],
    last: LastStop,
    now_ms: TimestampMs,
    sums: IndexSums,
    saved: Epochs | None,
) -> Loaded:
    segments: list[Segment] = []
    try:
        for base in bases:
            segments.append(Segment.open(fs, directory, base, now_ms, sums))
        try:
            end = _trust(segments, last) if last.clean else None
            if end is not None:
                return Loaded(segments, end, [])
            return _recover(tp, segments, config, last, saved)
        except CorruptMessage:  # a batch header where only an index was expected to be bad: read everything
            return _recover(tp, segments, config, last._replace(recovery_point=Offset(0)), saved)
    except BaseException:
        for segment in segments:
            segment.close()
        raise


def _trust(segments: Sequence[Segment], last: LastStop) -> Offset | None:
    """Take up segments as they are; the next offset, or None when they end too early or not with a whole batch."""
    for segment in segments[:-1]:
        load_sealed(segment)
    end = load_active(segments[-1])
    return end if end is not None and end >= last.recovery_point else None


def _recover(
    tp: TopicPartition, segments: list[Segment], config: LogConfig, last: LastStop, saved: Epochs | None
) -> Loaded:
    first = max((n for n, s in enumerate(segments) if s.base_offset <= last.recovery_point), default=0)
    for segment in segments[:first]:
        load_sealed(segment)
    checked: list[BatchHeader] = []
    epochs = LeaderEpochs(saved or ())
    end = segments[first].base_offset
    good = first
    reason, is_torn = "", False
    for number in range(first, len(segments)):
        segment = segments[number]
        if number > first and segment.base_offset != end:
            reason = f"segment {segment.base_offset} does not follow on offset {end}"
            break
        good = number
        size = segment.size
        with hold(segment) as held:
            end, reason = _check(held, end, config.index_interval_bytes, epochs, checked)
        if reason:
            is_torn = number == len(segments) - 1 and _is_torn(segment, size)
            break
    if not reason and end < last.recovery_point:
        reason = "the log is shorter than what was flushed"
    if reason:
        _say_truncated(tp, end, reason, last)
    _drop(segments, good + 1)
    _save(segments[first:])
    return Loaded(segments, end, checked, is_short=bool(reason) and not is_torn)


def _is_torn(segment: Segment, end: int) -> bool:
    """Whether the file, which has ``end`` bytes, ends inside the batch that follows what is good of it."""
    with hold(segment) as held:
        chunk = held.pread(HEADER_SIZE, segment.size)
    return len(chunk) < HEADER_SIZE or _batch_size(chunk, 0) > end - segment.size


def _check(
    held: HeldSegment, next_offset: Offset, index_interval: int, epochs: LeaderEpochs, batches: list[BatchHeader]
) -> tuple[Offset, str]:
    """Check every batch by checksum and offsets and make the indexes anew; the segment ends before the first bad one.

    Answers where the good ones end, and why the rest is bad, empty when nothing is. Their headers are added to
    ``batches``.
    """
    segment = held.segment
    size = segment.size
    segment.reset()
    chunk, start = b"", 0
    while segment.size < size:
        at = segment.size - start
        try:
            if len(chunk) - at < HEADER_SIZE or len(chunk) - at < _batch_size(chunk, at):
                chunk, start, at = _read_chunk(held, size), segment.size, 0
            header = validate_batch(chunk, at, sparse=True)
            # without compaction offsets have no gaps, and no checksum covers a base offset
            if header.base_offset != next_offset or header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
                raise CorruptMessage(f"offset {header.base_offset} where {next_offset} was expected")
            # nor a leader epoch, of which the checkpoint knows before the first append in it
            if epochs.epoch_at(next_offset) not in (NO_EPOCH, header.leader_epoch):
                raise CorruptMessage(f"leader epoch {header.leader_epoch} at offset {next_offset}")
        except (CorruptMessage, InvalidRecord, UnsupportedCompressionType) as error:
            return next_offset, f"{segment.log_path.name} is bad at position {segment.size}: {error}"
        segment.note((placed(header),), index_interval)
        batches.append(header)
        next_offset = Offset(header.next_offset)
    return next_offset, ""


def _read_chunk(held: HeldSegment, end: int) -> bytes:
    """A stretch of the file from the segment's size on with at least the batch that begins there."""
    position = held.segment.size
    chunk = held.pread(min(SCAN_BYTES, end - position), position)
    needed = _batch_size(chunk, 0) if len(chunk) >= HEADER_SIZE else 0
    if len(chunk) < needed <= end - position:
        chunk = held.pread(needed, position)
    return chunk


def _batch_size(chunk: bytes, at: int) -> int:
    """What the batch at ``at`` claims to take; anything at all when it is damaged."""
    return LOG_OVERHEAD + int(_LENGTH.unpack_from(chunk, at + 8)[0])


def _say_truncated(tp: TopicPartition, end: Offset, reason: str, last: LastStop) -> None:
    """Tell it; as an error when the records were flushed, so that the disk lost what it had promised to keep."""
    say = logger.error if end < last.recovery_point else logger.warning
    say("log truncated", partition=tp, offset=end, recovery_point=last.recovery_point, reason=reason)


def _drop(segments: list[Segment], keep: int) -> None:
    """Delete the segments from number ``keep`` on, newest first; then cut the last kept one after its good part."""
    while len(segments) > keep:
        segment = segments.pop()
        segment.close()
        segment.unlink()
        segment.fs.fsync_dir(segment.directory)
    segments[-1].sealed = False
    segments[-1].cut()


def _save(segments: Sequence[Segment]) -> None:
    """Make what was recovered durable: it may have been in the page cache only."""
    for segment in segments:
        segment.sync()
    for segment in segments[:-1]:
        segment.seal()
        segment.save_indexes()
    segments[-1].fs.fsync_dir(segments[-1].directory)


def _assemble(
    tp: TopicPartition,
    directory: Path,
    fs: FileSystem,
    health: Health,
    config: LogConfig,
    loaded: Loaded,
    saved: Epochs | None,
    start: Offset,
    high_watermark: Offset,
    now_ms: TimestampMs,
) -> Log:
    segments, end = loaded.segments, loaded.end
    start = min(max(start, segments[0].base_offset), end)
    epochs = _load_epochs(fs, directory, loaded, saved, start)
    producers = load_producers(fs, directory, tp, segments, end, now_ms)
    bases = {segment.base_offset for segment in segments}
    snapshots = snapshot_offsets(fs, directory)
    for offset in snapshots[:-1]:
        if offset not in bases:
            remove_file(fs, directory / f"{offset:020d}{SNAPSHOT}")
    segments[0].sums.save(bases)
    mark = Mark(end, segments[-1].base_offset, FilePosition(segments[-1].size))
    beginning = Mark(start, segments[0].base_offset, FilePosition(0))
    log = Log(
        tp, directory, fs, health, config, segments,
        LogOffsets(start, beginning, beginning, mark),
        epochs, producers, segments[0].sums,
    )  # fmt: skip
    log.lost_in_recovery = loaded.is_short
    if len(producers) and end not in snapshots:
        log.note_producers()
    try:
        log.publish(high_watermark=log.mark(min(max(high_watermark, start), end)))
    except CorruptMessage as error:  # it stays at the start, from where it is found out again
        logger.error("corrupt batch", partition=tp, offset=high_watermark, reason=error)
    return log


def _saved_epochs(fs: FileSystem, directory: Path) -> Epochs | None:
    """The rows of the checkpoint; None when it is damaged."""
    try:
        rows = checkpoint.read_lines(fs, directory / checkpoint.LEADER_EPOCHS, columns=2)
        saved = [(LeaderEpoch(int(epoch)), Offset(int(offset))) for epoch, offset in rows]
    except (CorruptMessage, ValueError):
        return None
    return saved if LeaderEpochs(saved).rows() == saved else None


def _load_epochs(fs: FileSystem, directory: Path, loaded: Loaded, saved: Epochs | None, start: Offset) -> LeaderEpochs:
    """The saved epochs as far as the log goes, and those that recovery saw; all from the log where it disagrees."""
    empty = loaded.end == loaded.segments[0].base_offset
    whole = saved is not None and (bool(saved) or empty) and _agree(saved, loaded, start)
    epochs = LeaderEpochs(saved if saved is not None and whole else ())
    changed = epochs.truncate_from_end(loaded.end)
    headers = loaded.checked if whole else _all_headers(loaded.segments)
    for header in headers:
        changed = epochs.assign(LeaderEpoch(header.leader_epoch), Offset(header.base_offset)) or changed
    changed = epochs.truncate_from_start(start) or changed
    if changed or not whole:
        checkpoint.write_lines(fs, directory / checkpoint.LEADER_EPOCHS, epochs.rows())
    return epochs


def _agree(saved: Epochs, loaded: Loaded, start: Offset) -> bool:
    """Whether the epochs cover the log from ``start`` on, and the batches with which each begins and ends say that they
    are of it: nothing in the file vouches for it.
    """
    first = max(start, loaded.segments[0].base_offset)
    if saved and saved[0][1] > first:
        return False
    ends = [*(offset for _, offset in saved[1:]), loaded.end]
    for (epoch, begin), end in zip(saved, ends, strict=False):
        its_first, its_last = max(begin, first), Offset(min(end, loaded.end) - 1)
        says = {_epoch_at(loaded, offset) for offset in (its_first, its_last)} if its_first <= its_last else set()
        if not says <= {None, epoch}:
            return False
    return True


def _epoch_at(loaded: Loaded, offset: Offset) -> int | None:
    """What the batch says; None where the log itself is damaged, of which its readers are told."""
    segment = loaded.segments[number_at(loaded.segments, offset)]
    try:
        with hold(segment) as held:
            located = held.find(offset)
            _, header = next(held.headers(located.position if located else segment.size))
            return header.leader_epoch
    except (CorruptMessage, StopIteration):
        return None


def _all_headers(segments: Sequence[Segment]) -> Iterator[BatchHeader]:
    """The headers that can be read."""
    for segment in segments:
        try:
            with hold(segment) as held:
                yield from (header for _, header in held.headers())
        except CorruptMessage as error:
            logger.error("corrupt batch", path=segment.log_path, reason=error)
