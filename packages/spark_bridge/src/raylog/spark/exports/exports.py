"""A topic's records as Parquet files, each record exactly once: ``export(spark, "flights", to="/data")``.

The offline load of the Kafka paper (Kreps et al. 2011, section 3.1: "a data load job that copies data from Kafka into
HDFS"): a job that runs again and again, and each time takes what came since. Where it goes on is told by the files that
are there and by nothing else, so offsets and data can't come apart.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from raylog.client.admin import Admin
from raylog.client.arguments import arguments as given
from raylog.client.cluster import connect
from raylog.client.fetch.consumer_config import isolation_level_of
from raylog.client.ranges.host_addresses import HostAddresses
from raylog.client.ranges.offset_ranges import LATEST, AtTime, DataLoss, LogBounds, OffsetRange, Selection
from raylog.client.ranges.range_planner import leader_hosts, log_bounds, offsets_at, select
from raylog.client.ranges.range_reader import RangeReading
from raylog.coordination.host.loops import Loops
from raylog.coordination.metadata.topic_names import check_topic_name
from raylog.protocol.errors import InvalidRequest
from raylog.protocol.ids import Offset, TimestampMs, TopicId, TopicName, TopicPartition
from raylog.protocol.logs import Logger
from raylog.spark.exports.files import (
    Disk,
    ExportedFile,
    PartitionDirectory,
    read_exported,
    sweep,
    temporary_file,
    topic_directory,
)
from raylog.spark.exports.plan import ExportRefused, plan_export
from raylog.spark.exports.task import COLUMNS, ExportTask, check_same_topic, export_ranges
from raylog.spark.reading.frames import placed_rows
from raylog.spark.reading.reader import range_text
from raylog.spark.shipping import shipped

MAX_RECORDS_PER_FILE = 1_000_000
PROGRESS_EVERY_S = 0.25

log = Logger(__name__)

OnProgress = Callable[[int, int], object]
"""Called with the records and the bytes of files that were published since the last call."""


class PartitionExport(NamedTuple):
    """What a run did for one partition."""

    partition: int
    start: int
    """The offset at which the run began."""
    end: int
    """The offset at which the next run will."""
    records: int
    """Those of this run's files; a run at the same time may have written others."""
    files: int
    size: int
    """Of the files, in bytes."""


def export(
    spark: SparkSession,
    topic: str,
    *,
    to: str | Path,
    bootstrap_servers: str | None = None,
    since_ms: int | None = None,
    until_ms: int | None = None,
    fail_on_data_loss: bool = True,
    max_records_per_file: int = MAX_RECORDS_PER_FILE,
    consumer: Mapping[str, Any] | None = None,
    on_planned: Callable[[int], object] = lambda offsets: None,
    on_progress: OnProgress | None = None,
) -> list[PartitionExport]:
    """Write what ``topic`` has, and ``to`` has not yet, to ``to/topic=T/partition=P/OFFSET.parquet``.

    ``to`` is a directory that the driver and all executors see. The files have key, value, offset, timestamp,
    timestampType and headers; a reader of the directory sees topic and partition, too. A run takes what consumers may
    read when it begins. Run it again, after a crash or tomorrow: it goes on where the files end.

    ``since_ms``, in ms since 1970: a partition without files begins with the first record at or after that time.
    ``until_ms``: the run ends before the first record at or after that time. ``consumer``: settings, with underscores.
    ``on_planned`` is told how many offsets there are to export.

    Raises ExportRefused where records would be left out, repeated or mixed up; DataLoss for what was deleted before it
    was exported, unless ``fail_on_data_loss`` is false; ValueError, InvalidConfig, InvalidRequest and InvalidTopic for
    what an argument cannot be; UnknownTopicOrPartition, BrokerNotAvailable; and what Spark raises for a failed task.
    """
    check_topic_name(topic)
    for name, when in (("since_ms", since_ms), ("until_ms", until_ms)):
        if when is not None:
            given.offset(name, when)
    given.flag("fail_on_data_loss", fail_on_data_loss)
    given.number("max_records_per_file", max_records_per_file, 1)
    for name, hears in (("on_planned", on_planned), ("on_progress", on_progress)):
        if not callable(hears) and (hears is not None or hears is on_planned):
            raise InvalidRequest(f"{name}={hears!r}: give a function")
    if since_ms is not None and until_ms is not None and since_ms > until_ms:
        raise ValueError(f"since {since_ms} is after until {until_ms} (both in ms since 1970)")
    root, disk = local_directory(to), Disk()
    directory = topic_directory(root, topic)
    settings = dict(given.mapping("consumer", {} if consumer is None else consumer))
    isolation = isolation_level_of(settings)
    servers = (connect() if bootstrap_servers is None else connect(bootstrap_servers)).bootstrap_servers
    asked = ask_brokers(servers, topic, since_ms, until_ms, isolation)
    directory.mkdir(parents=True, exist_ok=True)
    sweep(directory, disk)
    ranges, losses = plan_export(asked.bounds, exported_offsets(root, asked), asked.since, asked.until)
    if losses and fail_on_data_loss:
        raise DataLoss(
            f"{'; '.join(losses)}: export more often, let the topic keep them for longer (retention.ms), or accept the "
            "loss with fail_on_data_loss=False (--no-fail-on-data-loss)"
        )
    for loss in losses:
        log.warning("%s; the loss is accepted, so they are left out", loss)
    on_planned(sum(wanted.size for wanted in ranges))
    if not ranges:
        return []
    reading = RangeReading(servers, COLUMNS, fail_on_data_loss, settings, {TopicName(topic): asked.topic_id})
    with temporary_file(directory, disk) as (_, marker), watching(root, ranges, on_progress):
        try:
            task = ExportTask(reading, str(root), marker.name, max_records_per_file)
            places = [(range_text(wanted), asked.hosts.get(wanted.tp, ())) for wanted in ranges]
            rows = placed_rows(spark, places).mapInArrow(shipped(export_ranges, task), "path string").collect()
        finally:
            sweep(directory, disk)
    files = [read_exported(Path(row.path)) for row in rows]
    return [_summary(wanted, [file for file in files if file.coverage.tp == wanted.tp]) for wanted in ranges]


def _summary(wanted: OffsetRange, files: list[ExportedFile]) -> PartitionExport:
    records, size = sum(file.records for file in files), sum(file.size for file in files)
    return PartitionExport(wanted.tp.partition, wanted.start, wanted.end, records, len(files), size)


def local_directory(to: str | Path) -> Path:
    """``to`` as an absolute path. Raises ExportRefused for the address of what is no mounted file system, and for no
    path at all."""
    if not isinstance(to, str | Path) or not str(to):
        raise ExportRefused(f"to={to!r}: to which directory? Give a path, . for the current directory")
    text = str(to).removeprefix("file://").removeprefix("file:")
    if re.match(r"\w+:/", text):
        raise ExportRefused(
            f"{to}: files are published by hard links, which only mounted file systems have (local disks, NFS): export "
            "to one, and copy the files from there"
        )
    return Path(text).absolute()


class TopicNow(NamedTuple):
    """What the brokers tell of a topic."""

    topic_id: TopicId
    bounds: dict[TopicPartition, LogBounds]
    since: dict[TopicPartition, Offset]
    until: dict[TopicPartition, Offset]
    hosts: Mapping[TopicPartition, tuple[str, ...]]
    """Of the leaders."""


def ask_brokers(
    bootstrap_servers: str, topic: str, since_ms: int | None, until_ms: int | None, isolation: int
) -> TopicNow:
    """Where the topic's logs begin and end, and where records at or after the times do; empty for None."""
    with Admin(bootstrap_servers) as admin:
        leaders, topic_ids = select(admin, Selection((topic,)))
        bounds = log_bounds(admin, leaders, isolation_level=isolation)

        def since(option: str, when: int | None) -> dict[TopicPartition, Offset]:
            if when is None:
                return {}
            found = offsets_at(admin, option, AtTime(TimestampMs(when)), leaders, or_latest=True)
            assert isinstance(found, Mapping)
            return {tp: offset if offset != LATEST else bounds[tp].next for tp, offset in found.items()}

        return TopicNow(
            topic_ids[TopicName(topic)],
            bounds,
            since("since", since_ms),
            since("until", until_ms),
            leader_hosts(admin, leaders, HostAddresses()),
        )


def exported_offsets(root: Path, asked: TopicNow) -> dict[TopicPartition, Offset]:
    """The next offset of each partition that has files. Raises ExportRefused when they are of another topic."""
    found = {}
    for tp in asked.bounds:
        last = PartitionDirectory.below(root, tp).last()
        if last is not None:
            check_same_topic(last, asked.topic_id)
            found[tp] = last.coverage.next
    return found


@contextmanager
def watching(root: Path, ranges: list[OffsetRange], on_progress: OnProgress | None) -> Iterator[None]:
    """Tell ``on_progress`` of new files, from a thread, until the block ends."""
    if on_progress is None:
        yield
        return
    directories = [PartitionDirectory.below(root, wanted.tp) for wanted in ranges]
    known = {path for directory in directories for path in directory.files()}
    over = threading.Event()

    def watch() -> bool:
        done = over.wait(PROGRESS_EVERY_S)
        for path in [path for directory in directories for path in directory.files() if path not in known]:
            known.add(path)
            exported = read_exported(path)
            on_progress(exported.records, exported.size)
        return not done

    watcher = Loops().loop("export-progress", watch, vital=False)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.stop()
        watcher.join()
