"""Levels of compression: Java's ranges and defaults (KIP-390), and librdkafka's one level for all types."""

from __future__ import annotations

from typing import Any

import pytest

from raylog.client.config.client import PRODUCER_SETTINGS, client_settings
from raylog.client.config.compression import compression
from raylog.protocol.batches.compression import Codec
from raylog.protocol.errors import InvalidConfig


def chosen(**config: Any) -> tuple[Codec, int | None]:
    return compression(client_settings(PRODUCER_SETTINGS, "a:1", config))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, (Codec.NONE, None)),
        ({"compression_type": "gzip"}, (Codec.GZIP, -1)),
        ({"compression_type": "lz4"}, (Codec.LZ4, None)),
        ({"compression_type": "zstd"}, (Codec.ZSTD, 3)),
        ({"compression_type": "snappy", "compression_gzip_level": 9}, (Codec.SNAPPY, None)),
        ({"compression_type": "gzip", "compression_gzip_level": 9}, (Codec.GZIP, 9)),
        ({"compression_type": "gzip", "compression.gzip.level": "1"}, (Codec.GZIP, 1)),
        ({"compression_type": "lz4", "compression_lz4_level": 9}, (Codec.LZ4, None)),
        ({"compression_type": "lz4", "compression_lz4_level": 1}, (Codec.LZ4, 3)),
        ({"compression_type": "lz4", "compression_lz4_level": 17}, (Codec.LZ4, 17)),
        ({"compression_type": "zstd", "compression_zstd_level": -131072}, (Codec.ZSTD, -131072)),
        ({"compression_type": "gzip", "compression_level": 0}, (Codec.GZIP, 0)),
        ({"compression_type": "lz4", "compression_level": 9}, (Codec.LZ4, 9)),
        ({"compression_type": "zstd", "compression_level": 19}, (Codec.ZSTD, 19)),
        ({"compression_type": "zstd", "compression_level": -1}, (Codec.ZSTD, 3)),
    ],
)
def test_compression_has_the_level_that_was_asked_for(config: dict[str, Any], expected: tuple[Codec, int]) -> None:
    assert chosen(**config) == expected


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"compression_gzip_level": 0}, r"compression\.gzip\.level='0' must be from 1 to 9, or -1"),
        ({"compression_gzip_level": 10}, "from 1 to 9"),
        ({"compression_lz4_level": 0}, "from 1 to 17"),
        ({"compression_lz4_level": 18}, "from 1 to 17"),
        ({"compression_zstd_level": 23}, "to 22"),
        ({"compression_zstd_level": -131073}, "from -131072"),
        ({"compression_level": 5}, r"compression\.level=5: compression\.type=none has no levels"),
        ({"compression_level": 5, "compression_type": "snappy"}, "snappy has no levels"),
        ({"compression_level": 10, "compression_type": "gzip"}, "must be from 0 to 9 with compression.type=gzip"),
        ({"compression_level": 13, "compression_type": "lz4"}, "from 0 to 12"),
        (
            {"compression_level": 5, "compression_type": "gzip", "compression_gzip_level": 5},
            r"compression\.gzip\.level are both given",
        ),
    ],
)
def test_a_level_that_the_type_has_not_is_refused(config: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint):
        chosen(**config)
