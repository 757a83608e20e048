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
    room = _Room(max_bytes)
    out: list[bytes] = []
    for piece in _pieces(codec, data, room):
        room.left -= len(piece)
        if room.left < 0:
            raise _too_large(codec, max_bytes)
        out.append(piece)
    return out[0] if len(out) == 1 else b"".join(out)


def decompress_pieces(codec: Codec, data: Buffer, piece_bytes: int) -> Iterator[bytes]:
    """What was compressed, in pieces of not much more than ``piece_bytes``: who reads no further pays no more.

    A block of snappy comes as one piece. Raises CorruptMessage when ``data`` is damaged or a block is too large.
    """
    if codec is Codec.NONE:
        yield bytes(data)
    else:
        yield from _pieces(codec, data, _Room(piece_bytes, DEFAULT_MAX_BYTES))


def max_decompressed(codec: Codec, size: int) -> int:
    """The most bytes that ``size`` bytes of the codec can stand for, by its format."""
    return size * _RATIOS[codec]


_RATIOS = (
    1,
    1032,  # deflate: two bits for 258 bytes
    22,  # snappy: a copy of three bytes for 64
    255,  # lz4: a byte of length for 255 bytes
    32 << 10,  # zstd: a block of four bytes for 128 KiB
)


class _Room:
    """How many bytes may still come out."""

    __slots__ = ("left", "total")

    def __init__(self, left: int, total: int | None = None) -> None:
        self.left = left
        self.total = total or left
        """How many in all, where ``left`` is of each piece."""


def _pieces(codec: Codec, data: Buffer, room: _Room) -> Iterator[bytes]:
    """What was compressed, in pieces: the one that leaves no room is hardly larger than the room."""
    if not data:
        raise CorruptMessage(f"{codec.name.lower()} data has no bytes: even nothing compresses to some")
    try:
        yield from _DECOMPRESSORS[codec](data, room)
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


def _gunzip(data: Buffer, room: _Room) -> Iterator[bytes]:
    view = memoryview(data)
    pos = 0
    while pos < len(view):  # a gzip file may have several members
        unpacker = zlib.decompressobj(_GZIP_WBITS)
        while not unpacker.eof:
            if pos == len(view) and not unpacker.unconsumed_tail:
                raise CorruptMessage("gzip data ends too early")
            chunk = view[pos : pos + _GZIP_CHUNK_BYTES]
            part = unpacker.decompress(chunk, room.left + 1)
            pos += len(chunk) - len(unpacker.unused_data) - len(unpacker.unconsumed_tail)
            if part:
                yield part


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


def _unsnappy(data: Buffer, room: _Room) -> Iterator[bytes]:
    came = 0
    for block in _snappy_blocks(memoryview(data)):
        size = cramjam.snappy.decompress_raw_len(block)
        if size > max_decompressed(Codec.SNAPPY, len(block)):
            raise CorruptMessage(f"a snappy block of {len(block)} bytes claims to stand for {size}")
        if came + size > room.total:
            raise _too_large(Codec.SNAPPY, room.total)
        came += size
        if plain := bytes(cramjam.snappy.decompress_raw(block)):
            yield plain


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


def _unlz4(data: Buffer, room: _Room) -> Iterator[bytes]:
    unpacker = lz4.frame.LZ4FrameDecompressor()
    rest: Buffer = data
    while not unpacker.eof:
        part: bytes = unpacker.decompress(rest, max_length=room.left + 1)
        rest = b""
        if part:
            yield part
        elif not unpacker.eof:
            raise CorruptMessage("lz4 data ends too early")


# --- zstd -----------------------------------------------------------------------------------------

_ZSTD_BLOCK_BYTES = 128 << 10
"""What four bytes can stand for. So much goes in at once that what comes out is hardly more than what is allowed."""


def _unzstd(data: Buffer, room: _Room) -> Iterator[bytes]:
    view = memoryview(data)
    pos = 0
    frames = zstandard.ZstdDecompressor()
    while pos < len(view):  # there may be several frames
        unpacker = frames.decompressobj()
        while not unpacker.eof:
            if pos == len(view):
                raise CorruptMessage("zstd data ends too early")
            chunk = view[pos : pos + 4 * (room.left // _ZSTD_BLOCK_BYTES + 1)]
            part = unpacker.decompress(chunk)
            pos += len(chunk) - len(unpacker.unused_data)
            if part:
                yield part


_DECOMPRESSORS: dict[Codec, Callable[[Buffer, _Room], Iterator[bytes]]] = {
    Codec.GZIP: _gunzip,
    Codec.SNAPPY: _unsnappy,
    Codec.LZ4: _unlz4,
    Codec.ZSTD: _unzstd,
}
