"""A DataFrame's rows as records of topics: ``write(frame, topic="flights")``.

Executors send the rows of their Spark partitions in parallel, by idempotent producers: see ``write_task``. A task that
Spark tries again sends all its rows again, so records are there at least once; ``sink`` writes each of them once.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from raylog.client import connect
from raylog.coordination.metadata.topic_names import check_topic_name
from raylog.spark.shipping import shipped
from raylog.spark.writing.write_options import write_options
from raylog.spark.writing.write_task import WriteTask, send_rows

_BYTES = (BinaryType, StringType)
_COLUMNS = ("value", "key", "headers", "partition", "topic")
_HEADERS = "array<struct<key:string,value:binary>>"


def write(frame: DataFrame, *, topic: str | None = None, bootstrap_servers: str | None = None, **options: Any) -> int:
    """Send each row as a record and answer how many there were, once the brokers have them all.

    Columns are ``value`` and optionally ``key`` (binary or string), ``headers``, ``partition`` and ``topic``, as
    Spark's Kafka sink takes them; others are left out. ``topic`` counts for all rows, whatever their column says.
    ``options`` are ``kafka.*`` producer settings, as ``**{"kafka.compression.type": "zstd"}``. ``connect`` finds the
    cluster without ``bootstrap_servers``.

    Raises ValueError for unfit columns and options, InvalidTopic, InvalidConfig for an unfit setting, and
    PySparkException for a job that failed, with what its task raised: the error of the first record that was not
    delivered.
    """
    if topic is not None:
        check_topic_name(topic)
    chosen = write_options(options, bootstrap_servers, exactly_once=False)
    records = records_of(frame, topic)
    servers = chosen.bootstrap_servers or connect().bootstrap_servers
    task = WriteTask(servers, topic, chosen.producer)
    return total_of(records.mapInArrow(shipped(send_rows, task), "records long"))


def total_of(counts: DataFrame) -> int:
    """The sum of what tasks answered."""
    return sum(row.records for row in counts.collect())


def records_of(frame: DataFrame, topic: str | None) -> DataFrame:
    """The frame's columns that make records, in the types that tasks take. Raises ValueError for unfit ones."""
    schema = frame.schema
    for name in schema.names:
        if name not in _COLUMNS and name.lower() in _COLUMNS:
            raise ValueError(f"column {name} would be left out: rename it to {name.lower()}, or drop it")
    if "value" not in schema.names:
        raise ValueError(f"the rows have no column value, only {', '.join(schema.names) or 'none'}: name what to send")
    if topic is None and "topic" not in schema.names:
        raise ValueError("where to? give topic=, or a column topic")
    columns = []
    for name in ("value", "key"):
        if name in schema.names:
            _check(schema, name, _BYTES, "cast it, or make JSON of it by to_json(struct(...))")
            columns.append(F.col(name).cast("binary").alias(name))
    if "headers" in schema.names:
        _check_headers(schema["headers"].dataType)
        columns.append(F.col("headers").cast(_HEADERS).alias("headers"))
    if "partition" in schema.names:
        _check(schema, "partition", (IntegerType, ShortType, ByteType, LongType), "cast it to int")
        columns.append(F.col("partition").cast("long").alias("partition"))
    if topic is None:
        _check(schema, "topic", (StringType,), "cast it to string")
        columns.append(F.col("topic"))
    return frame.select(columns)


def _check(schema: StructType, name: str, fit: tuple[type[DataType], ...], what_to_do: str) -> None:
    kind = schema[name].dataType
    if not isinstance(kind, fit):
        wanted = " or ".join(each.typeName() for each in fit)
        raise ValueError(f"column {name} is {kind.simpleString()}, not {wanted}: {what_to_do}")


def _check_headers(kind: DataType) -> None:
    element = kind.elementType if isinstance(kind, ArrayType) else None
    if (
        not isinstance(element, StructType)
        or element.names != ["key", "value"]
        or not isinstance(element["key"].dataType, StringType)
        or not isinstance(element["value"].dataType, _BYTES)
    ):
        raise ValueError(f"column headers is {kind.simpleString()}, not {_HEADERS}")
