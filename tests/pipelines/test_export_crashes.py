"""An export that is killed before each of its operations on files, or runs several times at once: each record once."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import dataset, parquet

from kit.cluster import InProcessCluster
from kit.export_process import Job, export
from kit.machine import scaled
from kit.odd_logs import append_as_stored, compacted, control_batch
from raylog.client import Admin, Producer
from raylog.client.ranges.offset_ranges import OffsetRange
from raylog.client.ranges.range_reader import RangeReading
from raylog.protocol.ids import Offset, PartitionIndex, TopicName, TopicPartition
from raylog.protocol.records import Record
from raylog.spark.exports.files import Disk, PartitionDirectory, read_exported
from raylog.spark.exports.plan import ExportRefused
from raylog.spark.exports.task import COLUMNS, ExportTask, export_range

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

TP = TopicPartition(TopicName("clicks"), PartitionIndex(0))
RECORDS = 400
WANTED = OffsetRange(TP, Offset(10), Offset(RECORDS))
EXPORT_TIMEOUT_S = 90
TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessCluster]:
    with InProcessCluster(tmp_path_factory.mktemp("brokers")) as started:
        yield started


def task_for(cluster: InProcessCluster, topic: str) -> ExportTask:
    """How the topic is exported, into a directory that is to be given."""
    with Admin(cluster.bootstrap_servers) as admin:
        topic_ids = {TopicName(topic): admin.describe_topic(topic).topic_id}
    return ExportTask(RangeReading(cluster.bootstrap_servers, COLUMNS, topic_ids=topic_ids), "", ".run", 200)


@pytest.fixture(scope="module")
def task(cluster: InProcessCluster) -> ExportTask:
    """Of a topic with RECORDS records in small batches."""
    cluster.create_topic(TP.topic)
    with Producer(cluster.bootstrap_servers, batch_size=200) as producer:
        for number in range(RECORDS):
            producer.send(TP.topic, b"%d" % number, headers=[("h", b"1"), ("h", None)])
    return task_for(cluster, TP.topic)


def run(job: Job, directory: Path) -> int:
    """What the process of the job prints."""
    (directory / "job").write_bytes(pickle.dumps(job))
    command = [sys.executable, "-m", "kit.export_process", str(directory / "job")]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=scaled(EXPORT_TIMEOUT_S))
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def check(root: Path) -> int:
    """Each record is there once, each file begins where the one before it ends, and nothing else is there; how many."""
    directory = PartitionDirectory.below(root, TP)
    rows = dataset.dataset(directory.files()).to_table().sort_by("offset")
    assert rows["offset"].to_pylist() == list(range(10, RECORDS))
    assert rows["value"].to_pylist() == [b"%d" % number for number in range(10, RECORDS)]
    assert rows["headers"].to_pylist()[0] == [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    base = 0
    for path in directory.files():
        coverage = read_exported(path).coverage
        assert (directory.file_at(base), coverage.base, coverage.first) == (path, base, max(base, 10))
        base = coverage.next
    assert base == RECORDS
    assert sorted(directory.path.iterdir()) == directory.files()
    return len(directory.files())


def test_a_kill_before_any_operation_loses_and_repeats_nothing(task: ExportTask, tmp_path: Path) -> None:
    directories = run(Job(replace(task, root=str(tmp_path)), WANTED), tmp_path)
    assert directories > 14  # there were so many operations
    for number in range(directories):
        assert check(tmp_path / str(number)) == 2


def test_several_at_once_write_each_record_once(task: ExportTask, tmp_path: Path) -> None:
    run(Job(replace(task, root=str(tmp_path), max_records_per_file=13), WANTED, at_once=4), tmp_path)
    assert check(tmp_path) > 20


def test_files_know_spark_s_names(task: ExportTask, tmp_path: Path) -> None:
    run(Job(replace(task, root=str(tmp_path)), WANTED, at_once=1), tmp_path)
    [first, *_] = PartitionDirectory.below(tmp_path, TP).files()
    assert parquet.read_schema(first).names == ["key", "value", "offset", "timestamp", "timestampType", "headers"]


def test_control_records_and_compacted_tails_are_covered(cluster: InProcessCluster, tmp_path: Path) -> None:
    tp = TopicPartition(TopicName("odd"), PartitionIndex(0))
    cluster.create_topic(tp.topic)
    records = [Record(b"%d" % number) for number in range(10)]
    append_as_stored(cluster, *tp, compacted(records, [0, 3]), control_batch(), compacted(records, []))
    task = replace(task_for(cluster, tp.topic), root=str(tmp_path), max_records_per_file=7)
    export(task, OffsetRange(tp, Offset(0), Offset(21)), Disk())
    directory = PartitionDirectory.below(tmp_path, tp)
    found = [read_exported(path) for path in directory.files()]
    assert [(file.coverage.base, file.coverage.next, file.records) for file in found] == [
        (0, 7, 2), (7, 14, 0), (14, 21, 0),
    ]  # fmt: skip
    rows = dataset.dataset(directory.files()).to_table()
    assert (rows["offset"].to_pylist(), rows["value"].to_pylist()) == ([0, 3], [b"0", b"3"])


def test_a_directory_without_the_run_s_file_is_another_one(task: ExportTask, tmp_path: Path) -> None:
    elsewhere = replace(task, root=str(tmp_path))
    with pytest.raises(ExportRefused, match="is not the directory of the driver, or the driver is gone"):
        list(export_range(elsewhere, WANTED))
    assert not list(tmp_path.iterdir())


def test_the_files_of_another_topic_are_not_gone_on_from(
    cluster: InProcessCluster, task: ExportTask, tmp_path: Path
) -> None:
    export(replace(task, root=str(tmp_path)), OffsetRange(TP, Offset(0), Offset(5)), Disk())
    cluster.create_topic("other")
    other = task_for(cluster, "other").reading.topic_ids[TopicName("other")]
    anew = replace(task, root=str(tmp_path), reading=replace(task.reading, topic_ids={TP.topic: other}))
    with pytest.raises(ExportRefused, match=r"is of topic id .*another directory"):
        export(anew, WANTED, Disk())
