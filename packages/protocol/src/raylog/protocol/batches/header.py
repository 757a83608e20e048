"""The header of a record batch (format 2, KIP-98): read, checked, and stamped in place.

A batch is the unit of everything: what a producer sent is kept and served byte for byte. A broker looks at
headers only and writes two fields of it, base offset and leader epoch, which the checksum does not cover.
Layout:

======  =====  ==================  ==========================================================
offset  bytes  field
======  =====  ==================  ==========================================================
0       8      base offset         stamped by the leader
8       4      batch length        counted from here on: the whole batch is 12 bytes more
12      4      leader epoch        stamped by the leader
16      1      magic               2
17      4      CRC-32C             of all that follows
21      2      attributes          bits 0-2 codec, 3 append time, 4 transactional, 5 control, 6 horizon
23      4      last offset delta
27      8      base timestamp
35      8      max timestamp
43      8      producer id
51      2      producer epoch
53      4      base sequence
57      4      record count
61             records             compressed as a whole, if so
======  =====  ==================  ==========================================================
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from crc32c import crc32c

from raylog.protocol.batches.compression import DEFAULT_MAX_BYTES, Buffer, Codec, max_decompressed
from raylog.protocol.errors import CorruptMessage, InvalidRecord, UnsupportedCompressionType

LOG_OVERHEAD = 12
"""Bytes of a batch that its length field does not count."""

HEADER_SIZE = 61
MAGIC = 2
MIN_RECORD_SIZE = 7
"""A record without headers, its key and value null, in bytes."""

LENGTH_POSITION = 8
EPOCH_POSITION = 12
MAGIC_POSITION = 16
CRC_POSITION = 17
ATTRIBUTES_POSITION = 21
MAX_TIMESTAMP_POSITION = 35

HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC = struct.Struct(">I")
_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP = struct.Struct(">q")
_LENGTH = struct.Struct(">i")

CODEC_MASK = 0x07
TIMESTAMP_TYPE_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40

SEQUENCE_MASK = 0x7FFFFFFF
"""Sequences go from 2**31 - 1 back to 0."""


class TimestampType(IntEnum):
    """Whose clock a batch's timestamps come from."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(NamedTuple):
    """The fields of a batch's header, in their order."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """The whole batch in bytes."""
        return LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        """The last record's offset, also when compaction took that record away."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Where the next batch may begin."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        """How the records are compressed; UnsupportedCompressionType when the bits name no codec."""
        return codec_of(self.attributes)

    @property
    def timestamp_type(self) -> TimestampType:
        """Whose clock the timestamps come from."""
        return TimestampType.LOG_APPEND_TIME if self.attributes & TIMESTAMP_TYPE_FLAG else TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        """True when the batch is part of a transaction."""
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        """True for a transaction's marker, which consumers never see."""
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def has_delete_horizon(self) -> bool:
        """True when the base timestamp is the time from which tombstones may go (KIP-534)."""
        return bool(self.attributes & DELETE_HORIZON_FLAG)

    @property
    def has_producer(self) -> bool:
        """True when an idempotent or transactional producer wrote the batch."""
        return self.producer_id >= 0

    @property
    def last_sequence(self) -> int:
        """The last record's sequence, wrapped; -1 when the batch has none."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MASK


def codec_of(attributes: int) -> Codec:
    """The codec that a batch's attributes name, or UnsupportedCompressionType."""
    try:
        return _CODECS[attributes & CODEC_MASK]
    except IndexError:
        raise UnsupportedCompressionType(
            f"a batch names compression {attributes & CODEC_MASK}; known are 0 to {len(_CODECS) - 1}"
        ) from None


_CODECS = tuple(Codec)


def read_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """The header at ``pos``. The batch itself may reach beyond the buffer: compare its ``size``.

    Raises CorruptMessage when fewer than 61 bytes are there, the magic is not 2 or the length cannot be.
    """
    try:
        header = BatchHeader._make(HEADER.unpack_from(buf, pos))
    except struct.error:
        raise CorruptMessage(
            f"{max(len(buf) - pos, 0)} bytes are left at position {pos}; a batch header has {HEADER_SIZE}"
        ) from None
    if header.magic != MAGIC:
        raise CorruptMessage(f"the batch at position {pos} has magic {header.magic}; only format 2 is known")
    if header.batch_length < HEADER_SIZE - LOG_OVERHEAD:
        raise CorruptMessage(f"the batch at position {pos} claims a length of {header.batch_length} bytes")
    return header


def whole_batch(buf: Buffer, pos: int = 0, *, end: int | None = None) -> BatchHeader:
    """As :func:`read_header`; CorruptMessage also when the batch does not end before ``end``."""
    header = read_header(buf, pos)
    room = (len(buf) if end is None else end) - pos
    if header.size > room:
        raise CorruptMessage(f"the batch at position {pos} claims {header.size} bytes; {room} are there")
    return header


def check_crc(buf: Buffer, pos: int, header: BatchHeader) -> None:
    """Raises CorruptMessage when the checksum of the batch at ``pos`` is not what its header says."""
    crc = crc32c(memoryview(buf)[pos + ATTRIBUTES_POSITION : pos + header.size])
    if crc != header.crc:
        raise CorruptMessage(
            f"the batch at position {pos} (base offset {header.base_offset}) has checksum {crc:#010x}, "
            f"its header says {header.crc:#010x}"
        )


def validate_batch(buf: Buffer, pos: int = 0, *, end: int | None = None, sparse: bool = False) -> BatchHeader:
    """The header at ``pos`` of a batch that lies wholly before ``end`` (default: the buffer's), agrees with
    itself and has the right checksum. Looks at no record.

    A producer's batch has a record for each of its offsets, and no more of them than its bytes can stand for in their
    codec, and than a reader decompresses; with ``sparse``, as a log may hold it, fewer or none will do. Raises
    CorruptMessage (damaged), InvalidRecord (a header that contradicts itself, an old format) or
    UnsupportedCompressionType. Whether a control batch is welcome is the caller's to say.
    """
    limit = len(buf) if end is None else end
    if pos < 0 or limit - pos < HEADER_SIZE:
        raise CorruptMessage(f"{limit - pos} bytes are left at position {pos}; a batch header has {HEADER_SIZE}")
    if buf[pos + MAGIC_POSITION] < MAGIC:
        raise InvalidRecord("the batch is in message format 0 or 1 (before Kafka 0.11), which is not supported")
    header = whole_batch(buf, pos, end=limit)
    check_crc(buf, pos, header)
    complaint = _contradiction(header, sparse)
    if complaint:
        raise InvalidRecord(f"the batch at position {pos} contradicts itself: {complaint}")
    return header


def _contradiction(header: BatchHeader, sparse: bool) -> str | None:
    """What is wrong with the header, as a phrase."""
    (_, length, _, _, _, attributes, delta, base_timestamp, max_timestamp, producer_id, epoch, sequence, count) = header
    if delta < 0 or count < 0:
        return f"{count} records, last offset delta {delta}"
    if count != delta + 1 and (not sparse or count > delta + 1):
        return f"{count} records for {delta + 1} offsets"
    room = length + LOG_OVERHEAD - HEADER_SIZE
    codec = codec_of(attributes)
    if codec is Codec.NONE:
        if room < count * MIN_RECORD_SIZE:
            return f"{count} records in {room} bytes"
    elif not sparse and min(max_decompressed(codec, room), DEFAULT_MAX_BYTES) < count * MIN_RECORD_SIZE:
        return f"{count} records in {room} bytes of {codec.name.lower()}"
    base_is_first = not attributes & (TIMESTAMP_TYPE_FLAG | DELETE_HORIZON_FLAG)
    if base_is_first and 0 <= max_timestamp < base_timestamp:
        return f"max timestamp {max_timestamp} before base timestamp {base_timestamp}"
    if attributes & CONTROL_FLAG:
        return None
    if producer_id >= 0:
        if epoch < 0 or sequence < 0:
            return f"producer id {producer_id} with epoch {epoch} and base sequence {sequence}"
    elif attributes & TRANSACTIONAL_FLAG:
        return "transactional without a producer id"
    return None


def stamp(buf: bytearray | memoryview, pos: int, base_offset: int, leader_epoch: int) -> None:
    """Give the batch at ``pos`` its offsets and its leader's epoch, in place; the checksum stays right."""
    _BASE_OFFSET.pack_into(buf, pos, base_offset)
    _LEADER_EPOCH.pack_into(buf, pos + EPOCH_POSITION, leader_epoch)


def stamp_log_append_time(buf: bytearray | memoryview, pos: int, now_ms: int) -> None:
    """Make ``now_ms`` the timestamp of all records of the batch at ``pos``, in place; redoes the checksum."""
    (length,) = _LENGTH.unpack_from(buf, pos + LENGTH_POSITION)
    (attributes,) = _ATTRIBUTES.unpack_from(buf, pos + ATTRIBUTES_POSITION)
    _ATTRIBUTES.pack_into(buf, pos + ATTRIBUTES_POSITION, attributes | TIMESTAMP_TYPE_FLAG)
    _MAX_TIMESTAMP.pack_into(buf, pos + MAX_TIMESTAMP_POSITION, now_ms)
    covered = memoryview(buf)[pos + ATTRIBUTES_POSITION : pos + LOG_OVERHEAD + length]
    _CRC.pack_into(buf, pos + CRC_POSITION, crc32c(covered))


def batch_headers(buf: Buffer, pos: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each whole batch from ``pos`` on; ends quietly before a partial last one.

    Checks no checksum. Raises CorruptMessage at a header that cannot be one.
    """
    limit = len(buf)
    while limit - pos >= HEADER_SIZE:
        header = read_header(buf, pos)
        if header.size > limit - pos:
            return
        if header.last_offset_delta < 0:
            raise CorruptMessage(
                f"the batch at position {pos} (base offset {header.base_offset}) has last offset delta "
                f"{header.last_offset_delta}"
            )
        yield pos, header
        pos += header.size
