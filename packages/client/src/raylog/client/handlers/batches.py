"""◆ What a group's handler is called with: records of one partition, as rows or as Arrow columns.

Either can be cut in two, to find the record that a handler can't take among those that it can.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import pyarrow as pa

from raylog.client.arguments.serde import Deserializer, deserialized
from raylog.client.results import ConsumerRecord
from raylog.protocol.ids import NO_TIMESTAMP, Offset, PartitionIndex, TopicName, TopicPartition


class RawRecord(NamedTuple):
    """One record as the log has it, whatever its reader makes of the bytes."""

    offset: Offset
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class HandlerBatch(Protocol):
    """Records of one partition, at least one, by ascending offsets."""

    @property
    def tp(self) -> TopicPartition: ...

    @property
    def first_offset(self) -> Offset: ...

    @property
    def next_offset(self) -> Offset:
        """One past the last record: what is to be committed once it is handled."""

    def __len__(self) -> int: ...

    def cut(self, index: int) -> tuple[Self, Self]:
        """The first ``index`` records, and the others."""

    def payload(self) -> Any:
        """What the handler is called with. Raises RecordDeserializationError."""

    def raw(self) -> Iterable[RawRecord]:
        """The records, for a dead-letter topic."""


@dataclass(frozen=True, slots=True)
class Rows:
    """For handlers that take a list of :class:`~raylog.client.ConsumerRecord`."""

    tp: TopicPartition
    records: Sequence[ConsumerRecord]
    """Keys and values are bytes still: what can't be deserialized is the handler's failure, not the consumer's."""
    key_deserializer: Deserializer | None = None
    value_deserializer: Deserializer | None = None

    @property
    def first_offset(self) -> Offset:
        return Offset(self.records[0].offset)

    @property
    def next_offset(self) -> Offset:
        return Offset(self.records[-1].offset + 1)

    def __len__(self) -> int:
        return len(self.records)

    def cut(self, index: int) -> tuple[Rows, Rows]:
        return self._of(self.records[:index]), self._of(self.records[index:])

    def payload(self) -> list[ConsumerRecord]:
        if self.key_deserializer is None and self.value_deserializer is None:
            return list(self.records)
        return [deserialized(record, self.key_deserializer, self.value_deserializer) for record in self.records]

    def raw(self) -> Iterable[RawRecord]:
        for record in self.records:
            yield RawRecord(Offset(record.offset), record.timestamp, record.key, record.value, record.headers)

    def _of(self, records: Sequence[ConsumerRecord]) -> Rows:
        return Rows(self.tp, records, self.key_deserializer, self.value_deserializer)


@dataclass(frozen=True, slots=True)
class Columns:
    """For handlers that take an Arrow table with the columns of ``raylog.client.batches.decode.SCHEMA``."""

    tp: TopicPartition
    table: pa.Table

    @property
    def first_offset(self) -> Offset:
        return Offset(self.table["offset"][0].as_py())

    @property
    def next_offset(self) -> Offset:
        return Offset(self.table["offset"][-1].as_py() + 1)

    def __len__(self) -> int:
        return len(self.table)

    def cut(self, index: int) -> tuple[Columns, Columns]:
        return Columns(self.tp, self.table.slice(0, index)), Columns(self.tp, self.table.slice(index))

    def payload(self) -> pa.Table:
        return self.table

    def raw(self) -> Iterable[RawRecord]:
        timestamps = self.table["timestamp"].cast(pa.int64()).to_pylist()
        rows = self.table.select(["key", "value", "offset", "headers"]).to_pylist()  # Python's times end in 9999
        for row, timestamp in zip(rows, timestamps, strict=True):
            headers = [(header["key"], header["value"]) for header in row["headers"] or ()]
            yield RawRecord(
                Offset(row["offset"]),
                NO_TIMESTAMP if timestamp is None else timestamp,
                row["key"],
                row["value"],
                headers,
            )


def rows_of(
    polled: Mapping[TopicPartition, Sequence[ConsumerRecord]],
    key_deserializer: Deserializer | None,
    value_deserializer: Deserializer | None,
) -> list[HandlerBatch]:
    """What ``Consumer.poll`` answered."""
    return [Rows(tp, records, key_deserializer, value_deserializer) for tp, records in polled.items() if records]


def columns_of(polled: pa.Table) -> list[HandlerBatch]:
    """What ``Consumer.poll_columns`` answered: each of its record batches is of one partition."""
    found: list[HandlerBatch] = []
    for batch in polled.to_batches():
        if len(batch):
            topic, partition = batch["topic"][0].as_py(), batch["partition"][0].as_py()
            tp = TopicPartition(TopicName(topic), PartitionIndex(partition))
            found.append(Columns(tp, pa.Table.from_batches([batch])))
    return found
