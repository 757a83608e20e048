"""The sink that writes each batch once: real Spark, real brokers, real files."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from kit.cluster import InProcessCluster
from kit.reading import all_records
from kit.sink_world import Disk, DiskFiles, Life
from kit.spark import SPARK_MARKS
from raylog.client import Admin
from raylog.client.batches.partitioner import KeyPartitioner
from raylog.client.ranges.offset_ranges import DataLoss
from raylog.spark import sink
from raylog.spark.writing.sink_batch import write_batch
from raylog.spark.writing.sink_files import HadoopFiles
from raylog.spark.writing.sink_plan import BatchPlan
from raylog.spark.writing.sink_store import Files, SinkStore
from raylog.spark.writing.sink_task import FILE, SinkTask, send_files
from raylog.spark.writing.sink_topics import BrokerTopics, ProducerNames
from raylog.spark.writing.sinks import SparkRows
from raylog.spark.writing.write_options import write_options

pytestmark = SPARK_MARKS

PARTITIONS = 3
names = (f"sunk-{number}" for number in itertools.count())


@pytest.fixture
def topic(cluster: InProcessCluster) -> str:
    """An empty topic of this test alone."""
    name = next(names)
    cluster.create_topic(name, partitions=PARTITIONS)
    return name


def query_to(sink: Callable[[DataFrame, int], None], frame: DataFrame, checkpoint: Path) -> str:
    """Run all that there is through the sink; the query's id."""
    query = frame.writeStream.foreachBatch(sink).trigger(availableNow=True)
    started = query.option("checkpointLocation", str(checkpoint)).start()
    assert started.awaitTermination(120)
    return str(started.id)


def values(servers: str, topic: str) -> Counter[int]:
    return Counter(int(record.value.strip()) for record in all_records(servers, topic))


def test_a_stream_s_batches_are_written_once(spark: SparkSession, servers: str, topic: str, tmp_path: Path) -> None:
    to_topic = sink(topic=topic, location=str(tmp_path / "sink"), bootstrap_servers=servers)
    lines = tmp_path / "lines"
    lines.mkdir()
    frame = (
        spark.readStream.option("maxFilesPerTrigger", 1)
        .text(str(lines))
        .select("value", F.expr("string(int(value) % 97)").alias("key"))
        .repartition(3)
    )
    for number in range(4):
        (lines / f"{number}.txt").write_text("\n".join(str(row) for row in range(number * 5_000, (number + 1) * 5_000)))
        if number != 1:  # so that the second query has several batches
            query_id = query_to(to_topic, frame, tmp_path / "checkpoint")
    assert values(servers, topic) == Counter(range(20_000))
    keys = KeyPartitioner()
    assert all(record.partition == keys.partition(record.key, PARTITIONS) for record in all_records(servers, topic))
    assert sorted(path.name for path in (tmp_path / "sink" / query_id).glob("[!.]*")) == ["3.plan", "4.next"]


def test_a_batch_that_comes_again_is_not_written_again(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    to_topic = sink(topic=topic, location=str(tmp_path), bootstrap_servers=servers)
    frame = spark.range(0, 1_000, 1, 5).selectExpr("string(id) value")
    for batch_id in (0, 0, 1, 1):
        to_topic(frame, batch_id)
    assert values(servers, topic) == Counter(dict.fromkeys(range(1000), 2))
    to_topic(spark.range(0).selectExpr("string(id) value"), 2)
    assert len(all_records(servers, topic)) == 2_000
    with pytest.raises(RuntimeError, match="batch 0 comes, and the sink is at batch 3"):
        to_topic(frame, 0)
    with pytest.raises(ValueError, match=r"is a sink's to other topics than other: .*location of its own"):
        sink(topic="other", location=str(tmp_path), bootstrap_servers=servers)(frame, 3)


def test_a_batch_comes_whole_in_one_call(spark: SparkSession, servers: str, topic: str, tmp_path: Path) -> None:
    """The second call would find the batch done, and drop its rows. But a query that goes on may bring it again."""
    to_topic = sink(topic=topic, location=str(tmp_path / "sink"), bootstrap_servers=servers)
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "0.txt").write_text("0\n1\n2\n3")
    frame = spark.readStream.text(str(tmp_path / "lines"))

    def in_halves(rows: DataFrame, batch_id: int) -> None:
        to_topic(rows.where("value < 2"), batch_id)
        to_topic(rows.where("value >= 2"), batch_id)

    with pytest.raises(PySparkException, match="the sink was called twice for batch 0, and the rows of the second"):
        query_to(in_halves, frame, tmp_path / "checkpoint")
    query_to(to_topic, frame, tmp_path / "checkpoint")
    assert values(servers, topic) == Counter([0, 1])


def test_batches_too_large_for_the_topic_are_split(
    spark: SparkSession, cluster: InProcessCluster, tmp_path: Path
) -> None:
    """Also by who sends again what was split: the mark of a batch that is written is lost."""
    servers, name = cluster.bootstrap_servers, next(names)
    cluster.create_topic(name, partitions=2, config={"max.message.bytes": "2000"})
    to_topic = sink(topic=name, location=str(tmp_path), bootstrap_servers=servers)
    to_topic(spark.range(0, 2_000, 1, 2).selectExpr("lpad(id, 100, '0') value"), 0)
    task = SinkTask(servers, name, {}, BatchPlan.from_json((tmp_path / "no-query" / "0.plan").read_text()), {})
    rows = pa.RecordBatch.from_pydict({"value": [b"x" * 100] * 500, FILE: [min(task.plan.files)] * 500})
    assert [answer.column("records")[0].as_py() for answer in send_files(task, iter([rows]))] == [500]
    assert values(servers, name) == Counter(range(2_000))


def test_a_batch_that_failed_halfway_goes_on_where_it_was(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    """The file with the large row fails when all of its rows before the large one's ten thousand have left."""
    count = 48_000
    frame = spark.range(0, count, 1, 4).selectExpr("if(id = 47500, rpad(id, 1100000, ' '), string(id)) value")
    to_topic = sink(topic=topic, location=str(tmp_path), bootstrap_servers=servers)
    to_topic(spark.range(count, count + 10).selectExpr("string(id) value"), 0)
    with pytest.raises(PySparkException, match=r"MessageTooLarge"):
        to_topic(frame, 1)
    before = values(servers, topic)
    assert 10 < len(before) < count
    larger = {"kafka.max.request.size": 2_000_000}
    wide = sink(topic=topic, location=str(tmp_path), bootstrap_servers=servers, **larger)
    with Admin(servers) as admin:
        admin.alter_topic_configs(topic, {"max.message.bytes": "2000000"})
    wide(frame, 1)
    assert values(servers, topic) == Counter(range(count + 10))


def test_rows_of_a_batch_may_go_to_several_topics(
    spark: SparkSession, cluster: InProcessCluster, servers: str, tmp_path: Path
) -> None:
    even, odd = next(names), next(names)
    for name in (even, odd):
        cluster.create_topic(name, partitions=2)
    to_topics = sink(location=str(tmp_path), bootstrap_servers=servers)
    frame = spark.range(1_000).selectExpr("string(id) value", f"if(id % 2 = 0, '{even}', '{odd}') topic", "1 partition")
    to_topics(frame, 0)
    assert values(servers, even) + values(servers, odd) == Counter(range(1_000))
    assert {record.partition for record in all_records(servers, odd)} == {1}
    with pytest.raises(ValueError, match="batch 1: a row has no topic"):
        to_topics(frame.withColumn("topic", F.lit(None).cast("string")), 1)
    to_topics(frame, 1)
    assert values(servers, odd) == Counter(dict.fromkeys(range(1, 1000, 2), 2))


@pytest.mark.parametrize("loss", ["recreated", "deleted"])
@pytest.mark.parametrize("batch_id", [0, 1])
def test_what_is_gone_from_the_log_is_a_loud_loss(
    spark: SparkSession, cluster: InProcessCluster, topic: str, tmp_path: Path, loss: str, batch_id: int
) -> None:
    """A batch is sent, and all of it lost before the sink could note that. What the error says writes it again."""
    servers, marks = cluster.bootstrap_servers, tmp_path / "no-query"
    to_topic = sink(topic=topic, location=str(tmp_path), bootstrap_servers=servers)
    frame = spark.range(100).selectExpr("string(id) value")
    for number in range(batch_id + 1):
        to_topic(frame, number)
    (marks / f"{batch_id + 1}.next").unlink()
    with Admin(servers) as admin:
        if loss == "recreated":
            assert admin.delete_topics([topic]) == {topic: None}
            admin.create_topic(topic, PARTITIONS)
        else:
            admin.delete_records({(topic, partition): -1 for partition in range(PARTITIONS)})
    what = "was deleted and made anew" if loss == "recreated" else f"{topic}-.*nobody can tell what it has written"
    how = f"rename {batch_id}.plan in {marks} to {batch_id}.next"
    with pytest.raises(DataLoss, match=f"{what}.*: to write batch {batch_id} whole, .*{how}"):
        to_topic(frame, batch_id)
    (marks / f"{batch_id}.plan").rename(marks / f"{batch_id}.next")
    to_topic(frame, batch_id)
    assert values(servers, topic) == Counter(range(100))
    to_topic(frame, batch_id + 1)
    assert values(servers, topic) == Counter(dict.fromkeys(range(100), 2))


def test_a_sink_without_its_marks_is_a_loud_loss(spark: SparkSession, servers: str, topic: str, tmp_path: Path) -> None:
    to_topic = sink(topic=topic, location=str(tmp_path), bootstrap_servers=servers)
    frame, marks = spark.range(10).selectExpr("string(id) value"), tmp_path / "no-query"
    to_topic(frame, 0)
    for mark in marks.glob("[!.]*"):
        mark.unlink()
    for batch_id in (0, 1):
        with pytest.raises(DataLoss, match=rf"{marks} has no plan and no \.next: .* the empty file {batch_id}\.next"):
            to_topic(frame, batch_id)
    (marks / "1.next").touch()
    to_topic(frame, 1)
    assert values(servers, topic) == Counter(dict.fromkeys(range(10), 2))


@pytest.fixture(params=["hadoop", "disk"])
def files(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Files:
    """The sink's files, and what tests take for them: one contract."""
    if request.param == "disk":
        return DiskFiles(Disk(), Life())
    return HadoopFiles(spark, str(tmp_path / "not" / "there"))


def shown(files: Files) -> list[str]:
    """What is there but for temporary files: Spark leaves one where a file was there already."""
    return [name for name in files.names() if not name.startswith(".")]


def test_files_are_there_whole_or_not_at_all_and_the_first_stays(files: Files) -> None:
    assert files.names() == []
    assert files.begin("0.next", "first")
    assert not files.begin("1.next", "second")
    assert shown(files) == ["0.next"]
    assert files.create("0.plan", "\u00e4")
    assert not files.create("0.plan", "other")
    assert (files.read("0.next"), files.read("0.plan")) == ("first", "\u00e4")
    for _ in range(2):
        files.delete("0.next")
    assert shown(files) == ["0.plan"]
    files.delete("0.plan")
    assert not files.begin("2.next", "the directory is there")
    assert shown(files) == []


def test_a_staged_file_that_is_gone_is_named(spark: SparkSession, servers: str, topic: str, tmp_path: Path) -> None:
    to_topic = sink(topic=topic, location=str(tmp_path), bootstrap_servers=servers)
    frame = spark.range(0, 100, 1, 2).selectExpr("lpad(id, 1100000, '0') value")
    with pytest.raises(PySparkException, match=r"MessageTooLarge"):
        to_topic(frame, 0)
    [first, *_] = sorted((tmp_path / "no-query").glob("rows-0-*/part-*"))
    first.unlink()
    with pytest.raises(FileNotFoundError, match=rf"batch 0: {first.name} of .* is gone, .*rename 0\.plan"):
        to_topic(frame, 0)


class Beset(HadoopFiles):
    """Somebody deletes ``count`` of a batch's files just before, or just after, they are looked for the n-th time."""

    def __init__(self, spark: SparkSession, directory: str, at: int, *, before: bool, count: int) -> None:
        super().__init__(spark, directory)
        self._left, self._before, self._count = at, before, count

    def parquet_files(self, directory: str) -> Sequence[str]:
        self._left -= 1
        if self._left == 0 and self._before:
            self._strike(directory)
        found = super().parquet_files(directory)
        if self._left == 0 and not self._before:
            self._strike(directory)
        return found

    def _strike(self, directory: str) -> None:
        for path in sorted(Path(directory).glob("part-*"))[: self._count]:
            path.unlink()


@pytest.mark.parametrize(
    ("at", "before", "count"), [(1, True, 1), (1, True, 2), (1, False, 1), (2, False, 1), (2, False, 2)]
)
def test_staged_file_that_goes_meanwhile_is_not_left_out(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, at: int, before: bool, count: int
) -> None:
    frame = spark.range(0, 100, 1, 2).selectExpr("string(id) value")
    options = write_options({}, servers, exactly_once=True)
    files = Beset(spark, f"{tmp_path}/q", at, before=before, count=count)
    store, brokers = SinkStore(files, topic), BrokerTopics(servers, ProducerNames())

    def write() -> int | None:
        rows = SparkRows(frame, 0, files, store, servers, topic, options)
        return write_batch(0, rows, store, brokers, topic=topic, batch_size=options.batch_size)

    with pytest.raises(FileNotFoundError, match=r"batch 0: .* gone"):
        write()
    if (at, before, count) == (1, True, 2):
        assert write() == 100, "nothing was planned"
    else:
        with pytest.raises(FileNotFoundError, match=r"batch 0: .* is gone, .*rename 0\.plan"):
            write()
        (tmp_path / "q" / "0.plan").rename(tmp_path / "q" / "0.next")
        assert write() == 100
    assert set(values(servers, topic)) == set(range(100))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"location": "/tmp/{a,b}"}, "which Spark takes for patterns"),
        ({"location": Path("/tmp/a?")}, "which Spark takes for patterns"),
        ({"location": ""}, "location='' must be a directory of this sink"),
        ({"location": "/"}, "location='/' must be a directory of this sink"),
        ({"kafka.acks": "1"}, r"option 'kafka\.acks' cannot be set: each record is there once only"),
        ({"kafka.partitioner": "roundrobin"}, r"'kafka\.partitioner' cannot be set"),
        ({"acks": "1"}, r"unknown option 'acks': .*kafka\.acks"),
    ],
)
def test_unfit_options_of_a_sink_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sink(**{"topic": "t", "location": "here", "bootstrap_servers": "localhost:1", **options})
