"""Can a producer's batches be decompressed? The check costs one request a bounded amount of time and memory.

A few bytes can stand for 128 MiB, and zstd keeps as much of what it has decompressed as its frame's window says, up to
all of it. Within the first piece a batch costs little. What goes on takes one of a few slots, as many as there are
processors: more at once would be no faster, and each needs memory.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager, ExitStack

from raylog.protocol.batches.compression import (
    DEFAULT_MAX_BYTES,
    Codec,
    DecompressedTooLarge,
    decompress_pieces,
    max_decompressed,
)
from raylog.protocol.batches.header import CODEC_MASK, HEADER_SIZE, MIN_RECORD_SIZE
from raylog.protocol.errors import CorruptMessage, InvalidRecord, MessageTooLarge
from raylog.protocol.ids import TopicPartition
from raylog.protocol.records import BatchHeader

MAX_REQUEST_BYTES = 4 * DEFAULT_MAX_BYTES
"""What the compressed batches of one request may come to, together."""
_PIECE_BYTES = 1 << 20
_LEAST_BYTES = 4 << 10
"""What a piece counts for at least: a tiny frame takes the time of some kilobytes."""
_SLOTS = threading.BoundedSemaphore(os.cpu_count() or 1)


class RequestDecompression:
    """Checks the compressed batches of one request, and counts what they come to. One thread uses it."""

    __slots__ = ("_left", "_slots")

    def __init__(self, slots: AbstractContextManager[object] = _SLOTS) -> None:
        """``slots``: one is held while a batch is decompressed beyond its first piece."""
        self._left = MAX_REQUEST_BYTES
        self._slots = slots

    def check(self, header: BatchHeader, batch: memoryview, tp: TopicPartition) -> None:
        """Raise InvalidRecord where no reader could decompress the batch, or where it holds less than its records take.

        Raises MessageTooLarge where it, or the request so far, decompresses to more than is allowed. What the records
        themselves say is the producer's word.
        """
        if not header.attributes & CODEC_MASK:
            return
        try:
            size = self._decompressed_size(header.codec, batch[HEADER_SIZE : header.size], tp)
        except DecompressedTooLarge:
            raise _too_large(tp) from None
        except CorruptMessage as error:
            raise InvalidRecord(f"{tp}: no consumer can read the batch: {error}") from None
        if size < header.record_count * MIN_RECORD_SIZE:
            raise InvalidRecord(f"{tp}: a batch of {header.record_count} records decompresses to {size} bytes")

    def _decompressed_size(self, codec: Codec, body: memoryview, tp: TopicPartition) -> int:
        size = cost = 0
        is_large = codec is Codec.SNAPPY and max_decompressed(codec, len(body)) > _PIECE_BYTES  # a block is one piece
        with ExitStack() as slot:
            if is_large:
                slot.enter_context(self._slots)
            self._charge(0, tp)
            for piece in decompress_pieces(codec, body, _PIECE_BYTES):
                counted = max(len(piece), _LEAST_BYTES)
                size += len(piece)
                cost += counted
                del piece  # a wait for a slot keeps no more than it must
                self._charge(counted, tp)
                if cost > DEFAULT_MAX_BYTES:
                    raise _too_large(tp)
                if size > _PIECE_BYTES and not is_large:
                    is_large = True
                    slot.enter_context(self._slots)
        return size

    def _charge(self, size: int, tp: TopicPartition) -> None:
        self._left -= size
        if self._left < 0:
            raise MessageTooLarge(
                f"{tp}: the compressed batches of the request decompress to more than {MAX_REQUEST_BYTES} bytes: "
                "send less at once"
            )


def _too_large(tp: TopicPartition) -> MessageTooLarge:
    return MessageTooLarge(
        f"{tp}: a batch decompresses to more than {DEFAULT_MAX_BYTES} bytes, where a frame or block counts as "
        f"{_LEAST_BYTES} at least: send less"
    )
