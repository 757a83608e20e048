"""Executors on two nodes: they read near the leaders, and one killed by ``kill -9`` changes no result."""

from __future__ import annotations

import fcntl
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from kit.cluster import InProcessCluster
from kit.forms import some
from kit.machine import scaled
from kit.ray_nodes import NODES, ray_nodes
from kit.reading import all_records
from kit.spark import SPARK_MARKS
from kit.waiting import wait_until
from raylog.client import Admin, Producer
from raylog.protocol.ids import LATEST
from raylog.spark import read, session, sink, stream

pytestmark = SPARK_MARKS

COUNT = 6_000
PARTITIONS = 6
RANGES = 48
WAIT_S = 90.0
SLOW = 100
"""Bytes of a batch of which the sink sends so many that there is time to kill in the middle."""


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory, no_spark: None) -> Iterator[SparkSession]:
    """An executor of one core on each node."""
    with (
        ray_nodes(tmp_path_factory.mktemp("ray")) as address,
        session(address=address, executors=len(NODES), memory="600m") as started,
    ):
        yield started


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessCluster]:
    """A broker on each node, and the topic "numbers" with COUNT different values."""
    listeners = {broker: {"listeners": f"PLAINTEXT://{address}:0"} for broker, address in enumerate(NODES)}
    root = tmp_path_factory.mktemp("brokers")
    with InProcessCluster(root, brokers=len(NODES), overrides=listeners) as running:
        running.create_topic("numbers", partitions=PARTITIONS)
        with Producer(running.bootstrap_servers) as producer:
            for number in range(COUNT):
                producer.send("numbers", b"%d" % number, partition=number % PARTITIONS)
        yield running


def executors(spark: SparkSession) -> list[psutil.Process]:
    """The executors' JVMs: Java workers of Ray with this session's directory and the executors' heap."""
    directory = f"-Djava.io.tmpdir={spark.sparkContext.getConf().get('spark.local.dir')}"
    found = []
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
        except psutil.Error:
            continue
        if directory in command and "-Xmx600M" in command:
            found.append(process)
    return found


def registered(spark: SparkSession) -> int:
    return int(spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1


class Gate:
    """A place in each task where it waits while the gate is shut."""

    def __init__(self, directory: Path) -> None:
        self._lock = directory / "lock"
        self._lock.touch()
        self._arrived = directory / "arrived"

    def through(self, frame: DataFrame) -> DataFrame:
        """``frame``, each task of which waits at the gate before its first row."""
        lock, arrived = str(self._lock), str(self._arrived)

        def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            Path(arrived).touch()
            with open(lock) as file:
                fcntl.flock(file, fcntl.LOCK_SH)
            yield from batches

        return frame.mapInArrow(wait, frame.schema)

    @contextmanager
    def shut(self) -> Iterator[Callable[[], bool]]:
        """Shut for the ``with`` block; yields whether a task waits."""
        with self._lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield self._arrived.exists


def kill_one(spark: SparkSession) -> None:
    """``kill -9`` of an executor; returns when Spark knows it."""
    before = executors(spark)
    assert len(before) == len(NODES), before
    before[0].send_signal(signal.SIGKILL)
    wait_until(lambda: before[0] not in executors(spark), WAIT_S, "the executor is gone")


def await_all(spark: SparkSession) -> None:
    """Return when each node has its executor again."""
    wait_until(
        lambda: registered(spark) == len(NODES) == len(executors(spark)), WAIT_S, "another executor in its place",
        instead=lambda: executors(spark),
    )  # fmt: skip


def summary(frame: DataFrame) -> tuple[Any, ...]:
    """Rows, different places of a topic, and the sum of the values."""
    [row] = frame.agg(
        sf.count("*"), sf.countDistinct("partition", "offset"), sf.sum(sf.col("value").cast("string").cast("long"))
    ).collect()
    return tuple(row)


EXACTLY = (COUNT, COUNT, sum(range(COUNT)))


def test_ranges_are_read_on_the_node_of_their_leader(spark: SparkSession, cluster: InProcessCluster) -> None:
    frame = read(spark, subscribe="numbers", bootstrap_servers=cluster.bootstrap_servers, minPartitions=RANGES)
    placed = frame.select(sf.spark_partition_id().alias("task"), "partition")
    placed.count()  # Python workers are there now, on both nodes
    spark.sparkContext.setJobGroup("near", "where ranges are read")
    partitions = {row.task: row.partition for row in placed.collect()}
    assert len(partitions) >= RANGES
    leaders = {partition: NODES[cluster.leader("numbers", partition).broker_id] for partition in range(PARTITIONS)}
    assert set(leaders.values()) == set(NODES)

    def hosts() -> dict[int, str]:
        tracker, store = spark.sparkContext.statusTracker(), spark.sparkContext._jsc.sc().statusStore()
        found = {}
        for job in tracker.getJobIdsForGroup("near"):
            for stage in tracker.getJobInfo(job).stageIds:
                tasks = store.taskList(stage, 0, 10_000)
                for index in range(tasks.size()):
                    task = tasks.apply(index)
                    if task.status() == "SUCCESS":
                        found[int(task.index())] = str(task.host())
        return found

    wait_until(lambda: len(hosts()) >= len(partitions), WAIT_S, "Spark's record of all tasks")
    ran = hosts()
    near = sum(ran[task] == leaders[partition] for task, partition in partitions.items())
    print(f"ranges read on their leader's node: {near} of {len(partitions)}")
    assert near / len(partitions) >= 0.9


def under_a_read(spark: SparkSession, cluster: InProcessCluster, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    frame = gate.through(
        read(spark, subscribe="numbers", bootstrap_servers=cluster.bootstrap_servers, minPartitions=12)
    )
    with ThreadPoolExecutor(1) as pool:
        with gate.shut() as a_task_waits:
            result = pool.submit(summary, frame)
            wait_until(a_task_waits, WAIT_S, "a task reads", instead=result.done)
            kill_one(spark)
        assert result.result(scaled(WAIT_S)) == EXACTLY


def under_a_stream(spark: SparkSession, cluster: InProcessCluster, tmp_path: Path) -> None:
    gate, rows = Gate(tmp_path), tmp_path / "rows"
    frame = gate.through(
        stream(
            spark, subscribe="numbers", bootstrap_servers=cluster.bootstrap_servers,
            startingOffsets="earliest", maxOffsetsPerTrigger=COUNT // 3,
        )
    )  # fmt: skip
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    with gate.shut() as a_task_waits:
        query = writer.trigger(availableNow=True).start(str(rows))
        try:
            wait_until(a_task_waits, WAIT_S, "a batch is read", instead=lambda: query.status)
            kill_one(spark)
        except BaseException:
            query.stop()
            raise
    try:
        assert query.awaitTermination(int(WAIT_S)), query.status
    finally:
        query.stop()
    assert len(query.recentProgress) >= 3
    assert summary(spark.read.parquet(str(rows))) == EXACTLY


def under_the_sink(spark: SparkSession, cluster: InProcessCluster, tmp_path: Path) -> None:
    """In the middle of sending: another one goes on with its file, behind what the brokers have of it."""
    cluster.create_topic("sunk", partitions=PARTITIONS)
    servers, rows = cluster.bootstrap_servers, 6 * COUNT
    write = sink(topic="sunk", location=str(tmp_path), bootstrap_servers=servers, **{"kafka.batch.size": SLOW})
    numbers = spark.range(0, rows, numPartitions=len(NODES)).select(sf.col("id").cast("string").alias("value"))

    def written() -> int:
        with Admin(servers) as admin:
            ends = admin.list_offsets({("sunk", partition): LATEST for partition in range(PARTITIONS)})
        return sum(end.offset for end in ends.values())

    write(numbers.where("id < 0"), 0)
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(write, numbers, 1)
        wait_until(lambda: written() > COUNT, WAIT_S, "records", instead=result.done)
        kill_one(spark)
        there = written()
        result.result(scaled(WAIT_S))
    print(f"killed with {there} of {rows} records there")
    assert there < rows, "it was not in the middle"
    assert Counter(int(record.value) for record in all_records(servers, "sunk")) == Counter(range(rows))


@pytest.mark.parametrize(
    "killed", some([under_a_read, under_a_stream, under_the_sink], 3), ids=lambda test: test.__name__
)
def test_a_killed_executor_changes_nothing(
    killed: Callable[[SparkSession, InProcessCluster, Path], None],
    spark: SparkSession,
    cluster: InProcessCluster,
    tmp_path: Path,
) -> None:
    killed(spark, cluster, tmp_path)
    await_all(spark)
