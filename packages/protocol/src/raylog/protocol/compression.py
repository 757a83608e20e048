"""The four compressions of record batches, by well-kept libraries; what comes out is bounded.

What goes in may be hostile: a kilobyte can stand for gigabytes. :func:`decompress` therefore never makes more
than ``max_bytes`` and raises :class:`CorruptMessage` instead, and it raises nothing else whatever the input.

Two formats have a trap for those who write them: Java's clients read snappy only in xerial's framing (blocks
after a magic), and LZ4 frames only with independent blocks. librdkafka and we read raw snappy as well.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from enum import IntEnum

import cramjam
import lz4.frame
import zstandard

from raylog.protocol.errors import CorruptMessage, UnsupportedCompressionType

DEFAULT_MAX_BYTES = 128 << 20
"""What a batch may grow to when the caller names no bound: far above any batch, far below any machine."""

Buffer = bytes | bytearray | memoryview


class Codec(IntEnum):
    """How a batch's records are compressed: the low three bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def from_name(cls, name: str) -> Codec:
        """The codec of Kafka's ``compression.type``; UnsupportedCompressionType for an unknown name."""
        try:
            return _BY_NAME[name]
        except KeyError:
            raise UnsupportedCompressionType(
                f"unknown compression {name!r}; use one of {', '.join(_BY_NAME)}"
            ) from None


_BY_NAME = {codec.name.lower(): codec for codec in Codec}


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """``data`` in the codec's format. ``level`` None is the library's default; snappy has no levels."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            packer = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, _GZIP_WBITS)
            return packer.compress(data) + packer.flush()
        case Codec.SNAPPY:
            return b"".join(_xerial_blocks(data))
        case Codec.LZ4:
            packed: bytes = lz4.frame.compress(
                data,
                compression_level=0 if level is None else level,
                block_size=lz4.frame.BLOCKSIZE_MAX64KB,
                block_linked=False,
                store_size=False,
            )
            return packed
        case Codec.ZSTD:
            return zstandard.ZstdCompressor(level=3 if level is None else level).compress(data)


def decompress(codec: Codec, data: Buffer, *, max_bytes: int = DEFAULT_MAX_BYTES) -> bytes:
    """What was compressed.

    Raises CorruptMessage when ``data`` is damaged or stands for more than ``max_bytes``.
    """
    if codec is Codec.NONE:
        if len(data) > max_bytes:
            raise _too_large(codec, max_bytes)
        return bytes(data)
    if not data:
        raise CorruptMessage(f"{codec.name.lower()} data has no bytes: even nothing compresses to some")
    try:
        return _DECOMPRESSORS[codec](data, max_bytes)
    except (
        zlib.error,
        cramjam.DecompressionError,
        RuntimeError,
        EOFError,
        zstandard.ZstdError,
        struct.error,
    ) as error:
        raise CorruptMessage(f"cannot decompress {codec.name.lower()} data of {len(data)} bytes: {error}") from error


def _too_large(codec: Codec, max_bytes: int) -> CorruptMessage:
    return CorruptMessage(f"{codec.name.lower()} data stands for more than the {max_bytes} bytes that are allowed")


# --- gzip -----------------------------------------------------------------------------------------

_GZIP_WBITS = 31


_GZIP_CHUNK_BYTES = 16 << 10
"""What goes in at once. What is left of it after a member is copied, so that all of it at once would take a time that
grows with the square of the members: five megabytes of tiny ones took nine seconds."""


def _gunzip(data: Buffer, max_bytes: int) -> bytes:
    view = memoryview(data)
    out: list[bytes] = []
    room = max_bytes
    pos = 0
    while pos < len(view):  # a gzip file may have several members
        unpacker = zlib.decompressobj(_GZIP_WBITS)
        while not unpacker.eof:
            if pos == len(view):
                raise CorruptMessage("gzip data ends too early")
            chunk = view[pos : pos + _GZIP_CHUNK_BYTES]
            part = unpacker.decompress(chunk, room + 1)
            room -= len(part)
            if room < 0:
                raise _too_large(Codec.GZIP, max_bytes)
            if part:
                out.append(part)
            pos += len(chunk) - len(unpacker.unused_data)
    return b"".join(out)


# --- snappy, raw and in xerial's framing ----------------------------------------------------------

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)  # version, lowest compatible version
_XERIAL_BLOCK_BYTES = 32 << 10
_INT32 = struct.Struct(">i")


def _xerial_blocks(data: Buffer) -> Iterator[bytes]:
    view = memoryview(data)
    yield _XERIAL_HEADER
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        yield _INT32.pack(len(block))
        yield block


def _unsnappy(data: Buffer, max_bytes: int) -> bytes:
    view = memoryview(data)
    out: list[bytes] = []
    room = max_bytes
    for block in _snappy_blocks(view):
        room -= cramjam.snappy.decompress_raw_len(block)
        if room < 0:
            raise _too_large(Codec.SNAPPY, max_bytes)
        if plain := bytes(cramjam.snappy.decompress_raw(block)):
            out.append(plain)
    return b"".join(out)


def _snappy_blocks(view: memoryview) -> Iterator[memoryview]:
    """The blocks of xerial's framing one by one (there may be millions), or all of raw snappy."""
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        yield view
        return
    position = len(_XERIAL_HEADER)
    if len(view) < position:
        raise CorruptMessage("snappy data ends inside its header")
    while position < len(view):
        (length,) = _INT32.unpack_from(view, position)
        position += _INT32.size
        if not 0 < length <= len(view) - position:
            raise CorruptMessage(f"a snappy block of {length} bytes does not fit its frame")
        yield view[position : position + length]
        position += length


# --- lz4 ------------------------------------------------------------------------------------------


def _unlz4(data: Buffer, max_bytes: int) -> bytes:
    unpacker = lz4.frame.LZ4FrameDecompressor()
    out: bytes = unpacker.decompress(data, max_length=max_bytes + 1)
    if len(out) > max_bytes:
        raise _too_large(Codec.LZ4, max_bytes)
    if not unpacker.eof:
        raise CorruptMessage("lz4 data ends too early")
    return out


# --- zstd -----------------------------------------------------------------------------------------

_ZSTD_BLOCK_BYTES = 128 << 10
"""What four bytes can stand for. So much goes in at once that what comes out is hardly more than what is allowed."""


def _unzstd(data: Buffer, max_bytes: int) -> bytes:
    view = memoryview(data)
    out: list[bytes] = []
    room = max_bytes
    pos = 0
    frames = zstandard.ZstdDecompressor()
    while pos < len(view):  # there may be several frames
        unpacker = frames.decompressobj()
        while not unpacker.eof:
            if pos == len(view):
                raise CorruptMessage("zstd data ends too early")
            chunk = view[pos : pos + 4 * (room // _ZSTD_BLOCK_BYTES + 1)]
            part = unpacker.decompress(chunk)
            room -= len(part)
            if room < 0:
                raise _too_large(Codec.ZSTD, max_bytes)
            if part:
                out.append(part)
            pos += len(chunk) - len(unpacker.unused_data)
    return out[0] if len(out) == 1 else b"".join(out)


_DECOMPRESSORS: dict[Codec, Callable[[Buffer, int], bytes]] = {
    Codec.GZIP: _gunzip,
    Codec.SNAPPY: _unsnappy,
    Codec.LZ4: _unlz4,
    Codec.ZSTD: _unzstd,
}
