"""◆ The columns of records in Arrow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raylog.protocol.errors import InvalidRequest

Integers = NDArray[np.int64]

TIMESTAMP = pa.timestamp("ms", tz="UTC")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("timestamp_type", pa.int8()),
        ("headers", HEADERS),
    ]
)
"""Every column there is, in order. ``timestamp_type``: 0 the producer's time, 1 the broker's. ``headers`` keep their
order and may repeat a key."""


def schema_of(columns: Sequence[str] | None) -> pa.Schema:
    """The schema of the named columns, in that order; of all for None. Raises InvalidRequest for unknown ones."""
    if columns is None:
        return SCHEMA
    unknown = [name for name in columns if name not in SCHEMA.names]
    if unknown or not columns or len(set(columns)) < len(columns):
        raise InvalidRequest(f"columns={list(columns)!r} must be some of {', '.join(SCHEMA.names)}, each once")
    return pa.schema([SCHEMA.field(name) for name in columns])
