"""Spark on the Ray cluster of the brokers, by RayDP, leaving nothing behind.

RayDP starts an app master (a Python actor with a JVM beside it) and one Ray actor per executor, a JVM that
the raylet starts as ``java`` from its own PATH. What RayDP leaves to its users is done here:

- A raylet without ``java`` aborts when it is asked for a Java worker, and takes the brokers on its node
  along. So a task on every alive node looks first, and one node without Java refuses the whole session.
- RayDP's actors have fixed names in the job's Ray namespace: the job gets a namespace of its own.
- Java 17 hides packages that Spark reaches into. Spark opens them in its driver and executors by itself, not
  in the app master.
- RayDP's stop is asynchronous and leaves the driver's JVM, executors' directories and temporary files: the
  session waits for the actors to go, ends the JVM and removes the directories on every node.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import ray
import raydp
from pyspark import SparkContext
from pyspark.sql import SparkSession
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raylog.client.cluster import connect
from raylog.coordination.java import WANTED, find_java
from raylog.coordination.ray_token import ray_token
from raylog.protocol.errors import RaylogError

T = TypeVar("T")

PROBE_TIMEOUT_S = 5.0
NODE_TASK_TIMEOUT_S = 60.0
EXECUTORS_TIMEOUT_S = 120.0
GONE_TIMEOUT_S = 30.0

OPENED_PACKAGES = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)
"""What Spark 3.5 opens for itself on Java 17 (its JavaModuleOptions)."""

LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.ui.name = org.apache.spark.util.Utils
logger.ui.level = error
"""
"""The driver's log4j2: Spark's own, without the two warnings of every start on which nobody can act."""

log = logging.getLogger(__name__)


class SparkNotStarted(RaylogError):
    """Spark can't run on this Ray cluster as it is; the message is one sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What a task saw on one node."""

    python: str
    java: str
    """The first line of ``java -version``; empty when there is no ``java`` on the raylet's PATH."""
    java_version: int
    """Its major version; 0 when there is none."""


def prepare_node(scratch: str) -> NodeReport:
    """Look for Java as the raylet of this node will, and make the session's directory."""
    Path(scratch).mkdir(parents=True, exist_ok=True)
    line, version = "", 0
    java = shutil.which("java")
    if java is not None:
        shown = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
        line = (shown.stderr or shown.stdout).partition("\n")[0]
        version = major_version(line)
    return NodeReport(sys.executable, line, version)


def major_version(line: str) -> int:
    """17 for ``openjdk version "17.0.9"``, 8 for ``java version "1.8.0_402"``, 0 without a version."""
    found = re.search(r'version "(?:1\.)?(\d+)', line)
    return int(found[1]) if found else 0


def clean_node(scratch: str, application: str) -> None:
    """Remove from this node the session's directory, and RayDP's for the application's executors."""
    shutil.rmtree(scratch, ignore_errors=True)
    if application:
        node: Any = ray._private.worker._global_node
        shutil.rmtree(Path(node.get_session_dir_path()) / application, ignore_errors=True)


def clean_up(scratch: str, application: str) -> None:
    """Clean every node that still answers; the others are told of, since an error here would hide the user's."""
    try:
        on_every_node(clean_node, scratch, application)
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
            answers.append((host, ray.get(call, timeout=NODE_TASK_TIMEOUT_S)))
        except ray.exceptions.GetTimeoutError as error:
            raise SparkNotStarted(
                f"node {host} did not run a task within {NODE_TASK_TIMEOUT_S:g} s: see `ray status`"
            ) from error
        except ray.exceptions.RayError as error:
            raise SparkNotStarted(
                f"node {host} can't run raylog's tasks, is raylog installed there? ({str(error).splitlines()[-1]})"
            ) from error
    return answers


def check_nodes(reports: Sequence[tuple[str, NodeReport]]) -> str:
    """The Python that executors use, once every node has a fit Java. Raises SparkNotStarted."""
    for host, report in reports:
        if not report.java:
            raise SparkNotStarted(
                f"node {host} has no `java` on the PATH of its raylet, which would abort with every "
                f"broker on it: put Java {WANTED} on the PATH and start Ray there again"
            )
        if report.java_version != WANTED:
            raise SparkNotStarted(
                f"node {host} has {report.java} on the PATH of its raylet, and this Spark wants "
                f"Java {WANTED}: put it on the PATH and start Ray there again"
            )
    pythons = sorted({report.python for _, report in reports})
    if len(pythons) > 1:
        raise SparkNotStarted(
            f"the nodes run Python from different places ({', '.join(pythons)}), and Spark needs one path on "
            "all: install the same environment everywhere"
        )
    return pythons[0]


def wait_for(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether ``condition`` came true within ``timeout_s`` seconds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)
    return True


def connect_ray(stack: ExitStack, address: str | None) -> str:
    """Connect this process to Ray, when it isn't, in a namespace of its own until ``stack`` unwinds.

    Returns the namespace. Raises SparkNotStarted when this process is connected to elsewhere already, or in a
    namespace where another Spark runs.
    """
    if not ray.is_initialized():
        token_path = ""
        if address is None:
            cluster = connect()
            address, token_path = cluster.ray_address or "auto", cluster.ray_token_path
        namespace = f"spark-{uuid4().hex[:12]}"
        try:
            probe(address)
            with ray_token(token_path):
                ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level=logging.WARNING)
        except OSError as error:
            raise SparkNotStarted(f"no Ray cluster at {address}: {error}") from error
        stack.callback(ray.shutdown)
        return namespace
    context = ray.get_runtime_context()
    if address not in (None, "auto") and not same_ray(address, context.gcs_address):
        raise SparkNotStarted(
            f"this process is connected to Ray at {context.gcs_address}, not {address}: call ray.shutdown() first"
        )
    if actors_in(context.namespace):
        raise SparkNotStarted(
            f"Ray namespace {context.namespace!r} of this process holds named actors, perhaps brokers or "
            "another Spark: connect with ray.init() in a namespace of its own, or not at all"
        )
    return str(context.namespace)


def same_ray(address: str, known: str) -> bool:
    """Whether ``address`` is the one that Ray knows as ``known``: it replaces loopback by the machine's."""
    host, _, port = address.rpartition(":")
    return address == known or (host in ("127.0.0.1", "localhost") and port == known.rpartition(":")[2])


def probe(address: str) -> None:
    """Raises OSError when nobody listens at ``address``, for which ray.init would wait for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=PROBE_TIMEOUT_S).close()


def actors_in(namespace: str) -> list[str]:
    """Names of the actors alive in a Ray namespace."""
    return [
        actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True) if actor["namespace"] == namespace
    ]


def node_address() -> str:
    """This node's address as the Ray cluster knows it; RayDP would take the machine's, perhaps another one."""
    node_id = ray.get_runtime_context().get_node_id()
    return str(next(node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == node_id))


def check_cpus(wanted: float) -> None:
    """Raises SparkNotStarted when the cluster has fewer than ``wanted`` CPUs, or frees them not in time."""
    total = ray.cluster_resources().get("CPU", 0.0)
    if total < wanted:
        raise SparkNotStarted(
            f"Spark needs {wanted:g} CPUs for its executors and the Ray cluster has {total:g}: ask for fewer "
            "executors or cores, or add a node"
        )
    if not wait_for(lambda: ray.available_resources().get("CPU", 0.0) >= wanted, GONE_TIMEOUT_S):
        free = ray.available_resources().get("CPU", 0.0)
        raise SparkNotStarted(
            f"Spark needs {wanted:g} CPUs for its executors, and {free:g} of the Ray cluster's {total:g} are "
            "free: ask for fewer executors or cores, or end what uses them (see `ray status`)"
        )


def spark_configs(scratch: str, overrides: Mapping[str, str]) -> dict[str, str]:
    """Spark's settings for every session, under the user's ``overrides``; Java options add up."""
    java = f"-XX:-UsePerfData -Djava.io.tmpdir={scratch}"
    opened = " ".join(f"--add-opens={package}=ALL-UNNAMED" for package in OPENED_PACKAGES)
    log4j = Path(scratch) / "log4j2.properties"
    log4j.write_text(LOGGING)
    address = node_address()
    configs = {
        "spark.log4j.config.file.name": str(log4j),
        "spark.driver.host": address,
        "spark.driver.bindAddress": address,
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
        "spark.local.dir": scratch,
        "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(),
        **overrides,
    }
    for key, options in (
        ("spark.driver.extraJavaOptions", java),
        ("spark.executor.extraJavaOptions", java),
        ("spark.ray.raydp_app_master.extraJavaOptions", f"{opened} {java}"),
    ):
        configs[key] = f"{options} {overrides.get(key, '')}".strip()
    return configs


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables; in the end put back what was there, also what pyspark sets, and who gets SIGINT."""
    names = [*values, "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE"]
    interrupted = signal.getsignal(signal.SIGINT)
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is not None:
                os.environ[name] = value
            else:
                os.environ.pop(name, None)
        if threading.current_thread() is threading.main_thread():  # elsewhere pyspark leaves it alone
            signal.signal(signal.SIGINT, interrupted)


def start_spark(app_name: str, executors: int, cores: int, memory: str, configs: dict[str, str]) -> SparkSession:
    """RayDP's session, once all executors have registered. Raises SparkNotStarted."""
    spark: SparkSession = raydp.init_spark(
        app_name, executors, cores, memory, fault_tolerant_mode=False, configs=configs
    )
    context = spark.sparkContext._jsc.sc()
    if not wait_for(lambda: context.getExecutorMemoryStatus().size() > executors, EXECUTORS_TIMEOUT_S):
        registered = context.getExecutorMemoryStatus().size() - 1
        raise SparkNotStarted(
            f"{registered} of {executors} Spark executors started within {EXECUTORS_TIMEOUT_S:g} s: see "
            f"`ray status` for {cores} CPUs and {memory} of memory each"
        )
    return spark


def application_of(spark: SparkSession) -> str:
    """RayDP's own id of the application, which names its directories; ``spark.app.id`` is another."""
    backend = spark.sparkContext._jsc.sc().schedulerBackend()
    name = backend.getClass().getName().replace(".", "$")
    return str(getattr(backend, f"{name}$$appId")().get())


def stop_spark(namespace: str) -> None:
    """End RayDP's actors and the driver's JVM, and return when they are gone."""
    try:
        raydp.stop_spark()
        if not wait_for(lambda: not actors_in(namespace), GONE_TIMEOUT_S):
            for name in actors_in(namespace):
                ray.kill(ray.get_actor(name, namespace=namespace))
    finally:
        end_jvm()


def end_jvm() -> None:
    """End the JVM of this process, which pyspark keeps for a next SparkContext that RayDP could not use."""
    gateway = SparkContext._gateway
    if gateway is None:
        return
    SparkContext._gateway = None
    SparkContext._jvm = None
    gateway.shutdown()
    process = gateway.proc
    process.stdin.close()  # the JVM ends itself when its standard input does
    try:
        process.wait(timeout=GONE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def session(
    *,
    app_name: str = "raylog",
    executors: int = 1,
    cores: int = 1,
    memory: str = "1g",
    address: str | None = None,
    configs: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """A SparkSession whose executors are Ray actors; at its end, however that comes, nothing is left.

    ``executors`` of ``cores`` CPUs and ``memory`` (as ``1g``, ``600m``) each. ``address`` is the Ray
    cluster's, as in ``ray.init``; without it, the one this process is connected to, else that of the only
    raylog cluster of this machine. ``configs`` are Spark settings. One session at a time in a process. Raises
    SparkNotStarted in one sentence when a node has no fit Java, CPUs are missing or executors don't start.
    """
    if SparkContext._gateway is not None:
        raise SparkNotStarted("Spark runs in this process already: leave its session first, or use another process")
    with ExitStack() as stack:
        namespace = connect_ray(stack, address)
        scratch = str(Path(tempfile.gettempdir()) / f"raylog-{namespace}")
        applications = [""]
        stack.callback(lambda: clean_up(scratch, applications[-1]))
        python = check_nodes(on_every_node(prepare_node, scratch))
        check_cpus(executors * cores)
        settings = {"JAVA_HOME": str(find_java().path), "SPARK_LOCAL_IP": node_address()}
        stack.enter_context(environment(settings))
        stack.callback(stop_spark, namespace)
        spark = start_spark(app_name, executors, cores, memory, spark_configs(scratch, configs or {}))
        applications.append(application_of(spark))
        spark.sparkContext.pythonExec = python
        yield spark
