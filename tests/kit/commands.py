"""`raylog` commands on brokers in this process: in processes of their own, or, quicker, in this one."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

from kit.cluster import InProcessCluster
from kit.machine import scaled
from raylog.client.cli import main

RAYLOG = str(Path(sys.executable).with_name("raylog"))
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def environment(home: Path) -> dict[str, str]:
    return {"RAYLOG_HOME": str(home), "PATH": "/usr/bin:/bin", "COLUMNS": "200", "NO_COLOR": "1"}


def run(cluster: InProcessCluster, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """``raylog ARGUMENTS`` on the cluster."""
    return subprocess.run(
        [RAYLOG, *arguments, "--bootstrap-server", cluster.bootstrap_servers],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=scaled(60),
        env=environment(cluster.root),
        check=False,
    )


def call(cluster: InProcessCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``raylog ARGUMENTS`` on the cluster, in this process: for commands that read no stdin and need no signals."""
    out, err = StringIO(), StringIO()
    command = [*arguments, "--bootstrap-server", cluster.bootstrap_servers]
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(command)
        except SystemExit as done:
            code = int(done.code or 0)
    return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())


@contextmanager
def started(cluster: InProcessCluster, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """``raylog ARGUMENTS`` on the cluster, with pipes; killed at the end unless it has ended."""
    # Tests that run in the background, or under nohup, may have inherited that signals are ignored; a command at a
    # terminal has not. What has a handler here is as always there.
    inherited = {number: signal.signal(number, signal.default_int_handler) for number in _ENDING}
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
        for number, handler in inherited.items():
            signal.signal(number, handler)
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
