"""One member's side of a group's registries, in a session of its own, effect by effect: for tests of what others do in
between.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Self

from raylog.coordination.groups.registry import GroupRegistry
from raylog.coordination.metadata import group_paths
from raylog.coordination.metadata.group_events import Look, Looked, Register, View
from raylog.coordination.metadata.group_events import Registered as IsRegistered
from raylog.coordination.metadata.group_model import CommittedOffset, Registered
from raylog.coordination.store.memory import MemoryStore
from raylog.coordination.store.memory_tree import MemoryTree
from raylog.coordination.store.port import StoreEvent
from raylog.protocol.ids import GroupId, MemberId, Offset, PartitionIndex, TimestampMs, TopicName, TopicPartition

__all__ = ["GROUP", "TOPIC", "TP", "RegistrySide"]

GROUP, TOPIC = GroupId("g"), TopicName("t")
TP = TopicPartition(TOPIC, PartitionIndex(0))


class RegistrySide:
    """Of member ``name`` of GROUP, which wants ``wants``; what it commits is of TP."""

    def __init__(self, tree: MemoryTree, name: MemberId, wants: Registered) -> None:
        self.store = MemoryStore(tree)
        self.store.start()
        self.events: queue.SimpleQueue[StoreEvent] = queue.SimpleQueue()
        self.registry = GroupRegistry(self.store, GROUP, name, wants, self.events, lambda: TimestampMs(1_000))
        self.do, self.claims = self.registry.carry_out, self.registry.claims

    def registered(self) -> Self:
        assert self.do(Register()) == IsRegistered()
        return self

    def look(self) -> View:
        looked = self.do(Look())
        assert isinstance(looked, Looked)
        return looked.view

    def commit(self, offset: int) -> None:
        self.claims.commit({TP: CommittedOffset(Offset(offset))})

    def committed(self) -> int:
        found = self.store.get(group_paths.offset(GROUP, TP))
        assert found is not None
        return int(found.data)

    def after_answers(self, number: int, happens: Callable[[], object]) -> None:
        """``happens`` comes between request ``number`` from now, counted from 1, and its answer."""
        left = iter(range(number, 0, -1))

        def count() -> None:
            if next(left, 0) == 1:
                happens()

        self.store.before_answer = count
