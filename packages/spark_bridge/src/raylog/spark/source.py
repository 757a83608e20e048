"""A topic's records as a Spark DataFrame: ``read(spark, subscribe="flights")``."""
# ruff: noqa: N803 - options keep the names that Spark's Kafka source gave them

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession


def read(
    spark: SparkSession,
    *,
    subscribe: str,
    bootstrap_servers: str | None = None,
    columns: Sequence[str] | None = None,
    startingOffsets: str = "earliest",
    endingOffsets: str = "latest",
    failOnDataLoss: bool = True,
    includeHeaders: bool = False,
    minPartitions: int | None = None,
    maxRecordsPerPartition: int | None = None,
) -> DataFrame:
    """The batch DataFrame over the topics that ``subscribe`` lists, comma-separated."""
    raise NotImplementedError
