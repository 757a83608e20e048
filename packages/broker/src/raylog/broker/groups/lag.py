"""How far consumer groups are behind in the partitions that this broker leads: a metric, read now and then."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from raylog.broker.events import EventLog
from raylog.coordination import group_paths
from raylog.coordination.group_nodes import group_ids
from raylog.coordination.node_json import CorruptMetadata
from raylog.coordination.store import MetadataStore
from raylog.protocol.ids import NO_OFFSET, GroupId, Offset, TopicName, TopicPartition

__all__ = ["GroupLags", "Lags", "Led"]

log = EventLog(__name__)

Lags = Mapping[tuple[GroupId, TopicPartition], int]


class Led(Protocol):
    """A partition that this broker leads."""

    @property
    def high_watermark(self) -> Offset: ...


class GroupLags:
    """One thread reads, any thread asks."""

    def __init__(self, store: MetadataStore, led: Callable[[], Mapping[TopicPartition, Led]]) -> None:
        self._store = store
        self._led = led
        self._committed: Mapping[tuple[GroupId, TopicPartition], Offset] = {}

    def read(self) -> None:
        """Look up what every group has committed: two requests for each. Raises StoreUnavailable."""
        led: dict[TopicName, list[TopicPartition]] = {}
        for tp in self._led():
            led.setdefault(tp.topic, []).append(tp)
        committed: dict[tuple[GroupId, TopicPartition], Offset] = {}
        for group in group_ids(self._store) if led else ():
            topics = self._store.children(group_paths.offsets(group))
            committed |= self._committed_by(group, [tp for topic in topics for tp in led.get(TopicName(topic), ())])
        self._committed = committed

    def _committed_by(
        self, group: GroupId, partitions: Collection[TopicPartition]
    ) -> dict[tuple[GroupId, TopicPartition], Offset]:
        nodes = [group_paths.offset(group, tp) for tp in partitions]
        committed = {}
        for tp, node, found in zip(partitions, nodes, self._store.get_many(nodes) if nodes else (), strict=True):
            try:
                offset = NO_OFFSET if found is None else group_paths.decode_offset(node, found.data)
            except CorruptMetadata as error:
                log.warning("a committed offset cannot be read", group=group, partition=tp, reason=error)
                continue
            if offset != NO_OFFSET:
                committed[group, tp] = offset
        return committed

    def lags(self) -> Lags:
        """Records between what was committed when that was read last, and the high watermark now."""
        led = self._led()
        return {
            (group, tp): max(0, led[tp].high_watermark - offset)
            for (group, tp), offset in self._committed.items()
            if tp in led
        }
