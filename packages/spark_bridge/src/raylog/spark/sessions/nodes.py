"""What a session does on every node of the Ray cluster, by tasks: look for Java, keep and remove directories."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raylog.protocol.logs import Logger
from raylog.spark.sessions.plan import NodeReport, SparkNotStarted, major_version, version_line

T = TypeVar("T")

TASK_TIMEOUT_S = 60.0
NOTE = "application"

log = Logger(__name__)


def ray_session() -> Path:
    """Ray's own directory on this node."""
    node: Any = ray._private.worker._global_node
    return Path(node.get_session_dir_path())


def scratch_of(job: str) -> str:
    """The directory, on every node, for the temporary files of the session of a Ray job.

    Named by cluster and job, so that what a killed driver leaves is known to be its own.
    """
    session = ray_session().name
    return str(Path(tempfile.gettempdir()) / f"raylog-spark-{session.removeprefix('session_')}-{job}")


def dead_scratches() -> list[str]:
    """The directories that the sessions of jobs whose driver is gone may have left."""
    return [scratch_of(job["JobID"]) for job in ray._private.state.jobs() if job["IsDead"]]


def prepare_node(scratch: str, dead: Sequence[str]) -> NodeReport:
    """Look for Java as the raylet of this node will, remove dead sessions' directories, make this session's."""
    for left in dead:
        clean_node(left)
    Path(scratch).mkdir(parents=True, exist_ok=True)
    line, version = "", 0
    java = shutil.which("java")
    if java is not None:
        shown = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
        line = version_line(shown.stderr or shown.stdout)
        version = major_version(line)
    return NodeReport(sys.executable, line, version)


def note_application(scratch: str, application: str) -> None:
    """Keep the id of RayDP's application, to know its directory for the executors on this node."""
    if application:
        (Path(scratch) / NOTE).write_text(application)


def clean_node(scratch: str) -> None:
    """Remove from this node a session's directory, and RayDP's for the executors of its application."""
    note = Path(scratch) / NOTE
    if note.exists():
        shutil.rmtree(ray_session() / note.read_text(), ignore_errors=True)
    shutil.rmtree(scratch, ignore_errors=True)


def clean_nodes(scratch: str) -> None:
    """Clean every node that still answers; the others are told of, since an error here would hide the user's."""
    try:
        on_every_node(clean_node, scratch)
    except SparkNotStarted as error:
        log.warning("temporary files of Spark may be left in %s: %s", scratch, error)


def on_every_node(function: Callable[..., T], *arguments: Any) -> list[tuple[str, T]]:
    """Each alive node's address and what ``function`` answers there. Raises SparkNotStarted."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    task = ray.remote(num_cpus=0, max_retries=0)(function)
    calls = [
        task.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        ).remote(*arguments)
        for node in nodes
    ]
    answers = []
    for node, call in zip(nodes, calls, strict=True):
        host = node["NodeManagerAddress"]
        try:
            answers.append((host, ray.get(call, timeout=TASK_TIMEOUT_S)))
        except ray.exceptions.GetTimeoutError as error:
            raise SparkNotStarted(
                f"node {host} did not run a task within {TASK_TIMEOUT_S:g} s: see `ray status`"
            ) from error
        except ray.exceptions.RayError as error:
            raise SparkNotStarted(
                f"node {host} can't run raylog's tasks, is raylog installed there? ({str(error).splitlines()[-1]})"
            ) from error
    return answers
