"""The Ray cluster that `raylog up` starts: where it may live, and what is left when its start is cut short."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

import psutil
import pytest

from kit.cli import RunningCluster
from kit.waiting import wait_until
from raylog.broker import local_ray
from raylog.broker.cluster_file import RayInfo
from raylog.broker.local_ray import temp_dir_of
from raylog.broker.processes import end_session, session_members, sessions_at

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

METRICS_S = 60.0


def test_up_after_an_up_that_was_killed(tmp_path: Path) -> None:
    cluster = RunningCluster(tmp_path / "home", tmp_path / ("long" * 25))
    ray_dir = temp_dir_of(cluster.data_dir)
    killed = subprocess.Popen(
        [str(Path(sys.executable).parent / "raylog"), "up", "--brokers", "1", "--data-dir", str(cluster.data_dir)],
        env={**os.environ, "RAYLOG_HOME": str(cluster.home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    orphans = wait_until(lambda: sessions_at(ray_dir), 60, "Ray begins to start")
    killed.kill()
    killed.wait()
    try:
        cluster.raylog("up", "--brokers", "1")
        assert not any(session_members(session) for session in orphans)
        assert cluster.status()["brokers"][0]["state"] == "serving"
    finally:
        cluster.raylog("down", check=False)
        for session in orphans:
            end_session(session, grace_s=1.0)
    assert sessions_at(ray_dir) == set()
    assert not ray_dir.is_symlink()


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
    sessions = []
    try:
        before = cluster.status()
        for victim in ("raylet", "gcs_server"):
            sessions.append(cluster.file()["ray"]["session"])
            kill(victim, sessions[-1])
            told = cluster.raylog("status", check=False)
            assert told.returncode == 1
            assert "`raylog up" in told.stderr
            begun = time.monotonic()
            cluster.raylog("up")
            print(f"\nkill -9 of the {victim}: {time.monotonic() - begun:.1f} s until `raylog up` is done")
            after = cluster.status()
            assert after["bootstrap_servers"] == before["bootstrap_servers"]
            assert after["brokers"][0]["state"] == "serving"
            assert session_members(sessions[-1]) == []
        sessions.append(cluster.file()["ray"]["session"])
        kill("raylet", sessions[-1])
    finally:
        cluster.raylog("down")
    assert not any(map(session_members, sessions))


def kill(name: str, session: int) -> None:
    """kill -9 of the session's process of this name."""

    def found() -> list[psutil.Process]:
        named = []
        for process in session_members(session):
            with suppress(psutil.NoSuchProcess):  # a worker that has ended since
                if process.name().startswith(name):
                    named.append(process)
        return named if len(named) == 1 else []  # a child has its parent's name until it runs something else

    [victim] = wait_until(found, 10, f"one process is the {name}")
    victim.kill()
    victim.wait(30)


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
            return b"# TYPE" in urllib.request.urlopen(f"http://{target}/metrics", timeout=10).read()
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
