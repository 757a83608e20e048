"""Contract tests run over every implementation of a port."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.forms import some
from kit.group_members import make_topic
from kit.stores import OpenStore
from kit.zookeeper import running_zookeeper
from raylog.coordination.membership.registration import ensure_cluster
from raylog.coordination.store.memory import MemoryStore
from raylog.coordination.store.memory_tree import MemoryTree
from raylog.coordination.store.port import MetadataStore
from raylog.coordination.zookeeper.embedded import EmbeddedZooKeeper
from raylog.coordination.zookeeper.store import ZkStore


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """For a change, each test has ZooKeeper's root or a place below it, by the run's seed and its name."""
    if "open_store" in metafunc.fixturenames:
        roots = some(["zookeeper", "zookeeper-chroot"], 2, of=metafunc.function.__name__)
        metafunc.parametrize("open_store", ["memory", *roots], indirect=True)


@pytest.fixture
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenStore]:
    """Opens further clients of one tree, empty at the start of the test."""
    opened: list[MetadataStore] = []
    tree = MemoryTree()
    chroot = f"/{tmp_path.name}/deep" if request.param == "zookeeper-chroot" else f"/{tmp_path.name}"

    def open_one() -> MetadataStore:
        store: MetadataStore
        if request.param == "memory":
            store = MemoryStore(tree)
        else:
            server = request.getfixturevalue("zookeeper")
            store = ZkStore(f"{server.address}{chroot}", session_timeout_ms=10_000)
        store.start()
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: OpenStore) -> MetadataStore:
    return open_store()


@pytest.fixture
def cluster(open_store: OpenStore) -> MetadataStore:
    """What looks on, and makes topics; one of six partitions is there."""
    store = open_store()
    ensure_cluster(store)
    make_topic(store, 6)
    return store
