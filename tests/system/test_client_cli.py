"""The commands for topics, producing and consuming, as processes, against brokers in this process."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.cluster import InProcessCluster
from kit.commands import RAYLOG, environment, one_line, run, started
from kit.machine import scaled
from kit.waiting import wait_until
from raylog.protocol.batches.compiled import RECORD_CODEC

pytestmark = pytest.mark.system


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    config = {"auto.create.topics.enable": "false"}
    with InProcessCluster(tmp_path / "brokers", brokers=2, config=config) as running:
        running.create_topic("t", partitions=2)
        yield running


def register(home: Path, name: str, data_dir: Path, servers: str) -> None:
    """What ``raylog up`` writes down about a cluster."""
    (home / "clusters").mkdir(parents=True, exist_ok=True)
    data_dir.mkdir(parents=True, exist_ok=True)
    entry = {"version": 1, "name": name, "data_dir": str(data_dir), "bootstrap_servers": servers}
    (home / "clusters" / f"{name}.json").write_text(json.dumps(entry))
    facts = {**entry, "namespace": name, "ray": {"address": "127.0.0.1:1"}, "brokers": []}
    (data_dir / "cluster.json").write_text(json.dumps(facts))


def test_topics_are_created_listed_described_and_deleted(cluster: InProcessCluster) -> None:
    created = run(cluster, "topics", "create", "new", "--partitions", "3", "--config", "retention.ms=1000")
    assert (created.returncode, created.stdout) == (0, "")
    assert run(cluster, "topics", "list").stdout == "new\nt\n"
    listed = json.loads(run(cluster, "topics", "list", "--output", "json").stdout)
    assert listed == [{"topic": "new", "partitions": 3}, {"topic": "t", "partitions": 2}]
    described = json.loads(run(cluster, "topics", "describe", "new", "--output", "json").stdout)
    assert described["configs"] == {"retention.ms": "1000"}
    assert [row["partition"] for row in described["partitions"]] == [0, 1, 2]
    assert {row["leader"] for row in described["partitions"]} == {0, 1}
    table = run(cluster, "topics", "describe", "new").stdout
    assert "retention.ms=1000" in table
    assert "leader_epoch" in table
    assert run(cluster, "topics", "delete", "new").returncode == 0
    wait_until(lambda: run(cluster, "topics", "list").stdout == "t\n", 20, "the topic is gone")


def test_lines_go_in_and_come_out(cluster: InProcessCluster) -> None:
    lines = [f"line {n}" for n in range(500)] + ["", "ü"]
    sent = run(cluster, "produce", "t", "--config", "compression.type=zstd", stdin="\n".join(lines))
    assert (sent.returncode, sent.stdout, sent.stderr) == (0, "", "sent 502 records to t\n")
    read = run(cluster, "consume", "t", "--from-beginning", "--max-messages", "502")
    assert sorted(read.stdout.removesuffix("\n").split("\n")) == sorted(lines)
    as_json = run(cluster, "consume", "t", "--from-beginning", "--max-messages", "3", "--format", "json")
    rows = [json.loads(line) for line in as_json.stdout.splitlines()]
    assert [row["offset"] for row in rows] == [0, 1, 2]
    assert set(rows[0]) == {"topic", "partition", "offset", "timestamp", "timestamp_type", "headers", "key", "value"}


def test_bytes_that_are_no_text_are_shown_as_base64(cluster: InProcessCluster) -> None:
    sent = subprocess.run(
        [RAYLOG, "produce", "t", "--bootstrap-server", cluster.bootstrap_servers],
        input=b"\xff\xfe\n",
        capture_output=True,
        timeout=scaled(60),
        env=environment(cluster.root),
        check=False,
    )
    assert sent.returncode == 0
    read = run(cluster, "consume", "t", "--from-beginning", "--max-messages", "1", "--format", "json")
    assert json.loads(read.stdout)["value"] == {"base64": "//4="}


def test_a_reader_that_has_enough_ends_it_quietly(cluster: InProcessCluster) -> None:
    run(cluster, "produce", "t", stdin="x\n" * 50_000)
    piped = subprocess.run(
        f"{RAYLOG} consume t --from-beginning --bootstrap-server {cluster.bootstrap_servers} | head -n 3",
        shell=True,
        capture_output=True,
        text=True,
        timeout=scaled(60),
        env=environment(cluster.root),
        check=False,
    )
    assert (piped.stdout, piped.stderr) == ("x\nx\nx\n", "")


def test_consuming_follows_new_records_until_interrupted(cluster: InProcessCluster) -> None:
    with started(cluster, "consume", "t", "--from-beginning") as reader:
        assert reader.stdout is not None
        for word in ("one", "two"):
            run(cluster, "produce", "t", stdin=word)
            assert reader.stdout.readline() == f"{word}\n"
        reader.send_signal(signal.SIGINT)
        assert reader.wait(scaled(30)) == 130
        assert reader.stderr is not None
        assert reader.stderr.read() == ""


def test_errors_are_one_line_and_exit_code_1(cluster: InProcessCluster) -> None:
    one_line(run(cluster, "topics", "create", "no/such"), "no/such")
    one_line(run(cluster, "topics", "create", "t"), "t", "TOPIC_ALREADY_EXISTS")
    one_line(run(cluster, "topics", "create", "new", "--config", "retention"), "name=value")
    one_line(run(cluster, "topics", "create", "new", "--replication-factor", "4"), "INVALID_REPLICATION_FACTOR")
    one_line(run(cluster, "topics", "describe", "nosuch"), "nosuch")
    one_line(run(cluster, "topics", "delete", "nosuch"), "UNKNOWN_TOPIC")
    one_line(run(cluster, "produce", "nosuch", stdin="x"), "nosuch")
    one_line(run(cluster, "consume", "nosuch"), "nosuch")
    one_line(run(cluster, "consume", "t", "--config", "fetch.min.bites=1"), "fetch.min.bites")


def test_clusters_are_found_by_directory_or_by_being_the_only_one(cluster: InProcessCluster, tmp_path: Path) -> None:
    home = tmp_path / "home"

    def listed(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [RAYLOG, "topics", "list", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=scaled(60), env=environment(home), check=False
        )

    one_line(listed(), "no raylog cluster runs here", "raylog up")
    one_line(listed("--data-dir", str(tmp_path / "nowhere")), "nowhere", "raylog up")
    register(home, "raylog-a", tmp_path / "a", cluster.bootstrap_servers)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        dead = f"127.0.0.1:{closed.getsockname()[1]}"
    register(home, "raylog-dead", tmp_path / "dead", dead)
    (home / "clusters" / "broken.json").write_text("{")
    assert listed().stdout == "t\n"
    assert listed("--data-dir", str(tmp_path / "a")).stdout == "t\n"
    register(home, "raylog-b", tmp_path / "b", cluster.bootstrap_servers)
    one_line(listed(), "several", str(tmp_path / "a"), str(tmp_path / "b"))
    one_line(listed("--bootstrap-server", dead), dead, "refused")


def test_the_version_names_the_codec() -> None:
    shown = subprocess.run([RAYLOG, "--version"], capture_output=True, text=True, timeout=scaled(60), check=True)
    assert shown.stdout == f"raylog 0.1.0 (record codec: {RECORD_CODEC})\n"
