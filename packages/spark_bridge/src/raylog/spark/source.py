"""A topic's records as a Spark DataFrame: ``read(spark, subscribe="flights")``.

The driver asks the brokers for offsets and plans ranges; a DataFrame of the ranges' numbers, one per Spark
partition, goes through ``mapInArrow``, where executors fetch the ranges from the leaders in parallel.
"""
# ruff: noqa: N803 - options keep the names that Spark's Kafka source gave them

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from raylog.client import connect
from raylog.client.admin import Admin
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition
from raylog.spark.columns import choose_columns, spark_schema
from raylog.spark.offsets import EARLIEST, LATEST, DataLoss, LogBounds, parse_offsets, resolve
from raylog.spark.plan import split
from raylog.spark.reader import LOSS_HINT, ReadPlan, read_pieces

log = logging.getLogger(__name__)


def read(
    spark: SparkSession,
    *,
    subscribe: str | Iterable[str],
    bootstrap_servers: str | None = None,
    columns: Sequence[str] | None = None,
    startingOffsets: str = "earliest",
    endingOffsets: str = "latest",
    failOnDataLoss: bool = True,
    includeHeaders: bool = False,
    minPartitions: int | None = None,
    maxRecordsPerPartition: int | None = None,
    **options: Any,
) -> DataFrame:
    """The batch DataFrame over the topics of ``subscribe`` (comma-separated, or several).

    Its columns are Spark's for Kafka: key, value, topic, partition, offset, timestamp, timestampType and,
    with ``includeHeaders``, headers; ``columns`` names those to read, and fewer cost less. Offsets are
    resolved now, so every action on the DataFrame sees the same records. ``options`` are ``kafka.*`` consumer
    settings, as ``**{"kafka.client.id": "etl"}``. ``connect`` finds the cluster without ``bootstrap_servers``.

    Raises ValueError for an unfit option, UnknownTopicOrPartition, BrokerNotAvailable, and DataLoss for
    offsets that the log does not have unless ``failOnDataLoss`` is false; tasks raise DataLoss for what goes
    while they read.
    """
    chosen = choose_columns(columns, include_headers=includeHeaders)
    starting = parse_offsets("startingOffsets", startingOffsets)
    ending = parse_offsets("endingOffsets", endingOffsets)
    consumer = consumer_settings(options)
    servers = bootstrap_servers or consumer.pop("bootstrap_servers", None) or connect().bootstrap_servers
    ranges, losses = resolve(starting, ending, log_bounds(servers, topic_names(subscribe)))
    if losses and failOnDataLoss:
        raise DataLoss(f"{'; '.join(losses)}: {LOSS_HINT}")
    for loss in losses:
        log.warning("%s; failOnDataLoss is false, so what is there is read", loss)
    pieces = split(ranges, min_partitions=minPartitions, max_records=maxRecordsPerPartition)
    plan = ReadPlan(servers, pieces, chosen, failOnDataLoss, consumer)
    numbers = spark.range(0, len(pieces), 1, numPartitions=max(1, len(pieces)))
    return numbers.mapInArrow(partial(read_pieces, plan), spark_schema(chosen))


def topic_names(subscribe: str | Iterable[str]) -> list[str]:
    """The topics that ``subscribe`` lists. Raises ValueError when it lists none."""
    listed = subscribe.split(",") if isinstance(subscribe, str) else subscribe
    names = sorted({name.strip() for name in listed} - {""})
    if not names:
        raise ValueError(f"subscribe={subscribe!r} names no topic")
    return names


def consumer_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Settings for the consumer from Spark's ``kafka.*`` options. Raises ValueError for any other option."""
    unknown = sorted(name for name in options if not name.startswith("kafka."))
    if unknown:
        raise ValueError(f"unknown option {unknown[0]!r}: consumer settings begin with kafka., as kafka.client.id")
    return {name.removeprefix("kafka.").replace(".", "_"): value for name, value in options.items()}


def log_bounds(bootstrap_servers: str, topics: Iterable[str]) -> dict[TopicPartition, LogBounds]:
    """What every partition of ``topics`` holds for consumers now."""
    with Admin(bootstrap_servers) as admin:
        partitions = [
            TopicPartition(TopicName(topic), PartitionIndex(partition.partition))
            for topic in topics
            for partition in admin.describe_topic(topic).partitions
        ]
        first = admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
        last = admin.list_offsets(dict.fromkeys(partitions, LATEST))
    return {tp: LogBounds(first[tp].offset, last[tp].offset) for tp in partitions}
