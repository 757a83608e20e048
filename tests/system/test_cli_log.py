"""`raylog log` on the directories of brokers that run and that were stopped; completion; what a start loads."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from kit.cluster import InProcessCluster
from kit.commands import RAYLOG, environment
from kit.machine import scaled
from kit.waiting import wait_until
from raylog.client import Producer

pytestmark = pytest.mark.system


def raylog(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [RAYLOG, *arguments],
        capture_output=True,
        text=True,
        timeout=scaled(60),
        env=environment(home) | variables,
        check=False,
    )


def fill(cluster: InProcessCluster) -> None:
    cluster.create_topic("t", config={"segment.bytes": "20000", "index.interval.bytes": "0"})
    with Producer(cluster.bootstrap_servers, linger_ms=0, batch_size=1_000) as producer:
        for n in range(2_000):
            producer.send("t", b"value %d" % n, b"key")


def test_logs_are_verified_beside_a_broker_and_after_its_stop(tmp_path: Path) -> None:
    with InProcessCluster(tmp_path / "brokers") as cluster:
        fill(cluster)
        beside = raylog(tmp_path, "log", "verify", str(tmp_path / "brokers"), "--output", "json")
        assert (beside.returncode, beside.stdout) == (0, ""), beside.stderr
        assert "2000 records" in beside.stderr
        assert "all sound" in beside.stderr
    stopped = raylog(tmp_path, "log", "verify", "--records", str(tmp_path / "brokers"))
    assert (stopped.returncode, stopped.stdout) == (0, ""), stopped.stderr

    log = sorted(tmp_path.rglob("t-0/*.log"))[1]
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(data)
    found = raylog(tmp_path, "log", "verify", str(log.parent))
    assert found.returncode == 1
    assert found.stdout.split()[:4] == ["level", "path", "position", "problem"]
    assert "checksum" in found.stdout
    assert "1 damaged" in found.stderr


def test_files_are_dumped(tmp_path: Path) -> None:
    with InProcessCluster(tmp_path / "brokers") as cluster:
        fill(cluster)
    directory = next(tmp_path.rglob("t-0"))
    log = min(directory.glob("*.log"))
    batches = [
        json.loads(line)
        for line in raylog(tmp_path, "log", "dump", str(log), "--output", "json").stdout.split("\n")[:-1]
    ]
    assert [batch["base_offset"] for batch in batches] == [0, *(batch["last_offset"] + 1 for batch in batches[:-1])]
    assert [batch["valid"] for batch in batches] == [True] * len(batches)
    assert len(batches) > 10
    table = raylog(tmp_path, "log", "dump", "--records", str(directory)).stdout
    assert table.startswith(str(log))
    assert len(re.findall(r" value \d+ ", table)) == 2_000
    for file in directory.iterdir():
        assert raylog(tmp_path, "log", "dump", str(file)).returncode == 0, file
    bad = raylog(tmp_path, "log", "dump", str(directory.parent / ".kafka_cleanshutdown"))
    assert (bad.returncode, bad.stdout) == (1, "")
    assert bad.stderr.startswith("raylog: ")


def completions(home: Path, line: str) -> list[str]:
    """What bash is told when Tab is pressed after ``line``."""
    words = line.split(" ")
    done = raylog(home, _RAYLOG_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1))
    return done.stdout.split()


def test_commands_options_and_topics_complete(tmp_path: Path) -> None:
    with InProcessCluster(tmp_path / "brokers") as cluster:
        for name in ("clicks", "clocks", "visits"):
            cluster.create_topic(name)
        servers = cluster.bootstrap_servers
        assert completions(tmp_path, "raylog top") == ["topics"]
        assert completions(tmp_path, "raylog topics al") == ["alter"]
        assert "--max-messages" in completions(tmp_path, "raylog consume clicks --max")

        def completed(line: str, *wanted: str) -> None:
            """Who presses Tab is not kept waiting: brokers that are slow to answer have nothing to complete."""
            wait_until(lambda: completions(tmp_path, line) == list(wanted), 30, f"{line!r} completes to {wanted}")

        completed(f"raylog consume --bootstrap-server {servers} cl", "clicks", "clocks")
        completed(f"raylog configs describe --bootstrap-server {servers} --topic v", "visits")
    assert completions(tmp_path, f"raylog consume --bootstrap-server {servers} cl") == []


def test_help_needs_neither_ray_nor_the_clients(tmp_path: Path) -> None:
    shown = raylog(tmp_path, "--help", PYTHONPROFILEIMPORTTIME="1")
    assert shown.returncode == 0
    loaded = {line.rpartition("|")[2].strip() for line in shown.stderr.splitlines()}
    assert "raylog.client.cli" in loaded
    assert not loaded & {"ray", "pyarrow", "numpy", "rich", "kio.serial", "raylog.client.producer"}
