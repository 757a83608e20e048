"""Record batches (format 2, KIP-98) to and from rows: one format on the wire, on disk and between replicas.

Headers are in :mod:`raylog.protocol.batches.header`, the loops over records in :mod:`raylog.protocol.batches.rows`; the
names of both can be had from here. Encoding and decoding are for clients; a broker never looks into a batch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from crc32c import crc32c

from raylog.protocol.batches.compression import (
    DEFAULT_MAX_BYTES,
    Buffer,
    Codec,
    compress,
    decompress,
    decompress_pieces,
)
from raylog.protocol.batches.header import (
    CONTROL_FLAG,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    TimestampType,
    batch_headers,
    check_crc,
    read_header,
    stamp,
    stamp_log_append_time,
    validate_batch,
    whole_batch,
)
from raylog.protocol.batches.rows import Headers, NewRow, R, Record, decode_records, encode_records, scan_times
from raylog.protocol.batches.transactions import AbortedTransaction, visible_batches
from raylog.protocol.errors import CorruptMessage, InvalidRecord

__all__ = [
    "HEADER_SIZE",
    "LOG_OVERHEAD",
    "BatchHeader",
    "Batches",
    "Codec",
    "Headers",
    "Record",
    "TimestampType",
    "batch_headers",
    "decode_batch",
    "decode_batch_into",
    "decode_batches",
    "encode_batch",
    "first_record_at",
    "frame_batch",
    "max_record_time",
    "read_header",
    "record_times",
    "stamp",
    "stamp_log_append_time",
    "validate_batch",
]

_NOT_COVERED = struct.Struct(">qiibI")  # by the checksum: base offset, length, leader epoch, magic, the checksum itself
_COVERED = struct.Struct(">hiqqqhii")  # attributes to record count

MAX_LOOKED_AT = 1 << 18
"""Records of one batch that a look-up by time looks at: about a quarter of a second."""
MAX_LOOKED_AT_BYTES = 32 << 20
"""What it decompresses of one batch."""
_PIECE_BYTES = 1 << 20
_NO_BOUND = 1 << 62


def encode_batch(
    records: Sequence[Record],
    *,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    base_offset: int = 0,
    leader_epoch: int = -1,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
) -> bytes:
    """One batch of all ``records``, in order; their offsets are base_offset and up, whatever they say themselves.

    ``level`` is the codec's compression level. Raises InvalidRecord when there is no record, when a number
    does not fit its field or the batch is larger than the format allows (2 GiB).
    """
    if not records:
        raise InvalidRecord("a batch needs at least one record")
    parts, max_timestamp = encode_records(records)
    attributes = (
        (TIMESTAMP_TYPE_FLAG if timestamp_type is TimestampType.LOG_APPEND_TIME else 0)
        | (TRANSACTIONAL_FLAG if transactional else 0)
        | (CONTROL_FLAG if control else 0)
    )
    return frame_batch(
        b"".join(parts),
        len(records),
        records[0].timestamp,
        max_timestamp,
        codec=codec,
        level=level,
        attributes=attributes,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def frame_batch(
    body: bytes,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    *,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    attributes: int = 0,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytes:
    """One batch of ``count`` records that are already in bytes; ``attributes`` are those besides the codec.

    Raises InvalidRecord when a number does not fit its field or the batch is larger than the format allows.
    """
    if codec is not Codec.NONE:
        body = compress(codec, body, level)
    try:
        covered = _COVERED.pack(
            attributes | codec, count - 1, base_timestamp, max_timestamp,
            producer_id, producer_epoch, base_sequence, count,
        )  # fmt: skip
        length = HEADER_SIZE - LOG_OVERHEAD + len(body)
        crc = crc32c(body, crc32c(covered))
        return b"".join((_NOT_COVERED.pack(base_offset, length, leader_epoch, MAGIC, crc), covered, body))
    except struct.error as error:
        raise InvalidRecord(f"{count} records of {len(body)} bytes do not make a batch: {error}") from error


def decode_batch(
    buf: Buffer, pos: int = 0, *, check_crc: bool = True, max_bytes: int = DEFAULT_MAX_BYTES
) -> list[Record]:
    """The records of the batch at ``pos``, control records too.

    Raises CorruptMessage when the batch is damaged or decompresses to more than ``max_bytes``, and
    UnsupportedCompressionType.
    """
    return decode_batch_into(Record, buf, pos, check_crc=check_crc, max_bytes=max_bytes)


def decode_batch_into(
    new: NewRow[R], buf: Buffer, pos: int = 0, *, check_crc: bool = True, max_bytes: int = DEFAULT_MAX_BYTES
) -> list[R]:
    """What ``new`` makes of each record of the batch at ``pos``. Raises as :func:`decode_batch`."""
    header = whole_batch(buf, pos)
    if check_crc:
        _check_crc(buf, pos, header)
    return _records_of(new, buf, pos, header, max_bytes)


_check_crc = check_crc


def record_times(buf: Buffer, pos: int = 0) -> Iterator[tuple[int, int]]:
    """Offset and timestamp of each record of the batch at ``pos``, in order.

    For look-ups in a broker: there is no object per record, and no more is decompressed than is read. Raises
    CorruptMessage when the batch is damaged, and UnsupportedCompressionType.
    """
    return _times(buf, pos, _NO_BOUND)


def first_record_at(buf: Buffer, timestamp: int, from_offset: int) -> tuple[int, int] | None:
    """Offset and timestamp of the first record at or after both in the batch ``buf``; None when there is none.

    ``timestamp`` is at most the header's highest. A look-up costs no more than :data:`MAX_LOOKED_AT` records and
    :data:`MAX_LOOKED_AT_BYTES`, whatever a producer sent. Where those do not do, or where no record of the whole batch
    has the time that the header promises, the answer is the last record that was looked at: what was asked for is not
    before it. Raises as :func:`record_times`.
    """
    header = read_header(buf)
    offset, time = header.base_offset, header.base_timestamp
    looked_at = 0
    try:
        for offset, time in islice(_times(buf, 0, MAX_LOOKED_AT_BYTES), MAX_LOOKED_AT):
            if time >= timestamp and offset >= from_offset:
                return offset, time
            looked_at += 1
    except _LookedAtEnough:
        pass
    if looked_at == header.record_count and (header.base_offset < from_offset or not looked_at):
        return None
    return max(offset, from_offset), time


def max_record_time(buf: Buffer, from_offset: int) -> int:
    """The highest timestamp of the records from ``from_offset`` on in the batch ``buf``; -1 when there is none.

    Where looking at as much as :func:`first_record_at` does not do, it is what the header says. Raises as
    :func:`record_times`.
    """
    header = read_header(buf)
    if header.record_count <= MAX_LOOKED_AT:
        try:
            times = _times(buf, 0, MAX_LOOKED_AT_BYTES)
            return max((time for offset, time in times if offset >= from_offset), default=-1)
        except _LookedAtEnough:
            pass
    return header.max_timestamp


class _LookedAtEnough(Exception):
    """A look-up has decompressed as much as it may."""


def _times(buf: Buffer, pos: int, max_bytes: int) -> Iterator[tuple[int, int]]:
    header = whole_batch(buf, pos)
    _check_crc(buf, pos, header)
    _check_counts(header)
    body = memoryview(buf)[pos + HEADER_SIZE : pos + header.size]
    times = scan_times(
        _within(decompress_pieces(header.codec, body, _PIECE_BYTES), max(max_bytes, len(body))),
        header.record_count,
        base_offset=header.base_offset,
        base_timestamp=header.base_timestamp,
    )
    if header.timestamp_type is TimestampType.CREATE_TIME:
        return times
    return ((offset, header.max_timestamp) for offset, _ in times)


def _within(pieces: Iterator[bytes], max_bytes: int) -> Iterator[bytes]:
    """The pieces while they are not more than ``max_bytes``. Raises _LookedAtEnough."""
    for piece in pieces:
        max_bytes -= len(piece)
        if max_bytes < 0:
            raise _LookedAtEnough
        yield piece


def _check_counts(header: BatchHeader) -> None:
    if header.record_count < 0 or header.last_offset_delta < 0:
        raise CorruptMessage(
            f"the batch at base offset {header.base_offset} has {header.record_count} records "
            f"and last offset delta {header.last_offset_delta}"
        )


def _records_of(new: NewRow[R], buf: Buffer, pos: int, header: BatchHeader, max_bytes: int) -> list[R]:
    return decode_records(
        new,
        _body_of(buf, pos, header, max_bytes),
        header.record_count,
        base_offset=header.base_offset,
        last_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp,
        append_time=header.max_timestamp if header.timestamp_type is TimestampType.LOG_APPEND_TIME else None,
    )


def _body_of(buf: Buffer, pos: int, header: BatchHeader, max_bytes: int) -> bytes:
    """The records' bytes, decompressed."""
    codec = header.codec
    body = bytes(memoryview(buf)[pos + HEADER_SIZE : pos + header.size])
    _check_counts(header)
    return body if codec is Codec.NONE else decompress(codec, body, max_bytes=max_bytes)


def decode_batches(
    buf: Buffer,
    *,
    from_offset: int = 0,
    aborted: Sequence[AbortedTransaction] = (),
    check_crc: bool = True,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> list[Record]:
    """Data records at or above ``from_offset`` of all whole batches in ``buf``, as a fetch returned them.

    A partial last batch, which Kafka's fetch may end with, is left out; so are control batches and those of
    ``aborted`` transactions. ``max_bytes`` bounds each batch. Raises as :func:`decode_batch`.
    """
    records: list[Record] = []
    for pos, header, visible in visible_batches(buf, aborted, check_crcs=check_crc):
        if header.last_offset < from_offset or not visible:
            continue
        batch = _records_of(Record, buf, pos, header, max_bytes)
        if header.base_offset < from_offset:
            batch = [record for record in batch if record.offset >= from_offset]
        records += batch
    return records


@dataclass(frozen=True, slots=True)
class Batches:
    """What a fetch returned, still encoded: ``records, high_watermark = batches`` decodes it.

    Pickles as one byte string, so that an actor that serves it spends nothing on records.
    """

    data: bytes
    high_watermark: int
    from_offset: int = 0
    """Where the fetch began; the first batch may begin earlier, its records below this are left out."""
    aborted: tuple[AbortedTransaction, ...] = ()
    """The transactions that a reader of committed data must drop."""

    def visible(self) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of each batch from ``from_offset`` on whose records consumers see."""
        for pos, header, visible in visible_batches(self.data, self.aborted):
            if visible and header.last_offset >= self.from_offset:
                yield pos, header

    def records(self) -> list[Record]:
        """The data records from ``from_offset`` on. Raises as :func:`decode_batch`."""
        return decode_batches(self.data, from_offset=self.from_offset, aborted=self.aborted)

    @property
    def next_offset(self) -> int:
        """Where the next fetch should begin: after the last whole batch, whatever it holds."""
        offset = self.from_offset
        for _, header in batch_headers(self.data):
            offset = max(offset, header.next_offset)
        return offset

    def __iter__(self) -> Iterator[list[Record] | int]:
        yield self.records()
        yield self.high_watermark
