"""The `raylog` command in a process of its own, as users run it, or, quicker, in this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import ray

from kit import process_logs
from kit.machine import SLOWNESS
from raylog.client.cli import main
from raylog.coordination.zookeeper.credentials import read_credentials

__all__ = ["RunningCluster", "raylog", "raylog_here"]

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


def raylog_here(home: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """The same in this process, which costs a fifth where Ray is asked: for commands whose process is not the subject,
    and not while the Ray cluster dies, which ends processes that are connected to it. One that is connected already
    has another process ask, and so does one that is to ask without a token, since Ray keeps in a process how it was
    asked first, and ends it where that changes."""
    if ray.is_initialized() or os.environ.get("RAY_AUTH_MODE") == "disabled":
        return raylog(home, *arguments, check=check)
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(out), redirect_stderr(err):
        patched.setenv("RAYLOG_HOME", str(home))
        patched.delenv("RAY_ADDRESS", raising=False)
        with pytest.raises(SystemExit) as ended:
            main(arguments)
    code = ended.value.code
    done = subprocess.CompletedProcess(arguments, code if isinstance(code, int) else 0, out.getvalue(), err.getvalue())
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
        """``raylog up`` in ``root/data``, without Ray's dashboard; take it down again with :meth:`down`."""
        cluster = cls(home or root / "home", root / "data")
        cluster.raylog("up", "--no-dashboard", *arguments)
        return cluster

    def raylog(self, command: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command on this cluster."""
        return raylog(self.home, command, "--data-dir", str(self.data_dir), *arguments, check=check)

    def here(self, command: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command on this cluster in this process: see raylog_here."""
        return raylog_here(self.home, command, "--data-dir", str(self.data_dir), *arguments, check=check)

    def down(self) -> None:
        process_logs.forget(self.data_dir)
        self.raylog("down")

    def status(self) -> dict[str, Any]:
        """`raylog status --output json`, in this process."""
        answer = json.loads(self.here("status", "--output", "json").stdout)
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
