"""Queries into a sink are killed and stopped while they send: each line is there once, whoever sends it how often."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.cluster import InProcessCluster
from kit.sink_process import SinkJob, SparkProcess
from kit.spark import SPARK_MARKS
from kit.waiting import wait_until
from raylog.client import Admin, Consumer
from raylog.client.subscription import LATEST

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
    with Consumer(servers, ["t"], auto_offset_reset="earliest") as consumer:
        found = Counter(int(record.value) for record in consumer.iterate(until_end=True))
    assert found == Counter(range(BATCHES * LINES))


def await_written(servers: str, process: SparkProcess, count: int) -> int:
    """How many records there are when there are so many at least; the process is still at it."""
    wait_until(
        lambda: not process.running or written(servers) >= count, WAIT_S, f"{count} records", instead=process.log
    )
    assert process.running, process.log()
    return written(servers)


def test_a_driver_that_is_killed_while_it_sends(servers: str, job: SinkJob, tmp_path: Path) -> None:
    chance = random.Random()
    for batch in range(BATCHES):
        process = job.start(tmp_path / f"spark-{batch}")
        try:
            wanted = batch * LINES + chance.randrange(1, LINES * 3 // 4)
            there = await_written(servers, process, wanted)
        finally:
            process.kill()
        print(f"killed with {there} records there, of which {there - batch * LINES} of batch {batch}")
        assert there < (batch + 1) * LINES, "it was not in the middle of a batch"
    last = job.start(tmp_path / "spark-last")
    try:
        assert last.wait(WAIT_S) == 0, last.log()
    finally:
        last.kill()
    check(servers)


def test_a_driver_that_stands_still_while_another_takes_over(servers: str, job: SinkJob, tmp_path: Path) -> None:
    late = job.start(tmp_path / "late")
    other = None
    try:
        await_written(servers, late, LINES // 3)
        late.signal(signal.SIGSTOP)
        assert written(servers) < LINES, "it was not in the middle of a batch"
        other = job.start(tmp_path / "other")
        assert other.wait(WAIT_S) == 0, other.log()
        check(servers)
        late.signal(signal.SIGCONT)
        late.wait(WAIT_S)
        check(servers)
    finally:
        late.kill()
        if other is not None:
            other.kill()
