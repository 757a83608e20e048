"""A partition on real or faulty files, and batches for it, in as few words as tests want to read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from raylog.broker.config import BROKER_SETTINGS, topic_settings
from raylog.broker.partition.partition import Isolation, Partition
from raylog.broker.partition.types import NOBODY, Subscriptions
from raylog.broker.storage.directories.log_dirs import LogDirs
from raylog.broker.storage.disk.files import FileSystem, RealFileSystem
from raylog.coordination.metadata.model import PartitionState
from raylog.protocol.ids import (
    BrokerId,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    PartitionIndex,
    TimestampMs,
    TopicId,
    TopicName,
    TopicPartition,
)
from raylog.protocol.records import Record, decode_batches, encode_batch

TP = TopicPartition(TopicName("t"), PartitionIndex(0))
TOPIC_ID = TopicId(UUID("00010203-0405-0607-0809-0a0b0c0d0e0f"))
NOW = TimestampMs(1_700_000_000_000)


class Heard:
    """All that a partition tells, in order: on what, and the arguments."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def subscriptions(self) -> Subscriptions:
        def note(on: str) -> Callable[..., None]:
            return lambda *told: self.calls.append((on, *told))

        return Subscriptions(
            on_start=note("start"),
            on_append=note("append"),
            on_advance=note("advance"),
            on_caught_up=note("caught up"),
            on_low_watermark=note("low watermark"),
        )

    def of(self, *on: str) -> list[tuple[Any, ...]]:
        """What was told on these."""
        return [call for call in self.calls if call[0] in on]


@dataclass
class Shelf:
    """Open log directories and the partition in them that tests work on."""

    dirs: LogDirs
    partition: Partition

    @property
    def directory(self) -> Path:
        return self.partition.log.directory


def open_shelf(
    *paths: Path,
    fs: FileSystem | None = None,
    topic: Mapping[str, Any] | None = None,
    broker: Mapping[str, Any] | None = None,
    epoch: int = 0,
    now_ms: int = NOW,
    topic_id: TopicId = TOPIC_ID,
    subscriptions: Subscriptions = NOBODY,
) -> Shelf:
    """Open the log directories, make or find the partition, lead it. ``topic``, ``broker``: settings as texts."""
    texts = {"log.dirs": ",".join(map(str, paths))} | {k: str(v) for k, v in (broker or {}).items()}
    settings = BROKER_SETTINGS.settings(texts)
    dirs = LogDirs(settings, fs or RealFileSystem(), "cluster-of-tests", BrokerId(1))
    dirs.open(TimestampMs(now_ms))
    log = dirs.create(TP, topic_id, TimestampMs(now_ms))
    overrides = {key: str(value) for key, value in (topic or {}).items()}
    partition = Partition(TP, topic_id, log, topic_settings(settings, overrides), subscriptions)
    lead(partition, epoch)
    return Shelf(dirs, partition)


def lead(partition: Partition, epoch: int) -> None:
    """Have the partition led here, without followers, in this leader epoch."""
    broker = BrokerId(1)
    state = PartitionState((broker,), broker, LeaderEpoch(epoch), (broker,), version=epoch)
    partition.role.become_leader(state, MonotonicMs(0))


def batch(
    *values: bytes,
    timestamps: Sequence[int] | None = None,
    producer: tuple[int, int, int] | None = None,
    **more: Any,
) -> memoryview:
    """An encoded batch, writable. ``producer``: id, epoch, first sequence. Timestamps default to NOW."""
    times = timestamps or [NOW] * len(values)
    records = [Record(value, timestamp=time) for value, time in zip(values, times, strict=True)]
    producer_id, epoch, sequence = producer or (-1, -1, -1)
    data = encode_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **more)
    return memoryview(bytearray(data))


def append(partition: Partition, *values: bytes, now_ms: int = NOW, **more: Any) -> int:
    """Append one batch; its base offset."""
    return partition.append(batch(*values, **more), now_ms=TimestampMs(now_ms)).base_offset


def values(
    partition: Partition, offset: int | None = None, isolation: Isolation = Isolation.HIGH_WATERMARK
) -> list[bytes | None]:
    """All values that a reader gets from ``offset`` (default: the start) to the end of what it may see."""
    at = partition.log_start_offset if offset is None else Offset(offset)
    found: list[bytes | None] = []
    while True:
        info = partition.read(at, 1 << 20, isolation=isolation)
        if info.data is None:
            return found
        try:
            records = decode_batches(info.data.read(), from_offset=at)
        finally:
            info.data.release()
        found.extend(record.value for record in records)
        at = Offset(records[-1].offset + 1)
