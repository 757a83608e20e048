"""What a partition knows of its idempotent producers (KIP-98, KIP-360): the last five batches of each.

A producer numbers its records per partition; a batch must begin where the last one ended. One that was there already
is a retry: it is answered with the offsets of the first time. Sequences wrap from 2**31 - 1 to 0.

A batch that is older than those five, but whose every sequence is known to have been appended, is a duplicate without
offsets. Kafka calls it out of order (OUT_OF_ORDER_SEQUENCE_NUMBER), so that its producers begin a new epoch and send it
again; ours may send a whole file again (client.producer_state.Continuation). A sequence before the first known one was
perhaps never appended: it is out of order here, too.

Snapshots (``.snapshot``) have Kafka's format version 1, with an entry for each known batch of a producer, oldest first.
Of entries with the same id Kafka's readers keep the last, which is all that Kafka writes. Sequences without offsets are
an entry of offset -1 before the batches. Pure: time is handed in, bytes come out.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from raylog.protocol.errors import CorruptMessage, InvalidProducerEpoch, OutOfOrderSequence
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
_MAX_RUN = _SEQUENCES // 2
"""So many sequences before the newest can be told from those after it."""
_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEAD = struct.Struct(">hIi")  # version, CRC-32C of all after it, entry count
_CRC_END = 6
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")


class ProducedBatch(NamedTuple):
    """Where a batch of a producer landed."""

    first_sequence: Sequence
    last_sequence: Sequence
    base_offset: Offset
    """-1 when it is no longer known."""
    last_offset: Offset
    """Where its last record lies; at the most, when that is no longer known."""
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
        "run",
        "transaction_start",
    )

    def __init__(self, producer_id: ProducerId, epoch: ProducerEpoch) -> None:
        self.id = producer_id
        self.epoch = epoch
        self.batches: deque[ProducedBatch] = deque(maxlen=BATCHES_KEPT)
        """The newest, without a gap between them."""
        self.run = 0
        """How many sequences without a gap are known to be appended, up to the newest: those of ``batches`` and of
        older ones."""
        self.last_seen_ms = TimestampMs(0)
        """Its last batch by the wall clock: what administrators are told, and snapshots keep."""
        self.active = True
        """Whether it sent something since :meth:`Producers.expire` looked."""
        self.quiet_since_ms: int | None = None
        """Since when it has been silent, by the monotonic clock; None when that clock never looked at it."""
        self.coordinator_epoch = -1
        self.transaction_start = NO_OFFSET
        """Where its open transaction begins, or -1: the last stable offset stays below (for transactions to come)."""

    @property
    def next_sequence(self) -> Sequence:
        """Where its next batch must begin."""
        return Sequence((self.batches[-1].last_sequence + 1) % _SEQUENCES if self.batches else 0)

    def begin(self, epoch: ProducerEpoch) -> None:
        """Forget its batches: what follows is of this epoch, or of another run."""
        self.epoch = epoch
        self.batches.clear()
        self.run = 0

    def add(self, batch: ProducedBatch) -> None:
        """Note its newest batch. One that leaves a gap begins anew: the leader had forgotten the producer."""
        if self.batches and batch.first_sequence != self.next_sequence:
            self.begin(self.epoch)
        self.batches.append(batch)
        self.run = min(self.run + _count(batch.first_sequence, batch.last_sequence), _MAX_RUN)

    def appended(self, first: Sequence, last: Sequence) -> bool:
        """Whether each of these sequences is known to be appended."""
        back = (self.batches[-1].last_sequence - first) % _SEQUENCES
        return _count(first, last) <= back + 1 <= self.run


def _count(first: Sequence, last: Sequence) -> int:
    return (last - first) % _SEQUENCES + 1


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
        """None when the producer's batch may be appended; the earlier append when it is a retry.

        That one has no base offset when it is older than what is kept; then its last offset is the producer's newest.
        Raises InvalidProducerEpoch (another instance took over), or OutOfOrderSequence (a batch before it was lost, or
        nobody knows whether it was ever appended).
        """
        producer = self._producers.get(ProducerId(header.producer_id))
        if producer is None:
            return None  # never seen, or expired: any sequence may begin
        if header.producer_epoch != producer.epoch:
            self._check_new_epoch(header, producer)
            return None
        first, last = Sequence(header.base_sequence), Sequence(header.last_sequence)
        if first == producer.next_sequence:
            return None
        for batch in producer.batches:
            if batch.first_sequence == first and batch.last_sequence == last:
                return batch
        if producer.batches and producer.appended(first, last):
            return ProducedBatch(first, last, NO_OFFSET, producer.batches[-1].last_offset, NO_TIMESTAMP)
        raise OutOfOrderSequence(
            f"producer {producer.id} (epoch {producer.epoch}): sequence {first}, expected {producer.next_sequence}: a "
            "batch before this one did not arrive, or this one is too old to know"
        )

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
            producer.begin(epoch)
        producer.last_seen_ms = now_ms
        producer.active = True
        if header.is_control:
            return
        producer.add(
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
        entries = [entry for producer in self for entry in _entries(producer)]
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
            producers._add_entry(_Entry._make(fields), now_ms)
        return producers

    def _add_entry(self, entry: _Entry, now_ms: TimestampMs) -> None:
        producer = self._producers.get(entry.producer_id)
        if producer is None:
            producer = self._producers[entry.producer_id] = Producer(entry.producer_id, entry.epoch)
        elif producer.epoch != entry.epoch:
            producer.begin(entry.epoch)
        producer.last_seen_ms = min(entry.timestamp, now_ms)
        producer.coordinator_epoch = entry.coordinator_epoch
        producer.transaction_start = entry.transaction_start
        if entry.last_sequence < 0:
            return
        if entry.last_offset < 0:
            producer.run = entry.delta + 1
            return
        first = Sequence((entry.last_sequence - entry.delta) % _SEQUENCES)
        base = Offset(entry.last_offset - entry.delta)
        producer.add(ProducedBatch(first, entry.last_sequence, base, entry.last_offset, NO_TIMESTAMP))


class _Entry(NamedTuple):
    """An entry of a snapshot."""

    producer_id: ProducerId
    epoch: ProducerEpoch
    last_sequence: Sequence
    last_offset: Offset
    delta: int
    """How many sequences, and offsets, come before the last."""
    timestamp: TimestampMs
    coordinator_epoch: int
    transaction_start: Offset


def _entries(producer: Producer) -> Iterator[bytes]:
    """Older sequences, then batches from the oldest to the newest; at least one."""
    batches = [
        (batch.last_sequence, batch.last_offset, batch.last_offset - batch.base_offset) for batch in producer.batches
    ]
    older = producer.run - sum(delta + 1 for _, _, delta in batches)
    if older > 0:
        before = Sequence((producer.batches[0].first_sequence - 1) % _SEQUENCES)
        batches.insert(0, (before, NO_OFFSET, older - 1))
    for last_sequence, last_offset, delta in batches or [(NO_SEQUENCE, NO_OFFSET, 0)]:
        yield _SNAPSHOT_ENTRY.pack(
            producer.id,
            producer.epoch,
            last_sequence,
            last_offset,
            delta,
            producer.last_seen_ms,
            producer.coordinator_epoch,
            producer.transaction_start,
        )
