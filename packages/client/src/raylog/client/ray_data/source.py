"""What Ray Data calls to read a topic: a task per piece, whose blocks are Arrow tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from raylog.client.batches.decode import schema_of
from raylog.client.ranges.offset_ranges import OffsetRange
from raylog.client.ranges.range_reader import RangeReading, read_range

if TYPE_CHECKING:
    from ray.data import DataContext


COUNTED = ("partition",)
"""What is read for a projection to no column, as counting has it: a block must have rows."""


class TopicDatasource(Datasource):
    """``pieces``, read as ``reading`` says; a projection that Ray Data pushes down narrows its columns."""

    def __init__(self, reading: RangeReading, pieces: Sequence[OffsetRange]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._reading = reading
        self._pieces = tuple(pieces)
        self._projection_map: dict[str, str] | None = None

    def estimate_inmemory_data_size(self) -> int | None:
        """Not known before it is read."""
        return None

    def supports_projection_pushdown(self) -> bool:
        return True

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: DataContext | None = None
    ) -> list[ReadTask]:
        """A task per piece, whatever ``parallelism`` is: the pieces were cut before."""
        reading = self._reading
        if self._projection_map is not None:
            reading = replace(reading, columns=tuple(self._projection_map) or COUNTED)
        schema = schema_of(reading.columns)
        nothing = BlockMetadata(num_rows=None, size_bytes=None, exec_stats=None)
        reads = [partial(read_blocks, reading, piece) for piece in self._pieces]
        return [
            ReadTask(read, nothing, schema=schema, per_task_row_limit=per_task_row_limit)
            for read in reads or [partial(no_blocks, reading)]
        ]


def read_blocks(reading: RangeReading, piece: OffsetRange) -> Iterator[pa.Table]:
    """The piece's records; one table without rows when it has none, so that the columns are known. Raises as
    :func:`~raylog.client.ranges.range_reader.read_range`."""
    empty = True
    for batch in read_range(reading, piece):
        empty = False
        yield pa.Table.from_batches([batch])
    if empty:
        yield from no_blocks(reading)


def no_blocks(reading: RangeReading) -> Iterator[pa.Table]:
    """A table without rows."""
    yield schema_of(reading.columns).empty_table()
