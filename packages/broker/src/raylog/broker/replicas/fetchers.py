"""Copies from leaders what this broker follows: one thread and one connection per leader, many partitions a request.

What to fetch and what an answer means for a log is the partition's to decide (``replication.follower``); here and in
``replicas.fetcher`` are the threads, connections, sessions (KIP-227), pauses and the throttle (KIP-73).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from raylog.broker.config import FOLLOWER_REPLICATION_THROTTLED_RATE
from raylog.broker.partition.partition import Partition
from raylog.broker.replicas.fetcher import Fetcher, Leader
from raylog.broker.replication.quota import ReplicationQuota
from raylog.coordination.host.clocks import monotonic_ms
from raylog.coordination.host.loops import Loops
from raylog.coordination.metadata.model import BrokerInfo
from raylog.protocol.ids import BrokerEpoch, LeaderEpoch, MonotonicMs, Offset, TimestampMs, TopicPartition
from raylog.protocol.settings import Settings

__all__ = ["ReplicaFetchers"]


class ReplicaFetchers:
    """All fetchers of one broker (PartitionTable's Fetchers port). Any thread may call anything."""

    def __init__(
        self,
        settings: Settings,
        now_ms: Callable[[], TimestampMs],
        loops: Loops,
        uptime_ms: Callable[[], MonotonicMs] = monotonic_ms,
    ) -> None:
        """``settings``: those that the broker was started with; ``now_ms``: the wall clock, ``uptime_ms`` the monotonic
        one, by which a partition that failed waits.
        """
        self.epoch: Callable[[], BrokerEpoch] = lambda: BrokerEpoch(-1)
        """This broker's incarnation, as leaders are told it."""
        self.settings: Callable[[], Settings] = lambda: settings
        """The settings in force, for what may change while the broker runs."""
        self.static = settings
        self.loops = loops
        self.now_ms = now_ms
        self.uptime_ms = uptime_ms
        self._lock = threading.Lock()
        """Before a fetcher's lock, never inside one."""
        self._fetchers: dict[Leader, Fetcher] = {}
        self._places: dict[TopicPartition, Fetcher] = {}
        self._quota = ReplicationQuota(threading.Lock())
        self._bytes_in: dict[str, int] = {}
        self._counting = threading.Lock()

    def follow(self, partition: Partition, leader: BrokerInfo, leader_epoch: LeaderEpoch) -> None:
        """Keep ``partition`` like its leader from now on; it follows nobody at the moment."""
        endpoint = leader.endpoint()
        if endpoint is None:
            return
        at = Leader(leader.id, leader.epoch, endpoint.host, endpoint.port)
        with self._lock:
            fetcher = self._fetchers.get(at)
            if fetcher is None:
                fetcher = self._fetchers[at] = Fetcher(self, at)
            self._places[partition.tp] = fetcher
            fetcher.add(partition, leader_epoch)

    def unfollow(self, tp: TopicPartition) -> None:
        """Leave it as it is; once this returns, nothing of it is written any more. No error when it follows nobody."""
        with self._lock:
            fetcher = self._places.pop(tp, None)
            if fetcher is not None and not fetcher.remove(tp):
                del self._fetchers[fetcher.leader]
                fetcher.stop()

    def start_moved(self, tp: TopicPartition) -> None:
        """The log of ``tp`` begins elsewhere: its leader hears so with the next request. It only takes note."""
        fetcher = self._places.get(tp)
        if fetcher is not None:
            fetcher.moved_starts.append(tp)

    def stop(self) -> None:
        """Follow nobody any more, and wait for the threads."""
        with self._lock:
            fetchers = list(self._fetchers.values())
            self._fetchers.clear()
            self._places.clear()
        for fetcher in fetchers:
            fetcher.stop()
        for fetcher in fetchers:
            fetcher.join()

    # --- what metrics tell

    def leader_ends(self) -> Mapping[TopicPartition, Offset]:
        """How far the leaders of followed partitions had committed when they were asked last."""
        with self._lock:
            fetchers = list(self._fetchers.values())
        return {tp: end for fetcher in fetchers for tp, end in fetcher.leader_ends().items()}

    def bytes_in(self) -> Mapping[str, int]:
        """Bytes of batches fetched since the start, by topic."""
        with self._counting:
            return self._bytes_in.copy()

    # --- for the fetchers (FetcherPorts)

    def fetched(self, sizes: Mapping[str, int]) -> None:
        """Count what an answer brought."""
        with self._counting:
            for topic, size in sizes.items():
                self._bytes_in[topic] = self._bytes_in.get(topic, 0) + size

    def may_fetch_throttled(self, came: int = 0) -> bool:
        """Whether the rate lets this broker ask for more of throttled replicas, after ``came`` more bytes of them."""
        self._quota.take(came)
        return self._quota.allows(self.settings()[FOLLOWER_REPLICATION_THROTTLED_RATE], self.uptime_ms())
