"""What tests with Spark share: their marks, Spark in this process alone, and a Ray cluster of their own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from kit.machine import scaled
from kit.quick_java import ArchiveWriter, quick_java
from raylog.broker.launch import local_ray
from raylog.broker.launch.cluster_file import RayInfo
from raylog.coordination.host.java import find_java
from raylog.coordination.host.ray_token import ray_token
from raylog.spark.sessions.jvm import LOGGING, end_jvm, environment, keep_texts, release

SPARK_MARKS = [
    pytest.mark.system,
    pytest.mark.timeout(240),
    # pyspark 3.5 leaves its sockets to the garbage collector, and compares versions by distutils.
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning",
        "ignore::pytest.PytestUnraisableExceptionWarning",
        "ignore:distutils Version classes are deprecated:DeprecationWarning",
    ),
]

JVM_END_S = 60.0
"""For a JVM to end: one that archives its classes works for some seconds."""


@contextmanager
def ray_with_java(directory: Path) -> Iterator[RayInfo]:
    """A Ray cluster of one node in ``directory``, with Java on its PATH; this process may connect to it."""
    environment = find_java().environment(os.environ)
    environment.pop("RAY_AUTH_MODE", None)
    head = local_ray.start(directory, environment)
    try:
        with ray_token(head.auth_token_path):
            yield head
    finally:
        local_ray.stop(head)


@contextmanager
def local_spark(directory: Path, configs: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Spark with two threads for tasks in one JVM beside this process, without Ray; all its files in ``directory``.

    Real Spark in a few seconds, for everything but what RayDP does. ``configs`` are Spark's settings. At the end
    the JVM is gone, and this process may start another.
    """
    log4j = directory / "log4j2.properties"
    log4j.write_text(LOGGING)
    archive = ArchiveWriter()
    java_options = (
        f"-XX:-UsePerfData -Djava.io.tmpdir={directory} -Dlog4j2.configurationFile={log4j} {archive.java_options}"
    )
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": java_options,
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **(configs or {}),
    }
    variables = {
        "JAVA_HOME": str(find_java().path),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_DIRS": str(directory),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    builder: SparkSession.Builder = SparkSession.builder
    with quick_java(), environment(variables), ExitStack() as stack:
        stack.callback(_end_jvm, archive)
        stack.push(keep_texts)
        spark = builder.master("local[2]").appName("tests").config(map=settings).getOrCreate()
        stack.callback(spark.stop)
        stack.callback(release, spark)
        yield spark


def _end_jvm(archive: ArchiveWriter) -> None:
    process = SparkContext._gateway.proc if SparkContext._gateway is not None else None
    end_jvm(scaled(JVM_END_S))
    archive.publish(process.returncode if process is not None else None)
