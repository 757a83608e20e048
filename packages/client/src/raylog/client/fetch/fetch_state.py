"""◆ What was fetched and not handed out yet, and what to fetch next.

Data waits here as it came, whole batches in bytes, at most two answers per partition: one that the user is
reading, one in reserve, so that brokers work while records are decoded. A batch is decoded when its records are wanted.

The place's position alone says what comes next. It moves when records are handed out, so nothing is lost by what fails,
or interrupts, before; and only for what was fetched for its generation, so that a seek holds which another thread, or
a signal handler, does meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

import pyarrow as pa

from raylog.client.arguments.serde import Deserializer, deserialized
from raylog.client.batches.decode import body_of, decode_columns
from raylog.client.fetch.subscription import Place
from raylog.client.read_errors import CorruptBatch, RecordDeserializationError, damaged_at, unreadable
from raylog.client.results import ConsumerRecord, new_record
from raylog.client.telemetry.metrics import FetchCounts
from raylog.protocol.batches.compression import Buffer
from raylog.protocol.batches.header import check_crc
from raylog.protocol.batches.transactions import AbortedTransaction, visible_batches
from raylog.protocol.errors import CorruptMessage, MessageTooLarge, RaylogError
from raylog.protocol.ids import TopicPartition
from raylog.protocol.records import Batches, BatchHeader, batch_headers, decode_batch_into

_CHUNKS = 2
_PORTION_BYTES = 32 << 20
"""Decompressed bytes after which columns are handed out."""
_OFFSET = attrgetter("offset")


class Gap(NamedTuple):
    """Offsets from ``first`` up to, without, ``next`` are missing in the log."""

    tp: TopicPartition
    first: int
    next: int


class _Chunk:
    """One answer's data of one partition, and how far it was read."""

    __slots__ = ("aborted", "batches", "damage", "data", "epoch", "high_watermark")

    def __init__(
        self,
        data: bytes,
        high_watermark: int,
        epoch: int,
        aborted: tuple[AbortedTransaction, ...],
        damage: CorruptBatch | None,
    ) -> None:
        self.data = data
        self.high_watermark = high_watermark
        self.aborted = aborted
        self.epoch = epoch
        """The leader epoch of the last batch."""
        self.damage = damage
        """What came behind the data: a damaged batch."""
        self.batches = self.visible()

    def visible(self) -> Iterator[tuple[int, BatchHeader, bool]]:
        """All batches, and whether the user sees their records."""
        return visible_batches(self.data, self.aborted)


class _Portion(NamedTuple):
    """Data batches of one answer, and where to go on behind them."""

    bodies: Sequence[tuple[BatchHeader, Buffer]]
    next_offset: int
    epoch: int
    is_last: bool
    """Whether they are all that was left of the answer."""


class PartitionBuffer:
    """What is here of one partition. Void as soon as the place's generation has grown."""

    __slots__ = (
        "_behind",
        "_check_crcs",
        "_counts",
        "_key",
        "_records",
        "_rows",
        "_value",
        "chunks",
        "fetch_epoch",
        "fetch_offset",
        "generation",
        "place",
        "valid_for",
    )

    def __init__(
        self,
        place: Place,
        key: Deserializer | None,
        value: Deserializer | None,
        *,
        check_crcs: bool,
        counts: FetchCounts | None = None,
    ) -> None:
        """``counts``: where to add what is read."""
        self.place = place
        self.generation = place.generation
        self.fetch_offset = place.position if place.position is not None else -1
        """Where the next fetch begins: after everything that is here."""
        self.fetch_epoch = place.epoch
        """The leader epoch of the last batch before it; -1: not known."""
        self.valid_for = -1
        """The leader epoch whose leader said that its log has that batch."""
        self.chunks: deque[_Chunk] = deque()
        self._records: list[ConsumerRecord] = []
        """Of the batch that is being read, keys and values as bytes; without deserializers these are the rows."""
        self._rows: list[ConsumerRecord] = []
        """As many of them, from the first on, as were deserialized."""
        self._behind = 0
        """The offset behind that batch."""
        self._key = key
        self._value = value
        self._check_crcs = check_crcs
        self._counts = counts or FetchCounts()

    def wants_more(self) -> bool:
        """True when the next answer should be fetched now."""
        return len(self.chunks) + self._has_records() < _CHUNKS

    def held_bytes(self) -> int:
        """How much memory the answers take that are here."""
        return sum(len(chunk.data) for chunk in self.chunks)

    def has_data(self) -> bool:
        """True when there may be something to hand out, or to tell."""
        return bool(self.chunks) or self._has_records()

    def add(self, data: bytes, high_watermark: int, aborted: Sequence[AbortedTransaction] = ()) -> None:
        """An answer to a fetch from :attr:`fetch_offset` came, with the transactions in it whose records are not to
        be read. MessageTooLarge when it has no whole batch.

        Every batch's checksum is checked here, once, before its header is believed.
        """
        end, epoch, size, damage = self.fetch_offset, self.fetch_epoch, 0, None
        try:
            for pos, header in batch_headers(data):
                if self._check_crcs:
                    check_crc(data, pos, header)
                end, epoch, size = max(end, header.next_offset), header.leader_epoch, pos + header.size
        except CorruptMessage as error:  # told when its turn comes, behind what can be read
            damage = damaged_at(self.place.tp, data, size, end, error)
            data = data[:size]
        if end == self.fetch_offset and damage is None:
            raise MessageTooLarge(
                f"{self.place.tp}: the batch at offset {end} doesn't fit; raise max.partition.fetch.bytes"
            )
        self.chunks.append(_Chunk(data, high_watermark, epoch, tuple(aborted), damage))
        self.fetch_offset, self.fetch_epoch = end, epoch

    @property
    def is_void(self) -> bool:
        """Whether the place went elsewhere."""
        return self.generation != self.place.generation

    # --- three ways to take ---

    def peek(self, max_records: int, gaps: list[Gap]) -> list[ConsumerRecord]:
        """The next records, at most so many and of one batch; whoever hands them out moves the position behind them.

        Empty when nothing is here. Raises CorruptBatch, UnsupportedCompressionType or RecordDeserializationError when
        the next record cannot be read: then the position stays in front of it.
        """
        start = self._next_index()
        if start == len(self._records):
            if not self._decode_next(gaps):
                return []
            start = 0
        end = min(start + max_records, len(self._records))
        if len(self._rows) < end:
            self._deserialize(start, end)
        return self._rows[start:end]

    def raw(self) -> Batches | None:
        """The oldest answer as it came, from the position on; the position moves behind it. Raises CorruptBatch when
        what follows is damaged."""
        position = self.place.position
        while self.chunks and position is not None:
            chunk = self.chunks[0]
            batches = Batches(chunk.data, chunk.high_watermark, position, chunk.aborted)
            if (behind := batches.next_offset) > position:
                if not self.place.move(self.generation, behind, chunk.epoch):
                    return None
                if chunk.damage is None:
                    self.chunks.popleft()
                for _, header in batches.visible():
                    self._counts.consumed(header.record_count, header.size)
                return batches
            self._check_end(chunk)
            self.chunks.popleft()
        return None

    def columns(self, schema: pa.Schema, gaps: list[Gap]) -> pa.RecordBatch | None:
        """The oldest answer's records, or a portion of them, from the position on; that moves behind them.

        None when nothing is here. Raises as :meth:`peek`, after what comes before the damage was handed out.
        """
        while self.chunks:
            start = self.place.position or 0
            if self.is_void:
                return None
            try:
                portion, found = self._columns(self.chunks[0], schema, start, gaps)
            except BaseException:
                self._start_over()
                raise
            if not self.place.move(self.generation, portion.next_offset, portion.epoch):
                return None
            if portion.is_last:
                self.chunks.popleft()
            if found is not None and len(found):
                self._counts.consumed(len(found), sum(header.size for header, _ in portion.bodies))
                return found
        return None

    def _columns(
        self, chunk: _Chunk, schema: pa.Schema, start: int, gaps: list[Gap]
    ) -> tuple[_Portion, pa.RecordBatch | None]:
        portion = self._portion(chunk, start, gaps)
        bodies = portion.bodies
        if not bodies:
            return portion, None
        found, count = self._decode_columns(bodies, schema, start)
        if count < len(bodies):
            portion = _Portion(bodies[:count], bodies[count][0].base_offset, bodies[count - 1][0].leader_epoch, False)
        return portion, found

    def _portion(self, chunk: _Chunk, position: int, gaps: list[Gap]) -> _Portion:
        """Data batches from ``position`` on, up to one that is damaged; raises its error when it is the first.

        What compresses well comes in portions: an answer may be a thousand times as large when it is decompressed.
        """
        bodies: list[tuple[BatchHeader, Buffer]] = []
        size, epoch = 0, self.place.epoch
        for pos, header, visible in chunk.visible():
            if header.next_offset <= position:
                continue
            if visible:
                try:
                    body = body_of(chunk.data, pos, header)
                except RaylogError as error:
                    if bodies:
                        return _Portion(bodies, position, epoch, False)
                    raise unreadable(self.place.tp, header, error) from error
                bodies.append((header, body))
                size += len(body)
            if header.base_offset > position:
                gaps.append(Gap(self.place.tp, position, header.base_offset))
            position, epoch = header.next_offset, header.leader_epoch
            if size >= _PORTION_BYTES:
                return _Portion(bodies, position, epoch, False)
        if not bodies:
            self._check_end(chunk)
        return _Portion(bodies, position, epoch, chunk.damage is None)

    def _decode_columns(
        self, bodies: Sequence[tuple[BatchHeader, Buffer]], schema: pa.Schema, start: int
    ) -> tuple[pa.RecordBatch, int]:
        """The records of as many of these batches as can be decoded, from the first on, and how many those are."""
        tp = self.place.tp
        try:
            return decode_columns(tp, bodies, schema, from_offset=start), len(bodies)
        except RaylogError as error:
            if len(bodies) == 1:
                raise unreadable(tp, bodies[0][0], error) from error
        found = []
        for header, body in bodies[:-1]:  # the last, or some before it, cannot
            try:
                found.append(decode_columns(tp, [(header, body)], schema, from_offset=start))
            except RaylogError as error:
                if not found:
                    raise unreadable(tp, header, error) from error
                break
        return pa.concat_batches(found), len(found)

    # --- rows ---

    def _has_records(self) -> bool:
        return bool(self._records) and self._records[-1].offset >= (self.place.position or 0)

    def _next_index(self) -> int:
        """Which record of the batch that is being read comes next; their number when that was the last. The position
        is then behind the batch: compaction may have taken its last offsets."""
        position, records = self.place.position or 0, self._records
        index = position - records[0].offset if records else 0
        if 0 <= index < len(records) and records[index].offset == position:
            return index  # none is missing before it, as in most batches
        index = bisect_left(records, position, key=_OFFSET)
        if index == len(records) and position < self._behind:
            self.place.move(self.generation, self._behind)
        return index

    def _decode_next(self, gaps: list[Gap]) -> bool:
        """Decode batches until one has records at the position or behind; False when there is none."""
        try:
            while self.chunks:
                if self._decode_of(self.chunks[0], gaps):
                    return True
                self._check_end(self.chunks[0])
                self.chunks.popleft()
        except BaseException:  # an interrupt, too: a batch that it kept from being read was taken from its answer
            self._start_over()
            raise
        return False

    def _decode_of(self, chunk: _Chunk, gaps: list[Gap]) -> bool:
        place = self.place
        for pos, header, visible in chunk.batches:
            position = place.position or 0
            if header.next_offset <= position:
                continue
            before, position = position, max(position, header.base_offset)
            if not self.place.move(self.generation, position, header.leader_epoch):
                return False
            if position > before:
                gaps.append(Gap(place.tp, before, position))
            records: list[ConsumerRecord] = []
            if visible:
                try:
                    new = new_record(place.tp, int(header.timestamp_type))
                    records = decode_batch_into(new, chunk.data, pos, check_crc=False)
                except RaylogError as error:
                    raise unreadable(place.tp, header, error) from error
                if records and records[0].offset < position:
                    records = [record for record in records if record.offset >= position]
            if records:
                self._counts.consumed(len(records), header.size)
                self._records = records
                self._rows = records if self._key is None and self._value is None else []
                self._behind = header.next_offset
                return True
            self.place.move(self.generation, header.next_offset)
        return False

    def _deserialize(self, start: int, end: int) -> None:
        """Have rows up to, without, ``end``, or up to a record that cannot be deserialized; raises
        RecordDeserializationError when that is the one at ``start``."""
        rows = self._rows
        for record in self._records[len(rows) : end]:
            try:
                rows.append(deserialized(record, self._key, self._value))
            except RecordDeserializationError:
                if len(rows) > start:
                    return
                raise

    def _check_end(self, chunk: _Chunk) -> None:
        """All batches of the answer were read: raises what came behind them."""
        if chunk.damage is not None:
            self._start_over()
            raise chunk.damage

    def clear(self) -> None:
        """Hold nothing any more."""
        self.chunks.clear()
        self._records = []
        self._rows = []
        self._behind = 0

    def _start_over(self) -> None:
        """Something here can't be read: fetch it again when the user goes on."""
        self.clear()
        self.fetch_offset, self.fetch_epoch = self.place.position or 0, self.place.epoch
