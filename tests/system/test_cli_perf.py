"""`raylog perf`, and what a measurement is worth: its numbers add up."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import process_time
from typing import Any

import psutil
import pytest

from kit.cluster import InProcessCluster
from kit.commands import one_line, run
from raylog.client.cli.perf import BrokerCpu, measure_e2e, measure_produce, percentile
from raylog.client.results import BrokerDescription
from raylog.protocol.errors import MessageTooLarge
from raylog.protocol.ids import BrokerId

pytestmark = pytest.mark.system

TICK_S = 0.02
"""How exactly the operating system tells a process's CPU time, twice."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    with InProcessCluster(tmp_path / "brokers", config={"auto.create.topics.enable": "false"}) as running:
        running.create_topic("t", partitions=2)
        yield running


def report(cluster: InProcessCluster, *arguments: str) -> dict[str, Any]:
    """What the command tells; the brokers are in this process, which spends nothing else meanwhile."""
    before = process_time()
    done = run(cluster, "perf", *arguments, "--output", "json")
    spent = process_time() - before
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["p50_ms"] <= found["p99_ms"] <= found["p99_9_ms"] <= found["max_ms"]
    assert found["records_per_s"] == pytest.approx(found["records"] / found["seconds"], rel=0.1)
    assert found["mb_per_s"] == pytest.approx(found["bytes"] / found["seconds"] / 1e6, rel=0.1, abs=0.01)
    assert 0 <= found["broker_cpu_s"] <= spent + TICK_S
    return dict(found)


def test_the_three_measurements(cluster: InProcessCluster) -> None:
    produced = report(cluster, "produce", "t", "--num-records", "20000", "--record-size", "50")
    assert (produced["test"], produced["records"], produced["bytes"]) == ("produce", 20_000, 1_000_000)
    assert produced["broker_cpu_s"] > 0
    consumed = report(cluster, "consume", "t")
    assert (consumed["test"], consumed["records"], consumed["bytes"]) == ("consume", 20_000, 1_000_000)
    e2e = report(cluster, "e2e", "t", "--num-records", "50")
    assert (e2e["test"], e2e["records"], e2e["bytes"]) == ("e2e", 50, 5_000)
    table = run(cluster, "perf", "consume", "t", "--num-records", "10").stdout.splitlines()
    assert table[0].split() == list(produced)
    assert len(table) == 2


def test_what_cannot_be_measured_is_told(cluster: InProcessCluster) -> None:
    one_line(run(cluster, "perf", "produce", "nosuch"), "nosuch")
    one_line(run(cluster, "perf", "produce", "t", "--config", "linger=1"), "linger")
    one_line(run(cluster, "perf", "produce", "t", "--config", "records=1"), "records")
    one_line(run(cluster, "perf", "consume", "t", "--num-records", "5"), "t has 0 records, not 5")


def test_a_rate_is_kept(cluster: InProcessCluster) -> None:
    servers = cluster.bootstrap_servers
    found = measure_produce(servers, "t", records=100, record_size=10, throughput=500, config={"linger.ms": 0})
    assert found.seconds >= 0.19
    assert measure_e2e(servers, "t", records=20, record_size=0).bytes == 0
    with pytest.raises(MessageTooLarge):
        measure_produce(servers, "t", records=10, record_size=2_000_000)


def test_the_cpu_time_is_of_the_process_that_listens() -> None:
    spinning = (
        "import socket, time\n"
        "taken = socket.create_server(('127.0.0.1', 0)); print(taken.getsockname()[1], flush=True)\n"
        "until = time.process_time() + 0.3\n"
        "while time.process_time() < until: pass\n"
        "print('spun', flush=True); taken.accept()\n"
    )
    with subprocess.Popen([sys.executable, "-c", spinning], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            cpu = BrokerCpu([BrokerDescription(BrokerId(0), "127.0.0.1", port, None)])
            assert process.stdout.readline() == "spun\n"
            times = psutil.Process(process.pid).cpu_times()
            assert cpu.seconds() == pytest.approx(times.user + times.system, abs=0.02)
            assert times.user + times.system >= 0.29
        finally:
            process.kill()
    assert cpu.seconds() is None
    assert BrokerCpu([BrokerDescription(BrokerId(0), "127.0.0.1", port, None)]).seconds() is None
    assert BrokerCpu([BrokerDescription(BrokerId(0), "203.0.113.1", port, None)]).seconds() is None


def test_percentiles_are_values_that_were_seen() -> None:
    hundred = list(range(1, 101))
    assert [percentile(hundred, share) for share in (0.5, 0.99, 0.999, 1.0)] == [50, 99, 100, 100]
    assert [percentile([7], share) for share in (0.0, 0.5, 1.0)] == [7, 7, 7]
