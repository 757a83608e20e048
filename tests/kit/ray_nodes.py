"""A Ray cluster of several nodes on this machine, each with a loopback address of its own.

Where things run can be told by the address then, as on real nodes, without network namespaces.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import ray

from kit.machine import SLOWNESS
from raylog.broker.launch import local_ray
from raylog.coordination.host.free_ports import free_port
from raylog.coordination.host.java import find_java
from raylog.coordination.host.own_session import OwnSession, run_in_session
from raylog.coordination.host.ray_token import ray_token

__all__ = ["NODES", "metrics_target", "ray_nodes"]

NODES = ("127.0.0.2", "127.0.0.3")
START_TIMEOUT_S = 90.0 * SLOWNESS
OBJECT_STORE_BYTES = 256 << 20
GRACE_S = 1.0
TRIES = 3
TOO_SLOW = "The current node timed out during startup"
"""Ray gives a node 30 s to start, on a machine however busy."""


@contextmanager
def ray_nodes(directory: Path, addresses: Sequence[str] = NODES, *, cpus: int = 1) -> Iterator[str]:
    """A node with ``cpus`` CPUs at each of ``addresses``, with Java on its PATH; the first is the head. Yields the
    cluster's address, to which this process may connect; everything of it is ended afterwards."""
    token = directory / "ray-auth-token"
    token.write_text(secrets.token_hex(32))
    environment = {
        **find_java().environment(os.environ),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
    }
    for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN"):
        environment.pop(name, None)
    temp_dir = local_ray.temp_dir_of(directory)  # a short path: Unix sockets are in there
    temp_dir.symlink_to(directory)
    sessions: list[OwnSession] = []
    try:
        head, *others = addresses
        port = free_port(head)
        _start(
            [
                "--head",
                f"--node-ip-address={head}",
                f"--port={port}",
                f"--ray-client-server-port={free_port(head)}",
                f"--temp-dir={temp_dir}",
                "--include-dashboard=false",
                *_common(head, cpus),
            ],
            directory / "head.log",
            environment,
            sessions,
        )
        for address in others:
            arguments = [f"--address={head}:{port}", f"--node-ip-address={address}", *_common(address, cpus)]
            _start(arguments, directory / f"{address}.log", environment, sessions)
        with ray_token(str(token)):
            yield f"{head}:{port}"
    finally:
        for session in reversed(sessions):
            session.end(GRACE_S)
        temp_dir.unlink()


def metrics_target() -> str:
    """Where the agent of the only node of the cluster, to which this process is connected, offers metrics."""
    [node] = ray.nodes()
    return f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}"


def _common(address: str, cpus: int) -> list[str]:
    return [
        f"--num-cpus={cpus}",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        f"--dashboard-agent-listen-port={free_port(address)}",
        f"--metrics-export-port={free_port(address)}",
        "--disable-usage-stats",
        "--log-style=record",
        "--log-color=false",
    ]


def _start(arguments: Sequence[str], log: Path, environment: Mapping[str, str], sessions: list[OwnSession]) -> None:
    """One node, in a Unix session of its own, which is added to ``sessions``."""
    for tries_left in reversed(range(TRIES)):
        code = _try_to_start(arguments, log, environment, sessions)
        said = log.read_text(errors="replace")
        if code == 0:
            return
        may_try_again = tries_left > 0 and TOO_SLOW in said
        assert may_try_again, f"a Ray node did not start: {said[-2_000:]}"
        sessions.pop().end(GRACE_S)


def _try_to_start(
    arguments: Sequence[str], log: Path, environment: Mapping[str, str], sessions: list[OwnSession]
) -> int:
    record = log.with_suffix(".json")
    record.unlink(missing_ok=True)
    with log.open("wb") as output:
        launcher = subprocess.Popen(
            run_in_session(record, [sys.executable, "-m", "ray.scripts.scripts", "start", *arguments]),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=log.parent,
            start_new_session=True,
        )
    try:
        return launcher.wait(START_TIMEOUT_S)
    finally:
        session = OwnSession.load(record)
        if session is not None:
            sessions.append(session)
