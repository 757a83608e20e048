"""Stores for tests: a way to open clients of one tree, in memory or in ZooKeeper, and some that are interfered with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from kazoo.security import make_digest_acl

from kit.machine import scaled
from raylog.coordination.store.memory import MemoryStore
from raylog.coordination.store.memory_tree import MemoryTree
from raylog.coordination.store.port import (
    Check,
    Create,
    EventSink,
    MetadataStore,
    Op,
    OpResult,
    Set,
    Stat,
    StoreUnauthorized,
    Versioned,
)
from raylog.coordination.zookeeper.store import ZkStore

OpenStore = Callable[[], MetadataStore]


def close_node(store: MetadataStore, path: str) -> None:
    """Another program's access rights forbid to read the node, which is there, and its children's names."""
    if isinstance(store, ZkStore):
        store._client.set_acls(store._at(path), [make_digest_acl("other", "program", all=True)])
    else:
        assert isinstance(store, MemoryStore)
        store._tree.unreadable.add(path)


class Interrupted(MemoryStore):
    """Something happens right after its read number ``after`` from now, counted from 1."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self.after = 0
        self.happens: Callable[[], object] = lambda: None

    def get(self, path: str, watch: EventSink | None = None) -> Versioned | None:
        found = super().get(path, watch)
        self._read()
        return found

    def get_each(self, paths: Sequence[str]) -> list[Versioned | StoreUnauthorized | None]:
        return [self.get(path) for path in paths]

    def exists(self, path: str, watch: EventSink | None = None) -> Stat | None:
        found = super().exists(path, watch)
        self._read()
        return found

    def _read(self) -> None:
        self.after -= 1
        if self.after == 0:
            self.happens()


class Contended(MemoryStore):
    """Somebody acts right before each of its multis; it counts them."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self.multis = 0
        self.happens: Callable[[int], object] = lambda number: None
        """Gets the multi's number, from 1 on."""

    def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        self.multis += 1
        self.happens(self.multis)
        return super().multi(ops)


class Meddled(MemoryStore):
    """Somebody acts right after one of its requests, before it is answered."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self.met = False
        """The request came."""
        self._left = 0
        self._happens: Callable[[], object] = lambda: None

    def meddle(self, at: int, happens: Callable[[], object]) -> None:
        """After request number ``at`` from now, counted from 1."""
        self._left, self._happens, self.met = at, happens, False
        self.before_answer = self._answered

    def _answered(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.met = True
            self._happens()


class Closed(MemoryStore):
    """Another program's access rights forbid every write to ``path`` and, unless ``alone``, below it. Started."""

    def __init__(self, tree: MemoryTree, path: str, *, alone: bool = False) -> None:
        super().__init__(tree)
        self._path = path
        self._alone = alone
        self.start()

    def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        for index, op in enumerate(ops):
            if op.path == self._path or (op.path.startswith(self._path) and not self._alone):
                raise StoreUnauthorized(f"{op.path} is closed", op.path, index)
        return super().multi(ops)


class Counting(MemoryStore):
    """Counts what it is asked and how much goes to and fro, but for heartbeats: they belong to no change."""

    def __init__(self, tree: MemoryTree, session_timeout_ms: int = 60_000) -> None:
        super().__init__(tree, session_timeout_ms=session_timeout_ms)
        self.trips = 0
        """Requests that somebody waits for."""
        self.asked = 0
        """Requests, as many at once as one each."""
        self.bytes = 0
        """Values and names of nodes, read and written."""

    def _count(self, requests: int, total: int) -> None:
        self.trips += 1
        self.asked += requests
        self.bytes += total

    def get(self, path: str, watch: EventSink | None = None) -> Versioned | None:
        found = super().get(path, watch)
        self._count(1, _bytes_of([found]))
        return found

    def get_each(self, paths: Sequence[str]) -> list[Versioned | StoreUnauthorized | None]:
        found = super().get_each(paths)
        self._count(len(paths), _bytes_of(found))
        return found

    def exists(self, path: str, watch: EventSink | None = None) -> Stat | None:
        self._count(1, 0)
        return super().exists(path, watch)

    def exists_many(self, paths: Sequence[str]) -> list[Stat | None]:
        self._count(len(paths), 0)
        return super().exists_many(paths)

    def children(self, path: str, watch: EventSink | None = None) -> list[str]:
        names = super().children(path, watch)
        self._count(1, sum(map(len, names)))
        return names

    def children_each(self, paths: Sequence[str]) -> list[list[str] | StoreUnauthorized]:
        found = super().children_each(paths)
        self._count(len(paths), sum(len(name) for names in found if isinstance(names, list) for name in names))
        return found

    def ensure(self, path: str) -> None:
        self._count(1, 0)
        super().ensure(path)

    def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        self._count(1, sum(len(op.path) + len(op.data) for op in ops if isinstance(op, Create | Set)))
        return super().multi(ops)


class Hanging(Counting):
    """Each multi that names a node below ``stuck`` waits until ``goes_on``, as where no answer comes; another program's
    access rights forbid to change the node ``closed``."""

    def __init__(self, tree: MemoryTree, session_timeout_ms: int = 60_000) -> None:
        super().__init__(tree, session_timeout_ms)
        self.stuck: str | None = None
        self.closed: str | None = None
        self.goes_on = threading.Event()
        self.waiting = 0
        """How many have come to wait."""

    def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        stuck = self.stuck
        if stuck is not None and any(op.path.startswith(f"{stuck}/") for op in ops):
            self.waiting += 1
            self.goes_on.wait(scaled(60))
        for index, op in enumerate(ops):
            if op.path == self.closed and not isinstance(op, Check):
                raise StoreUnauthorized(f"{op.path} is closed", op.path, index)
        return super().multi(ops)


def _bytes_of(found: Sequence[Versioned | StoreUnauthorized | None]) -> int:
    return sum(len(each.data) for each in found if isinstance(each, Versioned))
