"""`raylog` commands in processes of their own, on brokers in this process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kit.cluster import InProcessCluster

RAYLOG = str(Path(sys.executable).with_name("raylog"))


def environment(home: Path) -> dict[str, str]:
    return {"RAYLOG_HOME": str(home), "PATH": "/usr/bin:/bin", "COLUMNS": "200", "NO_COLOR": "1"}


def run(cluster: InProcessCluster, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """``raylog ARGUMENTS`` on the cluster."""
    return subprocess.run(
        [RAYLOG, *arguments, "--bootstrap-server", cluster.bootstrap_servers],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(cluster.root),
        check=False,
    )


def one_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """The command failed with one line on stderr that has the words, and nothing on stdout."""
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert done.stdout == ""
    assert done.stderr.startswith("raylog: ")
    assert done.stderr.count("\n") == 1
    for word in words:
        assert word in done.stderr
