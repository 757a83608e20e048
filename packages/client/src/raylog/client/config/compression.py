"""◆ How a producer compresses batches: the type, and the level of each type (KIP-390)."""

from __future__ import annotations

from typing import NamedTuple

from raylog.protocol.batches.compression import Codec
from raylog.protocol.errors import InvalidConfig
from raylog.protocol.settings import Scope, Setting, Settings, ValueType, between, one_of

COMPRESSION_TYPE = Setting(
    "compression.type",
    ValueType.STRING,
    "none",
    Scope.CLIENT,
    "How batches are compressed.",
    check=one_of("none", "gzip", "snappy", "lz4", "zstd"),
)
_GZIP_DEFAULT = -1
_LZ4_DEFAULT = 9
_LZ4_HIGH = 3
"""The library's lowest level of high compression; below it has the fast one."""
_LEVEL_OF_TYPE = -1


def _gzip_level(level: int) -> str | None:
    return None if level == _GZIP_DEFAULT or 1 <= level <= 9 else "must be from 1 to 9, or -1"


GZIP_LEVEL = Setting(
    "compression.gzip.level",
    ValueType.INT,
    _GZIP_DEFAULT,
    Scope.CLIENT,
    "With compression.type=gzip: from 1, the fastest, to 9, the smallest; -1: zlib's default, which is 6 (KIP-390).",
    check=_gzip_level,
)
LZ4_LEVEL = Setting(
    "compression.lz4.level",
    ValueType.INT,
    _LZ4_DEFAULT,
    Scope.CLIENT,
    "With compression.type=lz4: from 1 to 17, high compression, which gets no smaller above 12; but 9, the default, is "
    "the fast compressor, as in Java's clients (KIP-390).",
    check=between(1, 17),
)
ZSTD_LEVEL = Setting(
    "compression.zstd.level",
    ValueType.INT,
    3,
    Scope.CLIENT,
    "With compression.type=zstd: from -131072, the fastest, to 22, the smallest (KIP-390).",
    check=between(-131_072, 22),
)
COMPRESSION_LEVEL = Setting(
    "compression.level",
    ValueType.INT,
    _LEVEL_OF_TYPE,
    Scope.CLIENT,
    "librdkafka's name for the level of whichever compression.type: 0 to 9 for gzip, 0 to 12 for lz4 (0: the fast "
    "compressor), -131072 to 22 for zstd. -1: what compression.gzip.level, … says.",
)
COMPRESSION_SETTINGS = (COMPRESSION_TYPE, GZIP_LEVEL, LZ4_LEVEL, ZSTD_LEVEL, COMPRESSION_LEVEL)

_LEVELS = {Codec.GZIP: GZIP_LEVEL, Codec.LZ4: LZ4_LEVEL, Codec.ZSTD: ZSTD_LEVEL}
_LIBRDKAFKA_LEVELS = {Codec.GZIP: between(0, 9), Codec.LZ4: between(0, 12), Codec.ZSTD: between(-131_072, 22)}


class Compression(NamedTuple):
    """A codec, and its level as :func:`raylog.protocol.batches.compression.compress` takes it; None: its default."""

    codec: Codec
    level: int | None


def compression(settings: Settings) -> Compression:
    """What a producer's settings ask for. Raises InvalidConfig for a ``compression.level`` that the type has not, or
    that is given beside the type's own."""
    codec = Codec.from_name(settings[COMPRESSION_TYPE])
    own = _LEVELS.get(codec)
    level = settings[COMPRESSION_LEVEL]
    if level != _LEVEL_OF_TYPE:
        if own is None:
            raise InvalidConfig(f"compression.level={level}: compression.type={codec.name.lower()} has no levels")
        if not settings.is_default(own):
            raise InvalidConfig(f"compression.level and {own.name} are both given; give one of them")
        complaint = _LIBRDKAFKA_LEVELS[codec](level)
        if complaint:
            raise InvalidConfig(f"compression.level={level} {complaint} with compression.type={codec.name.lower()}")
        return Compression(codec, level)
    if own is None:
        return Compression(codec, None)
    level = settings[own]
    if codec is Codec.LZ4:
        return Compression(codec, None if level == _LZ4_DEFAULT else max(_LZ4_HIGH, level))
    return Compression(codec, level)
