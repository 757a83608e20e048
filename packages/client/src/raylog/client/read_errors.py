"""◆ What a reader is told of a place in a log that it cannot go past by itself.

Each error names the partition and the offsets as attributes, too, and travels pickled. The position stays in front of
what cannot be read: what came before it was handed out, and ``seek`` goes on behind it.
"""

from __future__ import annotations

from collections.abc import Sequence

from raylog.client.results import ConsumerRecord
from raylog.protocol.batches.compression import Buffer
from raylog.protocol.batches.header import BatchHeader, check_crc, read_header, whole_batch
from raylog.protocol.errors import CorruptMessage, InvalidRecord, OffsetOutOfRange, RaylogError
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition
from raylog.protocol.texts import told


class WakeupError(RaylogError):
    """``Consumer.wakeup`` was called."""


class RecordDeserializationError(InvalidRecord):
    """A deserializer raised for one record (KIP-334, KIP-1036); its error is the ``__cause__``, until it is pickled.

    ``seek(topic, partition, offset + 1)`` goes on behind it. ``key`` and ``value`` are the bytes that they were.
    """

    def __init__(self, record: ConsumerRecord, origin: str, error: Exception) -> None:
        """``record``: as it was read. ``origin``: ``key`` or ``value``, which of them it is."""
        tp = TopicPartition(TopicName(record.topic), PartitionIndex(record.partition))
        super().__init__(
            f"{tp} offset {record.offset}: the {origin} cannot be deserialized: {told(error)}; seek to offset "
            f"{record.offset + 1} to go on behind the record"
        )
        self.tp = tp
        self.topic: str = tp.topic
        self.partition: int = tp.partition
        self.offset = record.offset
        self.timestamp = record.timestamp
        self.timestamp_type = record.timestamp_type
        """0: the producer's time. 1: the broker's, on append."""
        self.key: bytes | None = record.key
        self.value: bytes | None = record.value
        self.headers: Sequence[tuple[str, bytes | None]] = record.headers
        self.origin = origin
        """``key`` or ``value``: which of them it is."""


class CorruptBatch(CorruptMessage):
    """The batch at ``offset`` is damaged. ``seek`` to ``next_offset`` goes on behind it; that is -1 where it is not
    known which offset comes behind: the damaged header's own word is not taken for it."""

    def __init__(self, tp: TopicPartition, offset: int, next_offset: int, error: Exception) -> None:
        behind = f"offset {next_offset}" if next_offset >= 0 else "an offset behind it, which is not known,"
        super().__init__(
            f"{tp}, batch at offset {offset}: {error}; seek to {behind} to go on (or begin there: start_offset, "
            "startingOffsets, `raylog groups reset-offsets`)"
        )
        self.tp = tp
        self.topic: str = tp.topic
        self.partition: int = tp.partition
        self.offset = offset
        self.next_offset = next_offset


class PositionLost(OffsetOutOfRange):
    """The offset to read from is not at the broker (any more): it keeps ``earliest`` up to, without,
    ``end``."""

    def __init__(self, tp: TopicPartition, position: int, earliest: int, end: int) -> None:
        super().__init__(
            f"{tp}: offset {position} is out of range, the broker has {earliest} to {end}; "
            "seek, or set auto.offset.reset to earliest or latest"
        )
        self.tp = tp
        self.topic: str = tp.topic
        self.partition: int = tp.partition
        self.position = position
        self.earliest = earliest
        self.end = end


class LogTruncated(OffsetOutOfRange):
    """The leader's log does not have what was read before ``position`` (KIP-320): it went another way from
    ``diverging_offset`` on, as after an unclean election; -1 where the leader does not know the epoch at all."""

    def __init__(self, tp: TopicPartition, position: int, epoch: int, diverging_offset: int) -> None:
        where = f"from offset {diverging_offset} on; seek there to read what is"
        super().__init__(
            f"{tp}: the log was truncated: the records read before offset {position}, of leader epoch {epoch}, are not "
            f"in the leader's log {where if diverging_offset >= 0 else 'at all; seek to its start or end'}"
        )
        self.tp = tp
        self.topic: str = tp.topic
        self.partition: int = tp.partition
        self.position = position
        self.epoch = epoch
        self.diverging_offset = diverging_offset


def damaged_at(tp: TopicPartition, data: Buffer, pos: int, offset: int, error: CorruptMessage) -> CorruptBatch:
    """What to tell of the damaged batch at ``pos`` of an answer, which is read for ``offset``. The next offset is that
    of the sound batch behind it in the same answer."""
    next_offset = -1
    try:
        header = read_header(data, pos)
        offset = header.base_offset
        behind = whole_batch(data, pos + header.size)
        check_crc(data, pos + header.size, behind)
        if behind.base_offset > offset:
            next_offset = behind.base_offset
    except CorruptMessage:
        pass  # where the next batch begins is not known
    return CorruptBatch(tp, offset, next_offset, error)


def unreadable(tp: TopicPartition, header: BatchHeader, error: RaylogError) -> RaylogError:
    """``error``, of decoding a batch with a sound header, with its place."""
    if isinstance(error, CorruptMessage):
        return CorruptBatch(tp, header.base_offset, header.next_offset, error)
    return type(error)(f"{tp}, batch at offset {header.base_offset}: {error}")
