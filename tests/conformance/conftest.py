"""A cluster for the whole suite, and the clients that others wrote behind one small face."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kit.cluster import InProcessCluster

with warnings.catch_warnings():
    warnings.simplefilter(
        "ignore", DeprecationWarning
    )  # kafka-python reads its schemas by importlib.resources.read_text
    import kafka  # noqa: F401 (the tests import it without the warning)

from kit import kafka_java
from kit.clients import PYTHON_CLIENTS, Client, Kcat
from kit.demanded import java_left_out, left_out


@pytest.fixture(scope="session")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessCluster]:
    """Three brokers with Kafka's defaults, but that topics are created on purpose only."""
    root = tmp_path_factory.mktemp("conformance")
    with InProcessCluster(root, brokers=3, config={"auto.create.topics.enable": "false"}) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Client]]:
    """All clients that are there, by name."""
    found: list[Client] = list(PYTHON_CLIENTS)
    if not left_out("kcat", Kcat.missing()):
        found.append(Kcat())
    with ExitStack() as running:
        if not java_left_out():
            for release in kafka_java.RELEASES:
                classes = tmp_path_factory.mktemp(release.name)
                found.append(running.enter_context(kafka_java.JavaClient(release, classes)))
        yield {client.name: client for client in found}


@pytest.fixture
def writer(clients: dict[str, Client], writer_name: str) -> Client:
    """The client that a test's parameter ``writer_name`` names; the test is skipped where it is not installed."""
    if writer_name not in clients:
        pytest.skip(f"{writer_name} is not installed")
    return clients[writer_name]
