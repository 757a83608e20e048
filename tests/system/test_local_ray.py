"""The Ray cluster that `raylog up` starts: where it may live, and what is left when its start is cut short."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPException
from pathlib import Path

import psutil
import pytest

from kit.cli import RunningCluster
from kit.machine import scaled
from kit.waiting import wait_until
from raylog.broker.launch import local_ray
from raylog.broker.launch.cluster_file import RayInfo
from raylog.broker.launch.local_ray import temp_dir_of
from raylog.coordination.host.own_session import OwnSession
from raylog.coordination.host.processes import ProcessRef, wait_for_end

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

METRICS_S = 60.0


@pytest.mark.parametrize("command", ["up", "down"])
def test_what_a_killed_up_started_is_ended(tmp_path: Path, command: str) -> None:
    cluster = RunningCluster(tmp_path / "home", tmp_path / ("long" * 25))
    ray_dir = temp_dir_of(cluster.data_dir)
    killed = subprocess.Popen(
        [str(Path(sys.executable).parent / "raylog"), "up", "--brokers", "1", "--data-dir", str(cluster.data_dir)],
        env={**os.environ, "RAYLOG_HOME": str(cluster.home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    record = cluster.data_dir / local_ray.RECORD

    def started() -> list[ProcessRef]:
        session = OwnSession.load(record)
        found = session.members() if session else []
        return [member.ref for member in found] if any(member.name == "gcs_server" for member in found) else []

    orphans = wait_until(started, 60, "Ray begins to start")
    killed.kill()
    killed.wait()
    try:
        cluster.raylog(command, *(["--brokers", "1"] if command == "up" else []))
        assert not any(orphan.is_alive for orphan in orphans)
        assert command == "down" or cluster.status()["brokers"][0]["state"] == "serving"
    finally:
        cluster.raylog("down", check=False)
        for orphan in orphans:
            orphan.signal(signal.SIGKILL)
    assert not record.exists()
    assert not ray_dir.is_symlink()


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


def test_foreign_processes_survive_down_and_start(tmp_path: Path) -> None:
    """An argument below Ray's directory, a recorded pid of another process, a second cluster: none of it is ours."""
    cluster = RunningCluster.up(tmp_path / "one", "--brokers", "1")
    ray_dir = temp_dir_of(cluster.data_dir)
    record = Path(cluster.file()["ray"]["processes"])
    gcs_log = ray_dir / "session_latest" / "logs" / "gcs_server.out"
    with ExitStack() as stack:
        stack.callback(cluster.raylog, "down", check=False)
        neighbour = RunningCluster.up(tmp_path / "other", "--brokers", "1")
        stack.callback(neighbour.raylog, "down", check=False)
        foreign = [
            stack.enter_context(foreigner("tail", "-F", str(gcs_log))),
            stack.enter_context(foreigner("sh", "-c", "cat; true", f"{ray_dir}/x", str(record))),
        ]
        wait_until(lambda: all(arguments_name(process, ray_dir) for process in foreign), 10, "they run")
        beside = [member.ref for member in ray_session(neighbour).members()]
        rays = [member.ref for member in ray_session(cluster).members()]
        assert beside
        assert rays
        kill("raylet", cluster)  # down meets a cluster that is half gone, as where arguments were searched
        kill("gcs_server", cluster)
        cluster.raylog("down")
        wait_for_end(rays, 30)
        assert not any(ref.is_alive for ref in rays)
        assert [process.poll() for process in foreign] == [None, None]
        reused = ProcessRef.of(foreign[0].pid)
        assert reused is not None
        record.write_text(
            json.dumps({"session": reused.pid, "processes": [reused._replace(start_time=reused.start_time - 1)]})
        )
        cluster.raylog("up")
        cluster.raylog("down")
        assert [process.poll() for process in foreign] == [None, None]
        assert all(ref.is_alive for ref in beside)
        assert neighbour.status()["brokers"][0]["state"] == "serving"


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


def test_up_after_a_part_of_ray_has_died(tmp_path: Path) -> None:
    """Without a raylet no actor runs and no driver gets in, without the GCS neither for long: up makes Ray anew."""
    cluster = RunningCluster.up(tmp_path, "--brokers", "1")
    seen: list[ProcessRef] = []
    try:
        before = cluster.status()
        for victim in ("raylet", "gcs_server"):
            seen += (member.ref for member in ray_session(cluster).members())
            assert seen
            kill(victim, cluster)
            told = cluster.raylog("status", check=False)
            assert told.returncode == 1
            assert "`raylog up" in told.stderr
            begun = time.monotonic()
            cluster.raylog("up")
            print(f"\nkill -9 of the {victim}: {time.monotonic() - begun:.1f} s until `raylog up` is done")
            after = cluster.status()
            assert after["bootstrap_servers"] == before["bootstrap_servers"]
            assert after["brokers"][0]["state"] == "serving"
            assert not any(ref.is_alive for ref in seen)
        seen += (member.ref for member in ray_session(cluster).members())
        kill("raylet", cluster)
    finally:
        cluster.raylog("down")
    assert not any(ref.is_alive for ref in seen)


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


def test_side_by_side_each_has_its_own_metrics(tmp_path: Path) -> None:
    """What Ray lists for Prometheus answers, and none of it is a neighbour's."""
    heads: list[RayInfo] = []

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

    try:
        for name in ("one", "other"):
            (tmp_path / name).mkdir()
            heads.append(local_ray.start(tmp_path / name, os.environ))
        targets = [
            wait_until(lambda head=head: listed(head), METRICS_S, "its targets", interval_s=0.5) for head in heads
        ]
        assert targets[0] & targets[1] == set()
        for target in targets[0] | targets[1]:
            wait_until(lambda target=target: answers(target), METRICS_S, f"{target} answers", interval_s=0.5)
    finally:
        for head in heads:
            local_ray.stop(head)
