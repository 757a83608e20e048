"""A broker's disk and the logs on it. A crash of the process keeps what was written, one of the machine what was
synced.

:class:`SimLog` stands in for ``storage.log.Log`` below the real ``Partition``: batches are real record batches, kept in
a list instead of segments. ``on_append`` and ``on_truncate`` tell the invariants what happens to it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Never
from uuid import UUID

from raylog.broker.storage.disk.files import LogClosed
from raylog.broker.storage.disk.health import Health
from raylog.broker.storage.state.epochs import LeaderEpochs
from raylog.broker.storage.state.log_config import LogConfig
from raylog.broker.storage.state.offsets import LogOffsets, Mark
from raylog.broker.storage.state.producers import Producers
from raylog.coordination.store.port import Session
from raylog.protocol.errors import OffsetOutOfRange
from raylog.protocol.ids import FilePosition, LeaderEpoch, Offset, TimestampMs, TopicId, TopicPartition
from raylog.protocol.records import BatchHeader, read_header, stamp

ROLL_BATCHES = 6
"""After so many batches a log makes a snapshot of its producers, as with each new segment."""


class Stored(NamedTuple):
    """One batch of a log."""

    base: int
    end: int
    """The offset after its last record."""
    epoch: int
    producer: int
    sequence: int
    data: bytes


def stored(data: bytes) -> Stored:
    header = read_header(data)
    return Stored(
        header.base_offset, header.next_offset, header.leader_epoch, header.producer_id, header.base_sequence, data
    )


def mark(offset: int) -> Mark:
    return Mark(Offset(offset), Offset(0), FilePosition(offset))


class Slice:
    """What a read found; stands in for a FileSlice."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.length = len(data)

    def __len__(self) -> int:
        return self.length

    def read(self) -> bytes:
        return self._data

    def release(self) -> None: ...


@dataclass
class Files:
    """What one partition has on a disk."""

    topic_id: TopicId
    batches: list[Stored] = field(default_factory=list)
    synced: int = 0
    """So many of ``batches`` survive a crash of the machine."""
    epochs: list[tuple[LeaderEpoch, Offset]] = field(default_factory=list)
    high_watermark: int = 0
    """As checkpointed."""
    start: int = 0
    """As checkpointed: records before it are deleted."""
    snapshots: list[tuple[int, bytes]] = field(default_factory=list)
    """What is kept of producers, as of an offset, in order; durable at once. Those before the last are there for
    truncations."""
    skipped: int = 0
    """So many batches of the partition are not in ``batches``: the log began anew after them."""
    origin: int = 0
    """Where it ends without any."""

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else self.origin

    def lacks(self, number: int, batch: Stored) -> bool:
        """Whether the partition's batch of that number, counted from 0, is another one here or none; one that lies
        before the log's start is not missed.
        """
        index = number - self.skipped
        if index < 0 or batch.end <= self.start:
            return False
        return index >= len(self.batches) or self.batches[index][:3] != batch[:3]


@dataclass
class Disk:
    """All that survives a process. ``boot`` counts the machine's starts, ``directory`` changes with the disk."""

    directory: UUID
    files: dict[TopicPartition, Files] = field(default_factory=dict)
    session: Session | None = None
    boot: int = 0
    clean: bool = False
    """Whether the last process closed its logs in an orderly way."""
    is_full: bool = False
    """There is no room to keep a session; logs have a disk of their own."""
    health: Health = field(default_factory=lambda: Health(Path("disk")))
    """As the process sees it: offline for good after the first error. The next process looks anew."""

    def crash_machine(self) -> None:
        """Keep the synced batches only. Epochs are durable at once, as ``leader-epoch-checkpoint`` is."""
        self.boot += 1
        for files in self.files.values():
            deleted = files.skipped + sum(batch.end <= files.start for batch in files.batches)
            del files.batches[files.synced :]
            if files.end < files.start:
                files.batches.clear()
                files.synced, files.origin, files.skipped = 0, files.start, deleted

    def wipe(self, directory: UUID) -> None:
        """Another, empty disk."""
        self.boot += 1
        self.directory = directory
        self.files.clear()
        self.session = None
        self.clean = False
        self.health = Health(Path("disk"))


def _replay(producers: Producers, batches: Sequence[Stored]) -> None:
    for batch in batches:
        if batch.producer >= 0:
            producers.replay(read_header(batch.data), TimestampMs(0))


class SimLog:
    """One partition's log in a running process. Nothing here takes time."""

    def __init__(self, tp: TopicPartition, files: Files, config: LogConfig, health: Health) -> None:
        """Opens what the disk has, as recovery does: epochs that begin beyond the end are forgotten, the high
        watermark is the checkpointed one, the producers are those of the last snapshot and the batches after it."""
        self.tp = tp
        self.files = files
        self.config = config
        self.health = health
        self.segments: tuple[()] = ()
        """Deleting records deletes no file here."""
        self.lock = nullcontext()
        self.flush_lock = nullcontext()
        self.doomed: deque[Never] = deque()
        self.durable_start = Offset(files.start)
        self.epochs = LeaderEpochs()
        for epoch, start in files.epochs:
            self.epochs.assign(epoch, start)
        self.epochs.truncate_from_end(Offset(files.end))
        self.producers = self._load_producers()
        hw = mark(max(files.start, min(files.high_watermark, files.end)))
        self._offsets = LogOffsets(Offset(files.start), hw, hw, mark(files.end))
        self._ends = [batch.end for batch in files.batches]
        self.closed = False
        self.damage: None = None
        """Nothing here is ever found damaged."""
        self.on_start: Callable[[], None] = lambda: None
        self.on_append: Callable[[SimLog, Sequence[Stored]], None] = lambda log, batches: None
        self.on_truncate: Callable[[SimLog, int], None] = lambda log, offset: None
        self.on_publish: Callable[[SimLog], None] = lambda log: None
        self.on_start_anew: Callable[[SimLog, int], int] = lambda log, offset: 0
        """Answers how many of the partition's batches lie before the offset."""

    def _load_producers(self) -> Producers:
        """As snapshots.load_producers."""
        files = self.files
        files.snapshots = snapshots = [each for each in files.snapshots if files.origin <= each[0] <= files.end]
        since, data = snapshots[-1] if snapshots else (0, Producers().encode())
        producers = Producers.decode(data, TimestampMs(0))
        _replay(producers, [batch for batch in self.files.batches if batch.base >= since])
        return producers

    def save_producers(self) -> None:
        """As snapshots.save_producers."""
        snapshots, end = self.files.snapshots, self.files.end
        if not snapshots or snapshots[-1][0] < end:
            snapshots.append((end, self.producers.encode()))

    # --- offsets

    @property
    def offsets(self) -> LogOffsets:
        return self._offsets

    @property
    def recovery_point(self) -> Offset:
        files = self.files
        return Offset(files.batches[files.synced - 1].end if files.synced else files.origin)

    def publish(
        self,
        *,
        start: Offset | None = None,
        stable: Mark | None = None,
        high_watermark: Mark | None = None,
        end: Mark | None = None,
    ) -> LogOffsets:
        before = self._offsets
        hw = high_watermark or before.high_watermark
        after = LogOffsets(
            before.start if start is None else start, stable or hw, hw, before.end if end is None else end
        )
        assert after.start <= after.stable.offset <= hw.offset <= after.end.offset, f"{self.tp}: {before} to {after}"
        self._offsets = after
        self.files.high_watermark = hw.offset
        self.on_publish(self)
        return after

    def mark(self, offset: Offset) -> Mark:
        return mark(offset)

    def check_open(self) -> None:
        if self.closed:
            raise LogClosed(f"{self.tp} is closed here")
        self.health.check()

    def configure(self, config: LogConfig) -> None:
        self.config = config

    # --- writing

    def append(
        self,
        batches: memoryview,
        headers: Sequence[BatchHeader],
        *,
        leader_epoch: LeaderEpoch,
        now_ms: TimestampMs,
        visible: bool = False,
    ) -> Offset:
        self.check_open()
        base = offset = self._offsets.end.offset
        if leader_epoch != self.epochs.latest:
            self.assign_epoch(leader_epoch, base)
        position, added = 0, []
        for header in headers:
            stamp(batches, position, offset, leader_epoch)
            added.append(stored(bytes(batches[position : position + header.size])))
            position += header.size
            offset = Offset(added[-1].end)
        self._add(added)
        end = mark(offset)
        self.publish(end=end, high_watermark=end if visible else None)
        return base

    def append_as_replica(self, batches: memoryview, headers: Sequence[BatchHeader], now_ms: TimestampMs) -> None:
        self.check_open()
        position, added, offset = 0, [], self._offsets.end.offset
        for header in headers:
            if header.base_offset < offset:
                raise OffsetOutOfRange(f"{self.tp}: a batch of the leader begins at {header.base_offset}, not {offset}")
            added.append(stored(bytes(batches[position : position + header.size])))
            position += header.size
            offset = Offset(header.next_offset)
        self._add(added)
        for header in headers:
            self.assign_epoch(LeaderEpoch(header.leader_epoch), Offset(header.base_offset))
        self.publish(end=mark(offset))

    def _add(self, batches: list[Stored]) -> None:
        files = self.files
        rolled = len(files.batches) // ROLL_BATCHES
        files.batches += batches
        self._ends += [batch.end for batch in batches]
        _replay(self.producers, batches)
        if len(files.batches) // ROLL_BATCHES > rolled:
            self.save_producers()
        self.on_append(self, batches)

    def assign_epoch(self, epoch: LeaderEpoch, start: Offset) -> None:
        if self.epochs.assign(epoch, start):
            self.save_epochs()

    def truncate(self, offset: Offset, now_ms: TimestampMs) -> Offset:
        """Remove the batches that end beyond ``offset``, durably; answers the new end."""
        self.check_open()
        files, start = self.files, self._offsets.start
        keep = bisect_right(self._ends, offset)
        if keep < len(files.batches):
            if self._ends[keep - 1 : keep] <= [start]:  # only deleted records would be left
                keep, files.origin, files.skipped = 0, start, files.skipped + bisect_right(self._ends, start)
            self.on_truncate(self, files.batches[keep].base)
            del files.batches[keep:], self._ends[keep:]
            files.synced = min(files.synced, keep)
            self.producers = self._load_producers()
        end = mark(files.end)
        if self.epochs.truncate_from_end(end.offset):
            self.save_epochs()
        hw = min(self._offsets.high_watermark.offset, end.offset)
        self.publish(end=end, high_watermark=mark(hw))
        return end.offset

    def start_anew(self, offset: Offset, now_ms: TimestampMs) -> None:
        """Nothing is left; the log begins, empty, at ``offset``."""
        self.check_open()
        files = self.files
        files.skipped, files.origin = self.on_start_anew(self, offset), offset
        files.batches.clear()
        files.snapshots.clear()
        self._ends.clear()
        files.synced = 0
        self.epochs, self.producers = LeaderEpochs(), Producers()
        self.save_epochs()
        self.publish(start=offset, end=mark(offset), high_watermark=mark(offset))
        self.save_start()
        self.durable_start = offset

    def set_segments(self, segments: Sequence[Never]) -> None: ...

    def save_epochs(self) -> None:
        self.files.epochs = self.epochs.rows()

    def save_start(self) -> None:
        self.files.start = self._offsets.start

    def flush(self, *, sealed_only: bool = False) -> None:
        self.health.check()
        self.files.synced = len(self.files.batches)

    # --- reading

    def read(
        self, offset: Offset, max_bytes: int, bound: Mark, *, min_one_batch: bool, may_wait: bool = True
    ) -> Slice | None:
        self.check_open()
        offsets = self._offsets
        if not offsets.start <= offset <= offsets.end.offset:
            raise OffsetOutOfRange(f"{self.tp}: offset {offset} is not in the log, {offsets}")
        found: list[bytes] = []
        size = 0
        for batch in self.from_offset(offset):
            if batch.end > bound.offset or (size + len(batch.data) > max_bytes and (found or not min_one_batch)):
                break
            found.append(batch.data)
            size += len(batch.data)
        return Slice(b"".join(found)) if found else None

    def from_offset(self, offset: int) -> Iterator[Stored]:
        batches = self.files.batches
        for index in range(bisect_right(self._ends, offset), len(batches)):
            yield batches[index]

    def close(self) -> None:
        self.closed = True
