"""A topic's records as a Spark DataFrame: ``read(spark, subscribe="flights")``.

The driver asks the brokers for offsets and plans ranges; executors fetch these from the leaders in parallel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from raylog.client import connect
from raylog.client.admin import Admin
from raylog.client.ranges.host_addresses import HostAddresses
from raylog.client.ranges.offset_ranges import DataLoss, resolve, split
from raylog.client.ranges.range_planner import leader_hosts, log_bounds, offsets_at, select
from raylog.client.ranges.range_reader import LOSS_HINT
from raylog.protocol.logs import Logger
from raylog.spark.reading.frames import frame_plan, range_frame
from raylog.spark.reading.options import read_options

log = Logger(__name__)


def read(
    spark: SparkSession,
    *,
    bootstrap_servers: str | None = None,
    columns: Sequence[str] | None = None,
    **options: Any,
) -> DataFrame:
    """The batch DataFrame over the records of topics.

    Its columns are Spark's for Kafka: key, value, topic, partition, offset, timestamp, timestampType and,
    with ``includeHeaders``, headers; ``columns`` names those to read, and fewer cost less. ``options`` are those of
    Spark's Kafka source, by the same names: ``subscribe`` (comma-separated, or several), ``subscribePattern`` or
    ``assign``, ``startingOffsets``, … (docs/spark.md has all of them), and ``kafka.*`` consumer settings, as
    ``**{"kafka.client.id": "etl"}``. ``connect`` finds the cluster without ``bootstrap_servers``. ``value="string"``,
    or ``"json"`` or ``"msgpack"`` with ``schema``, decodes values as they are read; ``mode`` says what becomes of those
    that don't fit, by default the task fails (FAILFAST).

    Offsets are resolved now, so every action on the DataFrame sees the same records. Raises ValueError for an unfit
    option, UnknownTopicOrPartition, BrokerNotAvailable, and DataLoss for offsets that the log does not have unless
    ``failOnDataLoss`` is false; tasks raise DataLoss for what goes while they read, and MalformedValue.
    """
    asked = read_options(options, streaming=False, bootstrap_servers=bootstrap_servers, columns=columns)
    servers = asked.bootstrap_servers or connect().bootstrap_servers
    with Admin(servers) as admin:
        selected = select(admin, asked.selection)
        if not selected.topic_ids:
            log.warning("no topic's name matches %r", asked.selection.pattern)
        bounds = log_bounds(admin, selected.leaders, isolation_level=asked.isolation_level)
        starting = offsets_at(admin, asked.starting_option, asked.starting, bounds, or_latest=asked.or_latest)
        ending = offsets_at(admin, asked.ending_option, asked.ending, bounds, or_latest=True)
        hosts = leader_hosts(admin, selected.leaders, HostAddresses())
    ranges, losses = resolve(starting, ending, bounds)
    if losses and asked.fail_on_data_loss:
        raise DataLoss(f"{'; '.join(losses)}: {LOSS_HINT}")
    for loss in losses:
        log.warning("%s; failOnDataLoss is false, so what is there is read", loss)
    pieces = split(ranges, min_partitions=asked.min_partitions, max_records=asked.max_records_per_partition)
    return range_frame(spark, frame_plan(spark, asked, servers, selected.topic_ids), pieces, hosts)
