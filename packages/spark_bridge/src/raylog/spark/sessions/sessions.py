"""Spark on the Ray cluster of the brokers, by RayDP, leaving nothing behind.

RayDP starts an app master (a Python actor with a JVM beside it) and one Ray actor per executor, a JVM that
the raylet starts as ``java`` from its own PATH. What RayDP leaves to its users is done here:

- A raylet without ``java`` aborts when it is asked for a Java worker, and takes the brokers on its node
  along. So a task on every alive node looks first, and one node without Java refuses the whole session.
- An executor for which Ray has no room is pending without end, and so would be whoever waits for it. So the
  room is reserved first, by a placement group, all of it or none; the app master asks for no CPU.
- RayDP's actors have fixed names in the job's Ray namespace: the job gets a namespace of its own.
- Java 17 hides packages that Spark reaches into. Spark opens them in its driver and executors by itself, not
  in the app master.
- RayDP's stop is asynchronous and leaves the driver's JVM, executors' directories and temporary files: the
  session waits for the actors to go, ends the JVM and removes the directories on every node.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import ray
import raydp
from pyspark import SparkContext
from pyspark.sql import SparkSession

from raylog.client.arguments import arguments as given
from raylog.coordination.host.java import find_java
from raylog.spark.sessions.interrupts import interrupts_heeded
from raylog.spark.sessions.jvm import end_jvm, environment, keep_texts, release, spark_configs
from raylog.spark.sessions.nodes import (
    clean_nodes,
    dead_scratches,
    note_application,
    on_every_node,
    prepare_node,
    scratch_of,
)
from raylog.spark.sessions.plan import Executors, SparkNotStarted, check_nodes, executors_wanted
from raylog.spark.sessions.ray import actors_in, connect_ray, node_address, reserve

__all__ = ["SparkNotStarted", "session"]

ROOM_TIMEOUT_S = 30.0
"""As long, at most, a session waits for CPUs and memory that others use."""
ORDERLY_TIMEOUT_S = 10.0
GONE_TIMEOUT_S = 30.0


def wait_for(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether ``condition`` came true within ``timeout_s`` seconds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)
    return True


def start_spark(app_name: str, wanted: Executors, configs: dict[str, str]) -> SparkSession:
    """RayDP's session, without waiting for its executors."""
    spark: SparkSession = raydp.init_spark(
        app_name, wanted.count, wanted.cores, wanted.memory, fault_tolerant_mode=False, configs=configs
    )
    return spark


def await_executors(spark: SparkSession, wanted: Executors, timeout_s: float) -> None:
    """Return once all executors have registered. Raises SparkNotStarted."""
    context = spark.sparkContext._jsc.sc()
    if not wait_for(lambda: context.getExecutorMemoryStatus().size() > wanted.count, timeout_s):
        registered = context.getExecutorMemoryStatus().size() - 1
        raise SparkNotStarted(
            f"{registered} of {wanted.count} Spark executors started within {timeout_s:g} s, though Ray had "
            f"{wanted.cores} CPUs and {wanted.memory} of memory for each: see java-worker-*.log among Ray's logs "
            "on their nodes"
        )


def application() -> str:
    """RayDP's own id of the application, which names its directories; ``spark.app.id`` is another."""
    context = SparkContext._active_spark_context
    if context is None:
        return ""  # the start failed before there was one
    backend = context._jsc.sc().schedulerBackend()
    name = backend.getClass().getName().replace(".", "$")
    return str(getattr(backend, f"{name}$$appId")().get())


def stop_spark(namespace: str) -> None:
    """End RayDP's actors and the driver's JVM, and return when they are gone."""
    try:
        raydp.stop_spark()
        if not wait_for(lambda: not actors_in(namespace), ORDERLY_TIMEOUT_S):
            for name in actors_in(namespace):
                ray.kill(ray.get_actor(name, namespace=namespace))
            wait_for(lambda: not actors_in(namespace), GONE_TIMEOUT_S)
    finally:
        end_jvm()


@contextmanager
def session(
    *,
    app_name: str = "raylog",
    executors: int = 1,
    cores: int = 1,
    memory: str = "1g",
    address: str | None = None,
    data_dir: str | Path | None = None,
    configs: Mapping[str, str] | None = None,
    timeout_s: float = 120.0,
) -> Iterator[SparkSession]:
    """A SparkSession whose executors are Ray actors; at its end, however that comes, nothing is left.

    ``executors`` of ``cores`` CPUs and ``memory`` (as ``1g``, ``600m``) each. ``address`` is the Ray
    cluster's, as in ``ray.init``, or ``data_dir`` a raylog cluster's; without them, the one this process is
    connected to, else that of the only raylog cluster of this machine. ``configs`` are Spark settings.
    ``timeout_s``: how many seconds executors may take to start. One session at a time in a process; other
    processes may have theirs on the same Ray cluster. Raises SparkNotStarted in one sentence when a node has
    no fit Java, CPUs or memory are missing or executors don't start; ValueError or InvalidRequest for an unfit
    argument.
    """
    if SparkContext._gateway is not None:
        raise SparkNotStarted("Spark runs in this process already: leave its session first, or use another process")
    given.text("app_name", app_name)
    for name, place in (("address", address), ("data_dir", data_dir)):
        if place is not None and not isinstance(place, Path):
            given.text(name, place)
    timeout_s = given.wait("timeout_s", timeout_s)
    texts = given.setting_texts("configs", {} if configs is None else configs)
    wanted = executors_wanted(executors, cores, memory, texts)
    with ExitStack() as stack:
        namespace = connect_ray(stack, address, data_dir)
        scratch = scratch_of(ray.get_runtime_context().get_job_id())
        stack.callback(clean_nodes, scratch)
        driver = node_address()
        stack.enter_context(environment({"JAVA_HOME": str(find_java().path), "SPARK_LOCAL_IP": driver}))
        with interrupts_heeded():
            python = check_nodes(on_every_node(prepare_node, scratch, dead_scratches()))
            group = reserve(stack, wanted, min(timeout_s, ROOM_TIMEOUT_S))
            stack.callback(stop_spark, namespace)
            stack.push(keep_texts)
            settings = spark_configs(scratch, driver, texts)
            try:
                spark = start_spark(app_name, wanted, {**settings, "spark.ray.placement_group": group})
            finally:
                on_every_node(note_application, scratch, application())
            stack.callback(release, spark)
        await_executors(spark, wanted, timeout_s)
        spark.sparkContext.pythonExec = python
        yield spark
