"""How far consumer groups are behind in the partitions that this broker leads: a metric.

Committed offsets are read from the metadata store by the leader of their partition, which alone knows the high
watermark: so each is read by one broker. They are read in small steps, and only while somebody asks for lags. However
many groups there are, a step costs the same: with more of them the figures are older, and nothing else waits longer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from raylog.coordination.groups.nodes import group_ids
from raylog.coordination.groups.offset_nodes import decode, read_nodes
from raylog.coordination.metadata import group_paths
from raylog.coordination.metadata.model import ClusterState
from raylog.coordination.store.node_json import CorruptMetadata
from raylog.coordination.store.port import MetadataStore
from raylog.coordination.store.unreadable import readable, skipping, tell
from raylog.protocol.ids import NO_TOPIC_ID, GroupId, MonotonicMs, Offset, TopicPartition

__all__ = ["GroupLags", "Lags", "Led"]

Lags = Mapping[tuple[GroupId, TopicPartition], int]

PASS_INTERVAL_MS = 10_000
"""How soon after the last pass over all groups began the next one does."""
ASKED_FOR_MS = 120_000
"""So long after lags were asked for last they are kept up to date."""
LISTED_AT_ONCE = 100
"""Groups whose topics one step lists."""
READ_AT_ONCE = 200
"""Nodes that one step reads, two for each offset: with the lists some 5 % of a core for a step each second, at 0.2 ms a
request.
"""


class Led(Protocol):
    """A partition that this broker leads."""

    @property
    def high_watermark(self) -> Offset: ...


class GroupLags:
    """One thread calls :meth:`step`, any thread asks."""

    def __init__(
        self,
        store: MetadataStore,
        led: Callable[[], Mapping[TopicPartition, Led]],
        state: Callable[[], ClusterState],
        now_ms: Callable[[], MonotonicMs],
    ) -> None:
        self._store = store
        self._led = led
        self._state = state
        self._now_ms = now_ms
        self._asked_ms: MonotonicMs | None = None
        self._pass_ms = now_ms()
        """When the next pass may begin."""
        self._unlisted: deque[GroupId] = deque()
        """Groups whose topics this pass has still to list."""
        self._unread: deque[tuple[GroupId, TopicPartition]] = deque()
        """What this pass has still to read."""
        self._found: dict[tuple[GroupId, TopicPartition], Offset] = {}
        """What this pass has read."""
        self._committed: Mapping[tuple[GroupId, TopicPartition], Offset] = {}
        """What the last whole pass has read."""

    def step(self) -> None:
        """Read a little, if somebody wants to know: at most LISTED_AT_ONCE + READ_AT_ONCE requests, two more where a
        pass begins. Raises StoreUnavailable: the next step tries the same again.
        """
        now_ms = self._now_ms()
        if self._asked_ms is None or now_ms > self._asked_ms + ASKED_FOR_MS:
            self._forget()
            return
        if not self._is_in_pass:
            if now_ms < self._pass_ms:
                return
            self._unlisted.extend(group_ids(self._store) if self._led() else ())
            self._pass_ms = MonotonicMs(now_ms + PASS_INTERVAL_MS)
        if self._unlisted and len(self._unread) < READ_AT_ONCE:
            self._list_topics()
        if self._unread:
            self._read_offsets()
        if not self._is_in_pass:
            self._committed, self._found = self._found, {}

    @property
    def _is_in_pass(self) -> bool:
        return bool(self._unlisted or self._unread)

    def _forget(self) -> None:
        """Nobody asks: when somebody does again, what is known by now is old."""
        self._unlisted.clear()
        self._unread.clear()
        self._found, self._committed = {}, {}

    def _list_topics(self) -> None:
        groups = [self._unlisted[place] for place in range(min(LISTED_AT_ONCE, len(self._unlisted)))]
        listed = self._store.children_each([group_paths.offsets(group) for group in groups])
        led: dict[str, list[TopicPartition]] = {}
        for tp in self._led():
            led.setdefault(group_paths.node_name(tp.topic), []).append(tp)
        for group, topics in zip(groups, listed, strict=True):
            self._unlisted.popleft()
            with skipping():
                self._unread.extend((group, tp) for topic in readable(topics) for tp in led.get(topic, ()))

    def _read_offsets(self) -> None:
        part = [self._unread[place] for place in range(min(READ_AT_ONCE // 2, len(self._unread)))]
        nodes, topics = read_nodes(self._store, part), self._state().topics
        for group, tp in part:
            self._unread.popleft()
            try:
                found = decode(group, tp, nodes)
            except CorruptMetadata as error:
                tell(error)
                continue
            topic = topics.get(tp.topic)
            if found is not None and topic is not None and found.topic_id in (topic.id, NO_TOPIC_ID):
                self._found[group, tp] = found.committed.offset

    def lags(self) -> Lags:
        """Records between what was committed when that was read last, and the high watermark now; empty until a pass is
        done after the first question.
        """
        self._asked_ms = self._now_ms()
        led = self._led()
        return {
            (group, tp): max(0, led[tp].high_watermark - offset)
            for (group, tp), offset in self._committed.items()
            if tp in led
        }
