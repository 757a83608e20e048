"""Which batches of a fetch a consumer sees: no markers and, of what is committed, no aborted ones either (KIP-98).

A broker answers a fetch of committed data up to the last stable offset, and lists the transactions in it that were
aborted: each is a producer and the offset of its first batch. Its batches are those of the producer from there on, up
to the producer's next marker, which can only be the one that ended it: a producer has one transaction at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from raylog.protocol.batches.compression import Buffer
from raylog.protocol.batches.header import BatchHeader, batch_headers, check_crc


class AbortedTransaction(NamedTuple):
    """A transaction whose records a reader of committed data must drop, up to its marker."""

    producer_id: int
    first_offset: int


def visible_batches(
    data: Buffer, aborted: Sequence[AbortedTransaction] = (), *, check_crcs: bool = False
) -> Iterator[tuple[int, BatchHeader, bool]]:
    """Position and header of each whole batch in ``data``, and whether consumers see its records.

    ``aborted``: the transactions that the answer listed, in any order. Begin where the answer's data begins: a batch
    can only be told to be aborted by what comes before it. ``check_crcs``: CorruptMessage for a batch whose checksum is
    wrong, before its header is believed. Raises as ``batch_headers``, too.
    """
    ahead = sorted(aborted, key=lambda one: one.first_offset, reverse=True)
    aborting: set[int] = set()
    for pos, header in batch_headers(data):
        if check_crcs:
            check_crc(data, pos, header)
        while ahead and ahead[-1].first_offset <= header.last_offset:
            aborting.add(ahead.pop().producer_id)
        visible = not header.is_control
        if not visible:
            aborting.discard(header.producer_id)
        elif aborting and header.is_transactional and header.producer_id in aborting:
            visible = False
        yield pos, header, visible
