"""What Ray Data calls to write a dataset to a topic: a producer per task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from ray.data.block import Block, BlockAccessor
from ray.data.datasource import Datasink, WriteResult

from raylog.client.delivery import Deliveries
from raylog.client.producer import Producer

_COLUMNS = ("value", "key", "headers", "partition", "timestamp")


class TopicDatasink(Datasink[int]):
    """Sends rows to ``topic``; ``config`` are settings of the producers."""

    def __init__(self, bootstrap_servers: str, topic: str, config: Mapping[str, Any]) -> None:
        self.written = 0
        """How many records were delivered, once all were."""
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        self._config = dict(config)

    def get_name(self) -> str:
        return f"Topic({self._topic})"

    def on_write_start(self, schema: pa.Schema | None = None) -> None:
        """Raises ValueError, before any task runs, for columns that cannot be sent."""
        if isinstance(schema, pa.Schema) and len(schema):
            check_columns(schema)

    def write(self, blocks: Iterable[Block], ctx: Any) -> int:
        """Send the blocks of one task, and wait until all is delivered. Raises the first error, and asks for no more
        blocks once it is known.
        """
        deliveries = Deliveries()
        with Producer(self._bootstrap_servers, **self._config) as producer:
            for block in blocks:
                table = BlockAccessor.for_block(block).to_arrow()
                if len(table):
                    deliveries.add(producer.send_batch(self._topic, sendable(table)))
            producer.flush()
            deliveries.finish()
        return deliveries.delivered

    def on_write_complete(self, write_result: WriteResult[int]) -> None:
        self.written = sum(write_result.write_returns)


def check_columns(schema: pa.Schema) -> None:
    """Raises ValueError, with what to do, for a dataset that is not records to send."""
    unknown = sorted(set(schema.names) - set(_COLUMNS))
    if unknown or "value" not in schema.names:
        raise ValueError(
            f"a dataset with the columns {', '.join(schema.names)} cannot be written to a topic: it needs value and "
            f"may have {', '.join(_COLUMNS[1:])}; use select_columns, or rename_columns"
        )
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise ValueError(f"a dataset with the column {twice[0]} twice cannot be written to a topic: use select_columns")
    for name in ("value", "key"):
        if name in schema.names and not _is_bytes(schema.field(name).type):
            raise ValueError(
                f"column {name} is {schema.field(name).type}, not bytes or text: encode it by map_batches, "
                "for example with msgpack or json"
            )


def sendable(table: pa.Table) -> pa.Table:
    """The table as ``Producer.send_batch`` takes it: text as UTF-8. Raises ValueError as :func:`check_columns`."""
    check_columns(table.schema)
    for at, name in enumerate(table.column_names):
        if name in ("value", "key"):
            table = table.set_column(at, name, table[name].cast(pa.binary()))
    return table


def _is_bytes(kind: pa.DataType) -> bool:
    return kind in (pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.null())
