"""What ZooKeeper refuses, and that the store in memory is as strict: paths, sizes, children of ephemerals; of each
refusal the class, the path and the place in a multi."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import BadArgumentsError

from raylog.coordination.store.port import (
    MAX_WRITE_BYTES,
    BadPath,
    Check,
    Create,
    Delete,
    MetadataStore,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    Set,
    StoreEvent,
    WriteTooLarge,
    is_path,
)
from raylog.coordination.zookeeper.embedded import EmbeddedZooKeeper

Events = SimpleQueue[StoreEvent]

pytestmark = pytest.mark.system


ODD_PATHS = (
    "", "relative", "/a/", "//", "/a//b", "/.", "/..", "/a/./b", "/a/../b", "/a/..", "/nul\0", "/tab\t", "/line\n",
    "/last\x1f", "/del\x7f", "/c1\x9f", "/high\ud800", "/private\ue000", "/end\uffff", "/smile\U0001f600",
)  # fmt: skip
GOOD_PATHS = ("/...", "/.a", "/a..", "/~ %", "/\xa0", "/ä", "/\ud7ff", "/\uf900", "/\uffef", "/a\\b", "/\xa0x")


@pytest.mark.parametrize("path", ODD_PATHS, ids=ascii)
def test_odd_path_is_found_by_no_read_and_refused_to_writes(store: MetadataStore, path: str) -> None:
    events: Events = SimpleQueue()
    session = store.session
    store.create("/a")
    store.create("/a/b")
    assert store.get(path, events) is None
    assert store.exists(path, events) is None
    assert store.children(path, events) == []
    assert store.get_many(["/a", path, "/none"]) == [(b"", 0), None, None]
    for write in (
        lambda: store.create(path),
        lambda: store.create(path, sequence=True),
        lambda: store.create(path, parents=True),
        lambda: store.ensure(path),
        lambda: store.set(path, b""),
        lambda: store.delete(path),
    ):
        with pytest.raises(BadPath) as refused:
            write()
        assert refused.value.path == path
    for op in (Create(path), Set(path, b""), Delete(path), Check(path, 0)):
        with pytest.raises(BadPath) as refused:
            store.multi([Create("/c"), op])
        assert (refused.value.path, refused.value.index) == (path, 1)
    assert (store.children("/a"), store.exists("/c"), store.session) == (["b"], None, session)


@pytest.mark.parametrize("path", GOOD_PATHS, ids=ascii)
def test_path_that_only_looks_odd_is_as_any_other(store: MetadataStore, path: str) -> None:
    assert store.create(path, b"x") == path
    assert store.get(path) == (b"x", 0)
    assert store.children("/") == [path[1:]]
    assert store.create(f"{path}/below/it", parents=True) == f"{path}/below/it"
    assert store.multi([Check(path, 0), Create(f"{path}/c")]) == [None, f"{path}/c"]


def test_path_rule_is_that_of_zookeeper(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> None:
    """Each character, as the server judges it; of the rest, those that reach the server as they are."""
    client = KazooClient(zookeeper.address)
    client.start()
    try:
        client.create(f"/{tmp_path.name}")
        edges = (0x20, 0x2E, 0x2F, 0x7E, 0xA0, 0xD7FF, 0xF900, 0xFFEF)
        codes = {0, *range(1, 0x100), *(code + near for code in edges for near in (-1, 0, 1)), 0xFFFF, 0x1F600}
        for code in sorted(code for code in codes if not 0xD800 <= code <= 0xDFFF and code != ord("/")):
            path = f"/{tmp_path.name}/x{chr(code)}"
            try:
                client.create(path)
                is_made = True
            except BadArgumentsError:
                is_made = False
            assert is_made == is_path(path), ascii(path)
    finally:
        client.stop()
        client.close()


def test_root_is_not_deleted(store: MetadataStore) -> None:
    with pytest.raises(BadPath):
        store.delete("/")
    with pytest.raises(NodeExists):
        store.create("/")
    store.ensure("/")


def test_largest_node_and_multi_are_written(store: MetadataStore) -> None:
    """What the check lets pass, ZooKeeper takes."""
    store.create("/a")
    store.create("/a/large", b"x" * (MAX_WRITE_BYTES - 300))
    store.set("/a/large", b"y" * (MAX_WRITE_BYTES - 300))
    store.multi([Create(f"/a/{index:04}", b"z" * 40) for index in range(4_000)])
    assert len(store.children("/a")) == 4_001
    with pytest.raises(WriteTooLarge):
        store.multi([Create(f"/a/m{index}") for index in range(5_000)])


CHILDREN: dict[str, Callable[[MetadataStore], object]] = {
    "create": lambda store: store.create("/e/c"),
    "parents": lambda store: store.create("/e/c", parents=True),
    "ephemeral": lambda store: store.create("/e/c", ephemeral=True),
    "sequence": lambda store: store.create("/e/c", sequence=True),
    "ensure": lambda store: store.ensure("/e/c"),
    "multi": lambda store: store.multi([Check("/e", 0), Create("/e/c")]),
}


@pytest.mark.parametrize("how", CHILDREN)
def test_ephemeral_has_no_children_however_they_are_made(store: MetadataStore, how: str) -> None:
    store.create("/e", ephemeral=True)
    with pytest.raises(NoChildrenForEphemerals) as refused:
        CHILDREN[how](store)
    assert (refused.value.path, refused.value.index) == ("/e/c", 1 if how == "multi" else 0)
    assert store.children("/e") == []


def test_error_below_missing_or_ephemeral_parents_names_what_was_asked(store: MetadataStore) -> None:
    store.create("/e", ephemeral=True)
    for ask in (lambda: store.create("/e/b/c", parents=True), lambda: store.ensure("/e/b/c")):
        with pytest.raises(NoChildrenForEphemerals) as refused:
            ask()
        assert refused.value.path == "/e/b/c"
    with pytest.raises(NodeExists) as exists:
        store.create("/e", parents=True)
    assert exists.value.path == "/e"
    with pytest.raises(NoNode) as missing:
        store.create("/none/s_", sequence=True)
    assert missing.value.path == "/none/s_"


def test_multi_of_nothing_does_nothing(store: MetadataStore) -> None:
    assert store.multi([]) == []


def test_operations_of_multi_see_those_before_them(store: MetadataStore) -> None:
    store.create("/a")
    made = store.multi([Delete("/a", 0), Create("/a", b"new"), Set("/a", b"set", 0), Create("/a/b"), Delete("/a/b")])
    assert made == [None, "/a", 1, "/a/b", None]
    assert store.get("/a") == (b"set", 1)
    with pytest.raises(NoChildrenForEphemerals) as refused:
        store.multi([Create("/e", ephemeral=True), Create("/e/c")])
    assert (refused.value.index, refused.value.path) == (1, "/e/c")
    assert store.exists("/e") is None
