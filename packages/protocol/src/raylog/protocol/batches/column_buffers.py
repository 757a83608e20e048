"""◆ Columns of records as plain buffers in Arrow's layout, and how many of them a decoder makes room for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from raylog.protocol.batches.compression import Buffer
from raylog.protocol.batches.header import MIN_RECORD_SIZE, BatchHeader
from raylog.protocol.errors import CorruptMessage, MessageTooLarge

MAX_BYTES = (1 << 31) - 1
"""What a column may have: Arrow's offsets into it have 32 bits."""


class Blobs(NamedTuple):
    """A column of bytes, as Arrow's ``binary``: row i is ``data[offsets[i]:offsets[i + 1]]``."""

    offsets: Buffer
    """int32, one more than rows. Those of a slice of a longer column need not begin with 0."""
    data: Buffer
    valid: Buffer | None
    """A bit for each row, the lowest first; None: no row is null."""
    first_bit: int = 0
    """Where in ``valid`` the rows begin."""


class HeaderLists(NamedTuple):
    """The headers of all records: record i has those from ``offsets[i]`` to ``offsets[i + 1]``."""

    offsets: Buffer
    """int32, one more than records, from 0 on."""
    names: Blobs
    """In UTF-8, none of them null."""
    values: Blobs


class Decoded(NamedTuple):
    """Columns of records. Those that were not asked for are None."""

    offsets: Buffer
    """int64."""
    timestamps: Buffer
    """int64, in ms since the epoch."""
    keys: Blobs | None
    values: Blobs | None
    headers: HeaderLists | None


def count_records(batches: Sequence[tuple[BatchHeader, Buffer]]) -> int:
    """How many records to make room for, going by headers that may lie.

    Raises CorruptMessage when a body is too short for the records that its header claims, and MessageTooLarge when the
    bodies have more bytes than a column may have.
    """
    total = size = 0
    for header, body in batches:
        count = header.record_count
        if count < 0 or header.last_offset_delta < 0 or count * MIN_RECORD_SIZE > len(body):
            raise CorruptMessage(
                f"a batch of {len(body)} bytes claims {count} records and the last offset delta "
                f"{header.last_offset_delta}"
            )
        total += count
        size += len(body)
    if size > MAX_BYTES:
        raise MessageTooLarge(
            f"{size} bytes of records are more than the {MAX_BYTES} of an Arrow column; decode fewer batches at once"
        )
    return total
