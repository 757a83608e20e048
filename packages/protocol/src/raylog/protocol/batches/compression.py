"""The four compressions of record batches, by well-kept libraries; what comes out is bounded.

What goes in may be hostile: a kilobyte can stand for gigabytes. :func:`decompress` therefore never makes more
than ``max_bytes`` and raises a :class:`CorruptMessage` instead, and it raises nothing else whatever the input.

Two formats have a trap for those who write them: Java's clients read snappy only in xerial's framing (blocks
after a magic), and of LZ4 one frame only, with independent blocks. librdkafka and we read raw snappy as well.
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


class DecompressedTooLarge(CorruptMessage):
    """The data stands for more than is allowed; it may be sound."""


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

    Raises CorruptMessage when ``data`` is damaged, DecompressedTooLarge when it stands for more than ``max_bytes``.
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
        if piece:
            out.append(piece)
    return out[0] if len(out) == 1 else b"".join(out)


def decompress_pieces(codec: Codec, data: Buffer, piece_bytes: int) -> Iterator[bytes]:
    """What was compressed, in pieces of not much more than ``piece_bytes``: who reads no further pays no more.

    A block of snappy comes as one piece, and a member or frame of nothing as an empty one. Raises CorruptMessage when
    ``data`` is damaged, DecompressedTooLarge when a block is too large.
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


def _too_large(codec: Codec, max_bytes: int) -> DecompressedTooLarge:
    return DecompressedTooLarge(
        f"{codec.name.lower()} data stands for more than the {max_bytes} bytes that are allowed"
    )


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
        yield bytes(cramjam.snappy.decompress_raw(block))


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
    if unpacker.unused_data:
        raise CorruptMessage(
            f"{len(unpacker.unused_data)} bytes follow the lz4 frame: Kafka's clients do not read them"
        )


# --- zstd -----------------------------------------------------------------------------------------

_ZSTD_BLOCK_BYTES = 128 << 10
"""What a block stands for at most."""
_ZSTD_HEADER_BYTES = 18
"""What a frame's header takes at most."""
_ZSTD_COMPRESSED, _ZSTD_RUN = 2, 1
_ZSTD_SKIPPABLE = 0x184D2A50
_UINT32 = struct.Struct("<I")
_NO_BOUND = 1 << 62


def _unzstd(data: Buffer, room: _Room) -> Iterator[bytes]:
    """A frame that says that it fits is decompressed at once, another by as many blocks as fit for certain."""
    view = memoryview(data)
    pos = 0
    frames = zstandard.ZstdDecompressor()
    while pos < len(view):  # there may be several frames
        if (skipped := _zstd_skippable(view, pos)) is not None:
            pos = skipped
            continue
        header = zstandard.get_frame_parameters(view[pos : pos + _ZSTD_HEADER_BYTES])
        if 0 < header.content_size <= min(room.left, max_decompressed(Codec.ZSTD, len(view) - pos)):
            (frame,) = _zstd_parts(view, pos, header.has_checksum, _Room(_NO_BOUND))
            yield frames.decompress(frame)
            pos += len(frame)
            continue
        unpacker = frames.decompressobj()
        for part in _zstd_parts(view, pos, header.has_checksum, room):
            pos += len(part)
            yield unpacker.decompress(part)
        if not unpacker.eof:
            raise CorruptMessage("zstd data ends too early")


def _zstd_skippable(view: memoryview, pos: int) -> int | None:
    """Where the frame at ``pos`` ends when it is one that holds no data."""
    if len(view) - pos < 8 or _UINT32.unpack_from(view, pos)[0] & ~15 != _ZSTD_SKIPPABLE:
        return None
    end: int = pos + 8 + _UINT32.unpack_from(view, pos + 4)[0]
    if end > len(view):
        raise CorruptMessage("zstd data ends too early")
    return end


def _zstd_parts(view: memoryview, pos: int, has_checksum: bool, room: _Room) -> Iterator[memoryview]:
    """The frame at ``pos``, cut between blocks so that no part but a single block can stand for more than the room.

    The last part is short when the frame is cut. (RFC 8878, 3.1.1: a block's header is three bytes.)
    """
    start, end, came, is_last = pos, len(view), 0, False
    pos += zstandard.frame_header_size(view[pos : pos + _ZSTD_HEADER_BYTES])
    while not is_last and pos + 3 <= end:
        block = int.from_bytes(view[pos : pos + 3], "little")
        is_last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
        stands_for = _ZSTD_BLOCK_BYTES if kind == _ZSTD_COMPRESSED else size
        if came and came + stands_for > room.left:
            yield view[start:pos]
            start, came = pos, 0
        came += stands_for
        pos += 3 + (1 if kind == _ZSTD_RUN else size)
    yield view[start : pos + 4 * has_checksum]


_DECOMPRESSORS: dict[Codec, Callable[[Buffer, _Room], Iterator[bytes]]] = {
    Codec.GZIP: _gunzip,
    Codec.SNAPPY: _unsnappy,
    Codec.LZ4: _unlz4,
    Codec.ZSTD: _unzstd,
}
