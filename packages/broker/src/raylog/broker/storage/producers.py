"""What a partition knows of its idempotent producers (KIP-98, KIP-360): the last five batches of each.

A producer numbers its records per partition; a batch must begin where the last one ended. One that was there already
is a retry: it is answered with the offsets of the first time. Sequences wrap from 2**31 - 1 to 0, so that "before" and
"after" mean the nearer half of the circle.

Snapshots (``.snapshot``, Kafka's format version 1) keep only the last batch of each producer. A retry that is older
than what is known is therefore possible after a restart; it raises DuplicateSequence, which producers take for success.
Pure: time is handed in, bytes come out.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from raylog.protocol.errors import CorruptMessage, DuplicateSequence, InvalidProducerEpoch, OutOfOrderSequence
from raylog.protocol.ids import (
    NO_OFFSET,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    Offset,
    ProducerEpoch,
    ProducerId,
    Sequence,
    TimestampMs,
)
from raylog.protocol.records import BatchHeader, TimestampType

BATCHES_KEPT = 5
"""As many as a producer may have in flight."""

GRACE_MS = 60 * 60 * 1000
"""How long a producer is remembered after a start at the least: longer than any retry is on its way."""

_SEQUENCES = 2**31
_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEAD = struct.Struct(">hIi")  # version, CRC-32C of all after it, entry count
_CRC_END = 6
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")


class ProducedBatch(NamedTuple):
    """Where a batch of a producer landed."""

    first_sequence: Sequence
    last_sequence: Sequence
    base_offset: Offset
    last_offset: Offset
    timestamp: TimestampMs
    """The time that was stamped into it (LogAppendTime), or -1."""


class Producer:
    """One producer's state in this partition."""

    __slots__ = (
        "active",
        "batches",
        "coordinator_epoch",
        "epoch",
        "id",
        "last_seen_ms",
        "quiet_since_ms",
        "transaction_start",
    )

    def __init__(self, producer_id: ProducerId, epoch: ProducerEpoch) -> None:
        self.id = producer_id
        self.epoch = epoch
        self.batches: deque[ProducedBatch] = deque(maxlen=BATCHES_KEPT)
        self.last_seen_ms = TimestampMs(0)
        """Its last batch by the wall clock: what administrators are told, and snapshots keep."""
        self.active = True
        """Whether it sent something since :meth:`Producers.expire` looked."""
        self.quiet_since_ms: int | None = None
        """Since when it has been silent, by the monotonic clock; None when that clock never looked at it."""
        self.coordinator_epoch = -1
        self.transaction_start = NO_OFFSET
        """Where its open transaction begins, or -1: the last stable offset stays below (for transactions to come)."""


class ProducerFacts(NamedTuple):
    """A producer as administrators are told of it (KIP-664)."""

    id: ProducerId
    epoch: ProducerEpoch
    last_sequence: Sequence
    last_seen_ms: TimestampMs
    coordinator_epoch: int
    transaction_start: Offset


class Producers:
    """All producers of a partition. The caller holds the log's lock."""

    def __init__(self) -> None:
        self._producers: dict[ProducerId, Producer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[Producer]:
        return iter(self._producers.values())

    def check(self, header: BatchHeader) -> ProducedBatch | None:
        """None when the producer's batch may be appended; the earlier append when it is a retry of a known one.

        Raises InvalidProducerEpoch (another instance took over), OutOfOrderSequence (a batch before it was lost), or
        DuplicateSequence (a retry of one that is no longer known).
        """
        producer = self._producers.get(ProducerId(header.producer_id))
        if producer is None:
            return None  # never seen, or expired: any sequence may begin
        if header.producer_epoch != producer.epoch:
            self._check_new_epoch(header, producer)
            return None
        if not producer.batches:
            return None
        first, last = header.base_sequence, header.last_sequence
        for batch in producer.batches:
            if batch.first_sequence == first and batch.last_sequence == last:
                return batch
        newest = producer.batches[-1].last_sequence
        ahead = (first - newest - 1) % _SEQUENCES
        if ahead == 0:
            return None
        where = f"producer {producer.id} (epoch {producer.epoch}): sequence {first}, expected {newest + 1}"
        if ahead > _SEQUENCES // 2 and (last - newest - 1) % _SEQUENCES > _SEQUENCES // 2:
            raise DuplicateSequence(f"{where}: this batch was appended before")
        raise OutOfOrderSequence(f"{where}: a batch before this one did not arrive")

    def _check_new_epoch(self, header: BatchHeader, producer: Producer) -> None:
        where = f"producer {producer.id}: epoch {header.producer_epoch}, the current one is {producer.epoch}"
        if header.producer_epoch < producer.epoch:
            raise InvalidProducerEpoch(f"{where}: a newer instance took over")
        if header.base_sequence != 0:
            raise OutOfOrderSequence(f"{where}: a new epoch begins at sequence 0, not {header.base_sequence}")

    def update(self, header: BatchHeader, base_offset: Offset, append_time: TimestampMs, now_ms: TimestampMs) -> None:
        """Note that the batch was appended at ``base_offset``."""
        producer_id, epoch = ProducerId(header.producer_id), ProducerEpoch(header.producer_epoch)
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = Producer(producer_id, epoch)
        elif producer.epoch != epoch:
            producer.epoch = epoch
            producer.batches.clear()
        producer.last_seen_ms = now_ms
        producer.active = True
        if header.is_control:
            return
        producer.batches.append(
            ProducedBatch(
                Sequence(header.base_sequence),
                Sequence(header.last_sequence),
                base_offset,
                Offset(base_offset + header.last_offset_delta),
                append_time,
            )
        )

    def replay(self, header: BatchHeader, now_ms: TimestampMs) -> None:
        """Note a batch that lies in the log, or comes from a leader's."""
        stamped = header.timestamp_type is TimestampType.LOG_APPEND_TIME
        append_time = TimestampMs(header.max_timestamp) if stamped else NO_TIMESTAMP
        self.update(header, Offset(header.base_offset), append_time, now_ms)

    def describe(self) -> list[ProducerFacts]:
        """Each producer's state now."""
        return [
            ProducerFacts(
                producer.id,
                producer.epoch,
                producer.batches[-1].last_sequence if producer.batches else NO_SEQUENCE,
                producer.last_seen_ms,
                producer.coordinator_epoch,
                producer.transaction_start,
            )
            for producer in self
        ]

    def first_unstable_offset(self) -> Offset | None:
        """The lowest offset of an open transaction; None when there is none."""
        return min((p.transaction_start for p in self if p.transaction_start >= 0), default=None)

    def expire(self, now_ms: TimestampMs, uptime_ms: int, silence_ms: int) -> int:
        """Forget producers that were silent for ``silence_ms`` and have no open transaction; answers how many.

        Silence is measured by ``uptime_ms``, the monotonic clock: a producer that was forgotten because somebody set
        the wall clock has its next retry appended twice. What a snapshot tells of the time before counts by the wall
        clock, but each producer is given an hour after the start.
        """
        silent = []
        for producer in self:
            if producer.quiet_since_ms is None:
                before = min(max(now_ms - producer.last_seen_ms, 0), max(silence_ms - GRACE_MS, 0))
                producer.quiet_since_ms = uptime_ms - before
            elif producer.active:
                producer.quiet_since_ms = uptime_ms
            elif uptime_ms - producer.quiet_since_ms >= silence_ms and producer.transaction_start < 0:
                silent.append(producer.id)
            producer.active = False
        for producer_id in silent:
            del self._producers[producer_id]
        return len(silent)

    def encode(self) -> bytes:
        """A snapshot."""
        entries = [_entry(producer) for producer in self]
        body = struct.pack(">i", len(entries)) + b"".join(entries)
        return struct.pack(">hI", _SNAPSHOT_VERSION, crc32c(body)) + body

    @classmethod
    def decode(cls, data: bytes, now_ms: TimestampMs) -> Producers:
        """The producers of a snapshot, all seen at ``now_ms`` at the latest; CorruptMessage when it is damaged."""
        if len(data) < _SNAPSHOT_HEAD.size:
            raise CorruptMessage(f"a producer snapshot has {len(data)} bytes, too few")
        version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
        if version != _SNAPSHOT_VERSION or crc != crc32c(data[_CRC_END:]):
            raise CorruptMessage(f"a producer snapshot (version {version}) is damaged: its checksum is wrong")
        if len(data) != _SNAPSHOT_HEAD.size + count * _SNAPSHOT_ENTRY.size:
            raise CorruptMessage(f"a producer snapshot of {len(data)} bytes claims {count} entries")
        producers = cls()
        for fields in _SNAPSHOT_ENTRY.iter_unpack(data[_SNAPSHOT_HEAD.size :]):
            producer = _from_entry(*fields)
            producer.last_seen_ms = min(producer.last_seen_ms, now_ms)
            producers._producers[producer.id] = producer
        return producers


def _entry(producer: Producer) -> bytes:
    last = producer.batches[-1] if producer.batches else None
    return _SNAPSHOT_ENTRY.pack(
        producer.id,
        producer.epoch,
        last.last_sequence if last else NO_SEQUENCE,
        last.last_offset if last else NO_OFFSET,
        last.last_offset - last.base_offset if last else 0,
        producer.last_seen_ms,
        producer.coordinator_epoch,
        producer.transaction_start,
    )


def _from_entry(
    producer_id: int, epoch: int, sequence: int, offset: int, delta: int, timestamp: int, coordinator: int, start: int
) -> Producer:
    producer = Producer(ProducerId(producer_id), ProducerEpoch(epoch))
    producer.last_seen_ms = TimestampMs(timestamp)
    producer.coordinator_epoch = coordinator
    producer.transaction_start = Offset(start)
    if sequence >= 0:
        first = Sequence((sequence - delta) % _SEQUENCES)
        base = Offset(offset - delta)
        producer.batches.append(ProducedBatch(first, Sequence(sequence), base, Offset(offset), TimestampMs(-1)))
    return producer
