"""The thread that looks after committed offsets: how far behind they are, and which nobody needs any more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial

from raylog.broker.config import OFFSETS_RETENTION_CHECK_INTERVAL_MS, OFFSETS_RETENTION_MINUTES
from raylog.broker.events import EventLog
from raylog.broker.groups.offsets.lag import GroupLags, Led
from raylog.broker.groups.offsets.retention import OffsetRetention, RetainedGroups
from raylog.coordination.host.loops import Loops
from raylog.coordination.metadata.model import ClusterState
from raylog.coordination.store.port import MetadataStore
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import MonotonicMs, TimestampMs, TopicPartition
from raylog.protocol.settings import Settings

__all__ = ["GroupUpkeep"]

log = EventLog(__name__)

PASS_INTERVAL_S = 1.0
"""How soon it notices that a topic was deleted."""


class GroupUpkeep:
    """See the module's docstring."""

    def __init__(
        self,
        store: MetadataStore,
        groups: RetainedGroups,
        led: Callable[[], Mapping[TopicPartition, Led]],
        *,
        state: Callable[[], ClusterState],
        settings: Callable[[], Settings],
        now_ms: Callable[[], MonotonicMs],
        age_ms: Callable[[], TimestampMs],
        loops: Loops,
    ) -> None:
        """``age_ms``: the wall clock for the age of commits, which does not jump ahead."""
        self._loops = loops
        self.lags = GroupLags(store, led, state, now_ms)
        self._settings = settings
        self._stopping = threading.Event()
        self._now_ms = now_ms
        self._age_ms = age_ms
        self._check_ms = now_ms()
        """When retention is looked after next."""
        self._retention = OffsetRetention(
            groups,
            retention_ms=lambda: settings()[OFFSETS_RETENTION_MINUTES] * 60_000,
            state=state,
            is_stopping=lambda: self._stopping.is_set(),
        )

    def turn(self, stopping: threading.Event) -> bool:
        """One pass, after a while; False when ``stopping`` is set meanwhile. What fails is tried again with the next
        pass that is due, and holds up nothing else. A pass under way ends soon after ``stopping`` is set.
        """
        self._stopping = stopping
        if stopping.wait(PASS_INTERVAL_S):
            return False
        self._guarded(self._retention.forget_deleted_topics)
        self._guarded(self.lags.step)
        now_ms = self._now_ms()
        if now_ms >= self._check_ms:
            self._check_ms = MonotonicMs(now_ms + self._settings()[OFFSETS_RETENTION_CHECK_INTERVAL_MS])
            self._guarded(partial(self._retention.check, self._age_ms()))
        else:
            self._guarded(partial(self._retention.check_again, self._age_ms()))
        return True

    def _guarded(self, step: Callable[[], None]) -> None:
        def tell_what_is_foreseen() -> None:
            try:
                step()
            except RaylogError as error:
                log.warning("looking after committed offsets failed", reason=error)

        self._loops.guarded("group-upkeep", tell_what_is_foreseen)
