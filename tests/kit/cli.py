"""The `raylog` command in a process of its own, as users run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit import process_logs
from kit.machine import SLOWNESS
from raylog.coordination.zookeeper.credentials import read_credentials

__all__ = ["RunningCluster", "raylog"]

TIMEOUT_S = 150.0 * SLOWNESS


def raylog(
    home: Path, *arguments: str, check: bool = True, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``raylog ARGUMENTS`` with its registry of clusters in ``home``; with ``check``, it must succeed."""
    environment = {**os.environ, "RAYLOG_HOME": str(home)}
    environment.pop("RAY_ADDRESS", None)
    done = subprocess.run(
        [str(Path(sys.executable).parent / "raylog"), *arguments],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=environment,
        check=False,
    )
    if check:
        assert done.returncode == 0, f"raylog {' '.join(arguments)}: {done.stderr or done.stdout}"
    return done


@dataclass
class RunningCluster:
    """A cluster that `raylog up` brought up."""

    home: Path
    data_dir: Path

    def __post_init__(self) -> None:
        process_logs.watch(self.data_dir, "ray-start.log", "*/broker.log", "zookeeper/*.log")

    @classmethod
    def up(cls, root: Path, *arguments: str, home: Path | None = None) -> RunningCluster:
        """``raylog up`` in ``root/data``; take it down again with :meth:`down`."""
        cluster = cls(home or root / "home", root / "data")
        cluster.raylog("up", *arguments)
        return cluster

    def raylog(self, command: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command on this cluster."""
        return raylog(self.home, command, "--data-dir", str(self.data_dir), *arguments, check=check)

    def down(self) -> None:
        process_logs.forget(self.data_dir)
        self.raylog("down")

    def status(self) -> dict[str, Any]:
        """`raylog status --output json`."""
        answer = json.loads(self.raylog("status", "--output", "json").stdout)
        assert isinstance(answer, dict)
        return answer

    @property
    def zookeeper_auth(self) -> str:
        """The credentials for its ZooKeeper."""
        return read_credentials(Path(self.file()["zookeeper"]["auth_path"]))

    def file(self) -> dict[str, Any]:
        """The cluster's ``cluster.json``."""
        answer = json.loads((self.data_dir / "cluster.json").read_text())
        assert isinstance(answer, dict)
        return answer
