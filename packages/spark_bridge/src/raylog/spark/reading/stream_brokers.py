"""What a stream asks of the brokers: what its topics hold now, and that they keep its progress as a group's offsets."""

from __future__ import annotations

import time
from collections.abc import Set
from threading import Lock
from types import MappingProxyType

from raylog.client.admin import Admin
from raylog.client.ranges.host_addresses import HostAddresses
from raylog.client.ranges.offset_ranges import OffsetSpec, Selection
from raylog.client.ranges.range_planner import Selected, leader_hosts, log_bounds, offsets_at, select
from raylog.coordination.metadata.group_model import CommittedOffset
from raylog.protocol.errors import RaylogError, UnknownTopicOrPartition
from raylog.protocol.ids import BrokerId, TopicId, TopicName, TopicPartition
from raylog.protocol.logs import Logger
from raylog.spark.reading.options import ReadOptions
from raylog.spark.reading.stream_offsets import Positions, Seen

DOUBT_S = 5.0
"""How long brokers must not know a partition, or tell an end of its log that is before what was read, until that counts
as a loss. One that has just started, or just leads, may tell so for a moment (SPARK-26267)."""

ASK_AGAIN_S = 0.1

COMMIT_TIMEOUT_MS = 2_000
"""How long a batch may wait for its progress to be kept; a coordinator that moves needs less."""

COMMIT_AGAIN_S = 10.0
"""After a commit that failed."""

log = Logger(__name__)


class StreamBrokers:
    """The brokers of one stream; connected when something is asked. Safe to use from the threads of several queries."""

    def __init__(self, bootstrap_servers: str, asked: ReadOptions, *, doubt_s: float = DOUBT_S) -> None:
        self._servers = bootstrap_servers
        self._asked = asked
        self._doubt_s = doubt_s
        self._addresses = HostAddresses()
        self._lock = Lock()
        self._admin: Admin | None = None
        self._gone: Set[TopicPartition] = frozenset()

    def look(self, positions: Positions = MappingProxyType({})) -> Seen:
        """What the selected topics hold now. That they do not have what came before ``positions`` is only told once it
        is certain.

        Raises BrokerNotAvailable, RequestTimedOut.
        """
        with self._lock:
            admin = self._connected()
            deadline: float | None = None  # from the first doubtful answer on: it may have taken long to come
            while True:
                try:
                    found = _selected(admin, self._asked.selection)
                    bounds = log_bounds(admin, found.leaders, isolation_level=self._asked.isolation_level)
                except UnknownTopicOrPartition:  # deleted between the two
                    if deadline is not None and time.monotonic() >= deadline:
                        raise
                else:
                    missing = {tp for tp in positions.keys() - self._gone if tp not in bounds}
                    shorter = {tp for tp, position in positions.items() if tp in bounds and bounds[tp].next < position}
                    is_certain = deadline is not None and time.monotonic() >= deadline
                    if is_certain or not missing | shorter:
                        self._gone = (self._gone | missing) - bounds.keys()
                        return Seen(found.leaders, found.topic_ids, bounds)
                deadline = deadline or time.monotonic() + self._doubt_s
                time.sleep(ASK_AGAIN_S)

    def starting(self, seen: Seen) -> OffsetSpec:
        """Where a stream without a checkpoint begins. Raises ValueError, and OffsetOutOfRange for a time after which
        there is no record."""
        asked = self._asked
        with self._lock:
            return offsets_at(
                self._connected(), asked.starting_option, asked.starting, seen.bounds, or_latest=asked.or_latest
            )

    def hosts(self, seen: Seen) -> dict[TopicPartition, tuple[str, ...]]:
        """Where the leaders are, as :func:`~raylog.client.ranges.range_planner.leader_hosts` tells."""
        with self._lock:
            return leader_hosts(self._connected(), seen.leaders, self._addresses)

    def close(self) -> None:
        """Close the connections; whoever asks next opens others."""
        with self._lock:
            if self._admin is not None:
                self._admin.close()
                self._admin = None

    def _connected(self) -> Admin:
        if self._admin is None:
            self._admin = Admin(self._servers)
        return self._admin


class Progress:
    """The finished batches of one query, shown as the offsets of a consumer group, so that its lag can be seen.

    Only shown: the query goes on by its checkpoint. So a commit that fails is a warning, and the next one makes up for
    it.
    """

    def __init__(self, bootstrap_servers: str, group: str) -> None:
        self.group = group
        self._admin = Admin(bootstrap_servers, default_api_timeout_ms=COMMIT_TIMEOUT_MS)
        self._committed: Positions = {}
        self._not_before = 0.0

    def commit(self, positions: Positions) -> None:
        """Show that everything before ``positions`` is done. Never fails."""
        if positions == self._committed or time.monotonic() < self._not_before:
            return
        try:
            offsets: dict[tuple[str, int], int | CommittedOffset] = dict(positions.items())
            for error in self._admin.alter_group_offsets(self.group, offsets).values():
                if error is not None:
                    raise error
        except RaylogError as error:
            log.warning("group %r does not show the stream's progress for now: %s", self.group, error)
            self._not_before = time.monotonic() + COMMIT_AGAIN_S
        else:
            self._committed = positions

    def close(self) -> None:
        """Close the connections."""
        self._admin.close()


def _selected(admin: Admin, selection: Selection) -> Selected:
    """Those of the selected partitions that there are."""
    if selection.pattern is not None:
        return select(admin, selection)
    leaders: dict[TopicPartition, BrokerId] = {}
    topic_ids: dict[TopicName, TopicId] = {}
    for topic in selection.topics or sorted({tp.topic for tp in selection.partitions}):
        try:
            found = select(admin, Selection(topics=(topic,)))
        except UnknownTopicOrPartition:
            continue
        leaders.update(found.leaders)
        topic_ids.update(found.topic_ids)
    if selection.partitions:
        leaders = {tp: leaders[tp] for tp in selection.partitions if tp in leaders}
    return Selected(leaders, topic_ids)
