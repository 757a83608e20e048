"""A sink for streams that writes each batch once: ``frame.writeStream.foreachBatch(sink(topic=…, location=…))``.

``foreachBatch`` calls with the same batch again when the query is started again before it noted that the batch was
done. What is done with each batch so that its records are there once all the same, is told in ``sink_batch`` and
``sink_plan``; here are the parts of it that are Spark's.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from os import PathLike, fspath
from typing import Any

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from raylog.client import connect
from raylog.coordination.host.loops import Loops
from raylog.coordination.metadata.topic_names import check_topic_name
from raylog.protocol.logs import Logger
from raylog.spark.shipping import shipped
from raylog.spark.writing.sink_batch import Staged, Written, write_batch
from raylog.spark.writing.sink_files import HadoopFiles
from raylog.spark.writing.sink_plan import BatchPlan
from raylog.spark.writing.sink_store import SinkStore
from raylog.spark.writing.sink_task import FILE, REFUSED, SinkTask, records_sent, send_files
from raylog.spark.writing.sink_topics import BrokerTopics, ProducerNames
from raylog.spark.writing.write_options import WriteOptions, write_options
from raylog.spark.writing.writes import records_of

log = Logger(__name__)

_GLOB = re.compile(r"[\[\]{}*?,\\]")
_COUNT_S = 60.0
"""How long Spark's listener may take; where it has too much to do it drops what it should tell."""
_NEVER_SPLIT = str(1 << 44)
"""In bytes. As the largest part of a file and as the cost of opening one: each file makes one Spark partition."""


def sink(
    *, topic: str | None = None, location: str | PathLike[str], bootstrap_servers: str | None = None, **options: Any
) -> Sink:
    """A function for ``foreachBatch`` that writes each batch once, whatever dies in between.

    ``location`` is a directory of this sink alone, on a file system that outlives the processes and that all executors
    reach, best beside the query's checkpoint: batches wait there while they are written. Columns, ``topic`` and
    ``options`` are as ``write``'s, but acks, idempotence and partitioner are the sink's to decide.

    Raises ValueError for an unfit option or location, InvalidTopic, and InvalidConfig for an unfit setting.
    """
    place = str(fspath(location)).rstrip("/") if isinstance(location, str | PathLike) else ""
    if not place:
        raise ValueError(f"location={location!r} must be a directory of this sink alone")
    if _GLOB.search(place):
        raise ValueError(f"location={place!r} has one of []{{}}*?,\\, which Spark takes for patterns: give another one")
    if topic is not None:
        check_topic_name(topic)
    return Sink(topic, place, write_options(options, bootstrap_servers, exactly_once=True))


class Sink:
    """What :func:`sink` gives."""

    def __init__(self, topic: str | None, location: str, options: WriteOptions) -> None:
        self._topic = topic
        self._location = location
        self._options = options
        self._last: dict[str, tuple[str, int]] = {}
        """Per query its run and the batch that was written last."""
        self._names: dict[str, ProducerNames] = {}
        """Per query who writes."""

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write the batch unless that is done. Raises ValueError for unfit columns and for further rows of a batch,
        PySparkException for a job that failed, and what ``write_batch`` raises: DataLoss when nobody can tell any more
        what an earlier try has written."""
        spark = frame.sparkSession
        query = spark.sparkContext.getLocalProperty("sql.streaming.queryId") or "no-query"
        run = spark.sparkContext.getLocalProperty("spark.jobGroup.id")  # a query's, as StreamExecution sets it
        if run is not None and self._last.get(query) == (run, batch_id):
            raise ValueError(
                f"the sink was called twice for batch {batch_id}, and the rows of the second call are not written: "
                "union them first, or give each a sink with a location of its own; then begin with a new checkpoint"
            )
        files = HadoopFiles(spark, f"{self._location}/{query}")
        store = SinkStore(files, self._topic)
        servers = self._options.bootstrap_servers or connect().bootstrap_servers
        rows = SparkRows(frame, batch_id, files, store, servers, self._topic, self._options)
        topics = BrokerTopics(servers, self._names.setdefault(query, ProducerNames()))
        sent = write_batch(batch_id, rows, store, topics, topic=self._topic, batch_size=self._options.batch_size)
        if sent is None:
            log.info("batch %d of query %s was written before", batch_id, query)
        if run is not None:
            self._last[query] = (run, batch_id)


class SparkRows:
    """:class:`~raylog.spark.writing.sink_batch.BatchRows` of a DataFrame."""

    def __init__(
        self,
        frame: DataFrame,
        batch_id: int,
        files: HadoopFiles,
        store: SinkStore,
        bootstrap_servers: str,
        topic: str | None,
        options: WriteOptions,
    ) -> None:
        self._records = records_of(frame, topic)
        self._batch_id = batch_id
        self._files = files
        self._store = store
        self._servers = bootstrap_servers
        self._topic = topic
        self._options = options

    def stage(self) -> Staged:
        """See BatchRows."""
        directory = self._store.rows_directory(self._batch_id)
        counted = Observation()
        self._records.observe(counted, F.count(F.lit(1)).alias("rows")).write.parquet(directory)
        count = _rows(counted)
        names = self._files.parquet_files(directory)
        if not names:  # Spark writes one for a batch without rows, too
            raise FileNotFoundError(
                f"batch {self._batch_id}: all files of {directory} are gone, and only the sink may delete files there; "
                "nothing of the batch was sent, so start the query again"
            )
        if self._topic is not None:
            topics = [self._topic]
        else:
            topics = [row.topic for row in self._staged(directory).select("topic").distinct().collect()]
        if None in topics:
            raise ValueError(f"batch {self._batch_id}: a row has no topic: fill the column topic, or give topic=")
        return Staged(directory, names, count, topics)

    def send(self, plan: BatchPlan, written: Written) -> int:
        """See BatchRows."""
        self._check(plan, self._files.parquet_files(plan.rows))
        staged = self._staged(plan.rows)
        self._check(plan, map(posixpath.basename, staged.inputFiles()))  # Spark reads these, or fails
        task = SinkTask(self._servers, self._topic, self._options.producer, plan, written)
        answers = staged.mapInArrow(shipped(send_files, task), f"records long, {REFUSED} string")
        return records_sent((answer.records, answer[REFUSED]) for answer in answers.collect())

    def _check(self, plan: BatchPlan, there: Iterable[str]) -> None:
        """Raises FileNotFoundError when not all of the plan's files are there."""
        missing = set(plan.files).difference(there)
        if missing:
            raise FileNotFoundError(
                f"batch {plan.batch_id}: {', '.join(sorted(missing))} of {plan.rows} is gone, and only the sink may "
                f"delete files there; {self._store.write_again(plan.batch_id)}"
            )

    def _staged(self, directory: str) -> DataFrame:
        """The rows that lie there, the files' names among them; each file is a Spark partition of its own."""
        reader = _one_partition_per_file(self._records.sparkSession).read.schema(self._records.schema)
        strict = reader.option("ignoreCorruptFiles", "false").option("ignoreMissingFiles", "false")
        return strict.parquet(directory).select("*", F.col("_metadata.file_name").alias(FILE))


def _rows(counted: Observation) -> int:
    """What Spark counted; its listener tells, behind the job. Raises RuntimeError when it does not."""
    found: list[int] = []
    asking = Loops().once("raylog-spark-rows", lambda: found.append(counted.get["rows"]))
    asking.join(_COUNT_S)
    if not found:
        raise RuntimeError(f"Spark did not tell within {_COUNT_S:g} s how many rows it wrote: start the query again")
    return found[0]


def _one_partition_per_file(spark: SparkSession) -> SparkSession:
    """A session of its own that never cuts files nor puts several into one Spark partition."""
    session = spark.newSession()
    session.conf.set("spark.sql.files.maxPartitionBytes", _NEVER_SPLIT)
    session.conf.set("spark.sql.files.openCostInBytes", _NEVER_SPLIT)
    session.conf.unset("spark.sql.files.maxPartitionNum")
    return session
