"""A log and the list that it must equal, on a disk that can crash at any operation.

:class:`LogWorld` does each operation to both. After a crash it recovers the log and compares: what is there must be a
prefix of what was appended, on a batch's border, with everything that was durable, nothing that was truncated away,
and with the producers' memory, so that a retry makes no duplicate.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from kit.faulty_files import Loss, LossyFileSystem, SimulatedCrash
from kit.partitions import lead
from raylog.broker.config import BROKER_SETTINGS, topic_settings
from raylog.broker.partition.partition import AppendInfo, Isolation, Partition
from raylog.broker.storage.directories.log_dirs import LogDirs
from raylog.broker.storage.log.cleaning import enforce_retention
from raylog.broker.storage.log.truncation import truncate_to
from raylog.protocol.ids import (
    BrokerId,
    Offset,
    PartitionIndex,
    TimestampMs,
    TopicId,
    TopicName,
    TopicPartition,
)
from raylog.protocol.records import Record, batch_headers, decode_batch, encode_batch

TP = TopicPartition(TopicName("numbers"), PartitionIndex(0))
TOPIC_ID = TopicId(UUID(int=7))
LOG_DIR = Path("/disk/logs")
NOW = TimestampMs(1_000_000)

Rows = tuple[tuple[bytes, int], ...]
"""Values with their timestamps."""

SMALL = {
    "segment.bytes": "700",
    "index.interval.bytes": "100",
    "segment.index.bytes": "48",
    "retention.ms": "-1",
    "retention.bytes": "1000",
}
"""Settings under which a few records already make segments, index entries and old segments."""


@dataclass(frozen=True)
class Stored:
    """A batch that the log should hold."""

    base: int
    rows: Rows
    producer: int = -1
    sequence: int = -1
    epoch: int = 0
    """The leader epoch in which it was written."""

    @property
    def end(self) -> int:
        return self.base + len(self.rows)


@dataclass
class Producing:
    """An idempotent producer's own memory."""

    id: int
    next_sequence: int = 0


@dataclass
class LogWorld:
    """See the module."""

    fs: LossyFileSystem
    topic: dict[str, str] = field(default_factory=lambda: dict(SMALL))
    batches: list[Stored] = field(default_factory=list)
    start: int = 0
    deleted_to: int = 0
    """What a client was told is deleted: never to come back, nor to be another record's offset."""
    durable_end: int = 0
    producers: list[Producing] = field(default_factory=lambda: [Producing(100), Producing(200)])
    crashes: int = 0

    def __post_init__(self) -> None:
        self._in_flight: list[Stored] = []
        self._cut: int | None = None
        self._deleting = False
        self._delete_to = -1
        self._value = 0
        self._next_producer = 1000
        self._epoch = 0
        self.open()

    # --- operations ------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Start on what is on the disk."""
        self.broker_settings = BROKER_SETTINGS.settings({"log.dirs": str(LOG_DIR)})
        ids = iter(range(10**9))
        self.dirs = LogDirs(self.broker_settings, self.fs, "cluster", BrokerId(0), lambda: f"id{next(ids)}")
        self.dirs.open(NOW)
        log = self.dirs.create(TP, TOPIC_ID, NOW)
        self.partition = Partition(TP, TOPIC_ID, log, topic_settings(self.broker_settings, self.topic))
        self._epoch += 1
        lead(self.partition, self._epoch)

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else self.start

    def append(self, timestamps: list[int], producer: Producing | None = None) -> None:
        """Append a batch with as many records."""
        rows = []
        for timestamp in timestamps:
            self._value += 1
            rows.append((b"%d" % self._value, timestamp))
        stored = Stored(self.end, tuple(rows), epoch=self._epoch)
        if producer is not None:
            stored = Stored(self.end, tuple(rows), producer.id, producer.next_sequence, self._epoch)
            producer.next_sequence += len(rows)
        self._in_flight = [stored]
        info = self._send(stored)
        assert (info.base_offset, info.last_offset, info.duplicate) == (stored.base, stored.end - 1, False)
        self._in_flight = []
        self.batches.append(stored)
        if self.topic.get("flush.messages") == "1":
            self.durable_end = self.end

    def _send(self, stored: Stored) -> AppendInfo:
        records = [Record(value, timestamp=timestamp) for value, timestamp in stored.rows]
        with_producer = stored.producer >= 0
        data = encode_batch(
            records,
            producer_id=stored.producer,
            producer_epoch=0 if with_producer else -1,
            base_sequence=stored.sequence,
        )
        return self.partition.append(memoryview(bytearray(data)), now_ms=NOW)

    def roll(self) -> None:
        with self.partition.log.lock:
            if self.partition.log.segments[-1].size:
                self.partition.log.roll(NOW)

    def flush(self) -> None:
        self.partition.flush()
        self.durable_end = self.end

    def truncate(self, offset: int) -> None:
        """Truncate; a batch that reaches beyond goes as a whole."""
        kept = [batch for batch in self.batches if batch.end <= offset]
        self._cut = kept[-1].end if kept else self.start
        truncate_to(self.partition.log, Offset(offset), NOW)
        self.batches = kept
        self.durable_end = min(self.durable_end, self.end)
        self._cut = None
        self._rewind_producers()

    def retain(self) -> None:
        """Delete old segments by size."""
        self._deleting = True
        enforce_retention(self.partition.log, NOW, 0)
        self._deleting = False
        start = self.partition.log_start_offset
        assert start >= self.start
        self._set_start(start)

    def _set_start(self, start: int) -> None:
        cut = next((batch for batch in self.batches if batch.base < start < batch.end), None)
        assert cut is None or start in (self.start, self._delete_to), "retention cut a batch in two"
        self.start = start
        self.batches = [batch for batch in self.batches if batch.end > start]

    def delete_records(self, offset: int) -> None:
        """Delete the records before ``offset`` as a client asks for it, also in the middle of a batch."""
        self._deleting, self._delete_to = True, offset
        start = self.partition.delete_records(Offset(offset))
        self.partition.save_start()
        self._deleting = False
        assert start == max(offset, self.start)
        self.deleted_to = start
        self._set_start(start)
        self._rewind_producers()

    def maintain(self) -> None:
        """What the broker does once a second: flushes closed segments, and here writes the checkpoints as well."""
        self.partition.log.flush(sealed_only=True)
        self.durable_end = max(self.durable_end, self.partition.log.segments[-1].base_offset)
        self.dirs.dirs[0].checkpoint()

    def restart(self) -> None:
        """Stop cleanly and start again."""
        self.dirs.close()
        assert self.fs.exists(LOG_DIR / ".kafka_cleanshutdown")
        self.durable_end = self.end
        self.open()

    # --- crashing --------------------------------------------------------------------------------------------

    def run(self, operation: Callable[[], None], loss: Loss, rng: random.Random) -> None:
        """Do it; when the disk crashes meanwhile, recover and compare."""
        try:
            operation()
        except SimulatedCrash:
            self.recover(loss, rng)

    def recover(self, loss: Loss, rng: random.Random) -> None:
        """Crash now, start on what the disk kept, compare. A crash in the middle of recovery is recovered from, too."""
        self.crashes += 1
        while True:
            self.fs = self.fs.after_crash(loss, rng)
            if rng.random() < 0.3:
                self.fs.crash_after(rng.randint(1, 30), rng)
            try:
                self.open()
                break
            except SimulatedCrash:
                continue
        self.fs.crash_at = None
        self._compare_after_crash(loss)

    def _compare_after_crash(self, loss: Loss) -> None:
        found = self.read_all()
        possible = self.batches + self._in_flight
        if self._deleting:
            self._set_start(self.partition.log_start_offset)
            possible = self.batches
        log_start = self.partition.log_start_offset
        expected = max(self.deleted_to, min(self.start, self.partition.log_end_offset))
        assert log_start == expected, "deleted records came back, or kept ones are gone"
        assert found == possible[: len(found)], "not a prefix of what was appended"
        must = min(self.durable_end, self._cut if self._cut is not None else self.durable_end)
        end = found[-1].end if found else log_start
        assert end >= must, f"durable up to {must}, found up to {end}"
        if loss is Loss.KEPT and self._cut is None:
            assert len(found) >= len(self.batches), "a killed process lost what it had written"
        self._deleting, self._delete_to, self._cut, self._in_flight = False, -1, None, []
        self.batches = found
        self.start = log_start
        self.durable_end = self.end
        self._retry_producers()

    def _retry_producers(self) -> None:
        """Each producer sends its last batch that is in the log again: an answer, and no duplicate."""
        self._rewind_producers()
        for producer in self.producers:
            last = next((batch for batch in reversed(self.batches) if batch.producer == producer.id), None)
            if last is not None:
                info = self._send(last)
                assert info.duplicate, "a retry was appended twice"
                assert (info.base_offset, info.last_offset) == (last.base, last.end - 1)

    def _rewind_producers(self) -> None:
        """Producers go on after their last batch in the log; those that have none begin anew under another id."""
        for producer in self.producers:
            last = next((batch for batch in reversed(self.batches) if batch.producer == producer.id), None)
            if last is not None:
                producer.next_sequence = last.sequence + len(last.rows)
            else:
                self._next_producer += 1
                producer.id, producer.next_sequence = self._next_producer, 0

    # --- comparing -------------------------------------------------------------------------------------------

    def read_all(self, max_bytes: int = 200) -> list[Stored]:
        """Everything that the log serves, batch by batch, checksums checked."""
        found: list[Stored] = []
        offset = self.partition.log_start_offset
        while offset < self.partition.log_end_offset:
            info = self.partition.read(offset, max_bytes, isolation=Isolation.LOG_END)
            assert info.data is not None, f"nothing at offset {offset}"
            data = info.data.read()
            info.data.release()
            for position, header in batch_headers(data):
                rows = tuple((record.value or b"", record.timestamp) for record in decode_batch(data, position))
                assert header.base_offset == offset or (not found and header.base_offset < offset)
                producer = (header.producer_id, header.base_sequence)
                found.append(Stored(header.base_offset, rows, *producer, header.leader_epoch))
                offset = Offset(header.next_offset)
        return found

    def check(self) -> None:
        """The log equals the list: by offset, by timestamp, and in its bounds."""
        assert self.partition.log_start_offset == self.start
        assert self.partition.log_end_offset == self.end
        assert self.partition.high_watermark == self.end
        assert self.read_all() == self.batches
        rows = [(b.base + n, ts, b.epoch) for b in self.batches for n, (_, ts) in enumerate(b.rows)]
        rows = [row for row in rows if row[0] >= self.start]
        for asked in {0, 1, *(ts for _, ts, _ in rows[-8:]), *(ts + 1 for _, ts, _ in rows[:8])}:
            expected = next((row for row in rows if row[1] >= asked), None)
            assert self.partition.offset_for_timestamp(TimestampMs(asked)) == expected, f"asked for timestamp {asked}"
        newest = max(rows, key=lambda row: (row[1], -row[0]), default=None)
        assert self.partition.max_timestamp_offset() == newest
        for batch in self.batches[-3:]:
            for offset in {max(batch.base, self.start), batch.end - 1}:
                info = self.partition.read(Offset(offset), 1)
                assert info.data is not None
                ((_, header),) = list(batch_headers(info.data.read()))
                info.data.release()
                assert header.base_offset == batch.base


STEPS_AFTER_A_CRASH = 4
"""So many go on with what was recovered; the log is compared after the last."""


def live(world: LogWorld, loss: Loss, rng: random.Random) -> None:
    """Append, roll, truncate, checkpoint, retention, DeleteRecords, clean stop: each at least twice."""
    one, other = world.producers
    steps = [
        lambda: world.append([3, 1, 2]),
        lambda: world.append([5], one),
        world.maintain,
        lambda: world.append([4, 9], other),
        world.roll,
        lambda: world.append([7, 7, 7, 8], one),
        world.flush,
        lambda: world.append([1]),
        lambda: world.truncate(world.end - 2),
        lambda: world.append([6, 2], one),
        lambda: world.delete_records(world.start + 1),
        lambda: world.append([8], other),
        world.restart,
        lambda: world.append([11, 10], other),
        world.roll,
        lambda: world.append([2, 3], one),
        world.maintain,
        world.retain,
        world.restart,
        lambda: world.append([31, 30], one),
        world.flush,
        world.maintain,
        world.roll,
        lambda: world.append([40], other),
        *(lambda n=n: world.append([n, n + 1], one) for n in range(12)),  # type: ignore[misc]
        lambda: world.truncate(max(world.end - 9, world.start)),
        world.retain,
        world.flush,
        world.maintain,
        lambda: world.truncate(max(world.end - 12, world.start)),
        *(lambda n=n: world.append([n], one) for n in range(12)),  # type: ignore[misc]
        *(lambda n=n: world.append([n] * 5) for n in range(24)),  # type: ignore[misc]
        lambda: world.delete_records(world.end - 7),
        lambda: world.truncate(world.start + 1),
        lambda: world.append([12, 13, 14], one),
        lambda: world.delete_records(world.end - 1),
        lambda: world.truncate(world.end - 1),
        lambda: world.append([15]),
        world.flush,
        lambda: world.delete_records(world.end),
        *(lambda n=n: world.append([n] * 3) for n in range(8)),  # type: ignore[misc]
        world.retain,
        lambda: world.append([20], other),
        world.restart,
    ]
    left = len(steps)
    for step in steps:
        if world.crashes == 1:
            world.recover(Loss.LOST, rng)  # what was recovered is durable
            left = min(left, STEPS_AFTER_A_CRASH)
        if left == 0:
            return
        world.run(step, loss, rng)
        left -= 1
