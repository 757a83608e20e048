"""Record batches (format 2, KIP-98) to and from rows: the one format on the wire, on disk and between replicas.

Headers are in :mod:`raylog.protocol.batch_header` and can be had from here, too. Encoding and decoding are tuned
pure Python and are meant for clients; a broker never looks into a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from raylog.protocol.batch_header import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    TimestampType,
    batch_headers,
    read_header,
    stamp,
    stamp_log_append_time,
    validate_batch,
)
from raylog.protocol.compression import DEFAULT_MAX_BYTES, Buffer, Codec

__all__ = [
    "HEADER_SIZE",
    "LOG_OVERHEAD",
    "BatchHeader",
    "Batches",
    "Codec",
    "Record",
    "TimestampType",
    "batch_headers",
    "decode_batch",
    "decode_batches",
    "encode_batch",
    "read_header",
    "stamp",
    "stamp_log_append_time",
    "validate_batch",
]


class Record(NamedTuple):
    """One record. ``timestamp`` is in ms since the epoch, -1 for none; ``offset`` is -1 until a log gave it one."""

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp: int = -1
    offset: int = -1


def encode_batch(
    records: Sequence[Record],
    *,
    codec: Codec = Codec.NONE,
    base_offset: int = 0,
    leader_epoch: int = -1,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
) -> bytes:
    """One batch of all ``records``, in order; their own offsets are not looked at, base_offset and up are theirs."""
    raise NotImplementedError


def decode_batch(
    buf: Buffer, pos: int = 0, *, check_crc: bool = True, max_bytes: int = DEFAULT_MAX_BYTES
) -> list[Record]:
    """The records of the batch at ``pos``, control records too.

    Raises CorruptMessage when the batch is damaged or decompresses to more than ``max_bytes``.
    """
    raise NotImplementedError


def decode_batches(buf: Buffer, *, from_offset: int = 0) -> list[Record]:
    """Data records at or above ``from_offset`` of all whole batches in ``buf``, as a fetch returned them.

    A partial last batch, which Kafka's fetch may end with, is left out; so are control batches.
    """
    raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Batches:
    """What a fetch returned, still encoded: whoever unpacks it decodes it (``records, high_watermark = batches``).

    Pickles as one byte string, so that an actor that serves it spends nothing on records.
    """

    data: bytes
    high_watermark: int
    from_offset: int = 0
    """Where the fetch began; the first batch may begin earlier, its records below this are left out."""

    def records(self) -> list[Record]:
        """The data records from ``from_offset`` on."""
        return decode_batches(self.data, from_offset=self.from_offset)

    @property
    def next_offset(self) -> int:
        """Where the next fetch should begin: after the last whole batch, of which consumers may see nothing."""
        offset = self.from_offset
        for _, header in batch_headers(self.data):
            offset = max(offset, header.next_offset)
        return offset

    def __iter__(self) -> Iterator[list[Record] | int]:
        yield self.records()
        yield self.high_watermark
