"""DataFrames of ranges: one Spark partition per range, placed near the leader that it is read from.

The ranges are an RDD of their own with preferred locations (``SparkContext.makeRDD`` over pairs, which pyspark does
not offer and is called through py4j); ``mapInArrow`` over it is what reads.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.accumulators import Accumulator
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from raylog.client.ranges.offset_ranges import OffsetRange
from raylog.client.ranges.range_reader import RangeReading
from raylog.protocol.ids import TopicId, TopicName, TopicPartition
from raylog.spark.reading.columns import client_columns
from raylog.spark.reading.options import ReadOptions
from raylog.spark.reading.reader import RangeTask, range_text, read_ranges
from raylog.spark.reading.values import ParseMode, ValueDecoding, ValueFormat
from raylog.spark.scala_objects import scala_object
from raylog.spark.shipping import shipped

_TYPES: Mapping[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}
"""Of Spark's Kafka source."""


class FramePlan(NamedTuple):
    """How a DataFrame's ranges are read, and the schema of what that gives."""

    task: RangeTask
    schema: StructType


def frame_plan(
    spark: SparkSession, asked: ReadOptions, bootstrap_servers: str, topic_ids: Mapping[TopicName, TopicId]
) -> FramePlan:
    """The plan for what was asked for, of topics with these ids. Raises ValueError for an unfit ``schema`` and
    ``dropped``."""
    reading = RangeReading(
        bootstrap_servers, client_columns(asked.columns), asked.fail_on_data_loss, asked.consumer, topic_ids
    )
    types: dict[str, DataType] = dict(_TYPES)
    if asked.value is None:
        return FramePlan(RangeTask(reading, asked.columns), _schema(asked.columns, types))
    value = asked.value
    types["value"] = StringType() if value.format is ValueFormat.STRING else struct_type(spark, value.schema)
    decoding = ValueDecoding(
        value.format,
        _arrow_type(types["value"], value.format),
        value.mode,
        time_zone(spark),
        value.corrupt_column,
    )
    if not isinstance(value.dropped, Accumulator | None):
        raise ValueError(f"dropped={value.dropped!r} must be an accumulator, as spark.sparkContext.accumulator(0)")
    count_dropped = None if value.dropped is None else value.dropped.add
    names = asked.columns
    if value.mode is ParseMode.PERMISSIVE:
        names, types[value.corrupt_column] = (*names, value.corrupt_column), BinaryType()
    return FramePlan(RangeTask(reading, asked.columns, decoding, count_dropped), _schema(names, types))


def range_frame(
    spark: SparkSession,
    plan: FramePlan,
    pieces: Sequence[OffsetRange],
    hosts: Mapping[TopicPartition, Sequence[str]],
) -> DataFrame:
    """The records of ``pieces``, each one Spark partition, in their order.

    ``hosts``: where the leader of each partition runs, as executors may name their hosts. Spark waits for a free core
    there for ``spark.locality.wait``, and not at all where no executor runs.
    """
    rows = [(range_text(piece), hosts.get(piece.tp, ())) for piece in pieces]
    return placed_rows(spark, rows).mapInArrow(shipped(read_ranges, plan.task), plan.schema)


def placed_rows(spark: SparkSession, rows: Sequence[tuple[str, Sequence[str]]]) -> DataFrame:
    """Each text one row, in a Spark partition of its own that prefers the hosts beside it; without rows, one empty
    partition."""
    context: Any = spark.sparkContext
    jvm = context._jvm
    to_seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
    places = {hosts: to_seq(list(hosts)) for hosts in {tuple(hosts) for _, hosts in rows}}
    pairs = [jvm.scala.Tuple2(text, places[tuple(hosts)]) for text, hosts in rows]
    class_tags = scala_object(jvm.scala.reflect, "ClassTag")
    string = class_tags.apply(jvm.java.lang.Class.forName("java.lang.String"))
    rdd = context._jsc.sc().makeRDD(to_seq(pairs), string)
    session: Any = spark._jsparkSession
    return DataFrame(session.createDataset(rdd, jvm.org.apache.spark.sql.Encoders.STRING()).toDF(), spark)


def time_zone(spark: SparkSession) -> str:
    """The session's, by a name that Python knows, or as an offset like +03:00. Spark takes Java's names: PST, GMT+3."""
    context: Any = spark.sparkContext
    name = spark.conf.get("spark.sql.session.timeZone")
    zone = context._jvm.org.apache.spark.sql.catalyst.util.DateTimeUtils.getZoneId(name).normalized()
    found: str = zone.getId()
    return "UTC" if found == "Z" else found


def struct_type(spark: SparkSession, schema: str | StructType) -> DataType:
    """A schema from DDL or Spark's type, all nullable: any field may be missing. Raises ValueError."""
    if isinstance(schema, StructType):
        return _all_nullable(schema)
    if not isinstance(schema, str):
        raise ValueError(f"schema={schema!r} must be DDL, as 'id long, name string', or a StructType")
    jvm: Any = spark.sparkContext._jvm
    try:
        found = StructType.fromJson(json.loads(jvm.org.apache.spark.sql.types.StructType.fromDDL(schema).json()))
    except PySparkException as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"schema={schema!r} is no schema like 'id long, name string': {reason:.200}") from error
    return _all_nullable(found)


def _all_nullable(type_: DataType) -> DataType:
    match type_:
        case StructType():
            return StructType([StructField(field.name, _all_nullable(field.dataType)) for field in type_.fields])
        case ArrayType():
            return ArrayType(_all_nullable(type_.elementType))
        case MapType():
            return MapType(_all_nullable(type_.keyType), _all_nullable(type_.valueType))
    return type_


def _arrow_type(type_: DataType, format_: ValueFormat) -> Any:
    """What values are decoded to. Raises ValueError for a type that none can have, and says where it is."""
    _check_type("schema", type_, format_)
    try:
        return to_arrow_type(type_)
    except PySparkException as error:
        raise ValueError(f"schema: values are not decoded to such a type: {error}") from error


def _check_type(where: str, type_: DataType, format_: ValueFormat) -> None:
    """Raises ValueError for a type that no value fits: all would be null, or left out, before anybody wonders why."""
    match type_:
        case StructType():
            [(name, times)] = Counter(type_.names).most_common(1) or [("", 0)]
            if times > 1:
                raise ValueError(f"{where} has the field {name} {times} times: give each a name of its own")
            for field in type_.fields:
                _check_type(f"{where}.{field.name}", field.dataType, format_)
        case ArrayType():
            _check_type(f"{where}[]", type_.elementType, format_)
        case MapType():
            if format_ is ValueFormat.JSON and not isinstance(type_.keyType, StringType):
                raise ValueError(f"{where} is {type_.simpleString()}: in JSON, keys are texts; declare map<string, …>")
            _check_type(f"{where}[]", type_.valueType, format_)
        case NullType():
            raise ValueError(f"{where} is void, which only null is: leave the field out, or give its type")


def _schema(columns: Sequence[str], types: Mapping[str, DataType]) -> StructType:
    return StructType([StructField(name, types[name]) for name in columns])
