"""A cluster for the whole suite, and the clients that others wrote behind one small face."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from kit.cluster import InProcessCluster

with warnings.catch_warnings():
    warnings.simplefilter(
        "ignore", DeprecationWarning
    )  # kafka-python reads its schemas by importlib.resources.read_text
    import kafka  # noqa: F401 (the tests import it without the warning)


@pytest.fixture(scope="session")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessCluster]:
    """Three brokers with Kafka's defaults, but that topics are created on purpose only."""
    root = tmp_path_factory.mktemp("conformance")
    with InProcessCluster(root, brokers=3, config={"auto.create.topics.enable": "false"}) as cluster:
        yield cluster
