"""`raylog` commands in processes of their own, on brokers in this process."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def started(cluster: InProcessCluster, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """``raylog ARGUMENTS`` on the cluster, with pipes; killed at the end unless it has ended."""
    # Tests that run in the background may have inherited that SIGINT is ignored; a command at a terminal has not.
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            [RAYLOG, *arguments, "--bootstrap-server", cluster.bootstrap_servers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(cluster.root),
        )
    finally:
        signal.signal(signal.SIGINT, inherited)
    with process:
        try:
            yield process
        finally:
            process.kill()


def one_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """The command failed with one line on stderr that has the words, and nothing on stdout."""
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert done.stdout == ""
    assert done.stderr.startswith("raylog: ")
    assert done.stderr.count("\n") == 1
    for word in words:
        assert word in done.stderr
