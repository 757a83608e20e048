"""◆ What was fetched and not handed out yet, and what to fetch next.

Data waits here as it came, whole batches in bytes, at most two answers per partition: one that the user is
reading, one in reserve, so that brokers work while records are decoded. A batch is decoded when its records are wanted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from raylog.client.columns import body_of, decode_columns
from raylog.client.results import ConsumerRecord
from raylog.client.serde import Deserializer
from raylog.client.subscription import Place
from raylog.protocol.compression import Buffer
from raylog.protocol.errors import MessageTooLarge, RaylogError
from raylog.protocol.ids import TopicPartition
from raylog.protocol.records import Batches, BatchHeader, Record, batch_headers, decode_batch
from raylog.protocol.transactions import AbortedTransaction, visible_batches

_CHUNKS = 2
_PORTION_BYTES = 32 << 20
"""Decompressed bytes after which columns are handed out."""


class Gap(NamedTuple):
    """Offsets from ``first`` up to, without, ``next`` are missing in the log."""

    tp: TopicPartition
    first: int
    next: int


class _Chunk:
    """One answer's data of one partition, and how far it was read."""

    __slots__ = ("aborted", "batches", "data", "epoch", "high_watermark")

    def __init__(self, data: bytes, high_watermark: int, epoch: int, aborted: tuple[AbortedTransaction, ...]) -> None:
        self.data = data
        self.high_watermark = high_watermark
        self.aborted = aborted
        self.epoch = epoch
        """The leader epoch of the last batch."""
        self.batches = self.visible()

    def visible(self) -> Iterator[tuple[int, BatchHeader, bool]]:
        """All batches, and whether the user sees their records."""
        return visible_batches(self.data, self.aborted)


class PartitionBuffer:
    """What is here of one partition. Void as soon as the place's generation has grown."""

    __slots__ = (
        "_check_crcs",
        "_key",
        "_pending",
        "_value",
        "chunks",
        "fetch_epoch",
        "fetch_offset",
        "generation",
        "place",
        "valid_for",
    )

    def __init__(self, place: Place, key: Deserializer | None, value: Deserializer | None, *, check_crcs: bool) -> None:
        self.place = place
        self.generation = place.generation
        self.fetch_offset = place.position if place.position is not None else -1
        """Where the next fetch begins: after everything that is here."""
        self.fetch_epoch = place.epoch
        """The leader epoch of the last batch before it; -1: not known."""
        self.valid_for = -1
        """The leader epoch whose leader said that its log has that batch."""
        self.chunks: deque[_Chunk] = deque()
        self._pending: list[ConsumerRecord] = []
        """Decoded and not handed out, in reverse order."""
        self._key = key
        self._value = value
        self._check_crcs = check_crcs

    def wants_more(self) -> bool:
        """True when the next answer should be fetched now."""
        return len(self.chunks) + bool(self._pending) < _CHUNKS

    def held_bytes(self) -> int:
        """How much memory the answers take that are here."""
        return sum(len(chunk.data) for chunk in self.chunks)

    def has_data(self) -> bool:
        return bool(self._pending or self.chunks)

    def add(self, data: bytes, high_watermark: int, aborted: Sequence[AbortedTransaction] = ()) -> None:
        """An answer to a fetch from :attr:`fetch_offset` came, with the transactions in it whose records are not to
        be read. MessageTooLarge when it has no whole batch."""
        end, epoch = self.fetch_offset, self.fetch_epoch
        for _, header in batch_headers(data):
            end, epoch = max(end, header.next_offset), header.leader_epoch
        if end == self.fetch_offset:
            raise MessageTooLarge(
                f"{self.place.tp}: the batch at offset {end} doesn't fit; raise max.partition.fetch.bytes"
            )
        self.fetch_offset, self.fetch_epoch = end, epoch
        self.chunks.append(_Chunk(data, high_watermark, epoch, tuple(aborted)))

    def raw(self) -> Batches | None:
        """The oldest answer as it came, from the position on; the position moves behind it."""
        position = self.place.position
        self._pending = []  # their batch is still here: it is read again from the position on
        while self.chunks and position is not None:
            chunk = self.chunks.popleft()
            batches = Batches(chunk.data, chunk.high_watermark, position, chunk.aborted)
            if batches.next_offset > position:
                self.place.position, self.place.epoch = batches.next_offset, chunk.epoch
                return batches
        return None

    def columns(self, schema: pa.Schema, gaps: list[Gap]) -> pa.RecordBatch | None:
        """The oldest answer's records, or a portion of them, from the position on; that moves behind them.

        None when nothing is here. Raises as :meth:`take`, after what comes before the damage was handed out.
        """
        self._pending = []
        while self.chunks:
            chunk = self.chunks[0]
            start = self.place.position or 0
            try:
                batches, through = self._bodies(chunk, gaps)
                found = decode_columns(self.place.tp, batches, schema, from_offset=start) if batches else None
                if through:
                    self.chunks.popleft()
            except RaylogError:
                found = self._before_damage(chunk, start, schema)
            if found is not None and len(found):
                return found
        return None

    def _bodies(self, chunk: _Chunk, gaps: list[Gap]) -> tuple[list[tuple[BatchHeader, Buffer]], bool]:
        """Data batches from the position on, which moves behind them, and whether these are all.

        What compresses well comes in portions: an answer may be a thousand times as large when it is decompressed.
        """
        batches = []
        size = 0
        for pos, header, visible in chunk.visible():
            position = self.place.position or 0
            if header.next_offset <= position:
                continue
            if header.base_offset > position:
                gaps.append(Gap(self.place.tp, position, header.base_offset))
            if visible:
                body = body_of(chunk.data, pos, header, check_crcs=self._check_crcs)
                batches.append((header, body))
                size += len(body)
            self.place.position, self.place.epoch = header.next_offset, header.leader_epoch
            if size >= _PORTION_BYTES:
                return batches, False
        return batches, True

    def _before_damage(self, chunk: _Chunk, start: int, schema: pa.Schema) -> pa.RecordBatch:
        """What can be read before the first batch that can't, which is fetched again; its error when it is the
        first."""
        self.place.position = start
        found = []
        for pos, header, visible in chunk.visible():
            if header.next_offset <= start:
                continue
            try:
                if visible:
                    body = body_of(chunk.data, pos, header, check_crcs=self._check_crcs)
                    found.append(decode_columns(self.place.tp, [(header, body)], schema, from_offset=start))
            except RaylogError as error:
                self._start_over()
                if found:
                    break
                raise type(error)(f"{self.place.tp}, batch at offset {header.base_offset}: {error}") from error
            self.place.position = header.next_offset
        return pa.concat_batches(found)

    def take(self, max_records: int, gaps: list[Gap]) -> list[ConsumerRecord]:
        """At most ``max_records`` records, of one batch; the position moves behind them. Empty when nothing
        is here."""
        if not self._pending and not self._decode_next(gaps):
            return []
        pending = self._pending
        taken = pending[: -max_records - 1 : -1]
        del pending[-max_records:]
        self.place.position = taken[-1].offset + 1
        return taken

    def give_back(self, records: list[ConsumerRecord]) -> None:
        """``records``, the last taken, were not seen by the user after all."""
        self._pending.extend(reversed(records))
        self.place.position = records[0].offset

    def _decode_next(self, gaps: list[Gap]) -> bool:
        """Decode batches until one has records at the position or behind; False when there is none."""
        tp = self.place.tp
        while self.chunks:
            chunk = self.chunks[0]
            for pos, header, visible in chunk.batches:
                position = self.place.position or 0
                if header.next_offset <= position:
                    continue
                if header.base_offset > position:
                    gaps.append(Gap(tp, position, header.base_offset))
                self.place.epoch = header.leader_epoch
                if not visible:
                    self.place.position = header.next_offset
                    continue
                try:
                    records = decode_batch(chunk.data, pos, check_crc=self._check_crcs)
                except RaylogError as error:
                    self._start_over()
                    raise type(error)(f"{tp}, batch at offset {header.base_offset}: {error}") from error
                if records and records[0].offset < position:
                    records = [record for record in records if record.offset >= position]
                if not records:
                    self.place.position = header.next_offset
                    continue
                self._pending = self._rows(records, int(header.timestamp_type))
                self._pending.reverse()
                return True
            self.chunks.popleft()
        return False

    def _rows(self, records: list[Record], timestamp_type: int) -> list[ConsumerRecord]:
        topic, partition = self.place.tp
        new, kind = tuple.__new__, ConsumerRecord
        if self._key is None and self._value is None:
            return [
                new(kind, (topic, partition, r.offset, r.timestamp, timestamp_type, r.key, r.value, r.headers))
                for r in records
            ]
        rows = []
        for r in records:
            try:
                key = r.key if self._key is None or r.key is None else self._key(r.key)
                value = r.value if self._value is None or r.value is None else self._value(r.value)
            except RaylogError as error:
                self._start_over()
                raise type(error)(f"{self.place.tp} offset {r.offset}: {error}") from error
            rows.append(ConsumerRecord(topic, partition, r.offset, r.timestamp, timestamp_type, key, value, r.headers))
        return rows

    def _start_over(self) -> None:
        """Something here can't be read: fetch it again when the user goes on."""
        self.chunks.clear()
        self._pending = []
        self.fetch_offset, self.fetch_epoch = self.place.position or 0, self.place.epoch
