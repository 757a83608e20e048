"""Whether what is on disk is sound: checksums, offsets, and that every file agrees with the log it belongs to.

Reads only, and may run beside a broker: what a stopped or busy broker may rightly leave is *noted*, all else is
*damaged*. A broker that runs writes indexes when it flushes closed segments, and its last batch may be half written.
Memory is by the largest index, not by the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from raylog.broker.storage.directories.log_dir import partition_of
from raylog.broker.storage.directories.stored import (
    ReadOnlyFiles,
    StoredBatch,
    base_offset,
    index_entries,
    index_sum_rows,
    read_batches,
    time_index_entries,
)
from raylog.broker.storage.disk import checkpoint, index_sums
from raylog.broker.storage.segments.segment import INDEX, LOG, SNAPSHOT, TIME_INDEX
from raylog.broker.storage.state.epochs import LeaderEpochs
from raylog.broker.storage.state.producers import Producers
from raylog.protocol.errors import CorruptMessage, InvalidRequest, UnsupportedCompressionType
from raylog.protocol.ids import LeaderEpoch, Offset, TimestampMs, TopicPartition
from raylog.protocol.records import BatchHeader, decode_batch


class Level(StrEnum):
    """How bad a finding is."""

    DAMAGED = "damaged"
    """Not as it was written."""
    NOTED = "noted"
    """Allowed after a crash or beside a running broker; the next start puts it right."""


class Finding(NamedTuple):
    """Something that is not as it should be."""

    path: Path
    position: int | None
    """Bytes into the file, where that is known."""
    level: Level
    problem: str
    remedy: str


_LOST = "take the records from another replica or a backup; a consumer gets past it by seeking behind offset {}"
_REMADE = "stop the broker and delete the file; it is made anew at the start"
_CUT = "nothing: recovery cuts it off when the broker starts"
_REBUILT = "nothing: it is made when the broker starts"
_STARTS_LOST = "stop the broker and delete the file; then delete the records again that DeleteRecords took away"
_RECREATED = "stop the broker and delete the file; what it told is found again in the log at the start"


class Verifier:
    """Checks directories and files; counts what it saw."""

    def __init__(self, *, records: bool = False) -> None:
        """``records``: decode every record, too, and not only check its batch."""
        self.partitions = self.segments = self.batches = self.records = self.bytes = 0
        self._decode = records
        self._fs = ReadOnlyFiles()

    def check(self, path: Path) -> Iterator[Finding]:
        """Findings in a data directory, a log directory, a partition's directory or one ``.log`` file.

        Raises InvalidRequest when it is none of these, OSError.
        """
        if path.is_file():
            if path.suffix != LOG:
                raise InvalidRequest(f"{path}: give a .log file, or a directory, whose other files are checked with it")
            yield from self._segment(path, None, last=True, clean=False).findings
            return
        log_dirs = [found.parent for found in sorted(path.rglob(checkpoint.META_PROPERTIES))]
        for log_dir in log_dirs:
            yield from self._log_dir(log_dir)
        if not log_dirs:
            if not any(path.glob(f"*{LOG}")):
                raise InvalidRequest(f"there are no logs in {path}; give a broker's log directory or one in it")
            yield from self._partition(path, clean=False, starts_at=None, bounds={})

    def _log_dir(self, path: Path) -> Iterator[Finding]:
        clean = (path / checkpoint.CLEAN_STOP).exists()
        offsets: dict[str, dict[TopicPartition, Offset]] = {}
        for name in (checkpoint.RECOVERY_POINTS, checkpoint.HIGH_WATERMARKS, checkpoint.LOG_STARTS):
            try:
                offsets[name] = checkpoint.read_offsets(self._fs, path / name)
            except CorruptMessage as error:
                offsets[name] = {}
                remedy = _STARTS_LOST if name == checkpoint.LOG_STARTS else _RECREATED
                yield Finding(path / name, None, Level.DAMAGED, str(error), remedy)
        for directory in sorted(path.iterdir()):
            tp = partition_of(directory.name) if directory.is_dir() else None
            if tp is None:
                continue
            bounds = {
                path / name: offsets[name][tp]
                for name in (checkpoint.RECOVERY_POINTS, checkpoint.HIGH_WATERMARKS)
                if clean and tp in offsets[name]
            }
            yield from self._partition(
                directory, clean=clean, starts_at=offsets[checkpoint.LOG_STARTS].get(tp), bounds=bounds
            )

    def _partition(
        self, path: Path, *, clean: bool, starts_at: Offset | None, bounds: dict[Path, Offset]
    ) -> Iterator[Finding]:
        """``bounds``: offsets that checkpoint files name, which must lie in the log."""
        self.partitions += 1
        epochs, problem = self._epochs(path)
        yield from problem
        try:
            checkpoint.read_topic_id(self._fs, path)
        except CorruptMessage as error:
            remedy = "stop the broker and delete the file; the controller tells the topic id again"
            yield Finding(path / checkpoint.PARTITION_METADATA, None, Level.DAMAGED, str(error), remedy)
        yield from self._index_sums(path / index_sums.NAME)
        logs = sorted(path.glob(f"*{LOG}"))
        end: int | None = None
        for number, log in enumerate(logs):
            last = number == len(logs) - 1
            base = base_offset(log)
            if end is not None and base != end:
                problem_text = f"the segment begins at offset {base}, the one before it ends at {end}"
                yield Finding(log, 0, Level.DAMAGED, problem_text, _LOST.format(base - 1))
            segment = self._segment(log, epochs, last=last, clean=clean)
            yield from segment.findings
            yield from segment.index_findings()
            end = segment.end
        if end is None:
            return
        for snapshot in sorted(path.glob(f"*{SNAPSHOT}")):
            yield from self._snapshot(snapshot, end)
        if starts_at is not None and starts_at > end:  # below the first segment: retention came after it was written
            problem_text = f"{path.name} starts at {starts_at}, its log ends at {end}"
            yield Finding(path.parent / checkpoint.LOG_STARTS, None, Level.DAMAGED, problem_text, _STARTS_LOST)
        for file, offset in bounds.items():
            if offset > end:
                yield Finding(file, None, Level.DAMAGED, f"{path.name}: {offset}, its log ends at {end}", _RECREATED)

    def _epochs(self, path: Path) -> tuple[LeaderEpochs | None, list[Finding]]:
        file = path / checkpoint.LEADER_EPOCHS
        if not file.exists():
            return None, []
        try:
            rows = [(int(epoch), int(start)) for epoch, start in checkpoint.read_lines(self._fs, file, columns=2)]
            if rows != sorted(set(rows)) or any(b[1] <= a[1] for a, b in pairwise(rows)):
                raise CorruptMessage(f"{file} is damaged: epochs and offsets do not grow")
        except (CorruptMessage, ValueError) as error:
            return None, [Finding(file, None, Level.DAMAGED, str(error), _RECREATED)]
        return LeaderEpochs((LeaderEpoch(epoch), Offset(start)) for epoch, start in rows), []

    def _index_sums(self, path: Path) -> Iterator[Finding]:
        try:
            if path.exists():
                list(index_sum_rows(path))
        except CorruptMessage as error:
            yield Finding(path, None, Level.DAMAGED, str(error), "nothing: indexes are made anew at the start")

    def _segment(self, path: Path, epochs: LeaderEpochs | None, *, last: bool, clean: bool) -> _Segment:
        self.segments += 1
        segment = _Segment(path, epochs, last=last, clean=clean)
        for batch in read_batches(path):
            self.batches += 1
            self.bytes += len(batch.data)
            self.records += batch.header.record_count if batch.header else 0
            segment.take(batch, decode=self._decode)
        return segment

    def _snapshot(self, path: Path, end: int) -> Iterator[Finding]:
        try:
            Producers.decode(path.read_bytes(), TimestampMs(2**63 - 1))
        except CorruptMessage as error:
            yield Finding(path, None, Level.DAMAGED, str(error), _RECREATED)
        if base_offset(path) > end:
            problem = f"a snapshot as of offset {base_offset(path)} of a log that ends at {end}"
            yield Finding(path, None, Level.NOTED, problem, "nothing: it is deleted when the broker starts")


class _Segment:
    """One log file as it is read: what its indexes must agree with."""

    def __init__(self, path: Path, epochs: LeaderEpochs | None, *, last: bool, clean: bool) -> None:
        """``last``: of its log, so that it may still be written to, unless the broker was stopped (``clean``)."""
        self.path = path
        self.findings: list[Finding] = []
        self.end = base_offset(path)
        """The next offset after what could be read."""
        self._epochs = epochs
        self._last = last
        self._may_be_torn = last and not clean
        self._must_have_indexes = clean and not last
        self._index, self._index_findings = self._entries(INDEX, index_entries)
        self._times, times_findings = self._entries(TIME_INDEX, time_index_entries)
        self._index_findings += times_findings
        self._starts: dict[int, int | None] = {position: None for _, position in self._index}
        """Positions that the offset index names → last offset of the batch there."""
        self._peaks: dict[int, int] = {offset: -1 for _, offset in self._times}
        """Offsets that the time index names → the timestamp of a batch that ends there, if it was a new highest one."""
        self._max_timestamp = -1

    def _entries(
        self, suffix: str, read: Callable[[Path], list[tuple[int, int]]]
    ) -> tuple[list[tuple[int, int]], list[Finding]]:
        path = self.path.with_suffix(suffix)
        if not path.exists():
            missing = Finding(path, None, Level.NOTED, "the index of a closed segment is missing", _REBUILT)
            return [], [missing] if self._must_have_indexes else []
        try:
            return read(path), []
        except CorruptMessage as error:
            return [], [Finding(path, None, Level.DAMAGED, str(error), _REMADE)]

    def take(self, batch: StoredBatch, *, decode: bool) -> None:
        """The next batch of the file."""
        header = batch.header
        if header is None:
            self._unreadable(batch)
            return
        problem = batch.problem
        if not problem and decode:
            try:
                decode_batch(batch.data)
            except (CorruptMessage, UnsupportedCompressionType) as error:
                problem = str(error)
        if problem:
            self._damaged(batch.position, problem, header.last_offset)
        if header.base_offset != self.end:
            told = "overlaps what came before" if header.base_offset < self.end else "leaves a gap"
            text = f"offset {header.base_offset} where {self.end} was expected: it {told}"
            self._damaged(batch.position, text, header.last_offset)
        self._check_epoch(batch.position, header)
        if batch.position in self._starts:
            self._starts[batch.position] = header.last_offset
        if header.max_timestamp > self._max_timestamp:
            self._max_timestamp = header.max_timestamp
            if header.last_offset in self._peaks:
                self._peaks[header.last_offset] = header.max_timestamp
        self.end = max(self.end, header.next_offset)

    def _unreadable(self, batch: StoredBatch) -> None:
        if batch.torn and self._may_be_torn:
            self.findings.append(Finding(self.path, batch.position, Level.NOTED, batch.problem, _CUT))
        else:
            self._damaged(batch.position, f"{batch.problem}; what follows it can't be read", self.end)

    def _damaged(self, position: int, problem: str, last_offset: int) -> None:
        self.findings.append(Finding(self.path, position, Level.DAMAGED, problem, _LOST.format(last_offset)))

    def _check_epoch(self, position: int, header: BatchHeader) -> None:
        if self._epochs is None:
            return
        told = self._epochs.epoch_at(Offset(header.base_offset))
        if told != header.leader_epoch:
            path = self.path.with_name(checkpoint.LEADER_EPOCHS)
            problem = (
                f"epoch {told} at offset {header.base_offset}; the batch at position {position} of {self.path.name} "
                f"has {header.leader_epoch}"
            )
            self.findings.append(Finding(path, None, Level.DAMAGED, problem, _RECREATED))

    def index_findings(self) -> Iterator[Finding]:
        """What is wrong with the indexes, once the whole log file was taken; one finding a file."""
        yield from self._index_findings
        for suffix, problem in ((INDEX, self._index_problem()), (TIME_INDEX, self._time_index_problem())):
            if problem:
                yield Finding(self.path.with_suffix(suffix), None, Level.DAMAGED, problem, _REMADE)

    def _index_problem(self) -> str | None:
        before = (-1, -1)
        for number, (offset, position) in enumerate(self._index):
            found = self._starts.get(position)
            if offset <= before[0] or position <= before[1]:
                return f"entry {number} (offset {offset}, position {position}) does not grow"
            if found != offset:
                there = "there is no batch" if found is None else f"the batch there ends with {found}"
                return f"entry {number} says that the batch with offset {offset} is at position {position}: {there}"
            before = (offset, position)
        return None

    def _time_index_problem(self) -> str | None:
        before = -1
        for number, (timestamp, offset) in enumerate(self._times):
            if timestamp <= before:
                return f"entry {number} (timestamp {timestamp}) does not grow"
            if self._peaks[offset] != timestamp:
                return f"entry {number} has timestamp {timestamp} at offset {offset}: the log has not"
            before = timestamp
        there = self.path.with_suffix(TIME_INDEX).exists() and not self._index_findings
        if there and not self._last and before != self._max_timestamp:
            return f"the highest timestamp is {self._max_timestamp}, the last entry has {before}"
        return None
