"""◆ The columns of records in Arrow: which there are, those that were read, and those to send."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

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
    if isinstance(columns, str):  # a sequence, too, but none of names
        columns = (columns,)
    if not isinstance(columns, Iterable):
        raise InvalidRequest(f"columns={columns!r} must be some of {', '.join(SCHEMA.names)}")
    unknown = [name for name in columns if name not in SCHEMA.names]
    if unknown or not columns or len(set(columns)) < len(columns):
        raise InvalidRequest(f"columns={list(columns)!r} must be some of {', '.join(SCHEMA.names)}, each once")
    return pa.schema([SCHEMA.field(name) for name in columns])


class FoundColumns(NamedTuple):
    """Columns of records. Those that were not asked for are None."""

    offsets: Integers
    timestamps: Integers
    """In ms since the epoch, the broker's where the batch says so."""
    keys: pa.Array | None
    values: pa.Array | None
    headers: pa.Array | None


class Rows(NamedTuple):
    """Columns of records to send, equally long: binary keys and values, timestamps in ms, headers or None."""

    keys: pa.Array
    values: pa.Array
    timestamps: Integers
    headers: pa.Array | None

    def slice(self, start: int, count: int) -> Rows:
        headers = None if self.headers is None else self.headers.slice(start, count)
        keys, values = self.keys.slice(start, count), self.values.slice(start, count)
        return Rows(keys, values, self.timestamps[start : start + count], headers)

    def take(self, order: Integers) -> Rows:
        wanted = pa.array(order)
        headers = None if self.headers is None else self.headers.take(wanted)
        return Rows(self.keys.take(wanted), self.values.take(wanted), self.timestamps[order], headers)
