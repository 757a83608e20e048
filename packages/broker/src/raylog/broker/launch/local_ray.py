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
import time
from collections.abc import Mapping
from pathlib import Path

from raylog.broker.launch.cluster_file import RayInfo
from raylog.coordination.host.free_ports import free_port
from raylog.coordination.host.own_session import OwnSession, run_in_session
from raylog.protocol.errors import RaylogError

__all__ = ["LOCAL_PLACE", "PLACE_LABEL", "end_recorded", "is_whole", "session_of", "start", "stop", "temp_dir_of"]

PLACE_LABEL = "raylog.io/place"
"""The node label that pins a broker to its node."""
LOCAL_PLACE = "local"
LOOPBACK = "127.0.0.1"

METRIC_PORTS = ("AUTOSCALER_METRIC_PORT", "DASHBOARD_METRIC_PORT")
"""Ports that Ray takes from the environment alone; by default they are the same for all heads of a machine."""

TRIES = 3
START_TIMEOUT_S = 60.0
STOP_GRACE_S = 1.0
POLL_S = 0.05
RECORD = "ray-processes.json"
"""In the data dir: what to end with the cluster."""


class RayNotStarted(RaylogError):
    """Ray did not start; one sentence, with the place of its log."""


def start(data_dir: Path, environment: Mapping[str, str], *, dashboard: bool = True) -> RayInfo:
    """Start Ray, with or without its dashboard, and return once it takes drivers; about five seconds.

    ``environment`` has Java on its PATH: Ray starts Spark's Java workers with it. Unless its RAY_AUTH_MODE
    says how drivers get in, they present a token that is made here. Raises RayNotStarted.
    """
    temp_dir, record = temp_dir_of(data_dir), data_dir / RECORD
    end_recorded(data_dir)  # of a start that was killed
    _make_empty(data_dir / "ray", temp_dir)
    log = data_dir / "ray-start.log"
    token_path = "" if "RAY_AUTH_MODE" in environment else _new_token(data_dir / "ray-auth-token")
    for _ in range(TRIES):
        ports = [free_port(LOOPBACK) for _ in range(5)]
        with log.open("wb") as output:
            launcher = subprocess.Popen(
                run_in_session(record, _command(temp_dir, ports, dashboard)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(environment, token_path),
                cwd=data_dir,
                start_new_session=True,
            )
        has_ended = _ends(launcher, START_TIMEOUT_S)
        session = OwnSession.of_child(launcher.pid)
        head = session.member("gcs_server") if has_ended and launcher.wait() == 0 else None
        if head is not None:
            session.save(record)
            return RayInfo(
                address=f"{LOOPBACK}:{ports[0]}",
                mode="local",
                dashboard_url=f"http://{LOOPBACK}:{ports[2]}" if dashboard else "",
                temp_dir=str(temp_dir),
                processes=str(record),
                head=head.ref,
                auth_token_path=token_path,
            )
        session.end(STOP_GRACE_S)
        launcher.wait()
    end_recorded(data_dir)
    raise RayNotStarted(f"Ray did not start: {_last_line(log)} (all of it is in {log})")


def temp_dir_of(data_dir: Path) -> Path:
    """Where Ray finds DATA_DIR/ray: a link with a short path, always the same for one data dir.

    Ray puts Unix sockets there, whose whole path may have 107 bytes; its own names take up to 70 of them.
    """
    return Path("/tmp") / f"raylog-{hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:12]}"


def is_whole(ray: RayInfo) -> bool:
    """True while both processes live without which no driver gets in and no actor runs: the GCS and the raylet."""
    session = session_of(ray)
    members = session.members() if session else []
    return any(member.ref == ray.head for member in members) and any(member.name == "raylet" for member in members)


def session_of(ray: RayInfo) -> OwnSession | None:
    """The processes of a Ray cluster that :func:`start` started; None when it was stopped."""
    return OwnSession.load(Path(ray.processes)) if ray.processes else None


def stop(ray: RayInfo) -> None:
    """End all processes of a Ray cluster that :func:`start` started, also what a dead GCS or raylet left of it, and no
    other process.
    """
    if not ray.processes:
        return
    end_recorded(Path(ray.processes).parent)


def end_recorded(data_dir: Path) -> bool:
    """End the processes of a Ray cluster that were recorded in ``data_dir``; False when none of them runs."""
    session = OwnSession.load(data_dir / RECORD)
    found = session is not None and bool(session.members())
    if session is not None:
        session.end(STOP_GRACE_S)
    temp_dir = temp_dir_of(data_dir)
    if temp_dir.is_symlink() and temp_dir.readlink() == data_dir / "ray":
        temp_dir.unlink()
    (data_dir / RECORD).unlink(missing_ok=True)
    return found


def _ends(launcher: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Whether it ends in time. It is not waited for yet: so nobody else can have the number of its session."""
    deadline = time.monotonic() + timeout_s
    while os.waitid(os.P_PID, launcher.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def _command(temp_dir: Path, ports: list[int], dashboard: bool) -> list[str]:
    gcs, client_server, dashboard_port, agent, metrics = ports
    return [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--head",
        f"--node-ip-address={LOOPBACK}",
        f"--port={gcs}",
        f"--ray-client-server-port={client_server}",
        f"--include-dashboard={str(dashboard).lower()}",
        f"--dashboard-host={LOOPBACK}",
        f"--dashboard-port={dashboard_port}",
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
