"""Queries into a sink stand still, and are killed, while they send: each line is there once, whoever sends it."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.cluster import InProcessCluster
from kit.machine import scaled
from kit.reading import all_records
from kit.sink_process import SinkJob, SparkProcess
from kit.spark import SPARK_MARKS
from kit.waiting import wait_until
from raylog.client import Admin
from raylog.protocol.ids import LATEST

pytestmark = SPARK_MARKS

PARTITIONS = 3
LINES = 20_000
"""Of a file, which is a batch."""
BATCHES = 2
WAIT_S = 150.0


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[str]:
    with InProcessCluster(tmp_path / "brokers") as running:
        running.create_topic("t", partitions=PARTITIONS)
        yield running.bootstrap_servers


@pytest.fixture
def job(servers: str, tmp_path: Path) -> SinkJob:
    lines = tmp_path / "lines"
    lines.mkdir()
    for number in range(BATCHES):
        begin = number * LINES
        (lines / f"{number}.txt").write_text("\n".join(str(line) for line in range(begin, begin + LINES)))
    return SinkJob(servers, "t", str(lines), str(tmp_path / "checkpoint"), str(tmp_path / "sink"))


def written(servers: str) -> int:
    """How many records the topic has."""
    with Admin(servers) as admin:
        ends = admin.list_offsets({("t", partition): LATEST for partition in range(PARTITIONS)})
    return sum(end.offset for end in ends.values())


def check(servers: str) -> None:
    """Each line is there once."""
    assert Counter(int(record.value) for record in all_records(servers, "t")) == Counter(range(BATCHES * LINES))


def await_written(servers: str, process: SparkProcess, count: int) -> int:
    """How many records there are when there are so many at least; the process is still at it."""
    wait_until(
        lambda: not process.running or written(servers) >= count, WAIT_S, f"{count} records", instead=process.log
    )
    assert process.running, process.log()
    return written(servers)


@pytest.mark.timeout(420)  # three times Spark, each in a JVM of its own
def test_one_driver_stands_still_the_next_is_killed_and_each_line_is_there_once(
    servers: str, job: SinkJob, tmp_path: Path
) -> None:
    late, killed, last = (job.prepared(tmp_path / name) for name in ("late", "killed", "last"))
    try:
        late.start()
        await_written(servers, late, LINES // 3)
        late.signal(signal.SIGSTOP)
        there = written(servers)
        assert there < LINES, "it was not in the middle of the first batch"

        killed.start()
        await_written(servers, killed, LINES + random.randrange(1, LINES * 3 // 4))
        killed.kill()
        print(f"stopped with {there} records there, killed with {written(servers)}, of {BATCHES * LINES}")
        assert written(servers) < BATCHES * LINES, "it was not in the middle of the second batch"

        last.start()
        assert last.wait(scaled(WAIT_S)) == 0, last.log()
        check(servers)
        late.signal(signal.SIGCONT)
        late.wait(scaled(WAIT_S))
        check(servers)
    finally:
        for process in (late, killed, last):
            process.kill()
