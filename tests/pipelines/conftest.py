"""What the tests of pipelines share: a local Spark and two brokers for each module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from pyspark.sql import SparkSession

from kit.cluster import InProcessCluster
from kit.spark import local_spark


@pytest.fixture(scope="module")
def spark_configs() -> Mapping[str, str]:
    """Settings of the module's Spark."""
    return {}


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory, spark_configs: Mapping[str, str]) -> Iterator[SparkSession]:
    """Spark in a JVM of this process, without Ray."""
    with local_spark(tmp_path_factory.mktemp("spark"), spark_configs) as started:
        yield started


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessCluster]:
    """Two brokers."""
    with InProcessCluster(tmp_path_factory.mktemp("brokers"), brokers=2) as running:
        yield running


@pytest.fixture(scope="module")
def servers(cluster: InProcessCluster) -> str:
    """Where they are."""
    return cluster.bootstrap_servers
