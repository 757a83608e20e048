"""A cluster for the whole suite, and the clients that others wrote behind one small face."""

from __future__ import annotations

import os
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

DEMANDED = set(filter(None, os.environ.get("RAYLOG_REQUIRE_CLIENTS", "").split(",")))
"""Clients outside Python whose absence is a failure: ``kcat``, ``java``. Others are left out where they are absent."""


def left_out(name: str, missing: bool) -> bool:
    """Whether a client outside Python is to be left out. Fails when it is demanded and not there."""
    if missing and name in DEMANDED:
        pytest.fail(f"RAYLOG_REQUIRE_CLIENTS demands {name}, which is not installed")
    return missing


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
        if not left_out("java", bool(kafka_java.missing_programs())):
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
