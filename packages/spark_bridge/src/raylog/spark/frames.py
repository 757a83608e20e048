"""DataFrames of ranges: one Spark partition per range, placed near the leader that it is read from.

The ranges are an RDD of their own with preferred locations (``SparkContext.makeRDD`` over pairs, which pyspark does
not offer and is called through py4j); ``mapInArrow`` over it is what reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from raylog.client.offset_ranges import OffsetRange
from raylog.protocol.ids import TopicPartition
from raylog.spark.reader import RangeTask, range_text, read_ranges

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


def frame_schema(columns: Sequence[str]) -> StructType:
    """The schema of a DataFrame with these of Spark's columns."""
    return StructType([StructField(name, _TYPES[name]) for name in columns])


def range_frame(
    spark: SparkSession,
    task: RangeTask,
    schema: StructType,
    pieces: Sequence[OffsetRange],
    hosts: Mapping[TopicPartition, Sequence[str]],
) -> DataFrame:
    """The records of ``pieces``, each one Spark partition, in their order; ``schema`` is what ``task`` hands out.

    ``hosts``: where the leader of each partition runs, as executors may name their hosts. Spark waits for a free core
    there for ``spark.locality.wait``, and not at all where no executor runs.
    """
    rows = [(range_text(piece), hosts.get(piece.tp, ())) for piece in pieces]
    return placed_rows(spark, rows).mapInArrow(partial(read_ranges, task), schema)


def placed_rows(spark: SparkSession, rows: Sequence[tuple[str, Sequence[str]]]) -> DataFrame:
    """Each text one row, in a Spark partition of its own that prefers the hosts beside it; without rows, one empty
    partition."""
    context: Any = spark.sparkContext
    jvm = context._jvm
    to_seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
    places = {hosts: to_seq(list(hosts)) for hosts in {tuple(hosts) for _, hosts in rows}}
    pairs = [jvm.scala.Tuple2(text, places[tuple(hosts)]) for text, hosts in rows]
    class_tags = getattr(getattr(jvm.scala.reflect, "ClassTag$"), "MODULE$")
    string = class_tags.apply(jvm.java.lang.Class.forName("java.lang.String"))
    rdd = context._jsc.sc().makeRDD(to_seq(pairs), string)
    session: Any = spark._jsparkSession
    return DataFrame(session.createDataset(rdd, jvm.org.apache.spark.sql.Encoders.STRING()).toDF(), spark)
