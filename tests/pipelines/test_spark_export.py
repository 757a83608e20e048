"""The offline load on real Spark and real brokers: incremental, bounded by times, loud about what is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kit.machine import scaled
from kit.spark import SPARK_MARKS
from kit.waiting import wait_until
from raylog.client import Admin, Producer
from raylog.client.ranges.offset_ranges import DataLoss
from raylog.protocol.errors import UnknownTopicOrPartition
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition
from raylog.spark.exports.exports import PartitionExport, export
from raylog.spark.exports.files import PartitionDirectory
from raylog.spark.exports.plan import ExportRefused

pytestmark = SPARK_MARKS

PARTITIONS = 2
EXPORT_TIMEOUT_S = 120.0


@pytest.fixture
def topic(servers: str, request: pytest.FixtureRequest) -> str:
    """An empty topic of the test's own."""
    name = request.node.name.replace("_", "-")[:100]
    with Admin(servers) as admin:
        admin.create_topic(name, PARTITIONS)
    return str(name)


def produce(servers: str, topic: str, numbers: range) -> None:
    """A record a number, in the partitions in turn, with the number as key, value and timestamp (plus 1,000 s)."""
    with Producer(servers) as producer:
        for number in numbers:
            text = b"%d" % number
            producer.send(topic, text, text, partition=number % PARTITIONS, timestamp=1_000_000 + number)


def exported(spark: SparkSession, root: Path, topic: str) -> list[int]:
    """The numbers in the files, in order; their columns agree."""
    rows = spark.read.parquet(str(root)).where(f"topic = '{topic}'").collect()
    for row in rows:
        number = int(row.value)
        assert (row.key, row.partition, row.timestampType) == (row.value, number % PARTITIONS, 0)
        assert row.timestamp.timestamp() == 1_000 + number / 1_000
    return sorted(int(row.value) for row in rows)


def test_runs_take_what_came_since_the_last_one(spark: SparkSession, servers: str, topic: str, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    planned: list[int] = []

    def run() -> list[PartitionExport]:
        return export(
            spark, topic, to=tmp_path / "lake", bootstrap_servers=servers, max_records_per_file=30,
            on_planned=planned.append, on_progress=lambda records, size: told.append((records, size)),
        )  # fmt: skip

    assert run() == []
    produce(servers, topic, range(100))
    first = run()
    assert [part[:5] for part in first] == [(0, 0, 50, 50, 2), (1, 0, 50, 50, 2)]
    assert run() == []
    produce(servers, topic, range(100, 150))
    assert [part[:5] for part in run()] == [(0, 50, 75, 25, 1), (1, 50, 75, 25, 1)]
    assert exported(spark, tmp_path / "lake", topic) == list(range(150))
    assert planned == [0, 100, 0, 50]
    assert sum(records for records, _ in told) == 150
    assert sum(size for _, size in told) == sum(path.stat().st_size for path in tmp_path.rglob("*.parquet"))
    assert not list(tmp_path.rglob(".*.tmp"))


def test_since_and_until_are_times_of_records(spark: SparkSession, servers: str, topic: str, tmp_path: Path) -> None:
    produce(servers, topic, range(100))

    def day(since: int, until: int) -> None:
        export(spark, topic, to=tmp_path, bootstrap_servers=servers, since_ms=1_000_000 + since,
               until_ms=1_000_000 + until)  # fmt: skip

    day(20, 40)
    assert exported(spark, tmp_path, topic) == list(range(20, 40))
    day(20, 40)
    day(40, 1_000)
    assert exported(spark, tmp_path, topic) == list(range(20, 100))
    produce(servers, topic, range(100, 120))
    with pytest.raises(ExportRefused, match="since begins at 55, which would leave out"):
        day(110, 1_000)
    with pytest.raises(ValueError, match="since 1000002 is after until 1000001"):
        day(2, 1)


def test_records_that_were_deleted_before_their_export_are_a_loud_loss(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    produce(servers, topic, range(40))
    export(spark, topic, to=tmp_path, bootstrap_servers=servers)
    produce(servers, topic, range(40, 80))
    with Admin(servers) as admin:
        admin.delete_records({(topic, 0): 30})
    with pytest.raises(DataLoss, match=r"-0: offsets 20 to 29 were deleted before .*--no-fail-on-data-loss"):
        export(spark, topic, to=tmp_path, bootstrap_servers=servers)
    export(spark, topic, to=tmp_path, bootstrap_servers=servers, fail_on_data_loss=False)
    lost = set(range(40, 60, 2))
    assert exported(spark, tmp_path, topic) == [number for number in range(80) if number not in lost]
    assert export(spark, topic, to=tmp_path, bootstrap_servers=servers) == []


def test_another_topic_of_the_same_name_is_refused(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    produce(servers, topic, range(40))
    export(spark, topic, to=tmp_path, bootstrap_servers=servers)
    with Admin(servers) as admin:
        admin.delete_topics([topic])
        with pytest.raises(UnknownTopicOrPartition, match=topic):
            export(spark, topic, to=tmp_path, bootstrap_servers=servers)
        admin.create_topic(topic, PARTITIONS)
    produce(servers, topic, range(90))
    with pytest.raises(ExportRefused, match=r"deleted and made anew.*another directory"):
        export(spark, topic, to=tmp_path, bootstrap_servers=servers)


def test_a_damaged_last_file_is_named(spark: SparkSession, servers: str, topic: str, tmp_path: Path) -> None:
    produce(servers, topic, range(40))
    export(spark, topic, to=tmp_path, bootstrap_servers=servers)
    [first] = tmp_path.rglob("partition=0/*.parquet")
    first.write_bytes(first.read_bytes()[:-1])
    with pytest.raises(ExportRefused, match=f"{first} is damaged.*remove this one"):
        export(spark, topic, to=tmp_path, bootstrap_servers=servers)
    first.unlink()
    export(spark, topic, to=tmp_path, bootstrap_servers=servers)
    assert exported(spark, tmp_path, topic) == list(range(40))


def test_what_is_no_mounted_file_system_is_refused(spark: SparkSession, servers: str, topic: str) -> None:
    for address in ("hdfs://lake", "s3:/lake"):
        with pytest.raises(ExportRefused, match=f"{address}: files are published by hard links"):
            export(spark, topic, to=address, bootstrap_servers=servers)
    with pytest.raises(ExportRefused, match="to which directory"):
        export(spark, topic, to="", bootstrap_servers=servers)


def test_two_runs_at_once_write_each_record_once(spark: SparkSession, servers: str, topic: str, tmp_path: Path) -> None:
    produce(servers, topic, range(200))

    def run(_: int) -> list[PartitionExport]:
        return export(spark, topic, to=f"file://{tmp_path}", bootstrap_servers=servers, max_records_per_file=10)

    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(run, range(2)))
    assert exported(spark, tmp_path, topic) == list(range(200))
    assert sum(part.records for parts in done for part in parts) == 200


def command(servers: str, topic: str, root: Path, *options: str) -> list[str]:
    return [
        str(Path(sys.executable).with_name("raylog")), "spark", "export", topic, "--to", str(root),
        "--master", "local[2]", "--bootstrap-server", servers, *options,
    ]  # fmt: skip


def test_the_command_goes_on_after_kill_9(spark: SparkSession, servers: str, topic: str, tmp_path: Path) -> None:
    produce(servers, topic, range(4_000))
    root = tmp_path / "lake"
    options = ["--max-records-per-file", "20", "--format", "parquet", "--output", "json"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            command(servers, topic, root, *options), stdout=log, stderr=log, start_new_session=True
        )
        try:
            directory = PartitionDirectory.below(root, TopicPartition(TopicName(topic), PartitionIndex(0)))
            wait_until(
                lambda: len(directory.files()) >= 5,
                EXPORT_TIMEOUT_S,
                "five files",
                instead=lambda: (tmp_path / "log").read_text()[-2_000:],
            )
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert len(directory.files()) < 100, "it was killed too late to show anything"
    done = subprocess.run(
        command(servers, topic, root, *options), capture_output=True, text=True, timeout=scaled(EXPORT_TIMEOUT_S)
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert {part["end"] for part in told} == {2_000}
    assert 0 < sum(part["records"] for part in told) < 4_000
    assert "exported to" in done.stderr
    assert exported(spark, root, topic) == list(range(4_000))
    assert not list(root.rglob(".*.tmp"))
