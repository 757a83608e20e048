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
from kit.export_process import Job
from raylog.client import Admin, Producer
from raylog.client.offset_ranges import OffsetRange
from raylog.client.range_reader import RangeReading
from raylog.protocol.ids import Offset, PartitionIndex, TopicName, TopicPartition
from raylog.spark.export_files import PartitionDirectory, read_exported
from raylog.spark.export_task import COLUMNS, ExportTask

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

TP = TopicPartition(TopicName("clicks"), PartitionIndex(0))
RECORDS = 400
WANTED = OffsetRange(TP, Offset(10), Offset(RECORDS))
EXPORT_TIMEOUT_S = 90
TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExportTask]:
    """Of a topic with RECORDS records in small batches."""
    with InProcessCluster(tmp_path_factory.mktemp("brokers")) as cluster:
        cluster.create_topic(TP.topic)
        with Producer(cluster.bootstrap_servers, batch_size=200) as producer:
            for number in range(RECORDS):
                producer.send(TP.topic, b"%d" % number, headers=[("h", b"1"), ("h", None)])
        with Admin(cluster.bootstrap_servers) as admin:
            topic_id = admin.describe_topic(TP.topic).topic_id
        reading = RangeReading(cluster.bootstrap_servers, COLUMNS, topic_ids={TP.topic: topic_id})
        yield ExportTask(reading, "", ".run", 200)


def run(job: Job, directory: Path) -> int:
    """What the process of the job prints."""
    (directory / "job").write_bytes(pickle.dumps(job))
    command = [sys.executable, "-m", "kit.export_process", str(directory / "job")]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=EXPORT_TIMEOUT_S)
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
    assert directories > 20  # there were so many operations
    for number in range(directories):
        assert check(tmp_path / str(number)) == 2


def test_several_at_once_write_each_record_once(task: ExportTask, tmp_path: Path) -> None:
    run(Job(replace(task, root=str(tmp_path), max_records_per_file=13), WANTED, at_once=4), tmp_path)
    assert check(tmp_path) == 30


def test_files_know_spark_s_names(task: ExportTask, tmp_path: Path) -> None:
    run(Job(replace(task, root=str(tmp_path)), WANTED, at_once=1), tmp_path)
    [first, *_] = PartitionDirectory.below(tmp_path, TP).files()
    assert parquet.read_schema(first).names == ["key", "value", "offset", "timestamp", "timestampType", "headers"]
