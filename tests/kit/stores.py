"""Stores for tests: a way to open clients of one tree, in memory or in ZooKeeper, and some that are interfered with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raylog.coordination.memory_store import MemoryStore
from raylog.coordination.memory_tree import MemoryTree
from raylog.coordination.store import EventSink, MetadataStore, Op, OpResult, Stat, Versioned

OpenStore = Callable[[], MetadataStore]


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

    def get_many(self, paths: Sequence[str]) -> list[Versioned | None]:
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
