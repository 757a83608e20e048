"""The Ray cluster that `raylog up` starts: where it may live, and what is left when its start is cut short."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import psutil
import pytest
import ray

from kit.cli import RunningCluster, raylog_here
from kit.forms import some
from kit.machine import scaled
from kit.ray_nodes import metrics_target
from kit.waiting import wait_until
from raylog.broker.launch import local_ray
from raylog.broker.launch.cluster_file import RayInfo
from raylog.broker.launch.local_ray import temp_dir_of
from raylog.client import Admin, Consumer, Producer
from raylog.coordination.host.own_session import OwnSession
from raylog.coordination.host.processes import ProcessRef
from raylog.coordination.host.ray_token import ray_token
from raylog.coordination.zookeeper.embedded import EmbeddedZooKeeper

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

METRICS_S = 60.0
WAIT_S = 60.0


def begin_up_and_kill_it(cluster: RunningCluster) -> list[ProcessRef]:
    """kill -9 of `raylog up` while it starts Ray; what it leaves behind."""
    killed = subprocess.Popen(
        [
            str(Path(sys.executable).parent / "raylog"),
            *("up", "--no-dashboard", "--brokers", "1", "--data-dir", str(cluster.data_dir)),
        ],
        env={**os.environ, "RAYLOG_HOME": str(cluster.home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    record = cluster.data_dir / local_ray.RECORD

    def started() -> list[ProcessRef]:
        session = OwnSession.load(record)
        found = session.members() if session else []
        return [member.ref for member in found] if any(member.name == "gcs_server" for member in found) else []

    try:
        return wait_until(started, 60, "Ray begins to start")
    finally:
        killed.kill()
        killed.wait()


def test_down_ends_what_a_killed_up_started(tmp_path: Path) -> None:
    cluster = RunningCluster(tmp_path / "home", tmp_path / ("long" * 25))
    orphans = begin_up_and_kill_it(cluster)
    try:
        cluster.raylog("down")
        assert not any(orphan.is_alive for orphan in orphans)
    finally:
        for orphan in orphans:
            orphan.signal(signal.SIGKILL)
    assert not (cluster.data_dir / local_ray.RECORD).exists()
    assert not temp_dir_of(cluster.data_dir).is_symlink()


@contextmanager
def foreigner(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of somebody else's, which leads a session with another process, as a shell does."""
    shell = ["sh", "-c", 'cat <&0 & exec "$@"', "sh", *command]
    with subprocess.Popen(
        shell, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_one_life_of_a_cluster_beside_others(three_brokers: RunningCluster, tmp_path: Path) -> None:
    """Whatever dies of it, `down` leaves no process of it, `up` brings it back with what it had, and no other process
    is touched: not those of a second cluster, nor those whose arguments name files of this one, nor one that has the
    number of a process that was recorded."""
    cluster = RunningCluster(three_brokers.home, tmp_path / ("long" * 25))
    ray_dir, record = temp_dir_of(cluster.data_dir), cluster.data_dir / local_ray.RECORD
    gcs_log = ray_dir / "session_latest" / "logs" / "gcs_server.out"
    beside = [member.ref for member in ray_session(three_brokers).members()]
    assert beside
    seen = begin_up_and_kill_it(cluster)
    with ExitStack() as stack:
        stack.callback(end, seen)
        stack.callback(cluster.raylog, "down", check=False)
        before = up_again(cluster, seen, "--brokers", "1", "--no-dashboard")
        ambiguous = raylog_here(three_brokers.home, "status", check=False)
        assert "several raylog clusters run here" in one_line(ambiguous.stderr)
        keep_a_record(before["bootstrap_servers"])

        foreign = [
            stack.enter_context(foreigner("tail", "-F", str(gcs_log))),
            stack.enter_context(foreigner("sh", "-c", "cat; true", f"{ray_dir}/x", str(record))),
        ]
        wait_until(lambda: all(arguments_name(process, ray_dir) for process in foreign), 10, "they run")

        def is_down() -> None:
            assert not any(ref.is_alive for ref in seen)
            assert not EmbeddedZooKeeper(cluster.data_dir / "zookeeper").is_running
            assert not record.exists()
            assert not ray_dir.is_symlink()
            theirs = {member.pid for process in foreign for member in with_children(process)}
            ours = (p for p in psutil.process_iter(["cmdline"]) if p.pid not in theirs)
            assert [p for p in ours if str(tmp_path) in " ".join(p.info["cmdline"] or ())] == []

        cluster.raylog("down")
        is_down()
        assert cluster.raylog("down").returncode == 0, "down again changes nothing"
        reused = ProcessRef.of(foreign[0].pid)
        assert reused is not None
        other_start = reused._replace(start_time=reused.start_time - 1)
        record.write_text(json.dumps({"session": reused.pid, "processes": [other_start]}))
        assert is_back(up_again(cluster, seen), before)
        assert read(cluster, "kept") == [b"value"]

        for name in some(("raylet", "gcs_server"), 2):  # without a raylet no actor runs, without the GCS none for long
            kill(name, cluster)
            assert "`raylog up" in told_down(cluster)
            begun = time.monotonic()
            assert is_back(up_again(cluster, seen), before)
            print(f"\nkill -9 of the {name}: {time.monotonic() - begun:.1f} s until `raylog up` is done")

        kill_everything(cluster)
        assert "the cluster is down; `raylog up" in told_down(cluster)
        begun = time.monotonic()
        assert is_back(up_again(cluster, seen), before)
        print(f"\nkill -9 of everything: {time.monotonic() - begun:.1f} s until `raylog up` is done")
        assert read(cluster, "kept") == [b"value"]

        kill("raylet", cluster)  # down meets a cluster that is half gone
        kill("gcs_server", cluster)
        cluster.raylog("down")
        is_down()
        assert [process.poll() for process in foreign] == [None, None]
        assert all(ref.is_alive for ref in beside)
    assert [broker["state"] for broker in three_brokers.status()["brokers"]] == ["serving"] * 3


def up_again(cluster: RunningCluster, seen: list[ProcessRef], *arguments: str) -> dict[str, Any]:
    """`raylog up` of a cluster of which some is dead: nothing of what was ``seen`` of its Ray lives on, and what
    lives then is seen. Its status."""
    cluster.raylog("up", *arguments)
    assert not any(ref.is_alive for ref in seen)
    members = [member.ref for member in ray_session(cluster).members()]
    assert members
    seen += members
    return cluster.status()


def is_back(after: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """At the same addresses, as the same cluster, without a dashboard, as it was started."""
    assert [broker["state"] for broker in after["brokers"]] == ["serving"]
    assert after["dashboard_url"] == ""
    return all(after[name] == before[name] for name in ("bootstrap_servers", "cluster_id", "data_dir"))


def keep_a_record(servers: str) -> None:
    """In a topic whose records are kept, whatever their date."""
    with Admin(servers) as admin:
        admin.create_topic("kept", 1)
    with Producer(servers) as producer:
        producer.send("kept", b"value").result(scaled(WAIT_S))


def read(cluster: RunningCluster, topic: str) -> list[bytes | None]:
    """What a client finds in it."""
    with Consumer(cluster.file()["bootstrap_servers"], topic, auto_offset_reset="earliest") as consumer:
        return [record.value for record in consumer.iterate(until_end=True)]


def told_down(cluster: RunningCluster) -> str:
    """The sentence by which `raylog status` says that it is down."""
    told = cluster.here("status", check=False)
    assert told.returncode == 1
    return one_line(told.stderr)


def one_line(text: str) -> str:
    """The only line of what a command said on stderr."""
    [line] = text.strip().splitlines()
    assert line.startswith("raylog: ")
    return line


def kill_everything(cluster: RunningCluster) -> None:
    """kill -9 of all processes that `raylog up` started: Ray's, the brokers, ZooKeeper and its owner."""
    zookeeper = EmbeddedZooKeeper(cluster.data_dir / "zookeeper")
    rays = [member.ref for member in ray_session(cluster).members()]
    for ref in [*filter(None, (zookeeper.owner, zookeeper.jvm)), *rays]:
        ref.signal(signal.SIGKILL)
    wait_until(lambda: not any(ref.is_alive for ref in rays) and not zookeeper.is_running, WAIT_S, "all are dead")


def end(refs: Iterable[ProcessRef]) -> None:
    for ref in refs:
        ref.signal(signal.SIGKILL)


def with_children(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    found = psutil.Process(process.pid)
    return [found, *found.children(recursive=True)]


def arguments_name(process: subprocess.Popen[bytes], directory: Path) -> bool:
    return f"{directory}/" in " ".join(psutil.Process(process.pid).cmdline())


def test_something_in_the_way_of_ray_is_one_sentence(tmp_path: Path) -> None:
    cluster = RunningCluster(tmp_path / "home", tmp_path / "data")
    in_the_way = temp_dir_of(cluster.data_dir)
    in_the_way.mkdir()
    try:
        refused = cluster.raylog("up", check=False)
    finally:
        in_the_way.rmdir()
    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 1
    assert str(in_the_way) in refused.stderr


def ray_session(cluster: RunningCluster) -> OwnSession:
    session = OwnSession.load(Path(cluster.file()["ray"]["processes"]))
    assert session is not None
    return session


def kill(name: str, cluster: RunningCluster) -> None:
    """kill -9 of the process of this name in the cluster's Ray."""

    def found() -> list[ProcessRef]:
        named = [member.ref for member in ray_session(cluster).members() if member.name == name]
        return named if len(named) == 1 else []  # a child has its parent's name until it runs something else

    [victim] = wait_until(found, 10, f"one process is the {name}")
    assert victim.signal(signal.SIGKILL)
    wait_until(lambda: not victim.is_alive, 30, f"the {name} is dead")


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RayInfo]]:
    """Two Ray clusters with dashboards: one that asks for a token, and one whose environment says that it asks not."""
    started: list[RayInfo] = []
    try:
        for name, environment in (("one", {}), ("other", {"RAY_AUTH_MODE": "disabled"})):
            started.append(local_ray.start(tmp_path_factory.mktemp(name), {**os.environ, **environment}))
        yield started
    finally:
        for head in started:
            local_ray.stop(head)


def test_side_by_side_each_has_its_own_metrics(heads: list[RayInfo]) -> None:
    """What Ray lists for Prometheus answers, the agent that tells of brokers among it, and none is a neighbour's."""

    def listed(head: RayInfo) -> set[str]:
        """The targets once all three are there: Ray's autoscaler, its dashboard and its agent."""
        file = Path(head.temp_dir) / "prom_metrics_service_discovery.json"
        targets = json.loads(file.read_text())[0]["targets"] if file.exists() else []
        return set(targets) if len(targets) == 3 else set()

    def answers(target: str) -> bool:
        try:
            return b"# TYPE" in urllib.request.urlopen(f"http://{target}/metrics", timeout=scaled(10)).read()
        except (OSError, HTTPException):
            return False

    targets = [wait_until(lambda head=head: listed(head), METRICS_S, "its targets", interval_s=0.5) for head in heads]
    assert targets[0] & targets[1] == set()
    for head, its in zip(heads, targets, strict=True):
        with driver(head):
            assert metrics_target() in its
    for target in targets[0] | targets[1]:
        wait_until(lambda target=target: answers(target), METRICS_S, f"{target} answers", interval_s=0.5)


def http_status(url: str, **headers: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=scaled(20)) as answer:
            return int(answer.status)
    except HTTPError as error:
        with error:
            return error.code


def test_the_dashboard_asks_for_the_token(heads: list[RayInfo]) -> None:
    url = f"{heads[0].dashboard_url}/nodes?view=summary"
    token = Path(heads[0].auth_token_path).read_text()
    assert http_status(url) == 401
    assert http_status(url, Authorization=f"Bearer {token}") == 200


def test_an_environment_that_says_how_drivers_get_in_is_heeded(heads: list[RayInfo]) -> None:
    _, open_to_all = heads
    assert open_to_all.auth_token_path == ""
    assert not (Path(open_to_all.processes).parent / "ray-auth-token").exists()
    with driver(open_to_all):
        assert ray.is_initialized()


@contextmanager
def driver(head: RayInfo) -> Iterator[None]:
    """Connected to it, by its token if it has one."""
    with pytest.MonkeyPatch.context() as patched:
        if not head.auth_token_path:
            patched.setenv("RAY_AUTH_MODE", "disabled")
        with ray_token(head.auth_token_path):
            ray.init(address=head.address, log_to_driver=False, configure_logging=False)
    try:
        yield
    finally:
        ray.shutdown()
