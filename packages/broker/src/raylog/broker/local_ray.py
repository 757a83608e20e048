"""A Ray cluster of one node on this machine, started for one raylog cluster and ended with it.

It has its own ports and temporary directory, so that several live side by side, and a Unix session of its
own, so that ending it ends what it started and nothing else. `ray stop`, which matches by name, is never used.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from raylog.broker.cluster_file import RayInfo
from raylog.broker.processes import end_session, session_members, sessions_at
from raylog.coordination.free_ports import free_port
from raylog.coordination.processes import ProcessRef
from raylog.protocol.errors import RaylogError

__all__ = ["LOCAL_PLACE", "PLACE_LABEL", "is_whole", "start", "stop", "temp_dir_of"]

PLACE_LABEL = "raylog.io/place"
"""The node label that pins a broker to its node."""
LOCAL_PLACE = "local"
LOOPBACK = "127.0.0.1"

METRIC_PORTS = ("AUTOSCALER_METRIC_PORT", "DASHBOARD_METRIC_PORT")
"""Ports that Ray takes from the environment alone; by default they are the same for all heads of a machine."""

TRIES = 3
START_TIMEOUT_S = 60.0
STOP_GRACE_S = 1.0


class RayNotStarted(RaylogError):
    """Ray did not start; one sentence, with the place of its log."""


def start(data_dir: Path, environment: Mapping[str, str]) -> RayInfo:
    """Start Ray and return once it takes drivers; about five seconds.

    ``environment`` has Java on its PATH: Ray starts Spark's Java workers with it. Unless its RAY_AUTH_MODE
    says how drivers get in, they present a token that is made here. Raises RayNotStarted.
    """
    temp_dir = temp_dir_of(data_dir)
    for session in sessions_at(temp_dir):  # of a start that was killed before it could record them
        end_session(session, grace_s=STOP_GRACE_S)
    _make_empty(data_dir / "ray", temp_dir)
    log = data_dir / "ray-start.log"
    token_path = "" if "RAY_AUTH_MODE" in environment else _new_token(data_dir / "ray-auth-token")
    for _ in range(TRIES):
        ports = [free_port(LOOPBACK) for _ in range(5)]
        with log.open("wb") as output:
            launcher = subprocess.Popen(
                _command(temp_dir, ports),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(environment, token_path),
                cwd=data_dir,
                start_new_session=True,
            )
        session = launcher.pid
        try:
            code = launcher.wait(START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            launcher.kill()
            code = launcher.wait()
        head = _member(session, "gcs_server") if code == 0 else None
        if head is not None:
            return RayInfo(
                address=f"{LOOPBACK}:{ports[0]}",
                mode="local",
                dashboard_url=f"http://{LOOPBACK}:{ports[2]}",
                temp_dir=str(temp_dir),
                pid=head.pid,
                start_time=head.start_time,
                session=session,
                auth_token_path=token_path,
            )
        end_session(session, grace_s=STOP_GRACE_S)
    temp_dir.unlink()
    raise RayNotStarted(f"Ray did not start: {_last_line(log)} (all of it is in {log})")


def temp_dir_of(data_dir: Path) -> Path:
    """Where Ray finds DATA_DIR/ray: a link with a short path, always the same for one data dir.

    Ray puts Unix sockets there, whose whole path may have 107 bytes; its own names take up to 70 of them.
    """
    return Path("/tmp") / f"raylog-{hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:12]}"


def is_whole(ray: RayInfo) -> bool:
    """True while both processes live without which no driver gets in and no actor runs: the GCS and the raylet."""
    return ray.head.is_alive and _member(ray.session, "raylet") is not None


def stop(ray: RayInfo) -> None:
    """End all processes of a Ray cluster that :func:`start` started, also what a dead GCS or raylet left of it."""
    temp_dir = Path(ray.temp_dir)
    for session in {ray.session} if ray.head.is_alive else sessions_at(temp_dir):
        end_session(session, grace_s=STOP_GRACE_S)
    if temp_dir.is_symlink():
        temp_dir.unlink()


def _member(session: int, name: str) -> ProcessRef | None:
    """The session's process of this name: ``gcs_server`` is the cluster, ``raylet`` its one node."""
    for process in session_members(session):
        try:
            if process.name().startswith(name):
                return ProcessRef.of(process.pid)
        except psutil.NoSuchProcess:
            continue
    return None


def _command(temp_dir: Path, ports: list[int]) -> list[str]:
    gcs, client_server, dashboard, agent, metrics = ports
    return [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--head",
        f"--node-ip-address={LOOPBACK}",
        f"--port={gcs}",
        f"--ray-client-server-port={client_server}",
        f"--dashboard-host={LOOPBACK}",
        f"--dashboard-port={dashboard}",
        f"--dashboard-agent-listen-port={agent}",
        f"--metrics-export-port={metrics}",
        f"--temp-dir={temp_dir}",
        f"--num-cpus={max(2, os.cpu_count() or 1)}",
        f"--labels={PLACE_LABEL}={LOCAL_PLACE}",
        "--disable-usage-stats",
        "--log-style=record",
        "--log-color=false",
    ]


def _new_token(path: Path) -> str:
    """Ray's ports take connections from all of the machine's addresses, so who reaches them must know a
    secret, and nobody but the file's owner may read it.
    """
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    return str(path)


def _environment(base: Mapping[str, str], token_path: str) -> dict[str, str]:
    """``base`` with the cluster's own token and ports, and without what would change the cluster behind our back."""
    environment = {**base, "RAY_USAGE_STATS_ENABLED": "0"}
    environment.pop("RAY_ADDRESS", None)
    for name in METRIC_PORTS:
        environment[name] = str(free_port(LOOPBACK))
    if token_path:
        environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": token_path}
        environment.pop("RAY_AUTH_TOKEN", None)  # would go before the file
    return environment


def _make_empty(kept: Path, temp_dir: Path) -> None:
    """``kept`` without the last run's logs, with ``temp_dir`` as a link to it."""
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    try:
        if not (temp_dir.is_symlink() and temp_dir.readlink() == kept):
            temp_dir.symlink_to(kept)
    except OSError as error:
        raise RayNotStarted(f"Ray needs {temp_dir} as a link to {kept}: {error.strerror}; remove it") from None


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it said nothing"
