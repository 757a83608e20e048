"""What the tests of pipelines share: one local Spark for all their modules, and two brokers for each module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kit.cluster import InProcessCluster
from kit.quick_java import quick_java
from kit.spark import local_spark
from raylog.spark.sessions.jvm import release

HERE = Path(__file__).parent
OWN_SPARK = {"no_spark", "connector"}
"""Fixtures of modules that end the shared Spark, or want another."""


class LocalSpark:
    """Spark in a JVM of this process, without Ray: started when it is asked for, and again for other settings."""

    def __init__(self, directories: pytest.TempPathFactory) -> None:
        self._directories = directories
        self._started: tuple[Mapping[str, str], SparkSession] | None = None
        self._end = ExitStack()

    def session(self, configs: Mapping[str, str]) -> SparkSession:
        if self._started is None or self._started[0] != configs:
            self.end()
            self._started = configs, self._end.enter_context(local_spark(self._directories.mktemp("spark"), configs))
        return self._started[1]

    def end(self) -> None:
        """A process has one Spark at a time."""
        self._started = None
        self._end.close()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules that share the local Spark stand beside each other, before those that want another."""
    here = [item for item in items if item.path.parent == HERE]
    own = {item.path for item in here if OWN_SPARK & {*getattr(item, "fixturenames", ())}}
    ordered = iter(sorted(here, key=lambda item: item.path in own))
    items[:] = [next(ordered) if item.path.parent == HERE else item for item in items]


@pytest.fixture(scope="session", autouse=True)
def _java_is_quick() -> Iterator[None]:
    with quick_java():
        yield


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory, _java_is_quick: None) -> Iterator[LocalSpark]:
    """For all modules."""
    spark = LocalSpark(tmp_path_factory)
    try:
        yield spark
    finally:
        spark.end()


@pytest.fixture(scope="module")
def no_spark(local: LocalSpark) -> None:
    """For modules that start their own."""
    local.end()


@pytest.fixture(scope="module")
def spark_configs() -> Mapping[str, str]:
    """Settings of the module's Spark."""
    return {}


@pytest.fixture(scope="module")
def spark(local: LocalSpark, spark_configs: Mapping[str, str]) -> Iterator[SparkSession]:
    """Spark in a JVM of this process, without Ray; nothing that the module holds in it outlives the module."""
    started = local.session(spark_configs)
    yield started
    release(started)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessCluster]:
    """Two brokers."""
    with InProcessCluster(tmp_path_factory.mktemp("brokers"), brokers=2) as running:
        yield running


@pytest.fixture(scope="module")
def servers(cluster: InProcessCluster) -> str:
    """Where they are."""
    return cluster.bootstrap_servers
